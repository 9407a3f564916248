//! A start tries the cheapest of these assumptions, too.

use bson::doc;
use testbed::Cluster;
use testkit::Keyward;
use testkit::altering::Altering;

const CONSTRAINT: &str = "  - { collection: doctored_start.users, key: { email: 1 } }\n";

/// Versions can lie: a router, or something before it, may drop what newer ones add to replies.
#[test]
fn a_start_is_refused_where_retries_are_not_named() {
    let cluster = Cluster::alone().unwrap();
    let entries = || {
        let reply = cluster
            .run("keyward", doc! { "find": "keywards", "filter": {} })
            .unwrap();
        reply
            .get_document("cursor")
            .unwrap()
            .get_array("firstBatch")
            .unwrap()
            .len()
    };
    let before = entries();
    let relay = Altering::replies(cluster.router_address(), |_, reply| {
        reply.remove("retriedStmtIds");
    });
    let refused = Keyward::try_start(&relay.uri(), "10s", CONSTRAINT).unwrap_err();
    assert_eq!(refused.exit, Some(69), "{}", refused.errors);
    let why = "the deployment refuses Keyward: the reply to a repeated write has no retriedStmtIds";
    assert!(refused.errors.contains(why), "{}", refused.errors);
    // Nothing is left of it in the register, and nothing was prepared.
    assert_eq!(entries(), before);
    let list = doc! { "listCollections": 1, "nameOnly": true };
    let reply = cluster.run("doctored_start", list).unwrap();
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    assert!(batch.is_empty(), "{batch:?}");
}
