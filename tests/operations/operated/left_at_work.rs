//! A constraint that comes waits for what was sent before it: what a client, or a broken connection, has left the servers at work on.

use bson::{Document, doc};
use nix::sys::signal::Signal;
use std::io::Write;
use std::net::TcpStream;
use testbed::{Cluster, ReplicaSet};
use testkit::keyward::Keyward;
use testkit::relay::Relay;
use testkit::relay::insert_into;
use testkit::relay::wait_until;

use crate::operated::reload::{drop_database, settings, user};

/// The documents were backfilled while a server still changed one, for a client that had gone.
#[test]
fn what_a_client_has_left_at_work_is_waited_for() {
    let database = "reload_left";
    drop_database(database);
    let keyward = Keyward::of(&settings(database, &["email"], ""));
    keyward.insert(database, user(1, "a@x", "1")).unwrap();
    // Until this transaction ends, the server doesn't get on with what changes the document.
    let mut direct = testbed::command::Connection::open(&ReplicaSet::shared().addresses()[0]).unwrap();
    let id = bson::Binary {
        subtype: bson::spec::BinarySubtype::Uuid,
        bytes: vec![7; 16],
    };
    let within = doc! { "lsid": { "id": id }, "txnNumber": 1_i64, "autocommit": false };
    let change = |set: Document| doc! { "update": "users", "updates": [{ "q": { "_id": 1 }, "u": { "$set": set } }] };
    let mut first = change(doc! { "held": true });
    first.extend(within.clone());
    first.insert("startTransaction", true);
    direct.run(database, first).unwrap();
    let mut late = change(doc! { "phone": "late" });
    late.insert("$db", database);
    let late = late.to_vec().unwrap();
    let message = keyward::wire::Draft::of_body(&late).frame(1, 0).unwrap().to_vec();
    let mut client = TcpStream::connect(&keyward.address).unwrap();
    client.write_all(&message).unwrap();
    drop(client);
    keyward.until("the client's end", || {
        let [opened, closed] = ["opened", "closed"].map(|what| format!("keyward_client_connections_{what}_total"));
        keyward.metric(&closed) == keyward.metric(&opened)
    });
    let before = keyward.count_reloads();
    keyward.rewrite(&settings(database, &["email", "phone"], ""));
    keyward.send(Signal::SIGHUP);
    // Much longer than to backfill one document.
    for n in 2..300 {
        keyward
            .insert(database, user(n, &format!("{n}@x"), &format!("{n}")))
            .unwrap();
    }
    assert_eq!(keyward.count_reloads(), before, "{}", keyward.log());
    let mut abort = doc! { "abortTransaction": 1 };
    abort.extend(within);
    direct.run("admin", abort).unwrap();
    assert_eq!(keyward.reloaded_after(before)["outcome"], "applied");
    assert_eq!(keyward.insert(database, user(300, "z@x", "late")), Err(11000));
    let (code, findings) = keyward.verify();
    assert_eq!(code, Some(0), "{findings}");
}

/// A reply that is on its way shows that its command has ended.
#[test]
fn a_client_that_reads_nothing_holds_up_no_constraint() {
    let database = "reload_unread";
    drop_database(database);
    let keyward = Keyward::of(&settings(database, &["email"], ""));
    let filler = "x".repeat(1 << 20);
    for n in 0..15 {
        let document = doc! { "_id": n, "filler": &filler };
        let insert = doc! { "insert": "others", "documents": [document] };
        keyward.run(database, insert).unwrap();
    }
    let find = doc! { "find": "others", "$db": database }.to_vec().unwrap();
    let message = keyward::wire::Draft::of_body(&find).frame(1, 0).unwrap().to_vec();
    let mut client = TcpStream::connect(&keyward.address).unwrap();
    client.write_all(&message).unwrap();
    // The reply has begun to arrive, and is longer than what the system keeps for a client.
    assert_eq!(client.peek(&mut [0]).unwrap(), 1);
    let before = keyward.count_reloads();
    keyward.rewrite(&settings(database, &["email", "phone"], ""));
    keyward.send(Signal::SIGHUP);
    assert_eq!(keyward.reloaded_after(before)["outcome"], "applied");
}

/// Nobody can tell how long a server is at work on a write whose connection has broken: it may come late, past the new
/// constraint.
#[test]
fn what_a_broken_connection_has_left_at_work_is_waited_for() {
    let database = "reload_broken";
    let cluster = Cluster::shared();
    let forwarder = Relay::start(cluster.router_address());
    let upstream = format!("mongodb://{}/", forwarder.address);
    let settings = |fields: &[&str]| settings(database, fields, "").replace(&ReplicaSet::shared().uri(), &upstream);
    let keyward = Keyward::of(&settings(&["email"]));
    // Into a collection without a constraint: it goes on as it is.
    let is_lost = forwarder.lose_reply_to(insert_into("others"));
    assert!(
        keyward
            .run(database, doc! { "insert": "others", "documents": [{}] })
            .is_err()
    );
    wait_until(&is_lost);
    keyward.rewrite(&settings(&["email", "phone"]));
    keyward.send(Signal::SIGHUP);
    keyward.until("the wait", || keyward.log().contains("nor a write of unknown outcome"));
    assert_eq!(keyward.metric("keyward_config_reloads_applied_total"), 0);
}

/// A commit that the server doesn't tell the outcome of may take effect yet.
#[test]
fn what_nobody_knows_the_outcome_of_is_waited_for() {
    let database = "reload_in_doubt";
    let set = ReplicaSet::alone().unwrap();
    let settings = |fields: &[&str]| settings(database, fields, "").replace(&ReplicaSet::shared().uri(), &set.uri());
    let keyward = Keyward::of(&settings(&["email"]));
    let unknown = doc! { "failCommands": ["commitTransaction"], "errorCode": 11602 };
    let unknown = set.fail_point("failCommand", "alwaysOn", unknown).unwrap();
    assert_eq!(keyward.insert(database, user(1, "a@x", "1")), Err(11602));
    drop(unknown);
    keyward.rewrite(&settings(&["email", "phone"]));
    keyward.send(Signal::SIGHUP);
    keyward.until("the wait", || keyward.log().contains("nor a write of unknown outcome"));
    assert_eq!(keyward.metric("keyward_config_reloads_applied_total"), 0);
}

/// The servers may let a transaction be open for longer than Keyward waits: what it wrote before the new constraint held is
/// reserved by nobody.
#[test]
fn a_transaction_from_before_is_not_committed_behind_the_backfill() {
    let database = "reload_old_transaction";
    // The wait is 9.5 s instead of 95.
    let haste = [("KEYWARD_TRANSACTIONS_HASTE", "10")];
    let set = ReplicaSet::start(1).unwrap();
    let limit = doc! { "setParameter": 1, "transactionLifetimeLimitSeconds": 3600 };
    set.run("admin", limit).unwrap();
    let settings = |fields: &[&str]| settings(database, fields, "").replace(&ReplicaSet::shared().uri(), &set.uri());
    let keyward = Keyward::of_in(&settings(&["email"]), &haste);
    keyward.insert(database, user(1, "a@x", "1")).unwrap();
    let fields = |session: u8| {
        let id = bson::Binary {
            subtype: bson::spec::BinarySubtype::Uuid,
            bytes: vec![session; 16],
        };
        doc! { "lsid": { "id": id }, "txnNumber": 1_i64, "autocommit": false }
    };
    let mut connection = testbed::command::Connection::open(&keyward.address).unwrap();
    let mut begin = |session: u8, document: Document| {
        let mut insert = doc! { "insert": "users", "documents": [document], "startTransaction": true };
        insert.extend(fields(session));
        connection.run(database, insert).unwrap()
    };
    let reply = begin(1, user(2, "b@x", "2"));
    assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    let before = keyward.count_reloads();
    keyward.rewrite(&settings(&["email", "phone"]));
    keyward.send(Signal::SIGHUP);
    // It waits as long as a transaction may live unless the servers say otherwise.
    keyward.until("a reload", || keyward.count_reloads() > before);
    assert_eq!(
        keyward.metric("keyward_config_reloads_applied_total"),
        1,
        "{}",
        keyward.log()
    );
    let reply = begin(2, user(3, "c@x", "2"));
    assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    let commit = |session| {
        let mut commit = doc! { "commitTransaction": 1 };
        commit.extend(fields(session));
        keyward.run("admin", commit)
    };
    assert_eq!(commit(1), Err(251));
    assert!(commit(2).is_ok());
    let (code, findings) = keyward.verify();
    assert_eq!(code, Some(0), "{findings}");
}

/// The servers carry a write to its end, long after they know that its Keyward is gone.
#[test]
fn what_a_killed_keyward_has_left_at_work_is_waited_for() {
    let set = ReplicaSet::start(1).unwrap();
    let database = "left_by_killed";
    let haste = [("KEYWARD_REGISTER_HASTE", "50")];
    let without = format!(
        "upstream: {}\nlease: 1s\nreload_interval: 0s\nconstraints: []\n",
        set.uri()
    );
    let mut first = Keyward::of_in(&without, &haste);
    let documents: Vec<Document> = (0..300).map(|n| user(n, &format!("{n}@x"), "")).collect();
    // Such haste lets it write for 0.6 s after it renewed its entry: a busy machine may renew it later.
    first
        .run_once_permitted(database, doc! { "insert": "users", "documents": documents })
        .unwrap();
    let one_by_one = doc! { "$where": "sleep(40) || true" };
    let anew = vec![doc! { "$set": { "email": { "$concat": ["late-", "$email"] } } }];
    let update =
        doc! { "update": "users", "updates": [{ "q": one_by_one, "u": anew, "multi": true }], "$db": database };
    let message = keyward::wire::Draft::of_body(&update.to_vec().unwrap())
        .frame(1, 0)
        .unwrap()
        .to_vec();
    let mut client = TcpStream::connect(&first.address).unwrap();
    client.write_all(&message).unwrap();
    let late = |n: i32| {
        let find = doc! { "find": "users", "filter": { "_id": n, "email": { "$regex": "^late-" } } };
        let reply = set.run(database, find).unwrap();
        let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        !batch.is_empty()
    };
    first.until("the update's start", || late(0));
    first.kill();
    let constraint = format!("{{ collection: {database}.users, key: {{ email: 1 }}, strategy: compensating }}");
    let with = without.replace("constraints: []", &format!("constraints: [{constraint}]"));
    let second = Keyward::of_in(&with, &haste);
    second.until("ready", || second.get("/readyz").ends_with("\r\n\r\nready\n"));
    assert!(late(299), "it is enforced before the update has ended");
    let refused = second.insert_once_permitted(database, user(300, "late-299@x", ""));
    assert_eq!(refused, Err(11000));
    let (code, findings) = second.verify();
    assert_eq!(code, Some(0), "{findings}");
}

/// A router has each shard write by a `getMore`. Until it comes, the shard has nothing but an idle cursor.
#[test]
fn a_merge_whose_router_is_gone_is_waited_for() {
    let set = ReplicaSet::start(1).unwrap();
    let database = "left_merge";
    let without = format!("upstream: {}\nreload_interval: 0s\nconstraints: []\n", set.uri());
    let constraint = format!("{{ collection: {database}.users, key: {{ email: 1 }}, strategy: compensating }}");
    let with = without.replace("constraints: []", &format!("constraints: [{constraint}]"));
    let keyward = Keyward::of(&without);
    let mut router = testbed::command::Connection::open(&set.addresses()[0]).unwrap();
    let sources: Vec<Document> = (0..20).map(|n| user(n, &format!("{n}@x"), &format!("{n}"))).collect();
    router
        .run(database, doc! { "insert": "source", "documents": sources })
        .unwrap();
    let slow = doc! { "$function": { "body": "function() { sleep(50); return true }", "args": [], "lang": "js" } };
    let merge = doc! { "$merge": { "into": { "db": database, "coll": "users" } } };
    let pipeline = vec![doc! { "$match": { "$expr": slow } }, merge];
    let open = doc! { "aggregate": "source", "pipeline": pipeline, "cursor": { "batchSize": 0 } };
    let opened = router.run(database, open).unwrap();
    let cursor = opened.get_document("cursor").unwrap().get_i64("id").unwrap();
    let before = keyward.count_reloads();
    keyward.rewrite(&with);
    keyward.send(Signal::SIGHUP);
    let waits = || {
        keyward
            .log()
            .contains("waits for writes that servers are still carrying out")
    };
    keyward.until("the wait", || waits() || keyward.count_reloads() > before);
    assert_eq!(keyward.count_reloads(), before, "it is enforced beside the merge");
    let get_more = doc! { "getMore": cursor, "collection": "source" };
    router.run(database, get_more).unwrap();
    assert_eq!(keyward.reloaded_after(before)["outcome"], "applied");
    assert_eq!(keyward.insert(database, user(20, "19@x", "20")), Err(11000));
    let (code, findings) = keyward.verify();
    assert_eq!(code, Some(0), "{findings}");
}
