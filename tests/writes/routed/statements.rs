//! `updateOne`, `deleteOne` and `findAndModify` by a unique field, without `_id` and shard key. A router of MongoDB 6.0 refuses them.

use bson::{Binary, Document, doc, spec::BinarySubtype};
use testkit::wire::{Connection, is_ok};

use super::{direct, find, first_batch, insert, outcomes, start};

fn retryable(mut command: Document, number: i64) -> Document {
    let id = Binary {
        subtype: BinarySubtype::Uuid,
        bytes: vec![5; 16],
    };
    command.insert("lsid", doc! { "id": id });
    command.insert("txnNumber", number);
    command
}

fn update(email: &str, change: Document) -> Document {
    doc! { "update": "users", "updates": [{ "q": { "email": email }, "u": change }] }
}

fn is_refused(reply: &Document) -> bool {
    !is_ok(reply) || reply.contains_key("writeErrors")
}

#[test]
fn a_statement_by_a_unique_field_needs_no_shard_key() {
    for options in ["key: { email: 1 }", "key: { email: 1 }, strategy: transaction"] {
        let database = format!("routed_statements{}", options.len());
        let keyward = start(&database, &[options]);
        let (mut client, mut direct) = (Connection::greeted(&keyward.address), direct());
        let users =
            (0..8).map(|n| doc! { "_id": n, "region": if n % 2 == 0 { "a" } else { "z" }, "email": format!("e{n}") });
        insert(&mut client, &database, users.collect());
        let remove = |email: &str| doc! { "delete": "users", "deletes": [{ "q": { "email": email }, "limit": 1 }] };
        let commands: Vec<Document> = vec![
            update("e1", doc! { "$set": { "name": "x" } }),
            update("e2", doc! { "$set": { "email": "new2" } }),
            update("e3", doc! { "$inc": { "n": 1 } }),
            remove("e4"),
            doc! { "findAndModify": "users", "query": { "email": "e5" }, "update": { "$set": { "name": "y" } }, "new": true },
            doc! { "findAndModify": "users", "query": { "email": "e6" }, "remove": true },
        ];
        for (number, command) in (1..).zip(commands) {
            assert!(
                is_refused(&direct.run(&database, &command)),
                "the router accepts {command}"
            );
            let first = client.must(&database, &retryable(command.clone(), number));
            assert!(!is_refused(&first), "{command}: {first}");
            let affected = |reply: &Document| {
                let of_batch = reply.get_i32("n").ok();
                of_batch.or_else(|| reply.get_document("lastErrorObject").ok()?.get_i32("n").ok())
            };
            assert_eq!(affected(&first), Some(1), "{command}: {first}");
            // The driver didn't get the reply: it must have no second effect, and the same result.
            let again = client.must(&database, &retryable(command.clone(), number));
            assert_eq!(affected(&again), Some(1), "{command}: {again}");
        }
        let all = client.all(&database, "users");
        let ids: Vec<i32> = all.iter().map(|user| user.get_i32("_id").unwrap()).collect();
        assert_eq!(ids, [0, 1, 2, 3, 5, 7]);
        assert_eq!(all[2].get_str("email").unwrap(), "new2");
        assert_eq!(all[3].get_i32("n").unwrap(), 1);
        for (email, count) in [("e2", 0), ("new2", 1), ("e4", 0)] {
            assert_eq!(
                first_batch(&client.must(&database, &find(doc! { "email": email }))).len(),
                count,
                "{email}"
            );
        }
    }
}

/// A retry must not change the document that has got the key since.
#[test]
fn a_retry_leaves_the_next_owner_of_the_key_alone() {
    let database = "routed_retries";
    let keyward = start(database, &["key: { email: 1 }"]);
    let mut client = Connection::greeted(&keyward.address);
    let user = |id: i32, region: &str, email: &str| doc! { "_id": id, "region": region, "email": email, "n": 0 };
    insert(&mut client, database, vec![user(1, "a", "k"), user(2, "z", "other")]);
    let command = retryable(update("k", doc! { "$inc": { "n": 1 } }), 1);
    assert_eq!(client.must(database, &command).get_i32("n").unwrap(), 1);
    for (id, region, email) in [(1, "a", "free"), (2, "z", "k")] {
        let change = doc! { "q": { "_id": id, "region": region }, "u": { "$set": { "email": email } } };
        client.must(database, &doc! { "update": "users", "updates": [change] });
    }
    assert_eq!(client.must(database, &command).get_i32("n").unwrap(), 1);
    let counts: Vec<i32> = client
        .all(database, "users")
        .iter()
        .map(|user| user.get_i32("n").unwrap())
        .collect();
    assert_eq!(counts, [1, 0]);
}

#[test]
fn what_is_not_there_is_reported_and_what_is_wrong_is_refused() {
    let database = "routed_nothing";
    let keyward = start(database, &["key: { email: 1 }"]);
    let mut client = Connection::greeted(&keyward.address);
    insert(
        &mut client,
        database,
        vec![doc! { "_id": 1, "region": "z", "email": "b" }],
    );
    for change in [doc! { "$set": { "name": "x" } }, doc! { "$set": { "email": "c" } }] {
        let reply = client.must(database, &update("nobody", change));
        assert!(!is_refused(&reply), "{reply}");
        assert_eq!(reply.get_i32("n").unwrap(), 0, "{reply}");
    }
    let remove = doc! { "delete": "users", "deletes": [{ "q": { "email": "nobody" }, "limit": 1 }] };
    assert_eq!(client.must(database, &remove).get_i32("n").unwrap(), 0);
    let modify =
        doc! { "findAndModify": "users", "query": { "email": "nobody" }, "update": { "$set": { "name": "x" } } };
    assert_eq!(client.must(database, &modify).get("value"), Some(&bson::Bson::Null));
    assert!(is_refused(
        &client.run(database, &update("nobody", doc! { "$unheard": { "name": "x" } }))
    ));
    // A stale reservation: the document with the key is another one.
    let mut direct = direct();
    direct.must(
        database,
        &doc! { "delete": "users", "deletes": [{ "q": { "_id": 1, "region": "z" }, "limit": 1 }] },
    );
    insert(
        &mut direct,
        database,
        vec![doc! { "_id": 2, "region": "a", "email": "b" }],
    );
    let reply = client.must(database, &update("b", doc! { "$set": { "name": "x" } }));
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    assert!(outcomes(&keyward, "routed_nothing.users.email_1")[2] >= 1);
}
