//! An update that gives `_id` an equal value in another form, on a collection with a default collation or sharded by the hash of `_id`. The
//! document keeps its reservations.

use bson::{Bson, Document, doc};
use mongodb::Client;
use testbed::{Cluster, ReplicaSet};
use testkit::{Keyward, assert_documents_and_reservations_agree, assert_same_answer, run, spread_on_two};

/// A Keyward with a unique number in `users`, which has a default collation, by this strategy; and the same index on a server.
async fn clients(database: &str, strategy: &str) -> (Keyward, [Client; 2]) {
    let cluster = Cluster::shared();
    let (namespace, collation) = (format!("{database}.users"), doc! { "locale": "en", "strength": 2 });
    cluster
        .run(database, doc! { "create": "users", "collation": &collation })
        .unwrap();
    // Its values are numbers: a router targets no text where another collation is the default.
    let shard = doc! { "shardCollection": &namespace, "key": { "region": 1 }, "collation": { "locale": "simple" } };
    cluster.run("admin", shard).unwrap();
    spread_on_two(cluster, &namespace, doc! { "region": 5 });
    let constraint = format!("  - {{ collection: {namespace}, key: {{ n: 1 }}, strategy: {strategy} }}\n");
    let keyward = Keyward::start(&cluster.uri(), &constraint);
    let native = ReplicaSet::shared().client();
    native.database(database).drop().await.unwrap();
    run(&native, database, doc! { "create": "users", "collation": collation }).await;
    let index = doc! { "key": { "n": 1 }, "name": "n_1", "unique": true };
    run(&native, database, doc! { "createIndexes": "users", "indexes": [index] }).await;
    let through = keyward.client_without_retries().await;
    (keyward, [native, through])
}

/// Each `_id` in two forms that the server calls equal, and a number for the document.
fn forms() -> Vec<(Bson, Bson, i32)> {
    let forms: [(Bson, Bson); 5] = [
        (1.into(), 1.0.into()),
        (2_i64.into(), 2.into()),
        (0.0.into(), (-0.0).into()),
        (4.into(), Bson::Decimal128("4.00".parse().unwrap())),
        (doc! { "x": 5 }.into(), doc! { "x": 5.0 }.into()),
    ];
    forms
        .into_iter()
        .zip(0..)
        .map(|((one, other), n)| (one, other, n))
        .collect()
}

async fn no_reservation_is_lost(strategy: &str) {
    let database = format!("other_form_{strategy}");
    let (_keyward, [native, through]) = clients(&database, strategy).await;
    let both = [&native, &through];
    let changes: [fn(&Bson, &Bson, i32) -> Document; 4] = [
        |one, other, n| {
            let u = doc! { "_id": other, "region": 9, "n": n, "name": "replaced" };
            doc! { "update": "users", "updates": [{ "q": { "_id": one, "region": 9 }, "u": u }] }
        },
        |one, other, n| {
            let u = doc! { "_id": other, "region": 9, "n": n + 100 };
            doc! { "update": "users", "updates": [{ "q": { "_id": one, "region": 9 }, "u": u }] }
        },
        |one, other, n| {
            let u = vec![doc! { "$set": { "_id": other, "n": n + 200 } }];
            doc! { "update": "users", "updates": [{ "q": { "_id": one, "region": 9 }, "u": u }] }
        },
        |one, other, n| {
            let update = doc! { "_id": other, "region": 9, "n": n };
            doc! { "findAndModify": "users", "query": { "_id": one, "region": 9 }, "update": update }
        },
    ];
    for (one, _, n) in forms() {
        let document = doc! { "_id": one, "region": 9, "n": n };
        let insert = doc! { "insert": "users", "documents": [document] };
        assert_same_answer(both, &database, insert).await;
    }
    for (round, change) in changes.iter().enumerate() {
        for (one, other, n) in forms() {
            let (from, to) = if round % 2 == 0 { (&one, &other) } else { (&other, &one) };
            assert_same_answer(both, &database, change(from, to, n)).await;
            for n in [n, n + 100, n + 200] {
                let document = doc! { "_id": format!("new {round} {n}"), "region": 1, "n": n };
                let insert = doc! { "insert": "users", "documents": [document.clone()] };
                assert_same_answer(both, &database, insert).await;
                let delete = doc! { "delete": "users", "deletes": [{ "q": document, "limit": 1 }] };
                assert_same_answer(both, &database, delete).await;
            }
        }
    }
    let key = |document: &Document| vec![doc! { "n": document.get("n").unwrap() }];
    assert_documents_and_reservations_agree(Cluster::shared(), &database, "users", "n_1", key).await;
}

#[tokio::test]
async fn no_reservation_is_lost_by_a_compensating_update() {
    no_reservation_is_lost("compensating").await;
}

#[tokio::test]
async fn no_reservation_is_lost_by_a_strict_update() {
    no_reservation_is_lost("strict").await;
}

/// A Keyward with a unique number in `users`, whose shard key hashes the `_id`.
fn hashed(database: &str) -> Keyward {
    let (cluster, namespace) = (Cluster::shared(), format!("{database}.users"));
    cluster.run("admin", doc! { "enableSharding": database }).unwrap();
    let shard = doc! { "shardCollection": &namespace, "key": { "_id": "hashed", "region": 1 } };
    cluster.run("admin", shard).unwrap();
    let constraint = format!("  - {{ collection: {namespace}, key: {{ n: 1 }}, strategy: compensating }}\n");
    Keyward::start(&cluster.uri(), &constraint)
}

/// The hash of a Decimal128 isn't that of the equal double, so the document may move to another shard.
#[tokio::test]
async fn no_reservation_is_lost_where_the_shard_key_hashes_the_id() {
    let (database, cluster) = ("other_form_hashed", Cluster::shared());
    let keyward = hashed(database);
    let client = keyward.client_without_retries().await;
    let (mut moved, mut refused, mut last) = (0, 0, Document::new());
    for n in 0..12 {
        let (id, other) = (
            f64::from(n) + 0.75,
            Bson::Decimal128(format!("{n}.75").parse().unwrap()),
        );
        let insert = doc! { "insert": "users", "documents": [{ "_id": id, "region": 1, "n": n }] };
        run(&client, database, insert).await;
        let change = doc! { "q": { "_id": id, "region": 1 }, "u": { "_id": other, "region": 1, "n": n } };
        let changed = run(&client, database, doc! { "update": "users", "updates": [change] }).await;
        match changed.to_string().contains("can't find a document") {
            true => refused += 1,
            false => moved += changed.get_i32("n").unwrap(),
        }
        let second = doc! { "insert": "users", "documents": [{ "_id": 1_000 + n, "region": 1, "n": n }] };
        let second = run(&client, database, second).await;
        assert!(second.to_string().contains("E11000"), "{second}\n{changed}");
        last = changed;
    }
    assert!(moved > 0 && refused > 0, "{moved} {refused} {last}");
    let key = |document: &Document| vec![doc! { "n": document.get("n").unwrap() }];
    assert_documents_and_reservations_agree(cluster, database, "users", "n_1", key).await;
}

/// The refusal was that of the whole command: the results of the other statements were missing.
#[tokio::test]
async fn a_refused_update_leaves_the_others_of_its_batch_their_results() {
    let (database, cluster) = ("other_form_batch", Cluster::shared());
    let keyward = hashed(database);
    let client = keyward.client_without_retries().await;
    let documents = (0..12).map(|n| doc! { "_id": f64::from(n) + 0.75, "region": 1, "n": n });
    let insert = doc! { "insert": "users", "documents": documents.collect::<Vec<_>>() };
    run(&client, database, insert).await;
    for ordered in [true, false] {
        let first = i32::from(ordered) * 100 + 100;
        let set =
            |n: i32, to: i32| doc! { "q": { "_id": f64::from(n) + 0.75, "region": 1 }, "u": { "$set": { "n": to } } };
        let stated = [1, 3, 5, 7, 9];
        let mut updates = vec![set(0, first)];
        updates.extend(stated.iter().map(|n| {
            let id = Bson::Decimal128(format!("{n}.75").parse().unwrap());
            doc! { "q": { "_id": f64::from(*n) + 0.75, "region": 1 }, "u": { "_id": id, "region": 1, "n": n } }
        }));
        updates.push(set(11, first + 1));
        let command = doc! { "update": "users", "updates": updates, "ordered": ordered };
        let reply = run(&client, database, command).await;
        let errors = reply.get_array("writeErrors").unwrap();
        assert!(
            errors
                .iter()
                .all(|error| error.to_string().contains("can't find a document")),
            "{reply}"
        );
        let (first, count) = (errors[0].as_document().unwrap().get_i32("index").unwrap(), errors.len());
        let done = if ordered {
            first
        } else {
            i32::try_from(7 - count).unwrap()
        };
        assert_eq!(reply.get_i32("n").unwrap(), done, "{reply}");
    }
    let key = |document: &Document| vec![doc! { "n": document.get("n").unwrap() }];
    assert_documents_and_reservations_agree(cluster, database, "users", "n_1", key).await;
}

/// Two shards may have documents with equal `_id`s, if the shard key hashes them and they are numbers of other types.
#[tokio::test]
async fn documents_with_equal_ids_on_two_shards_cant_have_one_key() {
    let (database, cluster) = ("other_form_twice", Cluster::shared());
    let keyward = hashed(database);
    let client = keyward.client_without_retries().await;
    let mut twice = 0;
    for n in 0..12 {
        let decimal = Bson::Decimal128(format!("{n}.75").parse().unwrap());
        let one = doc! { "_id": f64::from(n) + 0.75, "region": 1, "n": n };
        let mut other = doc! { "_id": &decimal, "region": 1, "n": n };
        run(&client, database, doc! { "insert": "users", "documents": [one] }).await;
        let insert = doc! { "insert": "users", "documents": [&other] };
        let refused = run(&client, database, insert).await;
        assert!(refused.to_string().contains("E11000"), "{refused}");
        other.insert("n", n + 100);
        let inserted = run(&client, database, doc! { "insert": "users", "documents": [other] }).await;
        if inserted.get_i32("n").unwrap() == 0 {
            // Both lie on one shard.
            continue;
        }
        twice += 1;
        for update in [
            bson::bson!({ "$set": { "n": n } }),
            bson::bson!([{ "$set": { "n": n } }]),
        ] {
            let update = doc! { "q": { "_id": &decimal, "region": 1 }, "u": update };
            let refused = run(&client, database, doc! { "update": "users", "updates": [update] }).await;
            assert!(refused.to_string().contains("E11000"), "{refused}");
        }
    }
    assert!(twice > 0);
    let key = |document: &Document| vec![doc! { "n": document.get("n").unwrap() }];
    assert_documents_and_reservations_agree(cluster, database, "users", "n_1", key).await;
}

#[tokio::test]
async fn no_reservation_is_lost_in_a_clients_transaction() {
    let database = "other_form_in_transaction";
    let (_keyward, [_, through]) = clients(database, "compensating").await;
    let users = through.database(database).collection::<Document>("users");
    users.insert_one(doc! { "_id": 1, "region": 9, "n": 1 }).await.unwrap();
    let mut session = through.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let replaced = users
        .replace_one(doc! { "_id": 1, "region": 9 }, doc! { "_id": 1.0, "region": 9, "n": 1 })
        .session(&mut session);
    assert_eq!(replaced.await.unwrap().modified_count, 1);
    session.commit_transaction().await.unwrap();
    let insert = doc! { "insert": "users", "documents": [{ "_id": 2, "region": 1, "n": 1 }] };
    let refused = run(&through, database, insert).await;
    assert!(refused.to_string().contains("E11000"), "{refused}");
    let key = |document: &Document| vec![doc! { "n": document.get("n").unwrap() }];
    assert_documents_and_reservations_agree(Cluster::shared(), database, "users", "n_1", key).await;
}
