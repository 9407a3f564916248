//! Broken for real: clients with drivers that retry write through two Keywards of each mode, while Keywards, routers and
//! shards are killed and stopped, primaries step down, chunks move, clocks leap, connections are cut and held, and a further
//! constraint comes and goes by rolling restarts, and by `createIndexes` and `dropIndexes`. What the clients were told is then held against what the shards' logs say
//! happened, and what they hold.
//!
//! `KEYWARD_NEMESIS_SECONDS=1800 KEYWARD_SEED=1 cargo test --test faults nemesis -- --ignored --nocapture` runs for half an hour. The seed
//! repeats the choices, not how the processes interleave. More to be set, each by a variable that begins `KEYWARD_NEMESIS_`:
//!
//! - `COMPENSATING_PAUSE_MS`, `STRICT_PAUSE_MS`: how long the Keywards and the router of that mode are stopped, and commands held
//!   back. With 6000, twice the lease, the compensating mode is to be found out.
//! - `PRIMARY_PAUSE_MS`, `SECONDARY_PAUSE_MS`: how long members of shards are stopped.
//! - `MODES=strict` or `=compensating`: one mode by itself. Without the other, a primary is stopped as long as a router is.
//! - `FAULTS=clocks,rollouts`: only these, of `keywards`, `routers`, `shards`, `clocks` and `rollouts`.
//! - `REPLICAS`: how many members each shard has.

#![allow(clippy::unwrap_used)]

mod checker;
mod client;
mod clocks;
mod faults;
mod history;
mod keys;
mod moments;
mod oplog;
mod phones;
mod place;
mod report;
mod rollout;
mod routers;
mod saboteur;
mod side;
mod tormentor;
mod verdict;

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand::{SeedableRng, rngs::StdRng};
use testbed::Cluster;

use clocks::Gossip;
use faults::{Faults, Pace};
use rollout::Rollout;
use routers::Roadblock;
use saboteur::Saboteur;
use side::{MODES, Mode, Side};
use tormentor::Tormentor;

/// How many clients write in each mode.
const CLIENTS: usize = 6;
/// As long as an open transaction of a killed Keyward's may keep others waiting; longer than a strict one is stopped.
const TRANSACTIONS_LIVE_S: &str = "15";
/// Within this time all must be quiet after the last fault.
const QUIET_WITHIN: Duration = Duration::from_secs(150);

fn setting<T: FromStr>(name: &str, default: T) -> T {
    let name = format!("KEYWARD_NEMESIS_{name}");
    match std::env::var(&name) {
        Ok(value) => value.parse().ok().unwrap_or_else(|| panic!("{name}={value}")),
        Err(_) => default,
    }
}

/// Whether `list`, names with commas between them, has `name`; an empty list has them all.
fn names(list: &str, name: &str) -> bool {
    list.is_empty() || list.split(',').any(|part| part == name)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "wants a machine of its own: half a minute at least, on seven servers and four Keywards"]
async fn nothing_is_lost_and_nothing_doubled() {
    let duration = Duration::from_secs(setting("SECONDS", 30));
    let replicas = setting("REPLICAS", 3);
    let seed = testkit::given::seed();
    let cluster = Cluster::builder()
        .replicas(replicas)
        .parameter("transactionLifetimeLimitSeconds", TRANSACTIONS_LIVE_S);
    let cluster = Arc::new(cluster.start().unwrap());
    let modes = setting("MODES", String::new());
    let modes = MODES.iter().filter(|mode| names(&modes, mode.name));
    let sides: Vec<Side> = modes.map(|mode| Side::start(mode, &cluster)).collect();
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

/// How long something of this mode may be stopped, or a command be held back.
fn pause_of(mode: &Mode) -> Duration {
    let name = format!("{}_PAUSE_MS", mode.name.to_uppercase());
    Duration::from_millis(setting(&name, mode.pause_ms))
}

/// The threads that do harm, each at its own pace.
struct Threads {
    seed: u64,
    /// The kinds that are wanted.
    kinds: String,
    running: Vec<JoinHandle<()>>,
    ends: Vec<mpsc::Sender<()>>,
}

impl Threads {
    /// Has harm of this kind done, with rests of so many milliseconds, if it is wanted.
    fn start(&mut self, kind: &str, rest_ms: std::ops::Range<u64>, harm: impl FnOnce(Pace) + Send + 'static) {
        let (end, is_over) = mpsc::channel();
        self.ends.push(end);
        let random = StdRng::seed_from_u64(self.seed ^ (self.ends.len() as u64) << 32);
        let pace = Pace {
            is_over,
            random,
            rest_ms,
        };
        if names(&self.kinds, kind) {
            self.running.push(std::thread::spawn(move || harm(pace)));
        }
    }
}

/// Does harm for `duration`; all of it is undone afterwards.
async fn torment(cluster: &Arc<Cluster>, sides: &[Side], faults: &Arc<Faults>, seed: u64, duration: Duration) {
    let mut threads = Threads {
        seed,
        kinds: setting("FAULTS", String::new()),
        running: Vec::new(),
        ends: Vec::new(),
    };
    let gossip = Arc::new(Gossip {
        cluster: cluster.clone(),
        routers: sides.iter().map(|side| side.router.clone()).collect(),
        faults: faults.clone(),
    });
    let leaps = names(&threads.kinds, "clocks").then(|| gossip.clone());
    for side in sides {
        let (mode, pause) = (side.mode.name, pause_of(side.mode));
        for place in &side.places {
            let tormentor = Tormentor {
                mode,
                place: place.clone(),
                pause,
                gossip: leaps.clone(),
                faults: faults.clone(),
            };
            threads.start("keywards", 500..4_000, move |pace| tormentor.run(pace));
        }
        let roadblock = Roadblock {
            mode,
            router: side.router.clone(),
            pause,
            faults: faults.clone(),
        };
        threads.start("routers", 2_000..12_000, move |pace| roadblock.run(pace));
        let rollout = Rollout {
            mode,
            database: side.database.clone(),
            cluster: cluster.clone(),
            places: side.places.clone(),
            constraints: [false, true].map(|with_phones| side.mode.constraints(&side.database, with_phones)),
            is_for_clients: side.mode.is_for_clients,
            phones: side.phones.clone(),
            faults: faults.clone(),
        };
        threads.start("rollouts", 1_000..5_000, move |pace| rollout.run(pace));
    }
    let pauses = || sides.iter().map(|side| pause_of(side.mode));
    let in_ms = |pause: Duration| u64::try_from(pause.as_millis()).unwrap();
    let saboteur = Saboteur {
        cluster: cluster.clone(),
        databases: sides.iter().map(|side| side.database.clone()).collect(),
        primary_pause: Duration::from_millis(setting("PRIMARY_PAUSE_MS", in_ms(pauses().min().unwrap()))),
        secondary_pause: Duration::from_millis(setting("SECONDARY_PAUSE_MS", in_ms(pauses().max().unwrap()))),
        faults: faults.clone(),
    };
    threads.start("shards", 500..5_000, move |pace| saboteur.run(pace));
    threads.start("clocks", 1_000..10_000, move |pace| gossip.run(pace));
    tokio::time::sleep(duration).await;
    let Threads { running, ends, .. } = threads;
    drop(ends);
    let joined = tokio::task::spawn_blocking(move || running.into_iter().try_for_each(JoinHandle::join));
    joined.await.unwrap().expect("a tormentor that failed");
}
