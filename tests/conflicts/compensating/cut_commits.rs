//! The connection to the router breaks at the commit of a transaction of Keyward's: what is open is ended at once, and nobody
//! waits for its document or its keys.

use std::time::{Duration, Instant};

use bson::{Document, doc};

use crate::both::retries::{behind, retryable};
use crate::compensating::{assert_agreement, insert, users};
use crate::strategy::Strategy;
use testkit::relay::Relay;
use testkit::relay::wait_until;
use testkit::wire::send;

/// Far below a transaction's life of 60 s.
const SOON: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread")]
async fn an_update_whose_commit_never_came_holds_nobody_up() {
    let database = "update_cut";
    let cluster = users(database);
    let forwarder = Relay::start(cluster.router_address());
    let keyward = behind(Strategy::Compensating, &forwarder, database);
    let user = doc! { "_id": 1, "region": "a", "email": "first@x", "times": 0 };
    send(&keyward.address, database, insert(vec![user], true)).unwrap();
    // What it gives the document only the server can say.
    let change = |email: &str| {
        let set = doc! { "email": { "$concat": [email, "@x"] }, "times": { "$add": ["$times", 1] } };
        let change = doc! { "q": { "_id": 1, "region": "a" }, "u": [{ "$set": set }] };
        doc! { "update": "users", "updates": [change] }
    };
    let soon = |command: &Document| {
        let begun = Instant::now();
        let reply = send(&keyward.address, database, command.clone()).unwrap();
        assert!(begun.elapsed() < SOON, "{command} {:?} {reply}", begun.elapsed());
        assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{command} {reply}");
    };
    for cut in [change("cut"), retryable(change("cut"), 1)] {
        for _ in 0..2 {
            let is_cut = forwarder.tear_request_with(b"\x10commitTransaction\0".to_vec());
            assert!(send(&keyward.address, database, cut.clone()).is_err());
            wait_until(&is_cut);
        }
        soon(&change("next"));
        // Its key is nobody's.
        let other = doc! { "_id": cut.len() as i32 + 10, "region": "z", "email": "cut@x" };
        let begun = Instant::now();
        let reply = send(&keyward.address, database, insert(vec![other.clone()], true)).unwrap();
        assert!(begun.elapsed() < SOON, "{:?} {reply}", begun.elapsed());
        assert_eq!(reply.get_array("writeErrors").ok(), None, "{reply}");
        let delete = doc! { "delete": "users", "deletes": [{ "q": other, "limit": 1 }] };
        send(&keyward.address, database, delete).unwrap();
        if cut.contains_key("txnNumber") {
            soon(&cut);
        }
    }
    let found = send(
        &keyward.address,
        database,
        doc! { "find": "users", "filter": { "_id": 1 } },
    )
    .unwrap();
    let found = &found.get_document("cursor").unwrap().get_array("firstBatch").unwrap()[0];
    assert_eq!(found.as_document().unwrap().get_i32("times").unwrap(), 3, "{found}");
    assert_agreement(cluster, database, "email").await;
}
