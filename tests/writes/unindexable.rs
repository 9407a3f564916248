//! Documents that one constraint can't index, because they are older than it or were written past Keyward: they keep their keys
//! under the others.

use std::time::Duration;

use bson::{Bson, Document, doc};
use testbed::{Cluster, ReplicaSet};
use testkit::{Keyward, assert_same_answer, on_each_shard, run, shard_on_two};
use tokio::time::timeout;

const STRATEGIES: [&str; 2] = ["compensating", "transaction"];
/// Long before Keyward would give up.
const SOON: Duration = Duration::from_secs(40);

/// `users` on two shards with the constraint on `email`. The constraint on `[a, b]` can't index parallel arrays.
fn keyward(database: &str, strategy: &str) -> Keyward {
    let namespace = format!("{database}.users");
    shard_on_two(
        Cluster::shared(),
        &namespace,
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let constraints = [doc! { "email": 1 }, doc! { "a": 1, "b": 1 }].map(|key| {
        let constraint = doc! { "collection": &namespace, "key": key, "strategy": strategy };
        format!("  - {constraint}\n")
    });
    Keyward::start_with_lease(&Cluster::shared().uri(), "5s", &constraints.concat())
}

fn user(id: i32, email: &str) -> Document {
    doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": email, "a": id, "b": [1, 2] }
}

fn place(id: i32) -> Document {
    let user = user(id, "");
    doc! { "_id": id, "region": user.get_str("region").unwrap() }
}

/// Makes the document with this `_id` unindexable, past Keyward.
async fn make_unindexable(database: &str, id: i32) {
    let users = Cluster::shared()
        .client()
        .database(database)
        .collection::<Document>("users");
    let changed = users
        .update_one(place(id), doc! { "$set": { "a": [1, 2] } })
        .await
        .unwrap();
    assert_eq!(changed.modified_count, 1);
}

/// The reserved keys of a constraint.
async fn reserved(database: &str, constraint: &str) -> Vec<String> {
    let proxy = format!("keyward.users.{constraint}");
    let reservations = on_each_shard(Cluster::shared().shards(), database, &proxy)
        .await
        .concat();
    let key = |reservation: &Document| reservation.get_document("_id").unwrap().get("k").unwrap().to_string();
    let mut keys: Vec<String> = reservations.iter().map(key).collect();
    keys.sort_unstable();
    keys
}

fn email(value: &str) -> String {
    Bson::from(doc! { "email": value }).to_string()
}

fn update(id: i32, change: impl Into<Bson>) -> Document {
    doc! { "update": "users", "updates": [{ "q": place(id), "u": change }] }
}

#[tokio::test]
async fn a_document_keeps_its_keys_under_the_other_constraints() {
    for strategy in STRATEGIES {
        let database = format!("unindexable_{strategy}");
        let keyward = keyward(&database, strategy);
        let client = keyward.client().await;
        let send = async |command: Document| timeout(SOON, run(&client, &database, command)).await.expect("no hang");
        let users: Vec<Document> = (0..5).map(|id| user(id, &id.to_string())).collect();
        let inserted = send(doc! { "insert": "users", "documents": users }).await;
        assert_eq!(inserted.get_i32("n").ok(), Some(5), "{inserted}");
        for id in 0..5 {
            make_unindexable(&database, id).await;
        }
        // A repair in place, one by the server, a replacement, and two deletes.
        let repairs = [
            update(0, doc! { "$set": { "a": 0 } }),
            update(1, vec![doc! { "$set": { "a": { "$add": [100, { "$size": "$b" }] } } }]),
            update(2, user(2, "new")),
        ];
        for repair in repairs {
            let reply = send(repair.clone()).await;
            assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{strategy}: {repair} {reply}");
        }
        let one = doc! { "delete": "users", "deletes": [{ "q": place(3), "limit": 1 }] };
        let many = doc! { "delete": "users", "deletes": [{ "q": { "a": [1, 2] }, "limit": 0 }] };
        for delete in [one, many] {
            let reply = send(delete.clone()).await;
            assert_eq!(reply.get_i32("n").ok(), Some(1), "{strategy}: {delete} {reply}");
        }
        assert_eq!(
            reserved(&database, "email_1").await,
            ["0", "1", "new"].map(email),
            "{strategy}"
        );
        // Emails that were released are free, the others are taken.
        let heirs = vec![user(13, "3"), user(14, "4"), user(15, "2"), user(16, "1")];
        let reply = send(doc! { "insert": "users", "documents": heirs, "ordered": false }).await;
        assert_eq!(reply.get_i32("n").ok(), Some(3), "{strategy}: {reply}");
    }
}

/// Statements that would make a document unindexable have the native index's answer; the document keeps all its keys.
#[tokio::test]
async fn a_statement_that_makes_a_document_unindexable_is_refused() {
    let native = ReplicaSet::shared().client();
    for strategy in STRATEGIES {
        let database = format!("made_unindexable_{strategy}");
        let index = |key: Document, name: &str| doc! { "key": key, "name": name, "unique": true };
        let indexes = vec![
            index(doc! { "email": 1 }, "email_1"),
            index(doc! { "a": 1, "b": 1 }, "a_1_b_1"),
        ];
        run(
            &native,
            &database,
            doc! { "createIndexes": "users", "indexes": indexes },
        )
        .await;
        let keyward = keyward(&database, strategy);
        let client = keyward.client_without_retries().await;
        let both = [&native, &client];
        let users: Vec<Document> = (0..2).map(|id| user(id, &id.to_string())).collect();
        assert_same_answer(both, &database, doc! { "insert": "users", "documents": users }).await;
        let arrays = || doc! { "$set": { "a": [1, 2] } };
        let commands = [
            update(0, arrays()),
            update(0, vec![doc! { "$set": { "a": ["$b", "$b"] } }]),
            update(1, doc! { "region": "z", "email": "other", "a": [], "b": [1] }),
            doc! { "findAndModify": "users", "query": place(1), "update": arrays() },
            doc! { "insert": "users", "documents": [{ "_id": 5, "region": "a", "email": "5", "a": [], "b": [] }] },
        ];
        for command in commands {
            assert_same_answer(both, &database, command).await;
        }
        assert_eq!(
            reserved(&database, "email_1").await,
            ["0", "1"].map(email),
            "{strategy}"
        );
        assert_eq!(reserved(&database, "a_1_b_1").await.len(), 4, "{strategy}");
    }
}
