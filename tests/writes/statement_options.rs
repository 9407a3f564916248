//! `sort`, `hint`, `collation`, `let`, `arrayFilters` and `fields` decide which document a statement is about, and what it
//! says of it: with a constraint of Keyward's they decide the same as with a native unique index.

#![expect(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::Client;
use testbed::{Cluster, ReplicaSet};
use testkit::{Keyward, comparable, run};

fn documents() -> Vec<Document> {
    vec![
        doc! { "_id": 1, "email": "a", "name": "Ann", "n": 3, "tags": [1, 2] },
        doc! { "_id": 2, "email": "b", "name": "ann", "n": 1, "tags": [2, 3] },
        doc! { "_id": 3, "email": "c", "name": "ANN", "n": 2, "tags": [3] },
        doc! { "_id": 4, "email": "d", "name": "Bob", "n": 2, "tags": [] },
    ]
}

fn update(statement: Document) -> Document {
    doc! { "update": "users", "updates": [statement] }
}

fn with_let(mut command: Document) -> Document {
    command.insert("let", doc! { "wanted": 2, "mail": "by let" });
    command
}

fn modify(rest: Document) -> Document {
    let mut command = doc! { "findAndModify": "users" };
    command.extend(rest);
    command
}

fn commands() -> Vec<Document> {
    let english = || doc! { "locale": "en", "strength": 2 };
    let set = |email: &str| doc! { "$set": { "email": email } };
    let expr = || doc! { "$expr": { "$eq": ["$n", "$$wanted"] } };
    let by_let = || vec![doc! { "$set": { "email": { "$concat": ["$$mail", "$name"] } } }];
    let lower = || vec![doc! { "$set": { "email": { "$concat": ["x", "$email"] } } }];
    vec![
        modify(doc! { "query": { "n": { "$lte": 2 } }, "sort": { "n": -1, "_id": -1 }, "update": set("z") }),
        modify(doc! { "query": { "n": { "$lte": 2 } }, "sort": { "n": 1 }, "update": set("z"), "new": true }),
        modify(doc! { "query": {}, "sort": { "n": -1 }, "update": set("d") }),
        modify(doc! { "query": {}, "sort": { "name": -1 }, "remove": true, "fields": { "email": 1 } }),
        modify(doc! { "query": { "name": "ann" }, "collation": english(), "sort": { "n": 1 }, "remove": true }),
        modify(doc! { "query": { "name": "bob" }, "collation": english(), "update": set("a") }),
        modify(
            doc! { "query": { "name": "bob" }, "update": set("new"), "upsert": true, "new": true, "fields": { "email": 1, "_id": 0 } },
        ),
        modify(doc! { "query": { "tags": 3 }, "sort": { "_id": -1 }, "fields": { "tags.$": 1 }, "update": set("z") }),
        modify(doc! { "query": { "tags": 3 }, "sort": { "_id": -1 }, "fields": { "tags.$": 1 }, "remove": true }),
        modify(doc! { "query": { "_id": 2, "tags": 3 }, "fields": { "tags.$": 1 }, "remove": true }),
        modify(doc! { "query": {}, "sort": { "n": 1 }, "hint": { "n": 1 }, "update": set("z") }),
        modify(doc! { "query": {}, "hint": "no such index", "update": set("z") }),
        with_let(modify(
            doc! { "query": expr(), "sort": { "_id": 1 }, "update": by_let() },
        )),
        update(doc! { "q": { "name": "ann" }, "u": set("z"), "collation": english() }),
        update(doc! { "q": { "name": "ann" }, "u": lower(), "collation": english(), "multi": true }),
        update(doc! { "q": { "name": "ANN" }, "u": set("b"), "multi": true }),
        update(doc! { "q": { "n": { "$gt": 0 } }, "u": set("z"), "hint": { "n": 1 } }),
        update(doc! { "q": { "n": { "$gt": 0 } }, "u": set("z"), "hint": { "m": 1 } }),
        update(doc! { "q": { "$expr": { "$eq": ["$n", 2] } }, "u": lower(), "hint": { "n": 1 } }),
        update(doc! { "q": { "_id": 1, "$expr": { "$eq": ["$n", 3] } }, "u": lower(), "upsert": true }),
        update(doc! { "q": { "n": { "$gt": 0 } }, "u": set("z"), "sort": { "n": 1 } }),
        update(
            doc! { "q": { "_id": 1 }, "u": { "$set": { "email": "z", "tags.$[t]": 9 } }, "arrayFilters": [{ "t": 2 }] },
        ),
        update(doc! { "q": { "n": { "$gt": 0 } }, "u": set("z"), "hint": { "m": 1 }, "multi": true }),
        update(doc! { "q": { "tags": 3 }, "u": { "$set": { "email": "z", "tags.$": 9 } } }),
        update(doc! { "q": { "_id": 1 }, "u": by_let(), "c": { "mail": "by constant" } }),
        update(doc! { "q": expr(), "u": by_let(), "c": { "mail": "by constant", "wanted": 2 } }),
        with_let(update(
            doc! { "q": expr(), "u": by_let(), "c": { "wanted": 3, "other": { "$add": [1] } } },
        )),
        with_let(update(doc! { "q": expr(), "u": by_let(), "multi": true })),
        with_let(update(doc! { "q": expr(), "u": by_let() })),
        doc! { "delete": "users", "deletes": [{ "q": { "name": "ann" }, "limit": 0, "collation": english() }] },
        doc! { "delete": "users", "deletes": [{ "q": { "n": { "$lt": 3 } }, "limit": 1, "hint": { "n": 1 } }] },
        doc! { "delete": "users", "deletes": [{ "q": { "n": 2 }, "limit": 1, "hint": "no such index" }] },
        with_let(doc! { "delete": "users", "deletes": [{ "q": expr(), "limit": 0 }] }),
    ]
}

/// The collection anew, with a native unique index or without.
async fn reset([keyward, direct]: [&Client; 2], database: &str) {
    for (client, is_native) in [(keyward, false), (direct, true)] {
        run(client, database, doc! { "drop": "users" }).await;
        let mut indexes = vec![doc! { "key": { "n": 1 }, "name": "n_1" }];
        if is_native {
            indexes.push(doc! { "key": { "email": 1 }, "name": "email_1", "unique": true });
        }
        let reply = run(client, database, doc! { "createIndexes": "users", "indexes": indexes }).await;
        assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
        let reply = run(client, database, doc! { "insert": "users", "documents": documents() }).await;
        assert_eq!(reply.get_i32("n").ok(), Some(4), "{reply}");
    }
}

/// What a reply says, but for the names of documents that were made just now, and of the plan that a server couldn't make.
fn said(reply: Document) -> String {
    let mut reply = comparable(reply);
    // A router has them in another place than a single server.
    if let Some(errors) = reply.remove("writeErrors") {
        reply.insert("writeErrors", errors);
    }
    let mut text = reply.to_string();
    for (from, to) in [("ObjectId(", ")"), ("error processing query", "planner returned error")] {
        if let Some(start) = text.find(from) {
            let end = start + text[start..].find(to).unwrap();
            text.replace_range(start..end, "");
        }
    }
    text
}

async fn all(client: &Client, database: &str) -> Vec<Document> {
    let users = client.database(database).collection::<Document>("users");
    let mut all: Vec<Document> = users.find(doc! {}).await.unwrap().try_collect().await.unwrap();
    all.sort_by_key(|user| user.get_str("email").unwrap_or_default().to_owned());
    for user in &mut all {
        if user.get_object_id("_id").is_ok() {
            user.remove("_id");
        }
    }
    all
}

async fn options_decide_the_same(upstream: &str, database: &str) {
    let keyward = Keyward::start(
        upstream,
        &format!("  - {{ collection: {database}.users, key: {{ email: 1 }} }}\n"),
    );
    let (client, direct) = (keyward.client().await, ReplicaSet::shared().client());
    for command in commands() {
        reset([&client, &direct], database).await;
        let expected = said(run(&direct, database, command.clone()).await);
        let got = said(run(&client, database, command.clone()).await);
        assert_eq!(got, expected, "{command}");
        let expected = all(&direct, database).await;
        assert_eq!(all(&client, database).await, expected, "{command}");
        let reserved = client
            .database(database)
            .collection::<Document>("keyward.users.email_1");
        let reserved = reserved.count_documents(doc! {}).await.unwrap();
        assert_eq!(reserved, expected.len() as u64, "{command}");
    }
}

#[tokio::test]
async fn options_decide_the_same_as_with_a_native_index() {
    options_decide_the_same(&Cluster::shared().uri(), "options").await;
}

#[tokio::test]
async fn so_they_do_in_strict_mode() {
    // Another server than the one with the native index: the collections have the same name.
    let set = ReplicaSet::start(1).unwrap();
    options_decide_the_same(&set.uri(), "options_strictly").await;
}

/// Documents that the first look didn't show were changed, and nobody reserved what they held then.
async fn chance_changes_nothing_unseen(upstream: &str, database: &str) {
    let keyward = Keyward::start(
        upstream,
        &format!("  - {{ collection: {database}.lots, key: {{ n: 1 }} }}\n"),
    );
    let client = keyward.client().await;
    let documents: Vec<Document> = (0..100).map(|n| doc! { "_id": n, "n": n }).collect();
    run(&client, database, doc! { "insert": "lots", "documents": documents }).await;
    let of_many = |query: Document| doc! { "q": query, "u": { "$inc": { "n": 1_000 } }, "multi": true };
    let of_one = || doc! { "q": { "$sampleRate": 0.1 }, "u": { "$inc": { "n": 100_000 } } };
    let by_chance = || doc! { "$expr": { "$lt": [{ "$rand": {} }, 0.5] } };
    let mut commands = vec![of_many(by_chance()), of_many(doc! { "$or": [by_chance(), { "n": 1 }] })];
    commands.extend((0..20).map(|_| of_one()));
    for statement in commands {
        let reply = run(&client, database, doc! { "update": "lots", "updates": [statement] }).await;
        assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
    }
    let held = values(&client, database, "lots", "n").await;
    assert_eq!(held.len(), 100);
    assert!(held.iter().any(|n| n.as_i32() >= Some(1_000)));
    assert_eq!(values(&client, database, "keyward.lots.n_1", "_id.k.n").await, held);
}

/// Keyward reads the documents, and the server is not to choose among them once more.
async fn chance_decides_once(upstream: &str, database: &str) {
    const DOCUMENTS: i32 = 400;
    let keyward = Keyward::start(
        upstream,
        &format!("  - {{ collection: {database}.lots, key: {{ n: 1 }} }}\n"),
    );
    let client = keyward.client().await;
    let documents: Vec<Document> = (0..DOCUMENTS).map(|n| doc! { "_id": n, "n": n }).collect();
    run(&client, database, doc! { "insert": "lots", "documents": documents }).await;
    let half = || doc! { "$sampleRate": 0.5 };
    let add = vec![doc! { "$set": { "n": { "$add": ["$n", 1_000] } } }];
    for _ in 0..10 {
        let update = doc! { "q": half(), "u": add.clone() };
        let reply = run(&client, database, doc! { "update": "lots", "updates": [update] }).await;
        assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
        let found = doc! { "findAndModify": "lots", "query": half(), "update": add.clone() };
        let reply = run(&client, database, found).await;
        assert!(reply.get_document("value").is_ok(), "{reply}");
    }
    for n in 0..10 {
        let statement = doc! { "q": half(), "u": { "$set": { "n": -1 - n } }, "upsert": true };
        let reply = run(&client, database, doc! { "update": "lots", "updates": [statement] }).await;
        assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
    }
    let update = doc! { "q": half(), "u": add, "multi": true };
    let delete = doc! { "q": half(), "limit": 0 };
    let of_many = [
        doc! { "update": "lots", "updates": [update] },
        doc! { "delete": "lots", "deletes": [delete] },
    ];
    for command in of_many {
        let reply = run(&client, database, command).await;
        // Half of them, and not a quarter. By chance it would be as few in one of 10^9 runs.
        assert!(reply.get_i32("n").unwrap() > DOCUMENTS * 7 / 20, "{reply}");
    }
    let held = values(&client, database, "lots", "n").await;
    assert_eq!(values(&client, database, "keyward.lots.n_1", "_id.k.n").await, held);
}

#[tokio::test]
async fn chance_decides_once_on_shards() {
    chance_decides_once(&Cluster::shared().uri(), "chance_once").await;
}

#[tokio::test]
async fn chance_decides_once_in_strict_mode() {
    chance_decides_once(&ReplicaSet::shared().uri(), "chance_once").await;
}

/// The server draws again: it may insert a document beside those that Keyward has read.
#[tokio::test]
async fn an_upsert_by_chance_keeps_the_reservations_of_what_it_passes_over() {
    let (database, cluster) = ("upsert_by_chance", Cluster::shared());
    let constraint = format!("  - {{ collection: {database}.lots, key: {{ n: 1 }} }}\n");
    let keyward = Keyward::start(&cluster.uri(), &constraint);
    let client = keyward.client().await;
    let lots: Vec<Document> = (1..3).map(|n| doc! { "_id": n, "n": n }).collect();
    run(&client, database, doc! { "insert": "lots", "documents": lots }).await;
    for _ in 0..60 {
        // With a hint, the server is asked by the whole query.
        let statement = doc! {
            "q": { "$sampleRate": 0.5 }, "u": { "$inc": { "n": 1_000 } }, "multi": true, "upsert": true, "hint": { "_id": 1 },
        };
        let reply = run(&client, database, doc! { "update": "lots", "updates": [statement] }).await;
        if let Ok(errors) = reply.get_array("writeErrors") {
            let pattern = errors[0].as_document().unwrap().get_document("keyPattern");
            assert_eq!(pattern.ok(), Some(&doc! { "n": 1 }), "{reply}");
        }
        let held = values(&client, database, "lots", "n").await;
        assert_eq!(values(&client, database, "keyward.lots.n_1", "_id.k.n").await, held);
    }
}

/// All that stands at `path`.
async fn values(client: &Client, database: &str, collection: &str, path: &str) -> Vec<Bson> {
    let collection = client.database(database).collection::<Document>(collection);
    let mut values = collection.distinct(path, doc! {}).await.unwrap();
    values.sort_by_key(ToString::to_string);
    values
}

#[tokio::test]
async fn chance_changes_nothing_unseen_on_shards() {
    chance_changes_nothing_unseen(&Cluster::shared().uri(), "chance").await;
}

#[tokio::test]
async fn chance_changes_nothing_unseen_in_strict_mode() {
    chance_changes_nothing_unseen(&ReplicaSet::shared().uri(), "chance").await;
}

/// Pinned to the document that was looked at, the statement met another one whose `_id` is equal to that one's under its
/// collation, and nobody reserved what that one held then.
async fn an_equal_id_changes_nothing_unseen(upstream: &str, database: &str) {
    let keyward = Keyward::start(
        upstream,
        &format!("  - {{ collection: {database}.cased, key: {{ email: 1 }} }}\n"),
    );
    let client = keyward.client().await;
    let english = || doc! { "locale": "en", "strength": 2 };
    // By this index the pinned statement finds another one first than the look, which goes through all documents.
    let index = doc! { "key": { "_id": 1, "order": 1 }, "name": "order", "collation": english() };
    run(&client, database, doc! { "createIndexes": "cased", "indexes": [index] }).await;
    let statement = doc! { "q": { "wanted": true }, "u": { "$set": { "email": "new" } }, "collation": english() };
    let user = |id: &str, order: i32| doc! { "_id": id, "order": order, "wanted": true, "email": format!("{id}@x") };
    run(
        &client,
        database,
        doc! { "insert": "cased", "documents": [user("a", 2), user("A", 1)] },
    )
    .await;
    let reply = run(&client, database, doc! { "update": "cased", "updates": [statement] }).await;
    assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
    let held = values(&client, database, "cased", "email").await;
    assert_eq!(held.len(), 2);
    assert_eq!(
        values(&client, database, "keyward.cased.email_1", "_id.k.email").await,
        held
    );
}

#[tokio::test]
async fn an_equal_id_changes_nothing_unseen_on_shards() {
    an_equal_id_changes_nothing_unseen(&Cluster::shared().uri(), "equal_ids").await;
}

#[tokio::test]
async fn an_equal_id_changes_nothing_unseen_in_strict_mode() {
    an_equal_id_changes_nothing_unseen(&ReplicaSet::shared().uri(), "equal_ids").await;
}
