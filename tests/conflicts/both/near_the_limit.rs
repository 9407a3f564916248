//! Statements and documents of nearly 16 MiB: what a replica set with a unique index takes, Keyward takes, too, and what is too
//! large it refuses with the same code.

use bson::{Document, doc};
use mongodb::options::ReturnDocument;
use testbed::ReplicaSet;

use crate::strategy::Strategy;
use crate::trial::{assert_agreement, insert, keyward};
use testkit::Keyward;
use testkit::wire::send;

/// What a document may have.
const BYTES_MAX: usize = 16 * 1024 * 1024;

/// A document of just so many bytes.
fn sized(email: &str, bytes: usize) -> Document {
    let mut document = doc! { "_id": 1, "region": "a", "email": email, "data": "" };
    let rest = bytes - document.to_vec().unwrap().len();
    document.insert("data", "x".repeat(rest));
    document
}

/// A `$set` after which the document of [`sized`] has just so many bytes.
fn change(email: &str, bytes: usize) -> Document {
    let document = sized(email, bytes);
    doc! { "$set": { "email": email, "data": document.get_str("data").unwrap() } }
}

/// What becomes of the commands, one after the other: the code, or how many documents were changed.
fn outcomes(address: &str, database: &str) -> Vec<String> {
    let query = doc! { "_id": 1, "region": "a" };
    let mut outcomes = Vec::new();
    let mut run = |what: &str, command: Document| {
        let reply = send(address, database, command).unwrap_or_else(|error| doc! { "lost": error.to_string() });
        let error = reply
            .get_array("writeErrors")
            .ok()
            .and_then(|errors| errors[0].as_document())
            .unwrap_or(&reply);
        let counts = reply.get_document("lastErrorObject").unwrap_or(&reply);
        outcomes.push(match error.get_i32("code") {
            Ok(code) => format!("{what}: {code}"),
            Err(_) => format!("{what}: n {:?}", counts.get("n")),
        });
        if reply.contains_key("lost") {
            outcomes.push(reply.to_string());
        }
    };
    for (number, bytes) in [
        15_999_000,
        BYTES_MAX - 1_000,
        BYTES_MAX,
        BYTES_MAX + 1,
        BYTES_MAX + 8_000,
        BYTES_MAX + 20_000,
    ]
    .into_iter()
    .enumerate()
    {
        let what = |kind: &str| format!("{kind} of {bytes}");
        let number = i32::try_from(number).unwrap();
        let update = |u: Document| doc! { "update": "users", "updates": [{ "q": &query, "u": u }] };
        let modify =
            |u: Document| doc! { "findAndModify": "users", "query": &query, "update": u, "fields": { "_id": 1 } };
        let commands = [
            ("replacement", update(sized(&format!("a{number}@x"), bytes))),
            ("$set", update(change(&format!("b{number}@x"), bytes))),
            ("found and replaced", modify(sized(&format!("c{number}@x"), bytes))),
            ("found and set", modify(change(&format!("d{number}@x"), bytes))),
        ];
        for (kind, command) in commands {
            run(&what(kind), crate::both::retries::retryable(command, 1));
        }
        let taken = [sized("taken@x", bytes.min(BYTES_MAX - 100))];
        run(
            &what("duplicate"),
            crate::both::retries::retryable(update(taken[0].clone()), 1),
        );
    }
    outcomes
}

async fn what_a_native_index_lets_through_goes_through(strategy: Strategy) {
    let database = strategy.database("near_the_limit");
    let cluster = strategy.users(database);
    let set = ReplicaSet::shared();
    let native = strategy.database("near_the_limit_native");
    let index = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true };
    set.run(native, doc! { "createIndexes": "users", "indexes": [index] })
        .unwrap();
    let on_shards = keyward(cluster, database, "60s", &[strategy.email()]);
    let on_set = Keyward::start_with_lease(&set.uri(), "60s", &strategy.email().replace("DB", database));
    let address = set.addresses().remove(0);
    let all = [
        (&*address, native),
        (&*on_set.address, database),
        (&*on_shards.address, database),
    ];
    let all = all.map(|(address, database)| {
        let other = doc! { "_id": 2, "region": "a", "email": "taken@x" };
        let first = doc! { "_id": 1, "region": "a", "email": "first@x" };
        let reply = send(address, database, insert(vec![first, other], true)).unwrap();
        assert_eq!(reply.get_i32("n").unwrap(), 2, "{reply}");
        outcomes(address, database)
    });
    assert_eq!(all[1], all[0]);
    assert_eq!(all[2], all[0]);
    assert_agreement(cluster, database, "email").await;
}

/// As drivers send it, and what they are given back.
async fn a_driver_replaces_and_gets_documents_of_the_largest_size(strategy: Strategy) {
    let database = strategy.database("near_the_limit_driver");
    let cluster = strategy.users(database);
    let keyward = keyward(cluster, database, "60s", &[strategy.email()]);
    let client = mongodb::Client::with_uri_str(format!("mongodb://{}/", keyward.address))
        .await
        .unwrap();
    let users = client.database(database).collection::<Document>("users");
    users.insert_one(sized("a@x", 100)).await.unwrap();
    let query = || doc! { "_id": 1, "region": "a" };
    let replaced = users.replace_one(query(), sized("b@x", BYTES_MAX)).await.unwrap();
    assert_eq!(replaced.modified_count, 1);
    let set = users.update_one(query(), change("c@x", BYTES_MAX)).await.unwrap();
    assert_eq!(set.modified_count, 1);
    let before = users
        .find_one_and_replace(query(), sized("d@x", BYTES_MAX))
        .await
        .unwrap();
    assert_eq!(before.unwrap().to_vec().unwrap().len(), BYTES_MAX);
    let by_id = doc! { "_id": 1 };
    let after = users
        .find_one_and_update(by_id, doc! { "$set": { "email": "e@x" } })
        .return_document(ReturnDocument::After)
        .await
        .unwrap();
    assert_eq!(after.unwrap().get_str("email").unwrap(), "e@x");
    assert_agreement(cluster, database, "email").await;
}

/// With what it gives, its record is larger than a document.
async fn a_retry_gets_the_largest_document_that_its_first_try_got(strategy: Strategy) {
    let database = strategy.database("near_the_limit_retry");
    let cluster = strategy.users(database);
    let keyward = keyward(cluster, database, "60s", &[strategy.email()]);
    let run = |command: Document| send(&keyward.address, database, command).unwrap();
    let large = sized("a@x", BYTES_MAX);
    assert_eq!(
        run(doc! { "insert": "users", "documents": [&large] }).get_i32("n").ok(),
        Some(1)
    );
    let change = doc! { "$set": { "email": "b@x" }, "$inc": { "times": 1 }, "$unset": { "data": 1 } };
    let modify = doc! { "findAndModify": "users", "query": { "_id": 1 }, "update": change };
    let modify = crate::both::retries::retryable(modify, 1);
    for _ in 0..2 {
        let reply = run(modify.clone());
        assert!(
            reply.get_document("value").is_ok_and(|value| *value == large),
            "{:.1000}",
            reply.to_string()
        );
    }
    let part = doc! { "q": { "_id.part": 1_i64 }, "limit": 0 };
    let expired = cluster.run(database, doc! { "delete": "keyward.results", "deletes": [part] });
    if expired.unwrap().get_i32("n").unwrap() > 0 {
        let reply = run(modify.clone());
        // Not a reply without the document.
        assert_eq!(reply.get_i32("code").ok(), Some(217), "{reply:.1000}");
    } else {
        assert_eq!(strategy, Strategy::Compensating);
    }
    let found = run(doc! { "find": "users", "filter": { "times": 1, "email": "b@x" } });
    assert_eq!(
        found
            .get_document("cursor")
            .unwrap()
            .get_array("firstBatch")
            .unwrap()
            .len(),
        1
    );
    assert_agreement(cluster, database, "email").await;
}

/// The way that a statement takes depends on its own size alone, not on that of the document that it meets.
async fn a_large_statement_that_comes_again_is_carried_out_once(strategy: Strategy) {
    let database = strategy.database("near_the_limit_again");
    let cluster = strategy.users(database);
    let keyward = keyward(cluster, database, "60s", &[strategy.email()]);
    let run = |command: Document| send(&keyward.address, database, command).unwrap();
    let long = "a".repeat(900_000);
    assert_eq!(
        run(insert(vec![sized(&long, 1_000_000)], true)).get_i32("n").ok(),
        Some(1)
    );
    let query = doc! { "_id": 1, "region": "a" };
    let update = |u: Document| doc! { "update": "users", "updates": [{ "q": &query, "u": u }] };
    let large = crate::both::retries::retryable(update(sized("b@x", BYTES_MAX)), 1);
    assert_eq!(run(large.clone()).get_i32("nModified").ok(), Some(1));
    assert_eq!(run(update(sized("c@x", 1_000))).get_i32("nModified").ok(), Some(1));
    assert_eq!(run(large).get_i32("nModified").ok(), Some(1));
    let found = run(doc! { "count": "users", "query": { "email": "c@x" } });
    assert_eq!(found.get_i32("n").ok(), Some(1), "{found}");
    // The codes by themselves, beside those of a native index.
    let too_large = run(update(sized("d@x", BYTES_MAX + 20_000)));
    assert_eq!(too_large.get_i32("code").ok(), Some(10334), "{too_large}");
    assert_agreement(cluster, database, "email").await;
}

on_both_strategies! {
    what_a_native_index_lets_through_goes_through;
    a_driver_replaces_and_gets_documents_of_the_largest_size;
    a_retry_gets_the_largest_document_that_its_first_try_got;
    a_large_statement_that_comes_again_is_carried_out_once;
}
