//! Many clients through two Keywards, at few values: once it is quiet, documents and reservations agree exactly.

use bson::doc;
use mongodb::Client;
use rand::{Rng, SeedableRng, rngs::StdRng};
use testbed::ReplicaSet;

use crate::strict::{EMAIL, assert_agreement, insert, keyward, users, write_errors};
use testkit::{Keyward, run};

const CLIENTS: i32 = 8;
const STEPS: i32 = 40;
const VALUES: i32 = 6;

/// Inserts, alone and in batches, and deletes again.
async fn mix(client: Client, database: &str, number: i32, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    for step in 0..STEPS {
        let id = number * 10_000 + step * 10;
        let mut user = |offset: i32| {
            let email = format!("{}@x", random.random_range(0..VALUES));
            doc! { "_id": id + offset, "region": if (id + offset) % 2 == 0 { "a" } else { "z" }, "email": email }
        };
        let command = match step % 3 {
            0 => insert(vec![user(0)], true),
            1 => insert((0..4).map(user).collect(), false),
            _ => insert((0..4).map(user).collect(), true),
        };
        let reply = run(&client, database, command).await;
        assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
        assert!(write_errors(&reply).iter().all(|(_, code)| *code == 11000), "{reply}");
        let email = format!("{}@x", random.random_range(0..VALUES));
        let deletes = doc! { "delete": "users", "deletes": [{ "q": { "email": email }, "limit": 0 }] };
        let reply = run(&client, database, deletes).await;
        assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
    }
}

async fn contend(keywards: &[Keyward], database: &'static str) {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let keyward = &keywards[number as usize % keywards.len()];
        let client = match number % 4 {
            0 | 1 => keyward.client().await,
            _ => keyward.client_without_retries().await,
        };
        clients.push(tokio::spawn(mix(client, database, number, seed ^ number as u64)));
    }
    for client in clients {
        client.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_shards() {
    let database = "strict_contention";
    let cluster = users(database);
    let start = || keyward(cluster, database, "10s", &[EMAIL]);
    contend(&[start(), start()], database).await;
    assert_agreement(cluster, database, "email").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_one_replica_set() {
    let database = "strict_contention_unsharded";
    let replica_set = ReplicaSet::shared();
    let client = replica_set.client();
    client.database(database).drop().await.unwrap();
    let constraint = EMAIL.replace("DB", database).replace(", strategy: transaction", "");
    let start = || Keyward::start_with_lease(&replica_set.uri(), "10s", &constraint);
    contend(&[start(), start()], database).await;
    crate::strict::one_replica_set::assert_agreement(&client, database).await;
}
