//! Broken for real: clients with drivers that retry write through two Keywards of each mode, while Keywards, shards and the
//! router are killed and stopped, primaries step down, chunks move, and connections are cut and held. What the clients were
//! told is then held against what the shards' logs say happened, and what they hold.
//!
//! `KEYWARD_NEMESIS_SECONDS=1800 KEYWARD_SEED=1 cargo test --test nemesis -- --ignored --nocapture` runs for half an hour. The seed
//! repeats the choices, not how the processes interleave. With `KEYWARD_NEMESIS_COMPENSATING_PAUSE_MS=6000`, twice the
//! lease, the compensating mode is to be found out.

#![allow(clippy::unwrap_used)]

mod checker;
mod client;
#[path = "../conflicts/forwarder.rs"]
mod forwarder;
mod history;
mod keys;
mod nemesis;
mod oplog;
mod place;
mod report;
#[path = "../support/mod.rs"]
mod support;
mod verdict;

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bson::{Document, doc};
use rand::{SeedableRng, rngs::StdRng};
use testbed::Cluster;

use checker::{COLLECTION, Evidence, held_and_reserved};
use client::{Client, REGIONS};
use history::{History, Millis};
use keys::FIELDS;
use nemesis::{Faults, Pace, Saboteur, Tormentor};
use place::Place;
use support::on_each_shard;

/// How many clients write in each mode.
const CLIENTS: usize = 6;
/// As long as an open transaction of a killed Keyward's may keep others waiting; longer than a strict one is stopped.
const TRANSACTIONS_LIVE_S: &str = "15";
/// Within this time all must be quiet after the last fault.
const QUIET_WITHIN: Duration = Duration::from_secs(150);

/// One of the two strategies, with what may be done to its Keywards.
struct Mode {
    name: &'static str,
    lease: &'static str,
    /// How long a Keyward or a command may be stopped. Compensating, what is kept back of the lease for a command's way:
    /// longer would be what it assumes not to happen. Strictly, ten leases.
    pause_ms: u64,
    constraints: &'static str,
}

const MODES: [Mode; 2] = [
    Mode {
        name: "compensating",
        lease: "3s\nsweep: 2s",
        pause_ms: 300,
        constraints: "  - { collection: DB.accounts, key: { email: 1 }, strategy: compensating }\n  - { collection: \
                      DB.accounts, key: { tags: 1 }, sparse: true, strategy: compensating }\n",
    },
    Mode {
        name: "strict",
        lease: "1s\nsweep: 2s",
        pause_ms: 10_000,
        constraints: "  - { collection: DB.accounts, key: { email: 1 }, strategy: transaction }\n  - { collection: \
                      DB.accounts, key: { tags: 1 }, sparse: true, strategy: transaction }\n",
    },
];

/// Everything of one mode.
struct Side {
    mode: &'static Mode,
    database: String,
    places: Vec<Arc<Place>>,
    history: Arc<History>,
    started: Millis,
}

impl Side {
    fn start(mode: &'static Mode, cluster: &Cluster) -> Side {
        let database = format!("nemesis_{}", mode.name);
        let namespace = format!("{database}.{COLLECTION}");
        cluster
            .shard_collection(&namespace, doc! { "region": 1 }, false)
            .unwrap();
        for region in &REGIONS[1..] {
            cluster.split(&namespace, doc! { "region": *region }).unwrap();
        }
        for (region, shard) in REGIONS.iter().zip(cluster.shards().iter().cycle()) {
            cluster
                .move_chunk(&namespace, doc! { "region": *region }, shard.name())
                .unwrap();
        }
        let constraints = mode.constraints.replace("DB", &database);
        let start = |_| Arc::new(Place::start(cluster.router_address(), mode.lease, &constraints));
        Side {
            mode,
            database,
            places: (0..2).map(start).collect(),
            history: Arc::default(),
            started: history::now(),
        }
    }

    /// A third of the clients know both Keywards, the others one of them.
    async fn client(&self, number: usize, seed: u64) -> Client {
        let addresses = match number % 3 {
            2 => format!("{},{}", self.places[0].address(), self.places[1].address()),
            one => self.places[one].address().to_owned(),
        };
        let uri = format!("mongodb://{addresses}/?serverSelectionTimeoutMS=5000&heartbeatFrequencyMS=500");
        let client = mongodb::Client::with_uri_str(uri).await.unwrap();
        Client {
            number,
            accounts: client.database(&self.database).collection(COLLECTION),
            random: StdRng::seed_from_u64(seed ^ number as u64),
            history: self.history.clone(),
        }
    }

    async fn documents_and_reservations(&self, cluster: &Cluster) -> [Vec<Document>; 2] {
        let documents = on_each_shard(cluster.shards(), &self.database, COLLECTION)
            .await
            .concat();
        let mut reservations = Vec::new();
        for field in FIELDS {
            let proxy = format!("keyward.{COLLECTION}.{field}_1");
            reservations.extend(on_each_shard(cluster.shards(), &self.database, &proxy).await.concat());
        }
        [documents, reservations]
    }

    /// Waits until what is held is what is reserved, or no longer than the limit; then looks at everything.
    async fn evidence(&self, cluster: &Cluster) -> Evidence {
        let started = Instant::now();
        let [documents, reservations] = loop {
            let [documents, reservations] = self.documents_and_reservations(cluster).await;
            let [held, reserved] = held_and_reserved(&documents, &reservations);
            if held == reserved || started.elapsed() > QUIET_WITHIN {
                break [documents, reservations];
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        println!("{}: quiet after {:?}", self.mode.name, started.elapsed());
        Evidence {
            operations: self.history.operations(),
            moments: oplog::moments(cluster, &self.database, self.started).await,
            documents,
            reservations,
        }
    }
}

fn setting<T: FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(value) => value.parse().ok().unwrap_or_else(|| panic!("{name}={value}")),
        Err(_) => default,
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "wants a machine of its own: half a minute at least, on seven servers and four Keywards"]
async fn nothing_is_lost_and_nothing_doubled() {
    let duration = Duration::from_secs(setting("KEYWARD_NEMESIS_SECONDS", 30));
    let replicas = setting("KEYWARD_NEMESIS_REPLICAS", 3);
    let seed: u64 = setting("KEYWARD_SEED", rand::random());
    println!("KEYWARD_SEED={seed}");
    let cluster = Cluster::builder()
        .replicas(replicas)
        .parameter("transactionLifetimeLimitSeconds", TRANSACTIONS_LIVE_S);
    let cluster = Arc::new(cluster.start().unwrap());
    let sides = MODES.each_ref().map(|mode| Side::start(mode, &cluster));
    let faults = Arc::new(Faults::default());
    let is_over = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for side in &sides {
        for number in 0..CLIENTS {
            clients.push(tokio::spawn(side.client(number, seed).await.run(is_over.clone())));
        }
    }
    let started = Instant::now();
    torment(&cluster, &sides, &faults, seed, duration).await;
    is_over.store(true, Ordering::Relaxed);
    let elapsed = started.elapsed();
    let mut violations = 0;
    for client in clients {
        match tokio::time::timeout(QUIET_WITHIN, client).await {
            Ok(ended) => ended.unwrap(),
            Err(_) => {
                println!("a write that never ends");
                violations += 1;
            }
        }
    }
    println!("{}", report::of_faults(&faults, elapsed));
    for side in &sides {
        let evidence = side.evidence(&cluster).await;
        let found = checker::check(&evidence);
        println!("{}", report::of_side(side.mode.name, &evidence, &found));
        if !found.is_empty() {
            println!(
                "everything: {}",
                report::dump(side.mode.name, seed, &evidence).display()
            );
        }
        violations += found.len();
    }
    assert_eq!(violations, 0, "KEYWARD_SEED={seed}");
}

/// Does harm for `duration`; all of it is undone afterwards.
async fn torment(cluster: &Arc<Cluster>, sides: &[Side], faults: &Arc<Faults>, seed: u64, duration: Duration) {
    let mut threads = Vec::new();
    let mut ends = Vec::new();
    let mut pace = |rest_ms| {
        let (end, is_over) = mpsc::channel();
        ends.push(end);
        let random = StdRng::seed_from_u64(seed ^ (ends.len() as u64) << 32);
        Pace {
            is_over,
            random,
            rest_ms,
        }
    };
    for side in sides {
        let pause = format!("KEYWARD_NEMESIS_{}_PAUSE_MS", side.mode.name.to_uppercase());
        let pause = Duration::from_millis(setting(&pause, side.mode.pause_ms));
        for place in &side.places {
            let tormentor = Tormentor {
                mode: side.mode.name,
                place: place.clone(),
                pause,
                faults: faults.clone(),
            };
            let pace = pace(500..4_000);
            threads.push(std::thread::spawn(move || tormentor.run(pace)));
        }
    }
    let saboteur = Saboteur {
        cluster: cluster.clone(),
        databases: sides.iter().map(|side| side.database.clone()).collect(),
        faults: faults.clone(),
    };
    let pace = pace(500..5_000);
    threads.push(std::thread::spawn(move || saboteur.run(pace)));
    tokio::time::sleep(duration).await;
    drop(ends);
    let joined = tokio::task::spawn_blocking(move || threads.into_iter().try_for_each(std::thread::JoinHandle::join));
    joined.await.unwrap().expect("a tormentor that failed");
}
