//! Writes to a protected collection that doesn't exist yet, on shards: as without Keyward, the first document creates it.

use std::time::{Duration, Instant};

use bson::{Document, doc};
use mongodb::Collection;
use mongodb::error::TRANSIENT_TRANSACTION_ERROR;
use testbed::Cluster;
use testkit::{Keyward, on_each_shard, run};
use tokio::time::timeout;

const STRATEGIES: [&str; 2] = ["compensating", "transaction"];
/// Long before Keyward would give up.
const SOON: Duration = Duration::from_secs(40);
/// How often the collection is missing.
const ROUNDS: i32 = 6;

fn keyward(database: &str, strategy: &str) -> Keyward {
    let constraint = format!("  - {{ collection: {database}.users, key: {{ email: 1 }}, strategy: {strategy} }}\n");
    Keyward::start_with_lease(&Cluster::shared().uri(), "5s", &constraint)
}

async fn emails(database: &str) -> Vec<[String; 2]> {
    let shards = Cluster::shared().shards();
    let documents = on_each_shard(shards, database, "users").await.concat();
    let reservations = on_each_shard(shards, database, "keyward.users.email_1").await.concat();
    let email = |document: &Document| document.get_str("email").unwrap().to_owned();
    let mut held: Vec<String> = documents.iter().map(email).collect();
    let key = |reservation: &Document| email(reservation.get_document("_id").unwrap().get_document("k").unwrap());
    let mut reserved: Vec<String> = reservations.iter().map(key).collect();
    held.sort_unstable();
    reserved.sort_unstable();
    assert_eq!(held.len(), reserved.len(), "{held:?} {reserved:?}");
    held.into_iter()
        .zip(reserved)
        .map(|(held, reserved)| [held, reserved])
        .collect()
}

fn both(email: &str) -> [String; 2] {
    [email.to_owned(), email.to_owned()]
}

/// The driver sends it as a retryable write. On shards, a strict one also writes a record: on another shard in about half of the
/// rounds.
async fn insert_three(strategy: &str, ordered: bool) {
    let database = format!("absent_{strategy}_{ordered}");
    let keyward = keyward(&database, strategy);
    let client = keyward.client().await;
    let users = client.database(&database).collection::<Document>("users");
    for round in 0..ROUNDS {
        let emails = ["one", "two", "three"].map(|email| format!("{email} {round}"));
        let documents = emails.map(|email| doc! { "_id": &email, "email": email });
        let inserted = timeout(SOON, users.insert_many(&documents).ordered(ordered).into_future()).await;
        assert_eq!(inserted.expect("no hang").unwrap().inserted_ids.len(), 3);
        assert_eq!(users.count_documents(doc! {}).await.unwrap(), 3);
        Cluster::shared().run(&database, doc! { "drop": "users" }).unwrap();
    }
}

#[tokio::test]
async fn the_first_insert_creates_the_collection() {
    for strategy in STRATEGIES {
        for ordered in [true, false] {
            insert_three(strategy, ordered).await;
        }
    }
}

#[tokio::test]
async fn many_first_inserts_at_once_create_it_once() {
    for strategy in STRATEGIES {
        let database = format!("absent_at_once_{strategy}");
        let keyward = keyward(&database, strategy);
        let client = keyward.client().await;
        let users = client.database(&database).collection::<Document>("users");
        let insert = |number: i32| {
            let users = users.clone();
            async move {
                users
                    .insert_one(doc! { "_id": number, "email": format!("{number}@x") })
                    .await
            }
        };
        let inserts = futures_util::future::join_all((0..12).map(insert));
        for inserted in timeout(SOON, inserts).await.expect("no hang") {
            inserted.unwrap();
        }
        assert_eq!(emails(&database).await.len(), 12);
    }
}

/// The collection was dropped past Keyward. A reservation is left whose owner is gone with it.
#[tokio::test]
async fn a_key_is_taken_over_from_a_document_of_a_dropped_collection() {
    for strategy in STRATEGIES {
        let database = format!("absent_dropped_{strategy}");
        let keyward = keyward(&database, strategy);
        let client = keyward.client().await;
        let users = client.database(&database).collection::<Document>("users");
        let documents = ["one", "two", "three"].map(|email| doc! { "_id": email, "email": email });
        users.insert_many(documents).await.unwrap();
        Cluster::shared().run(&database, doc! { "drop": "users" }).unwrap();
        let heirs = ["one", "two", "three"].map(|email| doc! { "_id": format!("heir {email}"), "email": email });
        let inserted = timeout(SOON, users.insert_many(heirs).into_future()).await;
        assert_eq!(inserted.expect("no hang").unwrap().inserted_ids.len(), 3, "{strategy}");
        assert_eq!(emails(&database).await, ["one", "three", "two"].map(both));
    }
}

/// An upsert that Keyward leaves to the server runs in a transaction, with any strategy.
#[tokio::test]
async fn an_upsert_creates_the_collection() {
    for strategy in STRATEGIES {
        let database = format!("absent_upsert_{strategy}");
        let keyward = keyward(&database, strategy);
        let client = keyward.client().await;
        for (number, email) in (0..).zip(["one", "two", "three"]) {
            Cluster::shared().run(&database, doc! { "drop": "users" }).ok();
            let pipeline = vec![doc! { "$set": { "email": format!("{email} {number}") } }];
            let upsert = doc! { "q": { "_id": email }, "u": pipeline, "upsert": true };
            let command = doc! { "update": "users", "updates": [upsert] };
            let reply = timeout(SOON, run(&client, &database, command)).await.expect("no hang");
            assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
            assert!(reply.get_array("upserted").is_ok(), "{reply}");
        }
    }
}

/// In a client's transaction the server creates the collection only if no other shard takes part. About half of the keys are reserved on the
/// other shard.
#[tokio::test]
async fn the_first_write_of_a_clients_transaction_creates_the_collection() {
    for strategy in STRATEGIES {
        let database = format!("absent_clients_{strategy}");
        let keyward = keyward(&database, strategy);
        let client = keyward.client().await;
        let users = client.database(&database).collection::<Document>("users");
        for round in 0..ROUNDS {
            Cluster::shared().run(&database, doc! { "drop": "users" }).ok();
            let email = format!("{round}@x");
            let deadline = Instant::now() + SOON;
            while let Err(error) = write_in_transaction(&users, round, &email).await {
                // As `withTransaction` does.
                assert!(error.contains_label(TRANSIENT_TRANSACTION_ERROR), "{error}");
                assert!(Instant::now() < deadline, "{strategy} {round}: {error}");
            }
            let again = doc! { "_id": round + ROUNDS, "email": &email };
            assert_eq!(keyward.insert(&database, again), Err(11000));
        }
    }
}

async fn write_in_transaction(users: &Collection<Document>, id: i32, email: &str) -> mongodb::error::Result<()> {
    let mut session = users.client().start_session().await?;
    session.start_transaction().await?;
    match id % 2 {
        0 => {
            let document = doc! { "_id": id, "email": email };
            users.insert_one(document).session(&mut session).await?;
        }
        _ => {
            let change = doc! { "$set": { "email": email } };
            let upsert = users.update_one(doc! { "_id": id }, change).upsert(true);
            upsert.session(&mut session).await?;
        }
    }
    session.commit_transaction().await
}
