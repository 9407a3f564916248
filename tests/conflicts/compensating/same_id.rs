//! Documents with the same `_id` on different shards, as a sharded collection may have them.

use bson::{Bson, Document, doc};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use testkit::wire::Connection;
use testkit::{given, run, shard_on_two};

use crate::compensating::{EMAIL, PHONE, assert_agreement, insert, keyward, reservations, users, write_errors};

/// So many statements, one after the other.
const STATEMENTS: i32 = 150;

fn user(region: &str, email: &str) -> Document {
    doc! { "_id": 1, "region": region, "email": email }
}

/// An upsert beside a document with the same `_id` looked at both after it, and took the other's key for one that is to be reserved.
#[tokio::test]
async fn an_upsert_leaves_another_document_with_the_same_id_alone() {
    let database = "same_id";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let client = keyward.client_without_retries().await;
    run(&client, database, insert(vec![user("a", "a@x")], true)).await;
    let upsert = |q: &Document, email: &str| {
        let set = doc! { "$set": { "email": email } };
        doc! { "update": "users", "updates": [{ "q": q.clone(), "u": set, "upsert": true }] }
    };
    let own = doc! { "_id": 1, "region": "z" };
    let refused = run(&client, database, upsert(&own, "a@x")).await;
    assert!(refused.contains_key("writeErrors"), "{refused}");
    let as_conjunction = doc! { "$and": [{ "_id": 2 }, { "$and": [{ "region": { "$eq": "z" } }] }] };
    let mut second = user("a", "second@x");
    second.insert("_id", 2);
    run(&client, database, insert(vec![second], true)).await;
    for (q, email, applied) in [
        (&own, "z@x", "upserted"),
        (&own, "y@x", "nModified"),
        (&as_conjunction, "another@x", "upserted"),
    ] {
        let reply = run(&client, database, upsert(q, email)).await;
        assert!(
            reply.contains_key(applied) && !reply.contains_key("writeErrors"),
            "{reply}"
        );
    }
    let deleted = doc! { "delete": "users", "deletes": [{ "q": { "_id": 1, "region": "a" }, "limit": 1 }] };
    assert_eq!(run(&client, database, deleted).await.get_i32("n").unwrap(), 1);
    assert_agreement(cluster, database, "email").await;
    let reply = run(&client, database, insert(vec![user("b", "a@x")], true)).await;
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    assert_agreement(cluster, database, "email").await;
}

/// The query doesn't have the `_id` of the new document at its top. Keyward took the other document for a new one, and tried until the time was up.
#[tokio::test]
async fn an_upsert_that_gives_the_id_leaves_another_document_with_it_alone() {
    let database = "same_id_given";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let client = keyward.client_without_retries().await;
    run(&client, database, insert(vec![user("z", "z@x")], true)).await;
    let none = || doc! {};
    let updates: [(Document, Bson); 8] = [
        (
            none(),
            doc! { "$setOnInsert": { "_id": 1 }, "$set": { "name": "a" } }.into(),
        ),
        (none(), doc! { "$set": { "_id": 1, "name": "b" } }.into()),
        (none(), doc! { "_id": 1, "region": "a", "email": "c@x" }.into()),
        (doc! { "$and": [{ "_id": 1 }] }, doc! { "$set": { "name": "d" } }.into()),
        (doc! { "_id": { "$in": [1] } }, doc! { "$set": { "name": "e" } }.into()),
        (
            doc! { "$and": [{ "_id": { "$eq": 1 } }] },
            doc! { "$set": { "name": "f" } }.into(),
        ),
        (
            none(),
            vec![doc! { "$replaceWith": { "_id": 1, "region": "a", "email": "g@x" } }].into(),
        ),
        (
            none(),
            vec![doc! { "$set": { "_id": { "$literal": 1 }, "region": "a" } }].into(),
        ),
    ];
    for (number, (more, update)) in updates.into_iter().enumerate() {
        let mut q = doc! { "region": { "$in": ["a"] }, "email": format!("{number}@x") };
        q.extend(more);
        let upsert = doc! { "q": q, "u": &update, "upsert": true };
        let command = doc! { "update": "users", "updates": [upsert], "maxTimeMS": 20_000 };
        let reply = run(&client, database, command).await;
        assert!(reply.contains_key("upserted"), "{update}: {reply}");
        assert_agreement(cluster, database, "email").await;
        let delete = doc! { "delete": "users", "deletes": [{ "q": { "_id": 1, "region": "a" }, "limit": 1 }] };
        assert_eq!(
            run(&client, database, delete).await.get_i32("n").ok(),
            Some(1),
            "{update}"
        );
    }
    assert_agreement(cluster, database, "email").await;
}

/// The update, and not the query, decides the shard of the new document. So Keyward reads it by its `_id` on all shards.
#[tokio::test]
async fn an_upsert_by_a_pipeline_leaves_another_document_with_the_same_id_alone() {
    let database = "same_id_pipeline";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let client = keyward.client_without_retries().await;
    run(&client, database, insert(vec![user("a", "a@x")], true)).await;
    let upsert = |email: &str| {
        let pipeline = vec![doc! { "$replaceWith": { "_id": 1, "region": "z", "email": email } }];
        let query = doc! { "_id": 1, "region": "z", "email": email };
        let statement = doc! { "q": query, "u": pipeline, "upsert": true };
        // Long before Keyward would give up.
        doc! { "update": "users", "updates": [statement], "maxTimeMS": 30_000 }
    };
    let refused = run(&client, database, upsert("a@x")).await;
    let error = refused.get_array("writeErrors").unwrap()[0].as_document().unwrap();
    assert_eq!(error.get_i32("code").unwrap(), 11_000, "{refused}");
    let upserted = run(&client, database, upsert("z@x")).await;
    assert!(upserted.contains_key("upserted"), "{upserted}");
    assert_agreement(cluster, database, "email").await;
    assert_eq!(reservations(cluster, database, "email").await.len(), 2);
}

/// A statement that finds its documents by `_id` and region, or by a range of regions; no two documents get one address by it.
fn statement(rng: &mut StdRng, number: i32) -> Document {
    let regions = ["a", "b", "y", "z"];
    let (id, region) = (rng.random_range(1..4), *regions.choose(rng).unwrap());
    let one = doc! { "_id": id, "region": region };
    let many = match rng.random_range(0..3) {
        0 => doc! { "region": { "$lt": "m" } },
        1 => doc! { "region": region, "times": { "$mod": [2, 0] } },
        _ => doc! { "_id": { "$in": [id, 1] }, "region": { "$gte": "b" } },
    };
    let own = |number: i32| doc! { "$concat": ["$region", { "$toString": "$_id" }, format!("-{number}@x")] };
    let email = |number: i32| vec![doc! { "$set": { "email": own(number), "times": { "$add": ["$times", 1] } } }];
    let update = |q: &Document, u: Bson, multi: bool, upsert: bool| {
        doc! { "update": "users", "updates": [{ "q": q.clone(), "u": u, "multi": multi, "upsert": upsert }] }
    };
    let replaced = doc! { "region": region, "email": format!("replaced-{number}@x"), "times": 0 };
    match rng.random_range(0..9) {
        0 => {
            let mut document = one;
            document.extend(doc! { "email": format!("inserted-{number}@x"), "times": 0 });
            insert(vec![document], true)
        }
        1 => update(&one, email(number).into(), false, false),
        2 => update(&many, email(number).into(), true, false),
        3 => update(&one, replaced.into(), false, true),
        4 => {
            let fields = doc! { "$set": { "email": format!("upserted-{number}@x") }, "$setOnInsert": { "times": 0 } };
            update(&one, fields.into(), false, true)
        }
        5 => doc! { "findAndModify": "users", "query": one, "update": email(number), "new": true },
        6 => doc! { "findAndModify": "users", "query": one, "remove": true },
        7 => doc! { "delete": "users", "deletes": [{ "q": many, "limit": 0 }] },
        _ => doc! { "delete": "users", "deletes": [{ "q": one, "limit": 1 }] },
    }
}

/// What both answer: how many documents there were, what they hold; times and the texts of errors differ.
fn answer(reply: &Document) -> Document {
    let mut answer = Document::new();
    for field in ["ok", "n", "nModified", "value"] {
        if let Some(value) = reply.get(field) {
            answer.insert(field, value.clone());
        }
    }
    let errors = reply.get_array("writeErrors").map_or(0, Vec::len);
    answer.insert("errors", i64::try_from(errors).unwrap());
    answer
}

/// The same statements on a collection without constraints have the same effect, and what is reserved is what documents hold.
#[tokio::test(flavor = "multi_thread")]
async fn statements_beside_documents_with_the_same_id_change_their_own() {
    let (database, plain) = ("same_id_all", "same_id_plain");
    let cluster = users(database);
    let namespace = format!("{plain}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let mut rng = StdRng::seed_from_u64(given::seed());
    let mut through = Connection::open(&keyward.address);
    let mut direct = Connection::open(&cluster.router_address());
    for number in 0..STATEMENTS {
        let statement = statement(&mut rng, number);
        let got = through.run(database, &statement);
        let expected = direct.run(plain, &statement);
        assert_eq!(answer(&got), answer(&expected), "{statement}\n{got}\n{expected}");
        if number % 10 == 9 {
            assert_agreement(cluster, database, "email").await;
        }
    }
    let find = doc! { "find": "users", "sort": { "region": 1, "_id": 1 } };
    let all = |reply: Document| {
        reply
            .get_document("cursor")
            .unwrap()
            .get_array("firstBatch")
            .unwrap()
            .clone()
    };
    assert_eq!(all(through.run(database, &find)), all(direct.run(plain, &find)));
    assert_agreement(cluster, database, "email").await;
}

/// A replacement by an equal `_id` gives the document that `_id`. Its reservations have the former one.
#[tokio::test]
async fn a_document_whose_id_gets_another_type_gives_its_keys_up() {
    let database = "same_id_types";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let client = keyward.client_without_retries().await;
    run(&client, database, insert(vec![user("a", "a@x")], true)).await;
    let changed = |q: Document, u: Document| doc! { "update": "users", "updates": [{ "q": q, "u": u }] };
    let by_double = doc! { "_id": 1.0, "region": "a" };
    let replacement = doc! { "_id": 1.0, "region": "a", "email": "b@x" };
    let commands = [
        (changed(by_double.clone(), replacement), "b@x"),
        (changed(by_double, doc! { "$set": { "email": "c@x" } }), "c@x"),
        (
            changed(doc! { "_id": 1, "region": "a" }, doc! { "$set": { "email": "d@x" } }),
            "d@x",
        ),
    ];
    for (command, email) in commands {
        let reply = run(&client, database, command).await;
        assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
        let reserved = reservations(cluster, database, "email").await;
        let keys: Vec<_> = reserved.iter().map(|one| one.get_document("_id").unwrap()).collect();
        let emails: Vec<_> = keys
            .iter()
            .map(|key| key.get_document("k").unwrap().get_str("email").unwrap())
            .collect();
        assert_eq!(emails, [email], "{reply}");
    }
}

/// The new document isn't in the query's place: Keyward read the other one there, which has no key, for the one that was inserted.
#[tokio::test]
async fn an_upsert_that_supplies_its_document_reserves_that_documents_keys() {
    let database = "same_id_supplied";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[PHONE]);
    let client = keyward.client_without_retries().await;
    run(&client, database, insert(vec![doc! { "_id": 1, "region": "a" }], true)).await;
    let supplied = doc! { "_id": 1, "region": "z", "phone": "p" };
    let upsert = doc! {
        "q": { "_id": 1, "region": "a", "x": 2 }, "u": [{ "$set": { "n": 1 } }], "c": { "new": supplied },
        "upsert": true, "upsertSupplied": true,
    };
    let reply = run(&client, database, doc! { "update": "users", "updates": [upsert] }).await;
    assert!(reply.contains_key("upserted"), "{reply}");
    assert_agreement(cluster, database, "phone").await;
    let second = doc! { "_id": 2, "region": "b", "phone": "p" };
    let refused = run(&client, database, insert(vec![second], true)).await;
    assert_eq!(write_errors(&refused), [(0, 11_000)], "{refused}");
}

/// The server stores the replacement's `_id`, by whose type the constraint's filter chooses.
#[tokio::test]
async fn a_replacement_whose_id_has_another_type_comes_under_a_filter_for_that_type() {
    let database = "same_id_filtered";
    let cluster = users(database);
    let filtered =
        "  - { collection: DB.users, key: { email: 1 }, partialFilterExpression: { _id: { $type: double } } }\n";
    let keyward = keyward(cluster, database, "60s", &[filtered]);
    let client = keyward.client_without_retries().await;
    let ids = [Bson::Int32(1), Bson::Double(2.0)];
    let both = ids.map(|id| doc! { "_id": id, "region": "a", "email": "x" });
    let reply = run(&client, database, insert(both.to_vec(), true)).await;
    assert_eq!(reply.get_i32("n").unwrap(), 2, "{reply}");
    let replaced = |id: Bson, email: &str| {
        let u = doc! { "_id": id, "region": "a", "email": email };
        doc! { "update": "users", "updates": [{ "q": { "_id": 1, "region": "a" }, "u": u }] }
    };
    let refused = run(&client, database, replaced(1.0.into(), "x")).await;
    assert_eq!(write_errors(&refused), [(0, 11_000)], "{refused}");
    let reply = run(&client, database, replaced(1.0.into(), "y")).await;
    assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{reply}");
    let keys = || async { reservations(cluster, database, "email").await.len() };
    assert_eq!(keys().await, 2);
    let reply = run(&client, database, replaced(1.into(), "y")).await;
    assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{reply}");
    assert_eq!(keys().await, 1, "its document isn't under the filter any more");
}
