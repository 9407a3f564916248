//! Statements with more reservations, or longer `_id`s, than one command can hold.

use bson::{Document, doc};

use crate::compensating::unfinished::{begin, commit, user};
use crate::compensating::{EMAIL, assert_agreement, insert, keyward, users, users_on, write_errors};
use testbed::Cluster;
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
    let reply =
        run(doc! { "delete": "users", "deletes": [{ "q": { "$expr": { "$gte": ["$email", 0] } }, "limit": 0 }] });
    assert_eq!(reply.get_i32("n").ok(), Some(1_001), "{reply}");
    assert_agreement(cluster, database, "email").await;
}
