//! The position `$`, which the server takes from the last array that the query matched: the same documents and replies as with a
//! native unique index.

use bson::{Bson, Document, doc};
use keyward::constraint::{Constraint, IndexSpec};
use keyward::namespace::Namespace;
use keyward::raw::Doc;
use testbed::{Cluster, ReplicaSet};
use testkit::{Keyward, assert_documents_and_reservations_agree, assert_same_answer, on_each_shard, run, shard_on_two};

const STRATEGIES: [&str; 2] = ["compensating", "transaction"];

/// `users` of `database` on two shards behind a Keyward with this constraint, and natively with this index.
async fn prepare(database: &str, index: &Document, strategy: &str) -> Keyward {
    let namespace = format!("{database}.users");
    shard_on_two(
        Cluster::shared(),
        &namespace,
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let mut native = index.clone();
    native.insert("unique", true);
    let client = ReplicaSet::shared().client();
    let reply = run(
        &client,
        database,
        doc! { "createIndexes": "users", "indexes": [native] },
    )
    .await;
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
    let mut constraint = doc! { "collection": &namespace, "strategy": strategy };
    constraint.extend(index.clone());
    Keyward::start(&Cluster::shared().uri(), &format!("  - {constraint}\n"))
}

/// Compares the answers to `commands`, and the documents afterwards.
async fn assert_same_effects(keyward: &Keyward, database: &str, commands: Vec<Document>) {
    let (client, native) = (keyward.client().await, ReplicaSet::shared().client());
    for command in commands {
        assert_same_answer([&native, &client], database, command.clone()).await;
        let natively = on_each_shard(std::slice::from_ref(ReplicaSet::shared()), database, "users").await;
        let sharded = on_each_shard(Cluster::shared().shards(), database, "users").await;
        let in_order = |documents: Vec<Vec<Document>>| {
            let mut documents: Vec<String> = documents.concat().iter().map(Document::to_string).collect();
            documents.sort_unstable();
            documents
        };
        assert_eq!(in_order(sharded), in_order(natively), "after {command}");
    }
}

async fn assert_agreement(database: &str, index: &Document) {
    let spec = IndexSpec {
        key: index.get_document("key").unwrap().clone(),
        name: Some("by_key".to_owned()),
        ..IndexSpec::default()
    };
    let constraint = Constraint::new(Namespace::new(database, "users"), spec).unwrap();
    let keys = |document: &Document| {
        let bytes = document.to_vec().unwrap();
        let keys = constraint.keys(Doc::new(&bytes).unwrap()).unwrap();
        let reserved = keys.iter().map(|key| Document::try_from(key.reservation_id()).unwrap());
        reserved.map(|id| id.get_document("k").unwrap().clone()).collect()
    };
    assert_documents_and_reservations_agree(Cluster::shared(), database, "users", "by_key", keys).await;
}

fn update(q: Document, u: Document, multi: bool) -> Document {
    doc! { "update": "users", "updates": [{ "q": q, "u": u, "multi": multi }] }
}

fn user(id: i32, region: &str, accounts: Vec<Document>) -> Document {
    doc! { "_id": id, "region": region, "accounts": accounts, "tags": ["x", "y", "z"] }
}

/// `tags` has more elements than `accounts`. A position from `tags` adds elements to `accounts`, and their keys are null.
#[tokio::test]
async fn elements_that_a_matched_position_adds_are_keys() {
    for strategy in STRATEGIES {
        let database = format!("matched_added_{strategy}");
        let index = doc! { "key": { "accounts.number": 1 }, "name": "by_key" };
        let keyward = prepare(&database, &index, strategy).await;
        let beyond = |id: i32, region: &str| doc! { "_id": id, "region": region, "accounts.number": id, "tags": "z" };
        let balance = |operator: &str, path: &str| doc! { operator: { path: 5 } };
        let users = vec![
            user(1, "a", vec![doc! { "number": 1 }]),
            user(2, "z", vec![doc! { "number": 2 }]),
            user(3, "a", vec![doc! { "number": 3 }, doc! { "number": 33 }]),
            user(4, "z", vec![doc! { "number": 4 }]),
        ];
        let mut commands = vec![doc! { "insert": "users", "documents": users }];
        // The last array that matches is `accounts`: an element that exists gets a balance.
        let existing = doc! { "_id": 3, "region": "a", "tags": "x", "accounts.number": 33 };
        commands.push(update(existing, balance("$set", "accounts.$.balance"), false));
        // The first null is free, the others are duplicates.
        commands.push(update(beyond(1, "a"), balance("$set", "accounts.$.balance"), false));
        commands.push(update(beyond(2, "z"), balance("$set", "accounts.$.balance"), false));
        commands.push(update(beyond(4, "z"), balance("$inc", "accounts.$.balance"), false));
        commands.push(update(beyond(4, "z"), balance("$push", "accounts.$.log"), false));
        commands.push(update(beyond(4, "z"), balance("$set", "accounts.$[].balance"), false));
        commands.push(update(beyond(4, "z"), balance("$set", "accounts.7.balance"), false));
        commands.push(update(beyond(4, "z"), balance("$mul", "accounts.$.balance"), true));
        commands.push(doc! {
            "findAndModify": "users",
            "query": beyond(2, "z"),
            "update": balance("$max", "accounts.$.balance"),
        });
        assert_same_effects(&keyward, &database, commands).await;
        assert_agreement(&database, &index).await;
    }
}

/// Keyward pins a statement to the types that a partial filter tests. Such a condition on `marks` would set the position.
#[tokio::test]
async fn keywards_conditions_do_not_set_the_position() {
    for strategy in STRATEGIES {
        let database = format!("matched_pinned_{strategy}");
        let index = doc! {
            "key": { "email": 1 },
            "name": "by_key",
            "partialFilterExpression": { "marks": { "$type": "string" } },
        };
        let keyward = prepare(&database, &index, strategy).await;
        let document = |id: i32, email: &str| {
            let (log, marks): (Bson, Bson) = (bson::bson!([5, 6, 7]), bson::bson!([1, 2, "three"]));
            doc! { "_id": id, "region": "a", "email": email, "log": log, "marks": marks }
        };
        let query = |id: i32| doc! { "_id": id, "region": "a", "log": 6 };
        let change = |email: &str| doc! { "$set": { "email": email, "log.$": 60 } };
        let commands = vec![
            doc! { "insert": "users", "documents": [document(1, "one"), document(2, "two")] },
            update(query(1), change("other"), false),
            update(query(2), change("other"), false),
            doc! { "findAndModify": "users", "query": query(2), "update": change("third"), "new": true },
        ];
        assert_same_effects(&keyward, &database, commands).await;
        let of_filter = doc! { "key": { "email": 1 } };
        assert_agreement(&database, &of_filter).await;
    }
}
