//! A single replica set, where strict mode is the default: document and reservations in one transaction. Side by side
//! with a native unique index on the same server.

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::Client;
use testbed::ReplicaSet;

use crate::strict::{EMAIL, insert, users};
use testkit::relay::Relay;
use testkit::relay::wait_until;
use testkit::wire::send;
use testkit::{Keyward, comparable, run};

pub fn plain(database: &str) -> String {
    EMAIL.replace("DB", database).replace(", strategy: transaction", "")
}

async fn all(client: &Client, database: &str, collection: &str) -> Vec<Document> {
    let collection = client.database(database).collection(collection);
    let found = collection.find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap();
    found.try_collect().await.unwrap()
}

/// Every document's address is reserved for it, and nothing else is.
pub async fn assert_agreement(client: &Client, database: &str) {
    let key = |document: &Document| {
        (
            document.get("_id").unwrap().clone(),
            document.get("email").unwrap().clone(),
        )
    };
    let reserved = |reservation: &Document| {
        let id = reservation.get_document("_id").unwrap().get_document("k").unwrap();
        (
            reservation.get("owner").unwrap().clone(),
            id.get("email").unwrap().clone(),
        )
    };
    let mut held: Vec<(Bson, Bson)> = all(client, database, "users").await.iter().map(key).collect();
    let reservations = all(client, database, "keyward.users.email_1").await;
    let mut reserved: Vec<(Bson, Bson)> = reservations.iter().map(reserved).collect();
    held.sort_by_key(|pair| format!("{pair:?}"));
    reserved.sort_by_key(|pair| format!("{pair:?}"));
    assert_eq!(held, reserved);
}

/// The database holds what the other one, with native unique indexes, holds; and its reservations agree.
async fn assert_same_documents(client: &Client, database: &str, native: &str) {
    let users = all(client, database, "users").await;
    assert_eq!(users, all(client, native, "users").await);
    assert_agreement(client, database).await;
}

pub fn user(id: i32, email: &str) -> Document {
    doc! { "_id": id, "email": email }
}

pub fn retryable(mut command: Document) -> Document {
    let bytes = rand::random::<[u8; 16]>().to_vec();
    let subtype = bson::spec::BinarySubtype::Uuid;
    command.insert("lsid", doc! { "id": bson::Binary { subtype, bytes } });
    command.insert("txnNumber", 1_i64);
    command
}

fn commands() -> Vec<Document> {
    let two_errors = vec![
        user(21, "21"),
        user(1, "22"),
        user(23, "1"),
        user(24, "24"),
        user(24, "25"),
    ];
    vec![
        insert(vec![user(1, "1")], true),
        insert(vec![user(2, "1")], true),
        insert((3..9).map(|id| user(id, &id.to_string())).collect(), true),
        insert(vec![user(10, "10"), user(11, "1"), user(12, "12")], true),
        insert(
            vec![user(13, "13"), user(14, "1"), user(15, "13"), user(16, "16")],
            false,
        ),
        // Refused by the server itself, in the middle: for its _id, and what comes twice in the batch.
        insert(two_errors.clone(), true),
        insert(
            two_errors
                .iter()
                .map(|user| {
                    let mut user = user.clone();
                    user.insert("_id", user.get_i32("_id").unwrap() + 20);
                    user
                })
                .collect(),
            false,
        ),
        insert(
            (100..3_100).map(|id| user(id, &(id % 2_900).to_string())).collect(),
            false,
        ),
        doc! { "insert": "users", "documents": [user(5_000, "5000")], "nonsense": 1 },
        doc! { "insert": "users", "documents": [user(5_001, "5001")], "ordered": "x" },
        doc! { "insert": "users", "documents": [user(5_002, "5002")], "writeConcern": { "w": 0 } },
    ]
}

/// A collection with a native unique index, and another with a Keyward's constraint.
async fn pair(database: &str) -> (Client, String, Keyward) {
    let replica_set = ReplicaSet::shared();
    let client = replica_set.client();
    let native = format!("{database}_native");
    client.database(database).drop().await.unwrap();
    client.database(&native).drop().await.unwrap();
    let index = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true };
    run(&client, &native, doc! { "createIndexes": "users", "indexes": [index] }).await;
    let keyward = Keyward::start_with_lease(&replica_set.uri(), "10s", &plain(database));
    (client, native, keyward)
}

/// A reply without what differs between any two, and the names of the databases.
fn alike(reply: Document, database: &str) -> String {
    comparable(reply)
        .to_string()
        .replace(&format!("{database}_native"), database)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_insert_gets_the_answer_of_a_native_unique_index() {
    let database = "unsharded";
    let (client, native, keyward) = pair(database).await;
    let server = &ReplicaSet::shared().addresses()[0];
    for command in commands() {
        let expected = alike(send(server, &native, command.clone()).unwrap(), database);
        let got = alike(send(&keyward.address, database, command.clone()).unwrap(), database);
        assert_eq!(got, expected, "{command}");
    }
    assert_same_documents(&client, database, &native).await;
    let definition = all(&client, database, "keyward.constraints").await.remove(0);
    assert_eq!(definition.get_str("strategy").unwrap(), "transaction");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drivers_retry_takes_effect_once_even_if_the_document_is_gone_since() {
    let database = "unsharded_retries";
    let (client, native, keyward) = pair(database).await;
    let forwarder = Relay::start(keyward.address.clone());
    let server = &ReplicaSet::shared().addresses()[0];
    for command in commands()
        .into_iter()
        .map(retryable)
        .filter(|command| !command.contains_key("writeConcern"))
    {
        let is_bad = command.contains_key("nonsense") || command.get_str("ordered").is_ok();
        send(server, &native, command.clone()).unwrap();
        let lost = forwarder.lose_reply_to_insert("users");
        assert!(send(&forwarder.address, database, command.clone()).is_err());
        wait_until(&lost);
        if !is_bad {
            // Both lose one document of the batch, and its address, before the retry comes.
            let first = command.get_array("documents").unwrap()[0]
                .as_document()
                .unwrap()
                .clone();
            let delete =
                doc! { "delete": "users", "deletes": [{ "q": { "_id": first.get("_id").unwrap() }, "limit": 1 }] };
            send(server, &native, delete.clone()).unwrap();
            send(&keyward.address, database, delete).unwrap();
        }
        let expected = alike(send(server, &native, command.clone()).unwrap(), database);
        let got = alike(send(&keyward.address, database, command.clone()).unwrap(), database);
        assert_eq!(got, expected, "{command}");
    }
    assert_same_documents(&client, database, &native).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_keywards_must_have_the_same_strategy() {
    let database = "fleet";
    let cluster = users(database);
    let strict = EMAIL.replace("DB", database);
    let compensating = strict.replace("transaction", "compensating");
    let _first = Keyward::start_with_lease(&cluster.uri(), "10s", &strict);
    let refused = Keyward::try_start(&cluster.uri(), "10s", &compensating).expect_err("it must not start");
    assert!(
        refused.errors.contains("has strategy strict in the cluster"),
        "{}",
        refused.errors
    );
    let definitions = crate::strict::cluster()
        .client()
        .database(database)
        .collection::<Document>("keyward.constraints");
    let unset = doc! { "$unset": { "strategy": 1 } };
    definitions
        .update_one(doc! { "_id.name": "email_1" }, unset)
        .await
        .unwrap();
    assert!(Keyward::try_start(&cluster.uri(), "10s", &compensating).is_ok());
}
