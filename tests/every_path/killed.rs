//! A Keyward killed with -9 at each step of each way that a write can take, in both strategies: whoever wants a key that
//! the write was about gets it, or is told of a document that holds it, once the lease has run out; and the write,
//! sent again through another Keyward, gets the answer that it would have got from a native index and takes effect once.
//!
//! A step is a command to the cluster. What a Keyward does between two of them nobody but itself can see, so these are all
//! the points at which it can die. Their names are in `steps.txt`: a step that is added, or goes, shows there.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use testbed::Cluster;

use crate::forwarder::send;
use crate::gate::{Gate, Last};
use crate::paths::{self, Kind, PATHS, Path, first_statements};
use crate::support::{Keyward, comparable, natively_unique};
use crate::{ALONE, settles, users};

const LEASE: Duration = Duration::from_secs(3);
/// The lease and two seconds; and as much again, and more, for a machine that has other things to do: what was measured is
/// printed.
const FREE_WITHIN: Duration = Duration::from_secs(12);
/// How long a transaction lives here that nobody goes on with, and how much longer it may take until the server looks.
const TRANSACTIONS_LIVE_S: i32 = 4;
const OPEN_TRANSACTION_GONE_WITHIN: Duration = Duration::from_secs(30);
/// So many Keywards are killed at a time.
const WORKERS: usize = 3;
/// More steps than any write takes.
const STEPS_MAX: usize = 40;

const CONSTRAINTS: &str = "  - { collection: DB.users, key: { email: 1 }, strategy: STRATEGY }\n  - { collection: DB.users, \
                           key: { phone: 1 }, sparse: true, strategy: STRATEGY }\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_keyward_killed_at_any_step_holds_no_key_up_and_its_write_ends_once() {
    kill_everywhere("killed_at", "compensating").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn so_it_is_in_strict_mode() {
    kill_everywhere("killed_at_strictly", "transaction").await;
}

/// What all trials of one strategy have in common.
struct Trials {
    database: &'static str,
    strategy: &'static str,
    constraints: String,
    cluster: &'static Cluster,
    /// The Keyward that lives.
    other: Keyward,
    /// One more, for those who meet an open transaction: what travels with them is slower.
    patient: Keyward,
    /// A server with a native unique index.
    native: String,
    steps: Mutex<BTreeMap<&'static str, Vec<String>>>,
    /// The longest that anybody waited for a key, and for which.
    longest: Mutex<[(Duration, String); 2]>,
}

async fn kill_everywhere(database: &'static str, strategy: &'static str) {
    let _alone = ALONE.lock().await;
    let started = Instant::now();
    let cluster = users(database);
    let set_lifetime = |seconds: i32| {
        let limit = doc! { "setParameter": 1, "transactionLifetimeLimitSeconds": seconds };
        for shard in cluster.shards() {
            shard.run("admin", limit.clone()).unwrap();
        }
    };
    set_lifetime(TRANSACTIONS_LIVE_S);
    let constraints = CONSTRAINTS.replace("DB", database).replace("STRATEGY", strategy);
    let lease = format!("{}s\nsweep: 1d", LEASE.as_secs());
    let trials = Arc::new(Trials {
        database,
        strategy,
        other: Keyward::start_with_lease(&cluster.uri(), &lease, &constraints),
        patient: Keyward::start_with_lease(&cluster.uri(), &lease, &constraints),
        constraints,
        cluster,
        native: natively_unique(database).await,
        steps: Mutex::default(),
        longest: Mutex::default(),
    });
    let runtime = tokio::runtime::Handle::current();
    let shared = trials.clone();
    let trying = tokio::task::spawn_blocking(move || {
        let next = Mutex::new(PATHS.iter().enumerate());
        std::thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| {
                    let _entered = runtime.enter();
                    let gate = Gate::start(shared.cluster.router_address());
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
    let longest = trials.longest.lock().unwrap().clone();
    let [none_open, open] = longest;
    println!(
        "{strategy}: {:?}; waited at most {none_open:?}, where a transaction was open {open:?}",
        started.elapsed()
    );
    let documents = all(cluster.client(), database).await;
    assert_eq!(documents, all(testbed::ReplicaSet::shared().client(), database).await);
    let definitions = cluster
        .client()
        .database(database)
        .collection::<Document>("keyward.constraints");
    definitions
        .update_many(doc! {}, doc! { "$unset": { "sweep": 1 } })
        .await
        .unwrap();
    settles(cluster, database, &trials.constraints).await;
    trials.compare_steps();
}

async fn all(client: mongodb::Client, database: &str) -> Vec<Document> {
    let users = client.database(database).collection("users");
    let found = users.find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap();
    found.try_collect().await.unwrap()
}

impl Trials {
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
        let known = std::fs::read_to_string("tests/every_path/steps.txt").unwrap();
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

/// What happens to a write.
enum Event {
    Answered(Document),
    Hit,
    Ended,
}

/// One write whose Keyward is killed at one step.
struct Trial {
    all: Arc<Trials>,
    path: &'static Path,
    base: i32,
    step: usize,
    last: Last,
    commands: Vec<Document>,
    /// How many of the commands were answered.
    answered: AtomicUsize,
    /// The steps that were taken.
    steps: Mutex<Vec<String>>,
}

impl Trial {
    /// With its document in place, here and natively.
    fn prepare(all: Arc<Trials>, path: &'static Path, base: i32, step: usize, last: Last) -> Trial {
        let there = doc! { "insert": "users", "documents": [paths::there(base)] };
        for address in [&all.native, &all.other.address] {
            let reply = send(address, all.database, there.clone()).unwrap();
            assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
        }
        Trial {
            commands: (path.write)(base),
            all,
            path,
            base,
            step,
            last,
            answered: AtomicUsize::new(0),
            steps: Mutex::default(),
        }
    }

    fn name(&self) -> String {
        format!(
            "{}, {}, {:?} at step {}, {}",
            self.all.strategy, self.path.name, self.last, self.step, self.base
        )
    }

    /// Sends the write through a Keyward that dies at the step, or after the last one; whether that was all of them.
    fn kill(&self, gate: &Gate) -> bool {
        let (tell, events) = mpsc::channel();
        let (hit, is_hit) = mpsc::channel();
        let round = gate.begin(Some((self.step, self.last)), hit);
        let lease = format!("{}s\nsweep: 1d", LEASE.as_secs());
        let upstream = format!("mongodb://{}/", gate.address);
        let mut keyward = Keyward::start_with_lease(&upstream, &lease, &self.all.constraints);
        round.arm();
        let (address, commands, database) = (keyward.address.clone(), self.commands.clone(), self.all.database);
        let done = tell.clone();
        std::thread::spawn(move || {
            for command in commands {
                let database = database_of(&command, database);
                match send(&address, database, command) {
                    Ok(reply) => drop(done.send(Event::Answered(reply))),
                    Err(_) => return,
                }
            }
            let _ = done.send(Event::Ended);
        });
        std::thread::spawn(move || is_hit.recv().map(|()| tell.send(Event::Hit)));
        let has_ended = loop {
            match events.recv().unwrap() {
                Event::Answered(reply) => {
                    assert!(
                        is_ok(&reply) && !reply.contains_key("writeErrors"),
                        "{}: {reply}",
                        self.name()
                    );
                    self.answered.fetch_add(1, Ordering::Relaxed);
                }
                Event::Hit => break false,
                Event::Ended => break true,
            }
        };
        keyward.kill();
        round.killed();
        *self.steps.lock().unwrap() = round.steps();
        if has_ended {
            self.all.steps.lock().unwrap().insert(self.path.name, round.steps());
        }
        has_ended
    }

    /// What others, and the client itself, find after that.
    fn follow(&self) {
        match self.last {
            Last::Unsent => {
                self.replay_natively_what_took_effect();
                self.want_the_keys();
                self.send_again();
            }
            Last::Late => {
                self.send_again();
                self.want_the_keys();
            }
        }
    }

    /// The client that was cut off sends its write again, through the other Keyward.
    fn send_again(&self) {
        match self.path.kind {
            Kind::Retryable => {
                let expected = as_first(send(&self.all.native, self.all.database, self.commands[0].clone()).unwrap());
                let got = as_first(self.send(self.commands[0].clone()));
                assert_eq!(got, expected, "{}", self.name());
            }
            Kind::Plain => {
                self.send(self.commands[0].clone());
                send(&self.all.native, self.all.database, self.commands[0].clone()).unwrap();
            }
            Kind::Transaction => self.run_transaction_again(),
        }
    }

    fn send(&self, command: Document) -> Document {
        let address = match self.leaves_a_transaction_open() {
            true => &self.all.patient.address,
            false => &self.all.other.address,
        };
        let mut reply = send(address, self.all.database, command.clone());
        // A driver tries once more where a label says so.
        if reply
            .as_ref()
            .is_ok_and(|reply| has_label(reply, "RetryableWriteError"))
        {
            reply = send(address, self.all.database, command);
        }
        reply.unwrap_or_else(|error| panic!("{}: {error}", self.name()))
    }

    /// As a driver does: the commit is asked for again if it was under way; otherwise, or if the server knows nothing of the
    /// transaction, all of it is done anew.
    fn run_transaction_again(&self) {
        let is_committed = self.answered.load(Ordering::Relaxed) + 1 >= self.commands.len() && {
            let reply = send(&self.all.other.address, "admin", self.commands.last().unwrap().clone()).unwrap();
            assert!(
                is_ok(&reply) || has_label(&reply, "TransientTransactionError"),
                "{}: {reply}",
                self.name()
            );
            is_ok(&reply)
        };
        if is_committed {
            if self.documents() != self.native_documents() {
                self.transact(&self.all.native, 1);
            }
            return;
        }
        assert_eq!(
            self.transact(&self.all.other.address, 2),
            self.transact(&self.all.native, 2),
            "{}",
            self.name()
        );
    }

    /// Runs the transaction under this number, again as long as the server asks for that; what it was answered.
    fn transact(&self, address: &str, number: i64) -> Vec<Document> {
        let mut replies = Vec::new();
        for command in &self.commands {
            let mut command = command.clone();
            command.insert("txnNumber", number);
            let reply = send(address, database_of(&command, self.all.database), command).unwrap();
            if has_label(&reply, "TransientTransactionError") {
                assert!(number < 1_000, "{}: {reply}", self.name());
                return self.transact(address, number + 1);
            }
            let is_ok = is_ok(&reply) && !reply.contains_key("writeErrors");
            replies.push(in_order(reply));
            if !is_ok {
                break;
            }
        }
        replies
    }

    /// Whoever wants a key that the write was about gets it, or a document holds it.
    fn want_the_keys(&self) {
        std::thread::scope(|scope| {
            for (offset, email) in [(8, paths::new(self.base)), (9, paths::old(self.base))] {
                scope.spawn(move || self.want(offset, email));
            }
        });
    }

    fn want(&self, offset: i32, email: String) {
        let document = doc! { "_id": self.base + offset, "region": "a", "email": email };
        let command = doc! { "insert": "users", "documents": [document] };
        let expected = comparable(send(&self.all.native, self.all.database, command.clone()).unwrap());
        let asked = Instant::now();
        let got = comparable(self.send(command));
        let elapsed = asked.elapsed();
        assert_eq!(got, expected, "{}", self.name());
        let was_open = self.leaves_a_transaction_open();
        let within = match was_open {
            true => FREE_WITHIN + OPEN_TRANSACTION_GONE_WITHIN,
            false => FREE_WITHIN,
        };
        assert!(elapsed < within, "{}: {elapsed:?}", self.name());
        let longest = &mut self.all.longest.lock().unwrap()[usize::from(was_open)];
        if elapsed > longest.0 {
            *longest = (elapsed, self.name());
        }
    }

    fn leaves_a_transaction_open(&self) -> bool {
        let steps = self.steps.lock().unwrap();
        let before = steps.iter().take(self.step);
        before
            .rev()
            .take_while(|step| !["commit", "abort"].contains(&step.as_str()))
            .any(|step| step.ends_with("(transaction)"))
    }

    /// Has the native server do as many of the write's statements as took effect here.
    fn replay_natively_what_took_effect(&self) {
        let documents = self.documents();
        for count in 1.. {
            if self.native_documents() == documents {
                return;
            }
            let name = self.name();
            match self.path.kind {
                Kind::Transaction => {
                    assert!(count == 1, "{name}: {documents:?}");
                    self.transact(&self.all.native, 1);
                }
                Kind::Retryable | Kind::Plain => {
                    let done = first_statements(&self.commands[0], count);
                    let done = done.unwrap_or_else(|| panic!("{name}: {documents:?}"));
                    send(&self.all.native, self.all.database, done).unwrap();
                }
            }
        }
    }

    fn native_documents(&self) -> Vec<Document> {
        self.documents_at(&self.all.native)
    }

    fn documents(&self) -> Vec<Document> {
        self.documents_at(&self.all.cluster.router_address())
    }

    /// The documents that the write is about, with all that was committed before.
    fn documents_at(&self, address: &str) -> Vec<Document> {
        let now = send(address, "admin", doc! { "ping": 1 }).unwrap();
        let now = now
            .get_document("$clusterTime")
            .unwrap()
            .get_timestamp("clusterTime")
            .unwrap();
        let find = doc! {
            "find": "users", "filter": { "_id": { "$gte": self.base, "$lt": self.base + 10 } }, "sort": { "_id": 1 },
            "readConcern": { "level": "majority", "afterClusterTime": now },
        };
        let reply = send(address, self.all.database, find).unwrap();
        let cursor = reply.get_document("cursor").unwrap_or_else(|_| panic!("{reply}"));
        let documents = cursor.get_array("firstBatch").unwrap().iter();
        documents
            .map(|document| document.as_document().unwrap().clone())
            .collect()
    }
}

fn is_ok(reply: &Document) -> bool {
    reply.get_f64("ok").ok() == Some(1.0)
}

fn database_of<'d>(command: &Document, database: &'d str) -> &'d str {
    match command.contains_key("commitTransaction") {
        true => "admin",
        false => database,
    }
}

/// The reply without what differs between two servers.
fn in_order(reply: Document) -> Document {
    let mut reply = comparable(reply);
    reply.remove("recoveryToken");
    reply
}

/// The reply without what only a repetition has.
fn as_first(reply: Document) -> Document {
    let mut reply = comparable(reply);
    reply.remove("retriedStmtIds");
    reply.remove("retriedStmtId");
    reply
}

fn has_label(reply: &Document, label: &str) -> bool {
    let labels = reply.get_array("errorLabels");
    labels.is_ok_and(|labels| labels.contains(&Bson::String(label.to_owned())))
}
