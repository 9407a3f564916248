//! `insert` into a protected, sharded collection, from an unmodified driver: what a native unique index would have
//! said, whatever shard the documents go to.

#![expect(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

mod starts;

use bson::{Bson, Document, doc};
use mongodb::Client;
use testbed::{Cluster, ReplicaSet};
use testkit::{Keyward, comparable, run, shard_on_two};

const EMAIL: &str = "  - { collection: DB.users, key: { email: 1 } }\n";

/// A database of its own for each test, with `users` sharded over two shards by `region`.
fn users(database: &str) -> &'static Cluster {
    let cluster = Cluster::shared();
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    cluster
}

fn keyward(cluster: &Cluster, database: &str, constraints: &str) -> Keyward {
    Keyward::start(&cluster.uri(), &constraints.replace("DB", database))
}

/// The same inserts on an unsharded collection with native unique indexes.
async fn native(database: &str, indexes: Vec<Document>) -> Client {
    let client = ReplicaSet::shared().client();
    client.database(database).drop().await.unwrap();
    run(&client, database, doc! { "create": "users" }).await;
    for mut index in indexes {
        index.insert("unique", true);
        run(&client, database, doc! { "createIndexes": "users", "indexes": [index] }).await;
    }
    client
}

fn email_index() -> Vec<Document> {
    vec![doc! { "key": { "email": 1 }, "name": "email_1" }]
}

fn insert(documents: Vec<Document>, ordered: bool) -> Document {
    doc! { "insert": "users", "documents": documents, "ordered": ordered }
}

/// Runs `commands` on both and compares every reply; gives the last one.
async fn same_replies(keyward: &Client, native: &Client, database: &str, commands: Vec<Document>) -> Document {
    let mut last = Document::new();
    for command in commands {
        let expected = comparable(run(native, database, command.clone()).await);
        let got = comparable(run(keyward, database, command.clone()).await);
        assert_eq!(got, expected, "{command}");
        last = got;
    }
    last
}

#[tokio::test]
async fn the_second_of_two_equal_addresses_on_two_shards_gets_the_native_error() {
    let database = "two_shards";
    let cluster = users(database);
    let keyward = keyward(cluster, database, EMAIL);
    let native = native(database, email_index()).await;
    let reply = same_replies(
        &keyward.client().await,
        &native,
        database,
        vec![
            insert(vec![doc! { "_id": 1, "region": "a", "email": "a@x" }], true),
            insert(vec![doc! { "_id": 2, "region": "z", "email": "a@x" }], true),
        ],
    )
    .await;
    let error = reply.get_array("writeErrors").unwrap()[0].as_document().unwrap();
    let text = "E11000 duplicate key error collection: two_shards.users index: email_1 dup key: { email: \"a@x\" }";
    assert_eq!(error.get_str("errmsg").unwrap(), text);
    let counts: Vec<usize> = testkit::on_each_shard(cluster.shards(), database, "users")
        .await
        .iter()
        .map(Vec::len)
        .collect();
    assert_eq!(counts.iter().sum::<usize>(), 1, "{counts:?}");
}

#[tokio::test]
async fn batches_fail_where_the_native_ones_do() {
    let database = "batches";
    let cluster = users(database);
    let constraints = "  - { collection: DB.users, key: { email: 1 } }\n  - { collection: DB.users, key: { phone: 1 }, sparse: true }\n";
    let keyward = keyward(cluster, database, constraints);
    let indexes = vec![
        email_index().remove(0),
        doc! { "key": { "phone": 1 }, "name": "phone_1", "sparse": true },
    ];
    let native = native(database, indexes).await;
    let user = |id: i32, email: &str| doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": email };
    let with_phone = |id: i32, email: &str, phone: i32| {
        let mut user = user(id, email);
        user.insert("phone", phone);
        user
    };
    same_replies(
        &keyward.client().await,
        &native,
        database,
        vec![
            // Duplicates inside one command, ordered and not.
            insert(vec![user(1, "a"), user(2, "b"), user(3, "a"), user(4, "c")], true),
            insert(
                vec![user(5, "d"), user(6, "a"), user(7, "d"), user(8, "e"), user(9, "e")],
                false,
            ),
            // Both constraints violated: the first one is told. One violated: the other key stays free.
            insert(vec![with_phone(10, "f", 1), with_phone(11, "f", 1)], false),
            insert(vec![with_phone(12, "g", 1)], true),
            insert(vec![user(13, "g")], true),
            // A missing address is null, and only one may lack it.
            insert(
                vec![doc! { "_id": 14, "region": "a" }, doc! { "_id": 15, "region": "z" }],
                false,
            ),
            // The server's own refusals keep their places.
            insert(
                vec![
                    user(16, "h"),
                    doc! { "_id": [1], "region": "a", "email": "i" },
                    user(17, "j"),
                ],
                false,
            ),
            insert(
                vec![
                    user(18, "k"),
                    doc! { "_id": 18, "region": "a", "email": "l" },
                    user(19, "m"),
                ],
                true,
            ),
            insert(vec![user(20, "l"), user(21, "m")], false),
            insert(
                vec![
                    doc! { "_id": 22, "region": "a", "email": ["n", "o", "n"] },
                    user(23, "o"),
                ],
                false,
            ),
        ],
    )
    .await;
    let emails = |document: &Document| match document.get("email") {
        Some(Bson::Array(values)) => {
            let mut distinct: Vec<Bson> = Vec::new();
            values.iter().for_each(|value| {
                if !distinct.contains(value) {
                    distinct.push(value.clone())
                }
            });
            distinct.into_iter().map(|value| doc! { "email": value }).collect()
        }
        value => vec![doc! { "email": value.cloned().unwrap_or(Bson::Null) }],
    };
    testkit::assert_documents_and_reservations_agree(cluster, database, "users", "email_1", emails).await;
    let phones = |document: &Document| {
        document
            .get("phone")
            .map(|phone| doc! { "phone": phone.clone() })
            .into_iter()
            .collect()
    };
    testkit::assert_documents_and_reservations_agree(cluster, database, "users", "phone_1", phones).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_keywards_and_64_clients_fight_over_2000_addresses() {
    const CLIENTS: i32 = 64;
    const INSERTS: i32 = 20_000;
    const ADDRESSES: i32 = 2_000;
    let database = "contention";
    let cluster = users(database);
    let keywards = [keyward(cluster, database, EMAIL), keyward(cluster, database, EMAIL)];
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let client = keywards[number as usize % 2].client().await;
        clients.push(tokio::spawn(async move {
            let users = client.database(database).collection::<Document>("users");
            let mut won = Vec::new();
            for insert in (number..INSERTS).step_by(CLIENTS as usize) {
                // Neighbours in time fight over one address, through both Keywards and for both shards.
                let address = format!("{}@x", (insert / 10) % ADDRESSES);
                let region = if insert % 2 == 0 { "a" } else { "z" };
                let user = doc! { "_id": insert, "region": region, "email": &address };
                match users.insert_one(user).await {
                    Ok(_) => won.push(address),
                    Err(error) => assert_eq!(code(&error), Some(11000), "{error}"),
                }
            }
            won
        }));
    }
    let mut winners = Vec::new();
    for client in clients {
        winners.extend(client.await.unwrap());
    }
    winners.sort();
    let expected: std::collections::BTreeSet<String> = (0..ADDRESSES).map(|number| format!("{number}@x")).collect();
    assert_eq!(
        winners,
        expected.into_iter().collect::<Vec<_>>(),
        "exactly one winner for each address"
    );
    let email = |document: &Document| vec![doc! { "email": document.get("email").unwrap().clone() }];
    testkit::assert_documents_and_reservations_agree(cluster, database, "users", "email_1", email).await;
    let counts: Vec<usize> = testkit::on_each_shard(cluster.shards(), database, "users")
        .await
        .iter()
        .map(Vec::len)
        .collect();
    assert_eq!(counts.iter().sum::<usize>(), ADDRESSES as usize, "{counts:?}");
}

fn code(error: &mongodb::error::Error) -> Option<i32> {
    use mongodb::error::{ErrorKind, WriteFailure};
    match error.kind.as_ref() {
        ErrorKind::Write(WriteFailure::WriteError(error)) => Some(error.code),
        ErrorKind::Command(error) => Some(error.code),
        _ => None,
    }
}

#[tokio::test]
async fn the_shards_hold_what_the_manuals_recipe_would_have_written() {
    let database = "recipe";
    let cluster = users(database);
    let constraints =
        "  - { collection: DB.users, key: { email: 1 } }\n  - { collection: DB.users, key: { login: 1 } }\n";
    let keyward = keyward(cluster, database, constraints);
    let users = keyward
        .client()
        .await
        .database(database)
        .collection::<Document>("users");
    users
        .insert_one(doc! { "_id": 7, "region": "z", "email": "a@x", "login": "a" })
        .await
        .unwrap();
    for (field, value) in [("email", "a@x"), ("login", "a")] {
        let proxy = format!("keyward.users.{field}_1");
        let reservations = testkit::on_each_shard(cluster.shards(), database, &proxy)
            .await
            .concat();
        assert_eq!(reservations.len(), 1);
        let reservation = &reservations[0];
        let key = reservation.get_document("_id").unwrap().get_document("k").unwrap();
        assert_eq!(*key, doc! { field: value });
        assert_eq!(reservation.get_i32("owner").unwrap(), 7);
        assert_eq!(*reservation.get_document("route").unwrap(), doc! { "region": "z" });
        assert!(reservation.get_timestamp("at").unwrap().time > 0, "{reservation}");
    }
}

#[tokio::test]
async fn reservations_lie_on_every_shard_from_the_first_hundred_on() {
    let database = "spread";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "  - { collection: DB.users, key: { number: 1 } }\n");
    let users = keyward
        .client()
        .await
        .database(database)
        .collection::<Document>("users");
    let monotonic = (0..100).map(|number| doc! { "_id": number, "region": "a", "number": 1_000_000 + number });
    users.insert_many(monotonic).await.unwrap();
    let counts: Vec<usize> = testkit::on_each_shard(cluster.shards(), database, "keyward.users.number_1")
        .await
        .iter()
        .map(Vec::len)
        .collect();
    assert!(counts.iter().all(|count| (25..=75).contains(count)), "{counts:?}");
}

#[tokio::test]
async fn a_refused_write_leaves_no_reservation() {
    let database = "compensation";
    let cluster = users(database);
    let validator = doc! { "collMod": "users", "validator": { "age": { "$gte": 18 } } };
    cluster.run(database, validator.clone()).unwrap();
    let keyward = keyward(cluster, database, EMAIL);
    let native = native(database, email_index()).await;
    run(&native, database, validator).await;
    let user = |id: i32, email: &str, age: i32| doc! { "_id": id, "region": "a", "email": email, "age": age };
    same_replies(
        &keyward.client().await,
        &native,
        database,
        vec![
            insert(vec![user(1, "a", 17)], true),
            insert(vec![user(1, "a", 18)], true),
            // The `_id` is taken on that shard.
            insert(vec![user(1, "b", 18)], true),
            insert(vec![user(2, "b", 18), user(3, "c", 3), user(4, "d", 18)], true),
            insert(vec![user(5, "c", 18), user(6, "d", 18), user(7, "e", 1)], false),
        ],
    )
    .await;
    let email = |document: &Document| vec![doc! { "email": document.get("email").unwrap().clone() }];
    testkit::assert_documents_and_reservations_agree(cluster, database, "users", "email_1", email).await;
}

/// The manual's page on unique indexes and schema validation: users with accounts, no account twice.
#[tokio::test]
async fn the_manuals_accounts_are_unique_on_a_sharded_collection_too() {
    let database = "accounts";
    let cluster = Cluster::shared();
    shard_on_two(cluster, "accounts.users", doc! { "_id": 1 }, doc! { "_id": 2 });
    let same_account_twice = doc! { "$anyElementTrue": { "$map": {
        "input": { "$ifNull": ["$accounts", []] }, "as": "a",
        "in": { "$gt": [{ "$size": { "$filter": {
            "input": "$accounts", "as": "b",
            "cond": { "$and": [{ "$eq": ["$$a.bank", "$$b.bank"] }, { "$eq": ["$$a.number", "$$b.number"] }] },
        } } }, 1] },
    } } };
    let validator = doc! { "collMod": "users", "validator": { "$expr": { "$not": same_account_twice } } };
    cluster.run(database, validator.clone()).unwrap();
    let constraint = "  - collection: DB.users\n    name: Unique Account\n    key: { accounts.bank: 1, accounts.number: 1 }\n    \
                      partialFilterExpression: { accounts.0.bank: { $exists: true } }\n";
    let keyward = keyward(cluster, database, constraint);
    let index = doc! {
        "key": { "accounts.bank": 1, "accounts.number": 1 }, "name": "Unique Account",
        "partialFilterExpression": { "accounts.0.bank": { "$exists": true } },
    };
    let native = native(database, vec![index]).await;
    run(&native, database, validator).await;
    let account = |number: &str| doc! { "balance": 500, "bank": "abc", "number": number };
    same_replies(
        &keyward.client().await,
        &native,
        database,
        vec![
            insert(vec![doc! { "_id": 1, "name": { "first": "john" } }], true),
            insert(vec![doc! { "_id": 2, "name": { "first": "jane" } }], true),
            insert(
                vec![doc! { "_id": 3, "accounts": [account("123"), account("456")] }],
                true,
            ),
            insert(vec![doc! { "_id": 0, "accounts": [account("456")] }], true),
            insert(
                vec![doc! { "_id": 5, "accounts": [account("789"), account("789")] }],
                true,
            ),
            insert(vec![doc! { "_id": 5, "accounts": [account("789")] }], true),
        ],
    )
    .await;
}

#[tokio::test]
async fn what_cannot_be_protected_is_refused_and_changes_nothing() {
    let database = "refused";
    let cluster = users(database);
    let keyward = keyward(cluster, database, EMAIL);
    let client = keyward.client_without_retries().await;
    run(
        &client,
        database,
        insert(vec![doc! { "_id": 1, "region": "a", "email": "a@x" }], true),
    )
    .await;
    let commands = [
        doc! { "aggregate": "other", "pipeline": [{ "$out": "users" }], "cursor": {} },
        doc! { "insert": "keyward.users.email_1", "documents": [{ "_id": 1 }] },
        doc! { "delete": "keyward.users.email_1", "deletes": [{ "q": {}, "limit": 0 }] },
        doc! { "drop": "keyward.users.email_1" },
    ];
    for command in commands {
        let reply = run(&client, database, command.clone()).await;
        assert_eq!(reply.get_f64("ok").unwrap(), 0.0, "{command}: {reply}");
        assert!(
            reply.get_str("errmsg").unwrap().contains("Keyward"),
            "{command}: {reply}"
        );
    }
    let rename = doc! { "renameCollection": "refused.users", "to": "refused.others" };
    assert_eq!(run(&client, "admin", rename).await.get_f64("ok").unwrap(), 0.0);
    let email = |document: &Document| vec![doc! { "email": document.get("email").unwrap().clone() }];
    testkit::assert_documents_and_reservations_agree(cluster, database, "users", "email_1", email).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_commands_go_through() {
    let database = "large";
    let cluster = users(database);
    let keyward = Keyward::start_with_lease(&cluster.uri(), "60s", &EMAIL.replace("DB", database));
    let client = keyward.client_without_retries().await;
    let user = |id: i32, padding: &str| doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": id, "padding": padding };
    // 100,000 documents in one command, two of them duplicates.
    let mut users: Vec<Document> = (0..100_000).map(|id| user(id, "")).collect();
    users[50_000].insert("email", 3);
    users[99_999].insert("email", 4);
    let reply = run(&client, database, insert(users, false)).await;
    assert_eq!(
        reply.get_i32("n").unwrap(),
        99_998,
        "{:?}",
        reply.get_array("writeErrors").map(Vec::len)
    );
    let errors = reply.get_array("writeErrors").unwrap();
    let indexes: Vec<i32> = errors
        .iter()
        .map(|error| error.as_document().unwrap().get_i32("index").unwrap())
        .collect();
    assert_eq!(indexes, [50_000, 99_999]);
    // Nearly 48 MB in one command.
    let padding = "x".repeat(1 << 20);
    let reply = run(
        &client,
        database,
        insert((200_000..200_045).map(|id| user(id, &padding)).collect(), true),
    )
    .await;
    assert_eq!(reply.get_i32("n").unwrap(), 45, "{reply}");
    let email = |document: &Document| vec![doc! { "email": document.get("email").unwrap().clone() }];
    testkit::assert_documents_and_reservations_agree(cluster, database, "users", "email_1", email).await;
}

#[tokio::test]
async fn an_unacknowledged_insert_is_enforced_too() {
    let database = "unacknowledged";
    let cluster = users(database);
    let keyward = keyward(cluster, database, EMAIL);
    let client = keyward.client_without_retries().await;
    for id in 0..3 {
        let mut command = insert(vec![doc! { "_id": id, "region": "a", "email": "same" }], true);
        command.insert("writeConcern", doc! { "w": 0 });
        assert_eq!(
            comparable(run(&client, database, command).await),
            doc! { "n": 0, "ok": 1.0 }
        );
    }
    let users = client.database(database).collection::<Document>("users");
    assert_eq!(users.count_documents(doc! {}).await.unwrap(), 1);
}
