//! What strict mode costs, for docs/strategies.md: `cargo test --release --test conflicts strict::cost -- --ignored --nocapture`.

use std::time::{Duration, Instant};

use bson::doc;
use mongodb::Client;
use mongodb::options::{ClientOptions, WriteConcern};
use testbed::ReplicaSet;

use crate::strict::{EMAIL, users};
use testkit::Keyward;

/// How long each measurement takes, and how often it is repeated: the median counts.
const TIME: Duration = Duration::from_secs(2);
const TIMES: usize = 5;

async fn client(uri: &str, is_retryable: bool) -> Client {
    let mut options = ClientOptions::parse(uri).await.unwrap();
    options.retry_writes = Some(is_retryable);
    options.max_pool_size = Some(64);
    Client::with_options(options).unwrap()
}

/// Inserts a second, with so many clients at a time.
async fn throughput(client: &Client, database: &str, clients: usize) -> f64 {
    let began = Instant::now();
    let mut running = Vec::new();
    for number in 0..clients {
        let users = client.database(database).collection("users");
        let options = mongodb::options::InsertOneOptions::builder()
            .write_concern(WriteConcern::majority())
            .build();
        running.push(tokio::spawn(async move {
            let mut count = 0;
            while began.elapsed() < TIME {
                let region = if (count + number) % 2 == 0 { "a" } else { "z" };
                let email = rand::random::<u64>().to_string();
                let user = doc! { "region": region, "email": email, "text": "x".repeat(1_000) };
                users.insert_one(user).with_options(options.clone()).await.unwrap();
                count += 1;
            }
            count
        }));
    }
    let mut total = 0;
    for one in running {
        total += one.await.unwrap();
    }
    total as f64 / began.elapsed().as_secs_f64()
}

async fn report(what: &str, uris: &[(&str, String, &str)]) {
    for clients in [1, 64] {
        let mut measured = vec![Vec::new(); uris.len() * 2];
        for _ in 0..TIMES {
            for (index, (_, uri, database)) in uris.iter().enumerate() {
                for is_retryable in [false, true] {
                    let client = client(uri, is_retryable).await;
                    measured[2 * index + usize::from(is_retryable)].push(throughput(&client, database, clients).await);
                }
            }
        }
        for (index, rates) in measured.iter_mut().enumerate() {
            rates.sort_by(f64::total_cmp);
            let retryable = if index % 2 == 1 { "retryable" } else { "not retryable" };
            println!(
                "{what}, {clients} clients, {}, {retryable}: {:.0}/s [{:.0}, {:.0}]",
                uris[index / 2].0,
                rates[TIMES / 2],
                rates[0],
                rates[TIMES - 1]
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn of_inserts() {
    testbed::process::use_disk();
    let compensating = EMAIL.replace("transaction", "compensating");
    let on = |constraint: &str, database: &str| constraint.replace("DB", database);
    let cluster = users("cost");
    users("cost_compensating");
    users("cost_direct");
    let strict = Keyward::start(&cluster.uri(), &on(EMAIL, "cost"));
    let leased = Keyward::start(&cluster.uri(), &on(&compensating, "cost_compensating"));
    let uris = [
        ("direct", cluster.uri(), "cost_direct"),
        ("compensating", leased.uri(), "cost_compensating"),
        ("strict", strict.uri(), "cost"),
    ];
    report("two shards", &uris).await;
    let replica_set = ReplicaSet::shared();
    let strict = Keyward::start(&replica_set.uri(), &on(EMAIL, "cost"));
    let leased = Keyward::start(&replica_set.uri(), &on(&compensating, "cost_compensating"));
    let uris = [
        ("direct", replica_set.uri(), "cost_direct"),
        ("compensating", leased.uri(), "cost_compensating"),
        ("strict", strict.uri(), "cost"),
    ];
    report("one replica set", &uris).await;
}
