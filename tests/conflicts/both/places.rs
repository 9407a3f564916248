//! Documents that aren't where Keyward believes. The server fills in their shard key, or another client has sharded their
//! collection anew. Then two documents have one `_id`, and the same shard key as far as Keyward knows.

use bson::{Bson, Document, Timestamp, doc};
use mongodb::options::ReadConcern;
use testbed::Cluster;
use testkit::wire::send;
use testkit::{Keyward, shard_on_two};

use crate::both::retries::retryable;
use crate::strategy::{Strategy, short_transactions};
use crate::trial::{assert_agreement, insert, keyward, write_errors};

on_both_strategies! {
    a_filled_in_shard_key_leaves_no_key_unreserved;
    a_filled_in_shard_key_moves_to_another_shard;
    an_upsert_with_a_filled_in_shard_key_reserves_its_own_key;
    a_client_transaction_with_a_filled_in_shard_key_reserves;
    a_field_with_a_dot_in_its_name_is_no_shard_key;
    an_increment_by_id_under_an_old_shard_key;
    a_computed_key_by_id_under_an_old_shard_key;
    an_increment_by_the_new_shard_key_under_an_old_one;
    an_increment_that_shows_its_document_under_an_old_shard_key;
    an_increment_of_many_under_an_old_shard_key;
    an_increment_of_many_in_a_client_transaction_under_an_old_shard_key;
    a_delete_by_id_under_an_old_shard_key;
    one_key_for_two_documents_under_an_old_shard_key;
}

fn cluster(strategy: Strategy) -> &'static Cluster {
    match strategy {
        Strategy::Compensating => Cluster::shared(),
        Strategy::Strict => short_transactions(),
    }
}

/// `email` is unique, if a document has one.
fn start(strategy: Strategy, database: &str) -> Keyward {
    let strategy_of = match strategy {
        Strategy::Compensating => "compensating",
        Strategy::Strict => "transaction",
    };
    let constraint =
        format!("  - {{ collection: DB.users, key: {{ email: 1 }}, sparse: true, strategy: {strategy_of} }}\n");
    keyward(cluster(strategy), database, "60s", &[&constraint])
}

const ZERO: Timestamp = Timestamp { time: 0, increment: 0 };

/// `users` with the shard key `ts`: times before `at` on one shard, the others on the other.
fn sharded_by_time(strategy: Strategy, name: &'static str, at: u32) -> (&'static str, Keyward) {
    let database = strategy.database(name);
    let at = Timestamp { time: at, increment: 0 };
    let namespace = format!("{database}.users");
    shard_on_two(cluster(strategy), &namespace, doc! { "ts": 1 }, doc! { "ts": at });
    (database, start(strategy, database))
}

/// Inserts a document with the shard key zero, as only an update can store it.
fn insert_at_zero(keyward: &Keyward, database: &str, id: i32, fields: Document) {
    let early = Timestamp { time: 5, increment: 1 };
    let mut document = doc! { "_id": id, "ts": early };
    document.extend(fields);
    let reply = send(&keyward.address, database, insert(vec![document], true)).unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    let update = doc! { "q": { "_id": id, "ts": early }, "u": { "$set": { "ts": ZERO } } };
    let reply = send(
        &keyward.address,
        database,
        retryable(doc! { "update": "users", "updates": [update] }, 1),
    )
    .unwrap();
    assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
}

async fn assert_taken(strategy: Strategy, keyward: &Keyward, database: &str, email: impl Into<Bson>) {
    let document =
        doc! { "_id": 999, "ts": Timestamp { time: 7, increment: 1 }, "region": "b", "zone": "b", "email": email };
    let reply = send(&keyward.address, database, insert(vec![document], true)).unwrap();
    assert_eq!(write_errors(&reply), [(0, 11000)], "{reply}");
    assert_agreement(cluster(strategy), database, "email").await;
}

/// Statements that replace a document by one whose shard key the server fills in.
fn replacements(id: i32) -> Vec<(&'static str, Document)> {
    let new = |n: i32| doc! { "ts": ZERO, "email": format!("new-{}@x", id + n) };
    let old = |n: i32| doc! { "email": format!("old-{}@x", id + n) };
    let by_key = |n: i32| doc! { "_id": id + n, "ts": ZERO };
    let update = |q: Document, u: Document| doc! { "update": "users", "updates": [{ "q": q, "u": u }] };
    let modify = |q: Document, u: Document| doc! { "findAndModify": "users", "query": q, "update": u };
    vec![
        ("update", retryable(update(old(0), new(0)), 1)),
        ("update by shard key", retryable(update(by_key(1), new(1)), 1)),
        ("findAndModify by shard key", retryable(modify(by_key(2), new(2)), 1)),
    ]
}

async fn replace_with_filled_in_shard_key(strategy: Strategy, name: &'static str, at: u32) {
    let (database, keyward) = sharded_by_time(strategy, name, at);
    for (n, (which, command)) in (1..).zip(replacements(1)) {
        insert_at_zero(&keyward, database, n, doc! { "email": format!("old-{n}@x") });
        let reply = send(&keyward.address, database, command).unwrap();
        assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{which}: {reply}");
        assert!(!reply.contains_key("writeErrors"), "{which}: {reply}");
        assert_taken(strategy, &keyward, database, format!("new-{n}@x")).await;
    }
}

async fn a_filled_in_shard_key_leaves_no_key_unreserved(strategy: Strategy) {
    replace_with_filled_in_shard_key(strategy, "places_filled_in", u32::MAX).await;
}

async fn a_filled_in_shard_key_moves_to_another_shard(strategy: Strategy) {
    replace_with_filled_in_shard_key(strategy, "places_filled_in_far", 100).await;
}

/// Another document has the `_id` and the zero.
async fn an_upsert_with_a_filled_in_shard_key_reserves_its_own_key(strategy: Strategy) {
    let (database, keyward) = sharded_by_time(strategy, "places_upsert", 100);
    insert_at_zero(&keyward, database, 1, Document::new());
    let q = doc! { "_id": 1, "ts": ZERO, "email": "none@x" };
    let u = doc! { "ts": ZERO, "email": "new@x" };
    let upsert = doc! { "update": "users", "updates": [{ "q": q, "u": u, "upsert": true }] };
    let reply = send(&keyward.address, database, retryable(upsert, 1)).unwrap();
    assert!(reply.contains_key("upserted"), "{reply}");
    assert_taken(strategy, &keyward, database, "new@x").await;
}

async fn a_client_transaction_with_a_filled_in_shard_key_reserves(strategy: Strategy) {
    let (database, keyward) = sharded_by_time(strategy, "places_clients", u32::MAX);
    insert_at_zero(&keyward, database, 1, doc! { "email": "old@x" });
    let client = keyward.client().await;
    let users = client.database(database).collection::<Document>("users");
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let q = doc! { "_id": 1, "ts": ZERO };
    let replaced = users.replace_one(q, doc! { "ts": ZERO, "email": "new@x" });
    assert_eq!(replaced.session(&mut session).await.unwrap().matched_count, 1);
    session.commit_transaction().await.unwrap();
    assert_taken(strategy, &keyward, database, "new@x").await;
}

/// The server walks the path `a.b`; the replacement has a field with that name.
async fn a_field_with_a_dot_in_its_name_is_no_shard_key(strategy: Strategy) {
    let database = strategy.database("places_dotted");
    let namespace = format!("{database}.users");
    shard_on_two(cluster(strategy), &namespace, doc! { "a.b": 1 }, doc! { "a.b": 5 });
    let keyward = start(strategy, database);
    let old = doc! { "_id": 1, "a": { "b": 1 }, "email": "old@x" };
    send(&keyward.address, database, insert(vec![old], true)).unwrap();
    let update = doc! { "q": { "_id": 1, "a.b": 1 }, "u": { "a.b": 1, "email": "new@x" } };
    let reply = send(
        &keyward.address,
        database,
        retryable(doc! { "update": "users", "updates": [update] }, 1),
    )
    .unwrap();
    assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
    assert_taken(strategy, &keyward, database, "new@x").await;
}

/// A Keyward that believes `shard_key` (none: that the collection isn't sharded), and a collection that was sharded by `zone`
/// since then. Two documents have one `_id`, on two shards.
fn sharded_anew(strategy: Strategy, database: &str, believed: Option<&str>, documents: [Document; 2]) -> Keyward {
    let cluster = cluster(strategy);
    let namespace = format!("{database}.users");
    match believed {
        Some(path) => shard_on_two(cluster, &namespace, doc! { path: 1 }, doc! { path: "m" }),
        None => {
            cluster.run("admin", doc! { "enableSharding": database }).unwrap();
            cluster.run(database, doc! { "create": "users" }).unwrap();
        }
    }
    let keyward = start(strategy, database);
    cluster.run(database, doc! { "drop": "users" }).unwrap();
    shard_on_two(cluster, &namespace, doc! { "zone": 1 }, doc! { "zone": "m" });
    let [x, y] = documents;
    let place = |zone: &str, more: Document| {
        let mut document = doc! { "_id": 1, "zone": zone };
        document.extend(more);
        document
    };
    let both = insert(vec![place("a", x), place("z", y)], true);
    let reply = send(&keyward.address, database, both).unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 2, "{reply}");
    keyward
}

/// The emails of all documents, in order.
fn emails(strategy: Strategy, database: &str) -> Vec<Option<i32>> {
    let find = doc! { "find": "users", "sort": { "email": 1 } };
    let reply = cluster(strategy).run(database, find).unwrap();
    let documents = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    let email = |document: &Bson| document.as_document().unwrap().get_i32("email").ok();
    documents.iter().map(email).collect()
}

/// Runs `command` where two documents hold 5 and 10, under each wrong belief. Documents and reservations then agree, and every
/// key is refused.
async fn under_an_old_shard_key(
    strategy: Strategy,
    name: &str,
    [x, y]: [Document; 2],
    act: impl AsyncFn(&Keyward, &str),
) {
    for believed in [None, Some("region")] {
        let belief = believed.unwrap_or("nothing");
        let database: &'static str = format!("{name}_{belief}").leak();
        let database = strategy.database(database);
        let keyward = sharded_anew(strategy, database, believed, [x.clone(), y.clone()]);
        act(&keyward, database).await;
        assert_agreement(cluster(strategy), database, "email").await;
        for email in emails(strategy, database).into_iter().flatten() {
            assert_taken(strategy, &keyward, database, email).await;
        }
    }
}

fn holding(email: i32) -> Document {
    doc! { "email": email }
}

async fn increment(strategy: Strategy, name: &str, statement: Document, expected: [i32; 2]) {
    let change = doc! { "$inc": { "email": 1 } };
    increment_by(strategy, name, statement, change.into(), expected).await;
}

async fn increment_by(strategy: Strategy, name: &str, statement: Document, change: Bson, expected: [i32; 2]) {
    under_an_old_shard_key(strategy, name, [holding(5), holding(10)], async |keyward, database| {
        let mut statement = statement.clone();
        statement.insert("u", change.clone());
        let update = doc! { "update": "users", "updates": [statement], "maxTimeMS": 20_000 };
        let reply = send(&keyward.address, database, update).unwrap();
        assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
        assert_eq!(emails(strategy, database), expected.map(Some), "{reply}");
    })
    .await;
}

/// A `mongos` 6.0 sends it to all shards.
async fn an_increment_by_id_under_an_old_shard_key(strategy: Strategy) {
    let by_pipeline = bson::bson!([{ "$set": { "email": { "$add": ["$email", 1] } } }]);
    increment_by(
        strategy,
        "places_inc_id",
        doc! { "q": { "_id": 1 } },
        by_pipeline,
        [6, 11],
    )
    .await;
}

/// In place, Keyward has computed the key of one document only. It refuses the statement, and knows the shard key from then on.
async fn a_computed_key_by_id_under_an_old_shard_key(strategy: Strategy) {
    let documents = [holding(5), holding(10)];
    under_an_old_shard_key(strategy, "places_computed", documents, async |keyward, database| {
        let statement = doc! { "q": { "_id": 1 }, "u": { "$inc": { "email": 1 } } };
        let update = doc! { "update": "users", "updates": [statement], "maxTimeMS": 20_000 };
        let reply = send(&keyward.address, database, update).unwrap();
        let expected = match reply.get_i32("code") {
            Ok(6) if !strategy.is_strict() => [5, 10],
            _ => [6, 11],
        };
        assert_eq!(emails(strategy, database), expected.map(Some), "{reply}");
    })
    .await;
}

async fn an_increment_by_the_new_shard_key_under_an_old_one(strategy: Strategy) {
    increment(
        strategy,
        "places_inc_zone",
        doc! { "q": { "_id": 1, "zone": "z" } },
        [5, 11],
    )
    .await;
    increment(
        strategy,
        "places_inc_zone_a",
        doc! { "q": { "_id": 1, "zone": "a" } },
        [6, 10],
    )
    .await;
}

/// The reply shows one of two documents that Keyward can't tell apart.
async fn an_increment_that_shows_its_document_under_an_old_shard_key(strategy: Strategy) {
    let documents = [holding(5), holding(10)];
    under_an_old_shard_key(strategy, "places_inc_shown", documents, async |keyward, database| {
        for (query, value) in [
            (doc! { "zone": "z" }, 11),
            (doc! { "zone": "a" }, 6),
            (doc! { "email": 11 }, 12),
        ] {
            let mut by_id = doc! { "_id": 1 };
            by_id.extend(query);
            let increment = doc! { "$inc": { "email": 1 } };
            let mut command = doc! { "findAndModify": "users", "query": by_id, "update": increment, "new": true };
            command.insert("maxTimeMS", 20_000);
            let reply = send(&keyward.address, database, command).unwrap();
            // A router of MongoDB 6.0 refuses a `findAndModify` without the present shard key.
            if let Ok(shown) = reply.get_document("value") {
                assert_eq!(shown.get_i32("email").unwrap(), value, "{reply}");
            }
        }
    })
    .await;
}

async fn an_increment_of_many_under_an_old_shard_key(strategy: Strategy) {
    let one = doc! { "q": { "email": { "$gt": 7 } }, "multi": true };
    increment(strategy, "places_inc_many", one, [5, 11]).await;
    let both = doc! { "q": { "_id": { "$in": [1, 2] } }, "multi": true };
    increment(strategy, "places_inc_both", both, [6, 11]).await;
}

/// The client's driver tries again; Keyward knows the shard key by then.
async fn an_increment_of_many_in_a_client_transaction_under_an_old_shard_key(strategy: Strategy) {
    let documents = [holding(5), holding(10)];
    under_an_old_shard_key(strategy, "places_inc_within", documents, async |keyward, database| {
        let client = keyward.client().await;
        let users = client.database(database).collection::<Document>("users");
        let mut session = client.start_session().await.unwrap();
        for _ in 0..3 {
            let begin = session.start_transaction().read_concern(ReadConcern::snapshot());
            begin.await.unwrap();
            let increment = doc! { "$inc": { "email": 1 } };
            let update = users.update_one(doc! { "_id": 1, "zone": "z" }, increment);
            match update.session(&mut session).await {
                Ok(_) => {
                    session.commit_transaction().await.unwrap();
                    break;
                }
                Err(error) => {
                    assert!(error.contains_label("TransientTransactionError"), "{error}");
                    let _ = session.abort_transaction().await;
                }
            }
        }
        assert_eq!(emails(strategy, database), [Some(5), Some(11)]);
    })
    .await;
}

async fn a_delete_by_id_under_an_old_shard_key(strategy: Strategy) {
    let cases = [
        ("places_del", [holding(5), holding(10)]),
        ("places_del_x", [holding(5), Document::new()]),
        ("places_del_y", [Document::new(), holding(10)]),
    ];
    for (name, documents) in cases {
        under_an_old_shard_key(strategy, name, documents, async |keyward, database| {
            let delete = doc! { "delete": "users", "deletes": [{ "q": { "_id": 1 }, "limit": 1 }] };
            let reply = send(&keyward.address, database, delete).unwrap();
            assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
        })
        .await;
    }
}

/// A `mongos` 6.0 sends it to all shards, and two documents would get the key. Their `_id`s and shard keys are equal, and may be of
/// several types.
async fn one_key_for_two_documents_under_an_old_shard_key(strategy: Strategy) {
    let pairs = [
        ("places_set", [Document::new(), Document::new()]),
        ("places_set_id", [Document::new(), doc! { "_id": 1.0 }]),
        ("places_set_region", [doc! { "region": 1 }, doc! { "region": 1_i64 }]),
    ];
    for (name, neither) in pairs {
        under_an_old_shard_key(strategy, name, neither, async |keyward, database| {
            let update = doc! { "q": { "_id": 1 }, "u": { "$set": { "email": 7 } } };
            let update = doc! { "update": "users", "updates": [update], "maxTimeMS": 20_000 };
            let reply = send(&keyward.address, database, update).unwrap();
            let held = emails(strategy, database).into_iter().flatten().count();
            assert!(held <= 1, "{name} {reply}");
        })
        .await;
    }
}
