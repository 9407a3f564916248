//! Commands of which one part fails as a whole, or is late for its write concern: the client gets the results of the other parts.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bson::spec::BinarySubtype;
use bson::{Binary, Document, doc};
use testbed::Cluster;
use testkit::altering::Altering;
use testkit::wire::send;
use testkit::{Keyward, shard_on_two};

/// A compensating Keyward whose upstream answers the `number`th command of this name on `users` with `fields` in place of its own reply's.
fn behind(database: &'static str, name: &'static str, number: usize, fields: &Document) -> (Altering, Keyward) {
    behind_by("compensating", database, name, number, fields)
}

/// The same with another strategy.
fn behind_by(
    strategy: &str,
    database: &'static str,
    name: &'static str,
    number: usize,
    fields: &Document,
) -> (Altering, Keyward) {
    let cluster = Cluster::shared();
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let (seen, fields) = (AtomicUsize::new(0), fields.clone());
    let upstream = Altering::replies(cluster.router_address(), move |request, reply| {
        let has = |field, value| request.get_str(field).is_ok_and(|own| own == value);
        let is_meant = has(name, "users") && has("$db", database);
        if is_meant && seen.fetch_add(1, Ordering::Relaxed) + 1 == number {
            reply.extend(fields.clone());
        }
    });
    let email = format!("  - {{ collection: {namespace}, key: {{ email: 1 }}, strategy: {strategy} }}\n");
    let keyward = Keyward::start(&upstream.uri(), &email);
    (upstream, keyward)
}

fn failed() -> Document {
    doc! { "ok": 0.0, "code": 8, "codeName": "UnknownError", "errmsg": "no more" }
}

fn user(id: i32) -> Document {
    doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": format!("{id}@x") }
}

fn insert(documents: Vec<Document>) -> Document {
    doc! { "insert": "users", "documents": documents, "ordered": false }
}

/// Gives the user another key.
fn change(id: i32) -> Document {
    doc! { "q": { "_id": id, "region": user(id).get_str("region").unwrap() }, "u": { "$set": { "email": format!("{id}@y") } } }
}

/// The positions and codes of a reply's write errors.
fn errors(reply: &Document) -> Vec<(i32, i32)> {
    let errors = reply.get_array("writeErrors").map(Vec::as_slice).unwrap_or_default();
    let errors = errors.iter().map(|error| error.as_document().unwrap());
    errors
        .map(|error| (error.get_i32("index").unwrap(), error.get_i32("code").unwrap()))
        .collect()
}

#[test]
fn a_statement_that_fails_leaves_the_others_their_results() {
    let database = "partly_updated";
    let (_upstream, keyward) = behind(database, "update", 2, &failed());
    send(&keyward.address, database, insert((1..5).map(user).collect())).unwrap();
    let updates: Vec<Document> = (1..5).map(change).collect();
    let update = doc! { "update": "users", "updates": updates, "ordered": false };
    let reply = send(&keyward.address, database, update).unwrap();
    assert_eq!(errors(&reply), [(1, 8)], "{reply}");
    assert_eq!(reply.get_i32("nModified").unwrap(), 3, "{reply}");
}

#[test]
fn a_slice_that_fails_leaves_the_others_their_results() {
    let database = "partly_inserted";
    let (_upstream, keyward) = behind(
        database,
        "insert",
        2,
        &doc! { "ok": 0.0, "code": 13, "errmsg": "not any more" },
    );
    let reply = send(&keyward.address, database, insert((0..2_002).map(user).collect())).unwrap();
    assert_eq!(errors(&reply), [(2_000, 13), (2_001, 13)], "{reply}");
    assert_eq!(reply.get_i32("n").unwrap(), 2_000, "{reply}");
}

/// None of them may be called failed.
#[test]
fn a_slice_of_unknown_outcome_fails_the_command() {
    let database = "partly_unknown";
    let (_upstream, keyward) = behind(database, "insert", 2, &failed());
    let reply = send(&keyward.address, database, insert((0..2_002).map(user).collect())).unwrap();
    assert_eq!(
        (reply.get_f64("ok").unwrap(), reply.get_i32("code").unwrap()),
        (0.0, 8),
        "{reply}"
    );
}

/// A Keyward in strict mode, and documents. The first transaction meets the document whose `_id` exists, the second one inserts those before
/// it, and the third one fails.
fn failing_third_transaction(database: &'static str) -> (Altering, Keyward, Vec<Document>) {
    let not_primary = doc! {
        "ok": 0.0, "code": 10_107, "codeName": "NotWritablePrimary", "errmsg": "not primary",
        "errorLabels": ["TransientTransactionError"],
    };
    let (upstream, keyward) = behind_by("strict", database, "insert", 4, &not_primary);
    send(&keyward.address, database, insert(vec![user(3)])).unwrap();
    let same_id = doc! { "_id": 3, "region": "z", "email": "other@x" };
    (upstream, keyward, vec![user(1), same_id, user(5)])
}

#[test]
fn a_transaction_that_fails_leaves_the_others_their_results() {
    let database = "partly_committed";
    let (_upstream, keyward, documents) = failing_third_transaction(database);
    let reply = send(&keyward.address, database, insert(documents)).unwrap();
    assert_eq!(errors(&reply), [(1, 11_000), (2, 10_107)], "{reply}");
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
}

/// A driver sends it again, and gets the results of both tries.
#[test]
fn a_retryable_insert_of_which_a_transaction_fails_is_sent_again() {
    let database = "partly_committed_twice";
    let (_upstream, keyward, documents) = failing_third_transaction(database);
    let session = Binary {
        subtype: BinarySubtype::Uuid,
        bytes: vec![7; 16],
    };
    let mut retryable = insert(documents);
    retryable.extend(doc! { "lsid": { "id": session }, "txnNumber": 1_i64 });
    let reply = send(&keyward.address, database, retryable.clone()).unwrap();
    assert_eq!(reply.get_f64("ok").unwrap(), 0.0, "{reply}");
    assert_eq!(
        reply.get_array("errorLabels").unwrap(),
        &["RetryableWriteError".into()],
        "{reply}"
    );
    let reply = send(&keyward.address, database, retryable).unwrap();
    assert_eq!(errors(&reply), [(1, 11_000)], "{reply}");
    assert_eq!(reply.get_i32("n").unwrap(), 2, "{reply}");
}

#[test]
fn an_operation_of_a_bulk_write_that_fails_leaves_the_others_their_results() {
    let database = "partly_written";
    let (_upstream, keyward) = behind(database, "update", 1, &failed());
    send(&keyward.address, database, insert(vec![user(1)])).unwrap();
    let update = doc! { "update": 0, "filter": change(1).get_document("q").unwrap(), "updateMods": change(1).get_document("u").unwrap() };
    let insert = |id| doc! { "insert": 0, "document": user(id) };
    let namespace = doc! { "ns": format!("{database}.users") };
    let bulk = |ordered, first, last| {
        let operations = vec![insert(first), update.clone(), insert(last)];
        doc! { "bulkWrite": 1, "ops": operations, "nsInfo": [namespace.clone()], "ordered": ordered }
    };
    let reply = send(&keyward.address, "admin", bulk(false, 2, 3)).unwrap();
    assert_eq!(reply.get_i32("nInserted").unwrap(), 2, "{reply}");
    assert_eq!(reply.get_i32("nErrors").unwrap(), 1, "{reply}");
    let entries = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    let failed = doc! { "ok": 0.0, "idx": 1, "code": 8, "errmsg": "no more", "n": 0, "nModified": 0 };
    assert_eq!(entries[1].as_document().unwrap(), &failed, "{reply}");
}

/// Without a number, no driver sends the command again.
#[test]
fn a_part_of_a_bulk_write_that_keyward_refuses_leaves_the_others_their_results() {
    static FAILS: AtomicBool = AtomicBool::new(false);
    let database = "partly_refused";
    let namespace = format!("{database}.users");
    let cluster = Cluster::shared();
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let upstream = Altering::replies(cluster.router_address(), |request, reply| {
        let is_of_reservations = |field| request.get_str(field).is_ok_and(|own| own == "keyward.users.email_1");
        let is_here = request.get_str("$db").is_ok_and(|name| name == "partly_refused");
        if is_here && ["insert", "find"].into_iter().any(is_of_reservations) && FAILS.load(Ordering::Relaxed) {
            *reply = failed();
        }
    });
    let email = format!("  - {{ collection: {namespace}, key: {{ email: 1 }}, strategy: compensating }}\n");
    let keyward = Keyward::start(&upstream.uri(), &email);
    send(&keyward.address, database, insert(vec![user(1)])).unwrap();
    FAILS.store(true, Ordering::Relaxed);
    let place = doc! { "_id": 1, "region": "z" };
    let update = doc! { "update": 0, "filter": &place, "updateMods": { "$set": { "n": 1 } } };
    let insert = |id| doc! { "insert": 0, "document": user(id) };
    let bulk = |ordered: bool| {
        let operations = vec![update.clone(), insert(2), insert(3), update.clone()];
        doc! { "bulkWrite": 1, "ops": operations, "nsInfo": [{ "ns": &namespace }], "ordered": ordered }
    };
    for (ordered, expected) in [(true, vec![1]), (false, vec![1, 2])] {
        let reply = send(&keyward.address, "admin", bulk(ordered)).unwrap();
        assert_eq!(
            reply.get_i32("nMatched").ok(),
            Some(if ordered { 1 } else { 2 }),
            "{reply}"
        );
        let entries = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        let entries = entries.iter().map(|entry| entry.as_document().unwrap());
        let refused = entries.filter(|entry| entry.get_i32("code").is_ok_and(|code| code == 6));
        let refused: Vec<i32> = refused.map(|entry| entry.get_i32("idx").unwrap()).collect();
        assert_eq!(refused, expected, "{reply}");
    }
}

/// The label lets the driver send the command again, though another part came later.
#[test]
fn an_error_of_the_write_concern_keeps_its_label() {
    let database = "partly_late";
    let late = doc! {
        "writeConcernError": { "code": 11_602, "codeName": "InterruptedDueToReplStateChange", "errmsg": "stepped down" },
        "errorLabels": ["RetryableWriteError"],
    };
    let (_upstream, keyward) = behind(database, "update", 1, &late);
    send(&keyward.address, database, insert(vec![user(1), user(2)])).unwrap();
    let update = doc! { "update": "users", "updates": [change(1), change(2)] };
    let reply = send(&keyward.address, database, update).unwrap();
    assert_eq!(reply.get_i32("nModified").unwrap(), 2, "{reply}");
    for (name, value) in late {
        assert_eq!(reply.get(&name), Some(&value), "{reply}");
    }
}
