//! A Keyward killed with -9 at each step of each way that a write can take, on shards in both strategies and on a replica
//! set: whoever wants a key that the write was about gets it, or is told of a document that holds it, once the lease has run
//! out; and the write, sent again through another Keyward, gets the answer that it would have got from a native index and
//! takes effect once.
//!
//! A step is a command to the cluster. What a Keyward does between two of them nobody but itself can see, so these are all
//! the points at which it can die. Their names are in `steps.txt`: a step that is added, or goes, shows there.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use bson::{Document, doc};
use futures_util::TryStreamExt;
use testbed::{Cluster, ReplicaSet};

use crate::every_path::gate::{Gate, Last};
use crate::every_path::paths::{Kind, PATHS, Path};
use crate::every_path::trial::Trial;
use crate::every_path::{FEW, settles, users_on};
use testkit::{Keyward, natively_unique};

pub const LEASE: Duration = Duration::from_secs(3);
/// So long whoever wants a key waits, …
const FREE_WITHIN: Duration = Duration::from_secs(5);
/// … but for so few of them, as a busy machine has them wait for other things.
const LATE_PERCENT_MAX: usize = 20;
/// How long a transaction lives here that nobody goes on with, and how much longer it may take until the server looks.
const TRANSACTIONS_LIVE_S: i32 = 4;
/// So many Keywards are killed at a time.
const WORKERS: usize = 3;
/// More steps than any write takes.
const STEPS_MAX: usize = 40;

const CONSTRAINTS: &str = "  - { collection: DB.users, key: { email: 1 }, strategy: STRATEGY }\n  - { collection: DB.users, \
                           key: { phone: 1 }, sparse: true, strategy: STRATEGY }\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_keyward_killed_at_any_step_holds_no_key_up_and_its_write_ends_once() {
    kill_everywhere("killed_at", "compensating", Deployment::shards).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn so_it_is_in_strict_mode() {
    kill_everywhere("killed_at_strictly", "transaction", Deployment::shards).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn so_it_is_on_a_replica_set() {
    kill_everywhere(
        "killed_at_once",
        "transaction on a replica set",
        Deployment::replica_set,
    )
    .await;
}

/// What Keywards stand in front of.
pub struct Deployment {
    uri: String,
    pub address: String,
    shards: &'static [ReplicaSet],
}

impl Deployment {
    /// A cluster of its own: how long a transaction lives is a server's setting.
    fn shards(database: &str) -> Deployment {
        let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start().unwrap()));
        users_on(cluster, database);
        Deployment {
            uri: cluster.uri(),
            address: cluster.router_address(),
            shards: cluster.shards(),
        }
    }

    /// Not the shared one, which has the native index.
    fn replica_set(_database: &str) -> Deployment {
        static SET: LazyLock<ReplicaSet> = LazyLock::new(|| ReplicaSet::start(1).unwrap());
        let set = &*SET;
        Deployment {
            uri: set.uri(),
            address: set.addresses().remove(0),
            shards: std::slice::from_ref(set),
        }
    }
}

/// What all trials of one strategy have in common.
pub struct Trials {
    pub database: &'static str,
    strategy: &'static str,
    pub constraints: String,
    pub deployment: Deployment,
    /// The Keyward that lives.
    pub other: Keyward,
    /// One more, for those who meet an open transaction: what travels with them is slower.
    pub patient: Keyward,
    /// A server with a native unique index.
    pub native: String,
    steps: Mutex<BTreeMap<&'static str, Vec<String>>>,
    /// How long others waited for keys, and for which; where no transaction was open, and where one was.
    waits: Mutex<[Vec<(Duration, String)>; 2]>,
}

async fn kill_everywhere(database: &'static str, strategy: &'static str, deployment: fn(&str) -> Deployment) {
    let _few = FEW.acquire().await.unwrap();
    let started = Instant::now();
    let deployment = deployment(database);
    let shards = deployment.shards;
    let set_lifetime = |seconds: i32| {
        let limit = doc! { "setParameter": 1, "transactionLifetimeLimitSeconds": seconds };
        for shard in shards {
            shard.run("admin", limit.clone()).unwrap();
        }
    };
    set_lifetime(TRANSACTIONS_LIVE_S);
    let constraints = CONSTRAINTS
        .replace("DB", database)
        .replace("STRATEGY", strategy.split(' ').next().unwrap_or(strategy));
    let trials = Arc::new(Trials {
        database,
        strategy,
        other: Keyward::start_with_lease(&deployment.uri, &settings(), &constraints),
        patient: Keyward::start_with_lease(&deployment.uri, &settings(), &constraints),
        constraints,
        deployment,
        native: natively_unique(database).await,
        steps: Mutex::default(),
        waits: Mutex::default(),
    });
    let runtime = tokio::runtime::Handle::current();
    let shared = trials.clone();
    let trying = tokio::task::spawn_blocking(move || {
        let next = Mutex::new(PATHS.iter().enumerate());
        std::thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| {
                    let _entered = runtime.enter();
                    let gate = Gate::start(shared.deployment.address.clone());
                    loop {
                        let Some((number, path)) = next.lock().unwrap().next() else {
                            break;
                        };
                        shared.kill_at_each_step(i32::try_from(number).unwrap(), path, &gate, scope);
                    }
                });
            }
        });
    });
    trying.await.unwrap();
    set_lifetime(60);
    let [free, open] = std::mem::take(&mut *trials.waits.lock().unwrap());
    println!(
        "{strategy}: {:?}; of {} waits the longest {:?}; of {} for open transactions {:?}",
        started.elapsed(),
        free.len(),
        free.iter().max(),
        open.len(),
        open.iter().max()
    );
    let late: Vec<_> = free.iter().filter(|(elapsed, _)| *elapsed > FREE_WITHIN).collect();
    assert!(late.len() * 100 <= free.len() * LATE_PERCENT_MAX, "{late:?}");
    let client = mongodb::Client::with_uri_str(&trials.deployment.uri).await.unwrap();
    let natively = all(ReplicaSet::shared().client(), database).await;
    assert_eq!(all(client.clone(), database).await, natively);
    let definitions = client.database(database).collection::<Document>("keyward.constraints");
    definitions
        .update_many(doc! {}, doc! { "$unset": { "sweep": 1 } })
        .await
        .unwrap();
    for field in ["email", "phone"] {
        settles(&trials.deployment.uri, shards, database, &trials.constraints, field).await;
    }
    trials.compare_steps();
}

/// The lease, and no sweep: what goes, somebody who wants it has to find out.
pub fn settings() -> String {
    format!("{}s\nsweep: 1d", LEASE.as_secs())
}

async fn all(client: mongodb::Client, database: &str) -> Vec<Document> {
    let users = client.database(database).collection("users");
    let found = users.find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap();
    found.try_collect().await.unwrap()
}

impl Trials {
    /// Notes the steps of a write that came to its end.
    pub fn took(&self, path: &'static Path, steps: Vec<String>) {
        self.steps.lock().unwrap().insert(path.name, steps);
    }

    /// Notes how long somebody waited for a key, and whether a transaction was open that wrote there.
    pub fn waited(&self, elapsed: Duration, was_open: bool, name: String) {
        self.waits.lock().unwrap()[usize::from(was_open)].push((elapsed, name));
    }

    pub fn strategy(&self) -> &str {
        self.strategy
    }

    fn kill_at_each_step<'s>(
        self: &'s Arc<Self>,
        number: i32,
        path: &'static Path,
        gate: &Gate,
        scope: &'s std::thread::Scope<'s, '_>,
    ) {
        let mut base = (number + 1) * 10_000;
        for step in 0..=STEPS_MAX {
            assert!(step < STEPS_MAX, "{} never ends", path.name);
            let mut has_ended = false;
            for last in [Last::Unsent, Last::Late] {
                base += 10;
                let trial = Trial::prepare(self.clone(), path, base, step, last);
                has_ended = trial.kill(gate);
                scope.spawn(move || trial.follow());
                // A write that nobody retries may come late or be sent again: it is two writes then.
                if has_ended || path.kind == Kind::Plain {
                    break;
                }
            }
            if has_ended {
                return;
            }
        }
    }

    /// The steps are those that are known.
    fn compare_steps(&self) {
        let known = std::fs::read_to_string("tests/faults/every_path/steps.txt").unwrap();
        let mut differences = String::new();
        for (path, steps) in &*self.steps.lock().unwrap() {
            let line = format!("{}: {path}: {}", self.strategy, steps.join(", "));
            // Commands to two collections at once come in any order.
            let sorted = |line: &str| {
                let mut steps: Vec<String> = line.split(", ").map(str::to_owned).collect();
                steps.sort();
                steps
            };
            let is_it = |known: &str| {
                let steps = known.rsplit(": ").next().unwrap_or_default();
                known.starts_with(&format!("{}: {path}: ", self.strategy)) && sorted(steps) == sorted(&steps_of(&line))
            };
            if !known.lines().any(is_it) {
                differences.push_str(&line);
                differences.push('\n');
            }
        }
        assert!(differences.is_empty(), "not in steps.txt:\n{differences}");
    }
}

fn steps_of(line: &str) -> String {
    line.rsplit(": ").next().unwrap_or_default().to_owned()
}
