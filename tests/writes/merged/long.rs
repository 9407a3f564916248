//! Merges of many documents: in parts, between which constraints may change and the client may go.

use std::time::Duration;

use bson::{Document, doc};
use testbed::{Cluster, ReplicaSet};
use testkit::Keyward;
use testkit::relay::{Held, Relay, insert_into};
use testkit::wire::{Connection, is_ok};

use super::{email, fill, merge, sharded, unsharded};

fn users(ids: std::ops::Range<i32>) -> Vec<Document> {
    ids.map(|id| doc! { "_id": id, "email": id, "phone": id % 2_000 })
        .collect()
}

fn count(connection: &mut Connection, database: &str, collection: &str) -> i32 {
    let counted = connection.must(database, &doc! { "count": collection });
    counted.get_i32("n").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_of_many_batches_inserts_and_changes_all() {
    let database = "merge_many";
    let keyward = sharded(database);
    let mut client = Connection::open(&keyward.address);
    fill(&mut client, database, "source", &users(0..2_500));
    let inserting = merge(doc! { "into": "users", "whenMatched": "fail" });
    client.must(database, &inserting);
    assert_eq!(count(&mut client, database, "users"), 2_500);
    assert_eq!(count(&mut client, database, "keyward.users.email_1"), 2_500);
    let refused = client.run(database, &inserting);
    assert_eq!(refused.get_i32("code").ok(), Some(11000), "{refused}");
    let moving = doc! { "aggregate": "source", "cursor": {}, "pipeline": [
        { "$match": { "_id": { "$lt": 1_200 } } },
        { "$set": { "email": { "$add": ["$email", 10_000] } } },
        { "$merge": { "into": "users", "whenNotMatched": "fail" } },
    ] };
    client.must(database, &moving);
    let moved = doc! { "count": "keyward.users.email_1", "query": { "_id.k.email": { "$gte": 10_000 } } };
    assert_eq!(client.must(database, &moved).get_i32("n").ok(), Some(1_200));
    assert_eq!(count(&mut client, database, "keyward.users.email_1"), 2_500);
}

/// What a native merge has written stays, too. Keyward closes the cursor.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_ends_the_merge_after_its_batch() {
    let database = "merge_stopped";
    let (set, keyward) = unsharded(database);
    let mut client = Connection::open(&keyward.address);
    fill(&mut client, database, "source", &users(0..2_500));
    fill(&mut client, database, "users", &[doc! { "_id": -1, "email": 1_500 }]);
    let refused = client.run(database, &merge(doc! { "into": "users" }));
    assert_eq!(refused.get_i32("code").ok(), Some(11000), "{refused}");
    assert_eq!(refused.get_document("keyValue").ok(), Some(&doc! { "email": 1_500 }));
    // The batch with the duplicate, without it, and the document before.
    assert_eq!(count(&mut client, database, "users"), 2_000);
    assert_eq!(count(&mut client, database, "keyward.users.email_1"), 2_000);
    let status = set.run("admin", doc! { "serverStatus": 1 }).unwrap();
    let open = status.get_document("metrics").unwrap().get_document("cursor").unwrap();
    let open = open.get_document("open").unwrap().get_i64("total").unwrap();
    let own = set.run(
        "admin",
        doc! { "aggregate": 1, "cursor": {}, "pipeline": [
            { "$currentOp": { "idleCursors": true, "allUsers": true } },
            { "$match": { "type": "idleCursor", "ns": format!("{database}.source") } },
        ] },
    );
    let own = own.unwrap();
    let idle = own.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    assert!(idle.is_empty(), "{open} open, {idle:?}");
}

/// A Keyward whose connections to a cluster pass a relay; `phones` holds for `phone`, too.
fn behind(relay: &Relay, database: &str, with_phones: bool) -> String {
    let phones = format!("  - {{ collection: {database}.users, key: {{ phone: 1 }} }}\n");
    let constraints = email(database) + if with_phones { &phones } else { "" };
    format!(
        "upstream: {}\nlease: 10s\nreload_interval: 0s\nconstraints:\n{constraints}",
        relay.uri()
    )
}

/// Begins a merge that inserts, and holds back its second read of results.
fn begin_and_hold(client: &mut Connection, database: &str, relay: &Relay) -> Held {
    client.run(database, &doc! { "create": "users" });
    let held = relay.hold(b"\x12getMore\0");
    let inserting = merge(doc! { "into": "users", "whenMatched": "fail" });
    client.send(database, &inserting).unwrap();
    if !held.arrives_within(Duration::from_secs(30)) {
        panic!("the merge has ended: {}", client.receive().unwrap());
    }
    held
}

/// Keyward holds no catalog epoch while it reads, and writes each part by the constraints that hold then.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_constraints_does_not_wait_for_a_merge() {
    let database = "merge_reloaded";
    let relay = Relay::start(Cluster::shared().router_address());
    let keyward = Keyward::of(&behind(&relay, database, false));
    let mut client = Connection::open(&keyward.address);
    fill(&mut client, database, "source", &users(0..2_500));
    let held = begin_and_hold(&mut client, database, &relay);
    let mut other = Connection::open(&keyward.address);
    assert_eq!(count(&mut other, database, "users"), 1_000);
    let outcome = keyward.reload(&behind(&relay, database, true));
    assert_eq!(outcome["outcome"], "applied", "{outcome}");
    keyward.until("the constraint is enforced", || {
        keyward.metrics().contains(&format!(
            "keyward_constraint_ready{{constraint=\"{database}.users.phone_1\"}} 1"
        ))
    });
    drop(held);
    // The last 500 documents have the phones of the first ones.
    let refused = client.receive().unwrap();
    assert_eq!(refused.get_i32("code").ok(), Some(11000), "{refused}");
    assert_eq!(refused.get_document("keyPattern").ok(), Some(&doc! { "phone": 1 }));
    for reserved in ["keyward.users.email_1", "keyward.users.phone_1", "users"] {
        assert_eq!(count(&mut other, database, reserved), 2_000, "{reserved}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_ends_when_its_client_is_gone() {
    let database = "merge_left";
    let relay = Relay::start(Cluster::shared().router_address());
    let keyward = Keyward::of(&behind(&relay, database, false));
    let mut client = Connection::open(&keyward.address);
    fill(&mut client, database, "source", &users(0..2_500));
    let closed = keyward.metric("keyward_client_connections_closed_total");
    let held = begin_and_hold(&mut client, database, &relay);
    drop(client);
    keyward.until("its connection is closed", || {
        keyward.metric("keyward_client_connections_closed_total") > closed
    });
    drop(held);
    let mut other = Connection::open(&keyward.address);
    assert_eq!(count(&mut other, database, "users"), 1_000);
    assert_eq!(count(&mut other, database, "keyward.users.email_1"), 1_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_limit_ends_a_merge() {
    let database = "merge_limited";
    let keyward = Keyward::start(&ReplicaSet::shared().uri(), &email(database));
    let mut client = Connection::open(&keyward.address);
    fill(&mut client, database, "source", &users(0..2_500));
    let mut limited = merge(doc! { "into": "users" });
    limited.insert("maxTimeMS", 100);
    let reply = client.run(database, &limited);
    assert!(!is_ok(&reply), "{reply}");
    assert_eq!(reply.get_i32("code").ok(), Some(50), "{reply}");
    let written = count(&mut client, database, "users");
    assert!(written < 2_500, "{written}");
    assert_eq!(count(&mut client, database, "keyward.users.email_1"), written);
}

/// A causal session goes on from the times of the parts that were written.
#[tokio::test(flavor = "multi_thread")]
async fn a_time_limit_between_two_parts_reports_the_times_of_the_first() {
    let database = "merge_limited_midway";
    let relay = Relay::start(Cluster::shared().router_address());
    let keyward = Keyward::start_with_lease(&relay.uri(), "60s", &email(database));
    let mut client = Connection::open(&keyward.address);
    // Two parts.
    fill(&mut client, database, "source", &users(0..150));
    // A busy machine may need more time for the first part.
    for limit in [2, 4, 8, 16, 32].map(Duration::from_secs) {
        fill(&mut client, database, "users", &[]);
        let mut limited = merge(doc! { "into": "users", "whenMatched": "fail" });
        limited.insert("maxTimeMS", i32::try_from(limit.as_millis()).unwrap());
        let held = relay.hold(&insert_into("users"));
        client.send(database, &limited).unwrap();
        if !held.arrives_within(limit) {
            drop(held);
            client.receive().unwrap();
            continue;
        }
        // The limit began before this.
        std::thread::sleep(limit);
        drop(held);
        let reply = client.receive().unwrap();
        assert_eq!(reply.get_i32("code").ok(), Some(50), "{reply}");
        if count(&mut client, database, "users") == 100 {
            assert!(reply.contains_key("operationTime"), "{reply}");
            assert!(reply.contains_key("$clusterTime"), "{reply}");
            return;
        }
    }
    panic!("no first part was written in time");
}
