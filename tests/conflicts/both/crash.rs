//! A Keyward killed with -9 in the middle of everything.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use bson::{Document, doc};
use mongodb::Client;
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::strategy::Strategy;
use crate::trial::{assert_agreement, insert, keyward, write_errors};
use testkit::{on_each_shard, run};

const CLIENTS: i32 = 8;
const ADDRESSES: i32 = 400;
const BATCH: i32 = 20;
const LEASE: Duration = Duration::from_secs(2);

fn user(id: i32, number: i32) -> Document {
    doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": format!("{number}@x") }
}

/// Inserts batches of random addresses until the connection breaks; gives the `_id`s that were acknowledged.
async fn insert_until_it_breaks(client: Client, database: &str, number: i32, seed: u64, done: Done) -> Vec<i32> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut acknowledged = Vec::new();
    for id in (number * 1_000_000..).step_by(BATCH as usize) {
        let ordered = random.random();
        let batch = (id..id + BATCH).map(|id| user(id, random.random_range(0..ADDRESSES)));
        let command = insert(batch.collect(), ordered);
        let Ok(reply) = client.database(database).run_command(command).await else {
            return acknowledged;
        };
        let failed = write_errors(&reply);
        assert!(failed.iter().all(|(_, code)| *code == 11000), "{reply}");
        let end = if ordered {
            failed.first().map_or(BATCH, |(index, _)| *index)
        } else {
            BATCH
        };
        let failed: HashSet<i32> = failed.into_iter().map(|(index, _)| index).collect();
        acknowledged.extend((0..end).filter(|index| !failed.contains(index)).map(|index| id + index));
        let _ = done.send(());
    }
    acknowledged
}

type Done = tokio::sync::mpsc::UnboundedSender<()>;

async fn killed_in_the_middle_of_batches_it_leaves_nothing_that_lasts(strategy: Strategy) {
    let database = strategy.database("killed");
    let cluster = strategy.users(database);
    let lease = format!("{}s", LEASE.as_secs());
    let mut first = keyward(cluster, database, &lease, &[strategy.email()]);
    // Its own writes may take longer than the first one's lease. It waits for its own lease where that is longer.
    let second = keyward(cluster, database, "10s", &[strategy.email()]);
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let (done, mut is_done) = tokio::sync::mpsc::unbounded_channel();
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let client = first.client_without_retries().await;
        let seed = seed ^ number as u64;
        clients.push(tokio::spawn(insert_until_it_breaks(
            client,
            database,
            number,
            seed,
            done.clone(),
        )));
    }
    for _ in 0..2 * CLIENTS {
        is_done.recv().await.unwrap();
    }
    first.kill();
    let killed = Instant::now();
    // Every address, through the Keyward that is left: it is free, or a document has it.
    let all = (0..ADDRESSES).map(|number| user(-1 - number, number)).collect();
    let reply = run(&second.client_without_retries().await, database, insert(all, false)).await;
    let elapsed = killed.elapsed();
    let failed = write_errors(&reply);
    assert!(failed.iter().all(|(_, code)| *code == 11000), "{reply}");
    assert_eq!(reply.get_i32("n").unwrap() as usize + failed.len(), ADDRESSES as usize);
    assert!(
        elapsed < strategy.abandoned_for() + Duration::from_secs(30),
        "{elapsed:?}"
    );
    assert_agreement(cluster, database, "email").await;
    let documents = on_each_shard(cluster.shards(), database, "users").await.concat();
    assert_eq!(documents.len(), ADDRESSES as usize);
    let there: HashSet<i32> = documents
        .iter()
        .map(|document| document.get_i32("_id").unwrap())
        .collect();
    for client in clients {
        for id in client.await.unwrap() {
            assert!(there.contains(&id), "document {id} was acknowledged and isn't there");
        }
    }
    println!(
        "free again: {} of {ADDRESSES}, after {elapsed:?}",
        reply.get_i32("n").unwrap()
    );
}

on_both_strategies! {
    killed_in_the_middle_of_batches_it_leaves_nothing_that_lasts;
}
