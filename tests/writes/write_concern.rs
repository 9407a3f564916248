//! Write concerns that ask for more than a majority, or that can't be met in time: the reply says what a server's says.

use bson::{Document, doc};
use testbed::{Cluster, ReplicaSet};
use testkit::{Keyward, run};

fn update(query: Document, update: impl Into<bson::Bson>, multi: bool) -> Document {
    doc! { "update": "users", "updates": [{ "q": query, "u": update.into(), "multi": multi }] }
}

fn delete(query: Document, limit: i32) -> Document {
    doc! { "delete": "users", "deletes": [{ "q": query, "limit": limit }] }
}

fn set(email: &str) -> Document {
    doc! { "$set": { "email": email } }
}

/// A command for each way in which Keyward writes. Each has an effect on the documents 0 to 9.
fn commands() -> Vec<Document> {
    let computed = || vec![doc! { "$set": { "email": { "$concat": ["$email", "x"] } } }];
    vec![
        doc! { "insert": "users", "documents": [{ "_id": 20, "email": "20" }] },
        doc! { "insert": "users", "documents": [{ "_id": 21, "email": "21" }, { "_id": 22, "email": "22" }] },
        update(doc! { "_id": 0 }, doc! { "$set": { "other": 1 } }, false),
        update(doc! { "_id": 1 }, set("new"), false),
        update(doc! { "_id": 2 }, computed(), false),
        update(doc! { "_id": { "$lt": 2 } }, computed(), true),
        delete(doc! { "_id": 3 }, 1),
        delete(doc! { "_id": { "$in": [4, 5] } }, 0),
        doc! { "findAndModify": "users", "query": { "_id": 6 }, "remove": true },
        doc! { "findAndModify": "users", "query": { "_id": 7 }, "update": set("seventh"), "new": true },
        doc! {
            "update": "users",
            "updates": [{ "q": { "_id": 30, "email": "30" }, "u": { "$set": { "other": 1 } }, "upsert": true }],
        },
    ]
}

/// The parts of a reply that a client's driver shows, except for the words of the error.
fn shown(reply: &Document) -> Document {
    let mut shown = Document::new();
    for field in ["ok", "n", "nModified", "value", "code"] {
        if let Some(value) = reply.get(field) {
            shown.insert(field, value);
        }
    }
    if let Ok(error) = reply.get_document("writeConcernError") {
        shown.insert("writeConcernError", error.get_i32("code").unwrap());
    }
    shown
}

async fn a_concern_that_no_server_meets_is_reported(upstream: &str, database: &str) {
    let keyward = Keyward::start(
        upstream,
        &format!("  - {{ collection: {database}.users, key: {{ email: 1 }} }}\n"),
    );
    let client = keyward.client().await;
    let (native, natively) = (ReplicaSet::shared().client(), format!("{database}_native"));
    for (concern, code) in [
        (doc! { "w": 2 }, 100),
        (doc! { "w": 50, "wtimeout": 5_000 }, 100),
        (doc! { "w": "no such mode" }, 79),
        (doc! { "w": 51 }, 9),
    ] {
        for sides in [(&client, database), (&native, natively.as_str())] {
            let (client, database) = sides;
            run(client, database, delete(doc! {}, 0)).await;
            let documents: Vec<Document> = (0..10).map(|id| doc! { "_id": id, "email": id.to_string() }).collect();
            run(client, database, doc! { "insert": "users", "documents": documents }).await;
        }
        for mut command in commands() {
            command.insert("writeConcern", concern.clone());
            let expected = shown(&run(&native, &natively, command.clone()).await);
            let reply = run(&client, database, command.clone()).await;
            assert_eq!(shown(&reply), expected, "{command}\n{reply}");
            let field = if code == 9 { "code" } else { "writeConcernError" };
            assert_eq!(expected.get_i32(field), Ok(code), "{command}");
        }
    }
}

#[tokio::test]
async fn a_concern_that_no_server_meets_is_reported_on_one_replica_set() {
    let set = ReplicaSet::start(1).unwrap();
    a_concern_that_no_server_meets_is_reported(&set.uri(), "concern").await;
}

#[tokio::test]
async fn a_concern_that_no_server_meets_is_reported_on_shards() {
    a_concern_that_no_server_meets_is_reported(&Cluster::shared().uri(), "concern").await;
}
