//! Write concerns that ask for more than a majority, or that can't be met in time: the reply says what a server's says.

use std::time::Duration;

use bson::{Document, doc};
use testbed::fail_point::FailPoint;
use testbed::{Cluster, ReplicaSet};
use testkit::{Keyward, run};
use tokio::time::timeout;

fn update(query: Document, update: impl Into<bson::Bson>, multi: bool) -> Document {
    doc! { "update": "users", "updates": [{ "q": query, "u": update.into(), "multi": multi }] }
}

fn delete(query: Document, limit: i32) -> Document {
    doc! { "delete": "users", "deletes": [{ "q": query, "limit": limit }] }
}

fn users(ids: std::ops::Range<i32>) -> Document {
    let documents: Vec<Document> = ids.map(|id| doc! { "_id": id, "email": id.to_string() }).collect();
    doc! { "insert": "users", "documents": documents }
}

/// A command for each way in which Keyward writes. Each has an effect on the documents `first` to `first + 9`, or inserts
/// documents from `first + 100` on.
fn commands(first: i32) -> Vec<Document> {
    let computed = || vec![doc! { "$set": { "email": { "$concat": ["$email", "x"] } } }];
    let id = |offset: i32| doc! { "_id": first + offset };
    let set = |email: &str| doc! { "$set": { "email": format!("{email} {first}") } };
    let upsert = doc! { "_id": first + 105, "email": (first + 105).to_string() };
    vec![
        users(first + 100..first + 101),
        users(first + 101..first + 103),
        update(id(0), doc! { "$set": { "other": 1 } }, false),
        update(id(1), set("new"), false),
        update(id(2), computed(), false),
        update(doc! { "_id": { "$in": [first, first + 1] } }, computed(), true),
        delete(id(3), 1),
        delete(doc! { "_id": { "$in": [first + 4, first + 5] } }, 0),
        doc! { "findAndModify": "users", "query": id(6), "remove": true },
        doc! { "findAndModify": "users", "query": id(7), "update": set("seventh"), "new": true },
        doc! {
            "update": "users",
            "updates": [{ "q": upsert, "u": { "$set": { "other": 1 } }, "upsert": true }],
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
    ] {
        for (client, database) in [(&client, database), (&native, natively.as_str())] {
            run(client, database, delete(doc! {}, 0)).await;
            run(client, database, users(0..10)).await;
        }
        for mut command in commands(0) {
            command.insert("writeConcern", concern.clone());
            let expected = shown(&run(&native, &natively, command.clone()).await);
            let reply = run(&client, database, command.clone()).await;
            assert_eq!(shown(&reply), expected, "{command}\n{reply}");
            assert_eq!(expected.get_i32("writeConcernError").ok(), Some(code), "{command}");
        }
    }
}

#[tokio::test]
async fn a_concern_that_no_server_meets_is_reported_on_one_replica_set() {
    let set = ReplicaSet::start(1).unwrap();
    a_concern_that_no_server_meets_is_reported(&set.uri(), "concern_strict").await;
}

#[tokio::test]
async fn a_concern_that_no_server_meets_is_reported_on_shards() {
    a_concern_that_no_server_meets_is_reported(&Cluster::shared().uri(), "concern_on_shards").await;
}

/// Far more than any limit of a command here, and less than the time after which a Keyward without one gives up.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_limit_ends_the_wait_for_a_majority() {
    let set = ReplicaSet::start(2).unwrap();
    set.wait_until_whole().unwrap();
    let start = || Keyward::start(&set.uri(), "  - { collection: late.users, key: { email: 1 } }\n");
    let native = set.client();
    for (client, database) in [(&start().client().await, "late"), (&native, "late_native")] {
        run(client, database, users(0..20)).await;
    }
    let primary = set.primary().unwrap().address();
    let secondary = set.addresses().into_iter().find(|address| *address != primary).unwrap();
    let by_concern = doc! { "writeConcern": { "w": "majority", "wtimeout": 100 } };
    let by_command = doc! { "writeConcern": { "w": "majority" }, "maxTimeMS": 5_000 };
    let some = |first, limits, code| {
        let commands = commands(first);
        let some = commands.chunks(2).map(|some| (some.to_vec(), limits, code));
        some.collect::<Vec<_>>()
    };
    for (commands, limits, code) in [some(0, &by_concern, 64), some(10, &by_command, 50)].concat() {
        // Without a majority none can renew its entry in the register, so each stops writing after 30 s.
        let keyward = start();
        let client = keyward.client().await;
        // It goes on to vote.
        let _behind = FailPoint::turn_on(&secondary, "stopReplProducer", "alwaysOn".into(), doc! {}).unwrap();
        for mut command in commands {
            command.extend(limits.clone());
            let (expected, reply) = tokio::join!(
                run(&native, "late_native", command.clone()),
                timeout(PATIENCE, run(&client, "late", command.clone())),
            );
            let expected = shown(&expected);
            let reply = reply.unwrap_or_else(|_| panic!("no reply: {command}"));
            assert_eq!(shown(&reply), expected, "{command}\n{reply}");
            assert_eq!(expected.get_i32("writeConcernError").ok(), Some(code), "{command}");
        }
    }
    // Both have the same documents, and each of them its key.
    let count = |database: &'static str, collection: &'static str| {
        let collection = native.database(database).collection::<Document>(collection);
        async move { collection.count_documents(doc! {}).await.unwrap() }
    };
    let documents = count("late_native", "users").await;
    assert_eq!(count("late", "users").await, documents);
    assert_eq!(count("late", "keyward.users.email_1").await, documents);
}
