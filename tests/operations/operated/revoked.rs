//! A Keyward notices that another one has begun to write without a constraint, whatever it does meanwhile.

use bson::{Binary, doc, spec::BinarySubtype};
use nix::sys::signal::Signal;
use testbed::ReplicaSet;

use super::rolled::{is_enforced, readyz, user};
use testkit::keyward::Keyward;

fn settings(set: &ReplicaSet, constraints: &str) -> String {
    format!(
        "upstream: {}\nlease: 2s\nreload_interval: 0s\nconstraints: [{constraints}]\n",
        set.uri()
    )
}

fn of_users(database: &str) -> String {
    format!("{{ collection: {database}.users, key: {{ z: 1 }} }}")
}

/// The reload waits for a client's transaction, for a minute and a half.
#[test]
fn it_is_noticed_while_a_reload_is_under_way() {
    let database = "revoked_amid_reload";
    let set = ReplicaSet::start(1).unwrap();
    let keyward = Keyward::of(&settings(&set, &of_users(database)));
    keyward.insert(database, user(1, "x")).unwrap();
    keyward.until("enforced", || is_enforced(&keyward, database));
    let other = Keyward::of(&settings(&set, ""));
    let bytes = rand::random::<[u8; 16]>().to_vec();
    let lsid = doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } };
    let open = doc! {
        "find": "other", "lsid": lsid, "txnNumber": 1_i64, "autocommit": false, "startTransaction": true,
    };
    keyward.run(database, open).unwrap();
    let more = format!(
        "{}, {{ collection: {database}.orders, key: {{ n: 1 }} }}",
        of_users(database)
    );
    keyward.rewrite(&settings(&set, &more));
    keyward.send(Signal::SIGHUP);
    let is_under_way = || keyward.get("/reload").contains("under way");
    keyward.until("the wait", || {
        keyward
            .log()
            .contains("waiting until no transaction from before can be open")
    });
    assert!(is_under_way() && is_enforced(&keyward, database));
    other.insert(database, user(2, "x")).unwrap();
    keyward.until("that it isn't enforced", || !is_enforced(&keyward, database));
    let note = format!("{database}.users.z_1: reserving: a Keyward may have written without it");
    keyward.until("its note", || readyz(&keyward).contains(&note));
    assert!(is_under_way(), "{}", keyward.get("/reload"));
}
