//! When routing begins and ends: with the setting, and with a constraint that is enforced.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bson::{Binary, Document, Timestamp, doc, spec::BinarySubtype};
use serde_json::json;
use testbed::Cluster;
use testkit::altering::Altering;
use testkit::wire::Connection;
use testkit::{Keyward, shard_on_two};

use super::{find, first_batch, insert, outcomes, start};

fn user(id: i32, region: &str, email: &str) -> Document {
    doc! { "_id": id, "region": region, "email": email }
}

fn by_email() -> Document {
    find(doc! { "email": "k" })
}

/// A Keyward without the constraint writes to the collection, so two documents may hold one key.
#[test]
fn while_a_constraint_is_not_enforced_a_read_finds_every_document() {
    let database = "routed_reserving";
    let cluster = Cluster::shared();
    shard_on_two(
        cluster,
        "routed_reserving.users",
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let without = Keyward::of(&format!("upstream: {}\nconstraints: []\n", cluster.uri()));
    let mut past = Connection::greeted(&without.address);
    insert(&mut past, database, vec![user(1, "a", "other")]);
    let constraint = "  - { collection: routed_reserving.users, key: { email: 1 }, route: true }\n";
    let with = Keyward::start(&cluster.uri(), constraint);
    let mut client = Connection::greeted(&with.address);
    insert(&mut client, database, vec![user(2, "z", "k")]);
    insert(&mut past, database, vec![user(3, "a", "k")]);
    assert_eq!(first_batch(&client.must(database, &by_email())).len(), 2);
    // The order says which of the two is meant.
    let mut last = doc! { "findAndModify": "users", "query": { "email": "k" }, "sort": { "_id": -1 } };
    last.insert("update", doc! { "$set": { "email": "free" } });
    let changed = client.must(database, &last);
    assert_eq!(changed.get_document("value").unwrap().get_i32("_id").unwrap(), 3);
    assert_eq!(outcomes(&with, "routed_reserving.users.email_1"), [0; 3]);
}

/// While the states of the constraints can't be read, another Keyward may begin to write without one of them.
#[test]
fn no_read_relies_on_states_that_were_read_long_ago() {
    let database = "routed_unseen";
    let cluster = Cluster::shared();
    let users = format!("{database}.users");
    shard_on_two(cluster, &users, doc! { "region": 1 }, doc! { "region": "m" });
    let is_unreadable = Arc::new(AtomicBool::new(false));
    let is_failing = is_unreadable.clone();
    let altering = Altering::replies(cluster.router_address(), move |request, reply| {
        if is_failing.load(Ordering::SeqCst) && request.get_str("find").ok() == Some("keyward.constraints") {
            *reply = doc! { "ok": 0.0, "code": 2, "codeName": "BadValue", "errmsg": "it can't be read" };
        }
    });
    let constraint = format!("  - {{ collection: {users}, key: {{ email: 1 }}, route: true }}\n");
    let keyward = Keyward::start(&altering.uri(), &constraint);
    let mut first = Connection::greeted(&keyward.address);
    insert(&mut first, database, vec![user(1, "a", "k")]);
    let client = RefCell::new(first);
    let is_routed = || {
        let before = outcomes(&keyward, &format!("{users}.email_1"))[0];
        assert_eq!(
            first_batch(&client.borrow_mut().must(database, &by_email())),
            [user(1, "a", "k")]
        );
        outcomes(&keyward, &format!("{users}.email_1"))[0] > before
    };
    keyward.until("a routed read", is_routed);
    is_unreadable.store(true, Ordering::SeqCst);
    keyward.until("a read of all shards", || !is_routed());
    is_unreadable.store(false, Ordering::SeqCst);
    keyward.until("a routed read", is_routed);
}

/// At the start, Keyward warns of a setting that can't help.
#[test]
fn a_route_without_effect_is_logged() {
    let warning = "route: true has no effect";
    let with_shard_key = ["key: { region: 1, email: 1 }", "key: { email: 1 }"];
    let log = start("routed_warned", &with_shard_key).log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains(warning)).collect();
    assert_eq!(warnings.len(), 1, "{log}");
    assert!(warnings[0].contains("region_1_email_1"), "{log}");
    assert!(warnings[0].contains("the first field of the shard key"), "{log}");
    let cluster = Cluster::shared();
    cluster.run("routed_whole", doc! { "create": "users" }).unwrap();
    let constraint = "  - { collection: routed_whole.users, key: { email: 1 }, route: true }\n";
    let log = Keyward::start(&cluster.uri(), constraint).log();
    assert!(log.contains("the collection isn't sharded"), "{log}");
}

#[test]
fn a_reload_turns_routing_on_and_off() {
    let database = "routed_reloaded";
    let cluster = Cluster::shared();
    shard_on_two(
        cluster,
        "routed_reloaded.users",
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let settings = |route: bool| {
        let constraint = format!("{{ collection: {database}.users, key: {{ email: 1 }}, route: {route} }}");
        format!(
            "upstream: {}\nreload_interval: 0s\nconstraints:\n  - {constraint}\n",
            cluster.uri()
        )
    };
    let keyward = Keyward::of(&settings(false));
    let mut client = Connection::greeted(&keyward.address);
    insert(&mut client, database, vec![user(1, "z", "k")]);
    let mut hits = 0;
    for route in [false, true, false] {
        let reloaded = keyward.reload(&settings(route));
        assert_eq!(reloaded["outcome"], json!("applied"), "{reloaded}");
        assert_eq!(reloaded["constraintsAdded"], json!([]), "{reloaded}");
        assert_eq!(first_batch(&client.must(database, &by_email())).len(), 1);
        hits += u64::from(route);
        assert_eq!(outcomes(&keyward, "routed_reloaded.users.email_1"), [hits, 0, 0]);
    }
}

/// A causally consistent session reads what another client wrote before: the document moves between shards meanwhile.
#[test]
fn a_session_reads_what_it_knows_of() {
    let database = "routed_causal";
    let keyward = start(database, &["key: { email: 1 }"]);
    let (mut writer, mut reader) = (
        Connection::greeted(&keyward.address),
        Connection::greeted(&keyward.address),
    );
    let id = Binary {
        subtype: BinarySubtype::Uuid,
        bytes: vec![5; 16],
    };
    for step in 0..10 {
        let remove = doc! { "delete": "users", "deletes": [{ "q": { "email": "k" }, "limit": 1 }] };
        writer.must(database, &remove);
        let added = doc! { "insert": "users", "documents": [user(step, ["a", "z"][step as usize % 2], "k")] };
        let added = writer.must(database, &added);
        let mut known = added.get_timestamp("operationTime").ok();
        for level in ["local", "majority"] {
            let mut concern = doc! { "level": level };
            if let Some(Timestamp { time, increment }) = known.take() {
                concern.insert("afterClusterTime", Timestamp { time, increment });
            }
            let mut read = by_email();
            read.extend(doc! { "lsid": { "id": id.clone() }, "readConcern": concern });
            let reply = reader.must(database, &read);
            let found = first_batch(&reply);
            assert_eq!(found.len(), 1, "{step} {level}");
            assert_eq!(found[0].get_i32("_id").unwrap(), step, "{level}");
            known = reply.get_timestamp("operationTime").ok();
        }
    }
    assert_eq!(outcomes(&keyward, "routed_causal.users.email_1")[0], 20 + 9);
}
