//! Statements with more reservations, or longer `_id`s, than one command can hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bson::{Bson, Document, doc};

use crate::compensating::unfinished::{begin, commit, user};
use crate::compensating::{EMAIL, assert_agreement, insert, keyward, users, users_on, write_errors};
use testbed::Cluster;
use testkit::Keyward;
use testkit::relay::{Fate, Relay};
use testkit::wire::{Connection, send};

/// The server refused the reservations before it looked at the transaction, which stayed open with the statement in it.
#[tokio::test(flavor = "multi_thread")]
async fn more_reservations_than_one_command_takes_go_in_by_several() {
    let database = "unfinished_large";
    // On a slow machine the transaction takes longer than the minute for which one lives.
    let patient = Cluster::builder().parameter("transactionLifetimeLimitSeconds", "600");
    let patient = patient.start().unwrap();
    let cluster = &patient;
    users_on(cluster, database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let transaction = begin(&keyward.address, database);
    let many = |first: i32| doc! { "$set": { "email": (first..first + 50_001).collect::<Vec<_>>() } };
    let of = |id: i32, first: i32| doc! { "q": { "_id": id, "region": "a" }, "u": many(first) };
    let mut both = doc! { "update": "users", "updates": [of(1, 0), of(2, 100_000)], "startTransaction": true };
    both.extend(transaction.clone());
    let reply = Connection::open(&keyward.address).run(database, &both);
    assert_eq!(reply.get_i32("nModified").unwrap(), 2, "{reply}");
    let reply = commit(&keyward.address, &transaction);
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
    let reply = send(&keyward.address, database, insert(vec![user(3, "c@x")], true)).unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    let taken = doc! { "insert": "users", "documents": [{ "_id": 4, "region": "a", "email": 150_000 }] };
    let reply = send(&keyward.address, database, taken).unwrap();
    assert_eq!(write_errors(&reply), [(0, 11000)], "{reply}");
    let reply = send(&keyward.address, database, doc! { "count": "keyward.users.email_1" }).unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 2 * 50_001 + 1, "{reply}");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_ids_than_one_query_takes_are_looked_at_by_several() {
    let database = "long_ids";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let run = |command: Document| send(&keyward.address, database, command).unwrap();
    let long = |n: i32| doc! { "_id": format!("{n}{}", "x".repeat(20_000)), "region": "a", "email": n };
    for first in [0, 500] {
        let reply = run(insert((first..first + 500).map(long).collect(), false));
        assert_eq!(reply.get_i32("n").unwrap(), 500, "{reply}");
    }
    let change = doc! { "q": {}, "u": [{ "$set": { "email": { "$add": ["$email", 10_000] } } }], "multi": true };
    let reply = run(doc! { "update": "users", "updates": [change] });
    assert_eq!(reply.get_i32("nModified").ok(), Some(1_000), "{reply}");
    let reply = run(insert(vec![user(1, "x")], true));
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    let reply = run(doc! { "insert": "users", "documents": [{ "_id": 2, "region": "a", "email": 10_999 }] });
    assert_eq!(write_errors(&reply), [(0, 11000)], "{reply}");
    let taken = (0..1_000).map(|n| doc! { "_id": 10 + n, "region": "a", "email": 10_000 + n });
    let reply = run(insert(taken.collect(), false));
    let errors: Vec<_> = (0..1_000).map(|n| (n, 11000)).collect();
    assert_eq!(write_errors(&reply), errors, "{reply}");
    let reply =
        run(doc! { "delete": "users", "deletes": [{ "q": { "$expr": { "$gte": ["$email", 0] } }, "limit": 0 }] });
    assert_eq!(reply.get_i32("n").ok(), Some(1_001), "{reply}");
    assert_agreement(cluster, database, "email").await;
}

/// A server closes the connection without an answer if its reply would have more than 16 MB. It names each key that is taken.
#[tokio::test(flavor = "multi_thread")]
async fn taken_keys_that_no_one_reply_can_name_are_duplicates() {
    let database = "long_taken_keys";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let run = |command: Document| send(&keyward.address, database, command).unwrap();
    let texts: Vec<Bson> = (0..7_500).map(|n| format!("{n:02000}").into()).collect();
    // The server's error takes fourteen bytes for each three of them.
    let names = (b'%'..=b'~').filter(|name| *name != b'.').map(char::from);
    let fields: Document = names.map(|name| (name.to_string(), Bson::Undefined)).collect();
    let undefined = |n: i32| {
        let many = (0..13).map(|part| (part.to_string(), fields.clone().into()));
        Bson::Document(many.chain([("n".to_owned(), n.into())]).collect())
    };
    let undefined: Vec<Bson> = (0..2_000).map(undefined).collect();
    for (first, emails) in [(1, texts), (3, undefined)] {
        let user = |id: i32| doc! { "_id": id, "region": "a", "email": emails.clone() };
        let reply = run(insert(vec![user(first)], true));
        assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
        let reply = run(insert(vec![user(first + 1)], true));
        assert_eq!(write_errors(&reply), [(0, 11000)], "{reply}");
    }
    let reply = run(doc! { "count": "keyward.users.email_1" });
    assert_eq!(reply.get_i32("n").ok(), Some(7_500 + 2_000), "{reply}");
}

/// A key of two fields repeats the text for each of the tags.
#[tokio::test(flavor = "multi_thread")]
async fn the_keys_of_a_batch_are_not_all_in_memory_at_once() {
    let database = "large_keys_of_many";
    let cluster = users(database);
    let both = "  - { collection: DB.users, key: { tags: 1, text: 1 } }\n";
    let keyward = keyward(cluster, database, "60s", &[both]);
    let document = |id: i32| {
        let tags: Vec<i32> = (id * 100..id * 100 + 100).collect();
        doc! { "_id": id, "region": "a", "tags": tags, "text": "x".repeat(300_000) }
    };
    let mut documents: Vec<Document> = (0..40).map(document).collect();
    let of_transaction = doc! { "lsid": { "id": bson::Uuid::new() }, "txnNumber": 1_i64, "autocommit": false };
    let in_transaction = |database: &str, mut command: Document| {
        command.extend(of_transaction.clone());
        send(&keyward.address, database, command).unwrap()
    };
    let mut first = insert(vec![doc! { "_id": 100, "region": "a" }], true);
    first.insert("startTransaction", true);
    assert_eq!(in_transaction(database, first).get_i32("n").ok(), Some(1));
    let refused = in_transaction(database, insert(documents.clone(), true));
    assert_eq!(refused.get_i32("code").ok(), Some(146), "{refused}");
    // The error has ended it.
    let committed = in_transaction("admin", doc! { "commitTransaction": 1 });
    assert_eq!(committed.get_i32("code").ok(), Some(251), "{committed}");
    let mut last = document(7);
    last.insert("_id", 40);
    documents.push(last);
    let reply = send(&keyward.address, database, insert(documents, true)).unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 40, "{}", reply.get_i32("ok").is_ok());
    assert_eq!(write_errors(&reply), [(40, 11_000)]);
    // All keys have 1.2 GB.
    let status = std::fs::read_to_string(format!("/proc/{}/status", keyward.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 900 << 10, "{peak} KiB");
    // An update has all keys of its documents in memory.
    let change = |query: Document| {
        let longer = doc! { "$set": { "text": "y".repeat(300_000) } };
        let first = doc! { "q": { "_id": 0 }, "u": { "$set": { "name": "first" } } };
        let both = vec![first, doc! { "q": query, "u": longer, "multi": true }];
        send(&keyward.address, database, doc! { "update": "users", "updates": both }).unwrap()
    };
    let reply = change(doc! {});
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    assert_eq!(write_errors(&reply), [(1, 146)], "{reply}");
    let reply = change(doc! { "_id": { "$lt": 3 } });
    assert_eq!(reply.get_i32("nModified").unwrap(), 3, "{reply}");
}

/// One transaction would live for too short.
#[tokio::test(flavor = "multi_thread")]
async fn a_delete_of_documents_with_many_keys_is_done_in_parts() {
    let database = "large_delete_by_keys";
    let cluster = users(database);
    let commits = Arc::new(AtomicUsize::new(0));
    let counted = commits.clone();
    let count = move |request: &[u8]| {
        let name = b"commitTransaction\0";
        counted.fetch_add(
            usize::from(request.windows(name.len()).any(|bytes| bytes == name)),
            Ordering::SeqCst,
        );
        Fate::Passed
    };
    let relay = Relay::judged(cluster.router_address(), count, |_| Fate::Passed);
    let keyward = Keyward::start_with_lease(&relay.uri(), "60s", &EMAIL.replace("DB", database));
    // The last document is one too many, and the first reply to the read ends with it.
    let document = |id: i32| {
        let emails: Vec<i32> = (id * 50..(id + 1) * 50).collect();
        doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": emails }
    };
    let all = insert((0..101).map(document).collect(), false);
    let reply = send(&keyward.address, database, all).unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 101, "{reply}");
    assert_eq!(commits.load(Ordering::SeqCst), 0);
    let delete = doc! { "delete": "users", "deletes": [{ "q": {}, "limit": 0 }] };
    let reply = send(&keyward.address, database, delete).unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 101, "{reply}");
    assert_eq!(commits.load(Ordering::SeqCst), 2);
    let reply = send(&keyward.address, database, doc! { "count": "keyward.users.email_1" }).unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 0, "{reply}");
}
