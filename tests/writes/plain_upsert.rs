//! Upserts whose new keys Keyward reads from the statement: they take no transaction, whether they insert or match. The replies
//! are those of a native unique index, a driver's retry included.

use bson::{Binary, Bson, Document, doc, spec::BinarySubtype};
use testbed::Cluster;
use testkit::relay::{Relay, wait_until};
use testkit::wire::send;
use testkit::{Keyward, comparable, natively_unique, on_each_shard, shard_on_two};

const EMAIL: &str = "  - { collection: DB.users, key: { email: 1 }, sparse: true }\n";

fn users(database: &str) -> &'static Cluster {
    let cluster = Cluster::shared();
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    cluster
}

fn keyward(uri: &str, database: &str) -> Keyward {
    Keyward::start_with_lease(uri, "60s", &EMAIL.replace("DB", database))
}

fn retryable(mut command: Document) -> Document {
    let bytes = rand::random::<[u8; 16]>().to_vec();
    command.insert("lsid", doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } });
    command.insert("txnNumber", 1_i64);
    command
}

fn update(query: Document, change: Bson) -> Document {
    doc! { "update": "users", "updates": [{ "q": query, "u": change, "upsert": true }] }
}

fn find_and_modify(query: Document, change: Bson) -> Document {
    doc! { "findAndModify": "users", "query": query, "update": change, "upsert": true, "new": true }
}

/// Both commands that upsert.
const FORMS: [fn(Document, Bson) -> Document; 2] = [update, find_and_modify];

fn insert(document: Document) -> Document {
    doc! { "insert": "users", "documents": [document] }
}

async fn assert_agreement(cluster: &Cluster, database: &str) {
    let keys = |document: &Document| match document.get("email") {
        Some(email) => vec![doc! { "email": email.clone() }],
        None => Vec::new(),
    };
    testkit::assert_documents_and_reservations_agree(cluster, database, "users", "email_1", keys).await;
}

/// Statements with their changes, and whether they are plain.
fn statements() -> Vec<(Document, Bson, bool)> {
    let at = |id: i32, region: &str| doc! { "_id": id, "region": region };
    let with = |mut query: Document, more: Document| {
        query.extend(more);
        query
    };
    let set = |email: &str| Bson::Document(doc! { "$set": { "email": email } });
    let by_email = |email: &str| doc! { "region": "a", "email": email };
    vec![
        (at(1, "a"), set("1"), true),
        (
            doc! { "_id": { "$eq": 2 }, "region": { "$eq": "z" } },
            doc! { "$set": { "email": "2" }, "$inc": { "n": 1 } }.into(),
            true,
        ),
        (
            by_email("3"),
            doc! { "$set": { "name": "c" }, "$push": { "t": 1 } }.into(),
            true,
        ),
        (at(4, "z"), doc! { "region": "z", "email": "4" }.into(), true),
        (by_email("5"), doc! { "region": "a", "email": "5", "n": 5 }.into(), true),
        (
            with(at(6, "a"), doc! { "email": "6" }),
            doc! { "$unset": { "email": 1 } }.into(),
            true,
        ),
        (
            at(7, "z"),
            doc! { "$setOnInsert": { "email": "7" }, "$set": { "c.d": 1 } }.into(),
            true,
        ),
        (with(at(8, "a"), doc! { "c.x": 5, "n": 1.5 }), set("8"), true),
        (at(9, "z"), doc! { "$inc": { "n": 1 } }.into(), true),
        (doc! { "region": "a", "$and": [{ "_id": 21 }] }, set("21"), false),
        (with(at(22, "a"), doc! { "email": Bson::Null }), set("22"), false),
        (with(at(23, "a"), doc! { "n": { "$gt": 1 } }), set("23"), false),
        (with(at(24, "a"), doc! { "t": [1, 2] }), set("24"), false),
        (doc! { "region": "a", "name": "x" }, set("25"), false),
        (at(26, "a"), vec![doc! { "$set": { "email": "26" } }].into(), false),
        (by_email("27"), doc! { "$setOnInsert": { "_id": 27 } }.into(), false),
        (by_email("28"), set("29"), false),
        (at(30, "a"), doc! { "$inc": { "email": 1 } }.into(), true),
        (at(31, "a"), doc! { "$setOnInsert": { "email.x": 1 } }.into(), false),
        (at(33, "a"), doc! { "$bit": { "email": { "or": 4 } } }.into(), false),
        (
            by_email("32"),
            doc! { "_id": 32, "region": "a", "email": "32" }.into(),
            false,
        ),
    ]
}

/// Without the `_id`s that a server or a Keyward has made.
fn without_made_ids(value: Bson) -> Bson {
    match value {
        Bson::ObjectId(_) => Bson::String("made".to_owned()),
        Bson::Document(document) => {
            let fields = document
                .into_iter()
                .map(|(name, value)| (name, without_made_ids(value)));
            Bson::Document(fields.collect())
        }
        Bson::Array(values) => values.into_iter().map(without_made_ids).collect(),
        other => other,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_plain_ones_take_no_transaction_and_all_answer_as_a_server_does() {
    let database = "plain_upserts";
    let cluster = users(database);
    let keyward = keyward(&cluster.uri(), database);
    let native = natively_unique(database).await;
    let sparse = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true, "sparse": true };
    for command in [
        doc! { "dropIndexes": "users", "index": "email_1" },
        doc! { "createIndexes": "users", "indexes": [sparse] },
    ] {
        send(&native, database, command).unwrap();
    }
    let run = |address: &str, command: &Document| {
        without_made_ids(comparable(send(address, database, command.clone()).unwrap()).into())
    };
    let records = async || {
        on_each_shard(cluster.shards(), database, "keyward.results")
            .await
            .concat()
            .len()
    };
    for (form, command) in FORMS.into_iter().enumerate() {
        for (query, change, is_plain) in statements() {
            let before = records().await;
            // It inserts, and matches; a driver sends each of them again.
            for _ in 0..2 {
                let command = retryable(command(query.clone(), change.clone()));
                let (expected, got) = (run(&native, &command), run(&keyward.address, &command));
                assert_eq!(got, expected, "{command}");
                let expected = run(&native, &command);
                let got = run(&keyward.address, &command);
                let is_compared = is_plain || !expected.to_string().contains("retried");
                assert!(!is_compared || got == expected, "again {command}\n{got}\n{expected}");
            }
            let is_recorded = records().await > before;
            assert_eq!(is_recorded, !is_plain, "{query} {change} in form {form}");
            assert_agreement(cluster, database).await;
        }
        for address in [&native, &keyward.address] {
            let everything = doc! { "delete": "users", "deletes": [{ "q": {}, "limit": 0 }] };
            send(address, database, everything).unwrap();
        }
    }
}

/// On an existing document Keyward leaves the option out. A server refuses some types of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_option_of_another_type_is_judged_by_the_server() {
    let database = "upsert_types";
    let cluster = users(database);
    let keyward = keyward(&cluster.uri(), database);
    let native = natively_unique(database).await;
    let both = [&native, &keyward.address];
    for address in both {
        let there = doc! { "_id": 1, "region": "a", "email": "1" };
        send(address, database, insert(there)).unwrap();
    }
    for option in [
        Bson::Double(1.0),
        Bson::Int32(1),
        Bson::String("yes".to_owned()),
        Bson::Null,
    ] {
        for command in FORMS {
            let mut command = command(
                doc! { "_id": 1, "region": "a" },
                doc! { "$set": { "email": "2" } }.into(),
            );
            match command.get_array_mut("updates") {
                Ok(updates) => updates[0].as_document_mut().unwrap().insert("upsert", option.clone()),
                Err(_) => command.insert("upsert", option.clone()),
            };
            let [expected, got] = both.map(|address| comparable(send(address, database, command.clone()).unwrap()));
            assert_eq!(got, expected, "{command}");
        }
    }
    assert_agreement(cluster, database).await;
}

/// The upsert read no document, and one comes before it is carried out: it changes that one, with the keys that it then has.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_appears_meanwhile_keeps_its_own_keys() {
    let database = "upsert_met";
    let cluster = users(database);
    let constraint = "  - { collection: upsert_met.users, key: { a: 1, b: 1 } }\n";
    let relay = Relay::start(cluster.router_address());
    let first = Keyward::start_with_lease(&format!("mongodb://{}/", relay.address), "60s", constraint);
    let second = Keyward::start_with_lease(&cluster.uri(), "60s", constraint);
    for (id, command) in [2, 4].into_iter().zip(FORMS) {
        let held = relay.hold(b"$nor");
        let address = first.address.clone();
        let upsert = retryable(command(
            doc! { "_id": id, "region": "a" },
            doc! { "$set": { "b": id } }.into(),
        ));
        let upsert = std::thread::spawn(move || send(&address, database, upsert).unwrap());
        held.wait();
        let there = doc! { "_id": id, "region": "a", "a": 5, "b": -id };
        assert_eq!(
            send(&second.address, database, insert(there))
                .unwrap()
                .get_i32("n")
                .unwrap(),
            1
        );
        drop(held);
        let reply = upsert.join().unwrap();
        assert!(!reply.to_string().contains("upserted"), "{reply}");
        let keys = |document: &Document| {
            let value = |name: &str| document.get(name).cloned().unwrap_or(Bson::Null);
            vec![doc! { "a": value("a"), "b": value("b") }]
        };
        testkit::assert_documents_and_reservations_agree(cluster, database, "users", "a_1_b_1", keys).await;
    }
    let documents = on_each_shard(cluster.shards(), database, "users").await.concat();
    let expected = [2, 4].map(|id| doc! { "_id": id, "region": "a", "a": 5, "b": id });
    assert_eq!(documents, expected);
}

/// Since the first try its document has got another address, and the old one another document.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_is_answered_from_memory_whatever_has_happened_since() {
    let database = "upsert_again";
    let cluster = users(database);
    let keyward = keyward(&cluster.uri(), database);
    let run = |command: &Document| comparable(send(&keyward.address, database, command.clone()).unwrap());
    let again = |mut reply: Document| {
        let name = if reply.contains_key("value") {
            "retriedStmtId"
        } else {
            "retriedStmtIds"
        };
        assert!(reply.remove(name).is_some(), "{reply}");
        reply
    };
    let set = || doc! { "$set": { "name": "x" } };
    for (number, command) in FORMS.into_iter().enumerate() {
        let emails = ["old", "new"].map(|email| format!("{email}{number}"));
        let inserts = retryable(command(doc! { "region": "a", "email": &emails[0] }, set().into()));
        let reply = run(&inserts);
        assert!(reply.to_string().contains("upserted"), "{reply}");
        let rename = doc! { "q": { "region": "a", "email": &emails[0] }, "u": { "$set": { "email": &emails[1] } } };
        assert_eq!(
            run(&doc! { "update": "users", "updates": [rename] })
                .get_i32("nModified")
                .unwrap(),
            1
        );
        assert_eq!(again(run(&inserts)), reply);
        assert_agreement(cluster, database).await;
        // In the other region the query doesn't find it, in the first one it does.
        for region in ["z", "a"] {
            let heir = doc! { "_id": format!("{region}{number}"), "region": region, "email": &emails[0] };
            assert_eq!(run(&insert(heir)).get_i32("n").unwrap(), 1);
            assert_eq!(again(run(&inserts)), reply);
            assert_agreement(cluster, database).await;
            let gone = doc! { "q": { "region": region, "email": &emails[0] }, "limit": 1 };
            assert_eq!(
                run(&doc! { "delete": "users", "deletes": [gone] })
                    .get_i32("n")
                    .unwrap(),
                1
            );
        }
        let matches = retryable(command(
            doc! { "region": "a", "email": &emails[1] },
            doc! { "$set": { "name": "y" } }.into(),
        ));
        let reply = run(&matches);
        assert!(!reply.to_string().contains("upserted"), "{reply}");
        let gone = doc! { "q": { "region": "a", "email": &emails[1] }, "limit": 1 };
        assert_eq!(
            run(&doc! { "delete": "users", "deletes": [gone] })
                .get_i32("n")
                .unwrap(),
            1
        );
        assert_eq!(again(run(&matches)), reply);
        assert_agreement(cluster, database).await;
        assert_eq!(on_each_shard(cluster.shards(), database, "users").await.concat(), []);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upsert_whose_reply_is_lost_inserts_once() {
    let database = "upsert_lost";
    let cluster = users(database);
    let relay = Relay::start(cluster.router_address());
    let first = keyward(&format!("mongodb://{}/", relay.address), database);
    let second = keyward(&cluster.uri(), database);
    for (number, command) in FORMS.into_iter().enumerate() {
        let query = doc! { "region": "a", "email": format!("{number}") };
        let upsert = retryable(command(query, doc! { "$inc": { "n": 1 } }.into()));
        let is_lost = relay.lose_reply_to(b"$nor".to_vec());
        let reply = send(&first.address, database, upsert.clone());
        assert!(reply.is_err(), "{reply:?}");
        wait_until(&is_lost);
        let reply = send(&second.address, database, upsert).unwrap();
        assert!(reply.to_string().contains("upserted"), "{reply}");
        assert_agreement(cluster, database).await;
    }
    let documents = on_each_shard(cluster.shards(), database, "users").await.concat();
    let counts: Vec<i32> = documents
        .iter()
        .map(|document| document.get_i32("n").unwrap())
        .collect();
    assert_eq!(counts, [1, 1]);
}

/// Of many upserts with one key one inserts, and the others change its document: no one is a duplicate.
#[tokio::test(flavor = "multi_thread")]
async fn upserts_of_one_key_at_once_count_up_one_document() {
    const CLIENTS: i32 = 8;
    const KEYS: i32 = 12;
    let database = "upserts_at_once";
    let cluster = users(database);
    let keywards = [(); 2].map(|()| keyward(&cluster.uri(), database));
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let address = &keywards[client.unsigned_abs() as usize % 2].address;
            scope.spawn(move || {
                for key in 0..KEYS {
                    let mut query = doc! { "region": "a", "email": key };
                    if key % 2 == 0 {
                        query.insert("_id", key);
                    }
                    let reply = send(
                        address,
                        database,
                        retryable(update(query, doc! { "$inc": { "n": 1 } }.into())),
                    )
                    .unwrap();
                    assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
                }
            });
        }
    });
    let documents = on_each_shard(cluster.shards(), database, "users").await.concat();
    let counts: Vec<i32> = documents
        .iter()
        .map(|document| document.get_i32("n").unwrap())
        .collect();
    assert_eq!(counts, [CLIENTS; KEYS as usize]);
    assert_agreement(cluster, database).await;
}
