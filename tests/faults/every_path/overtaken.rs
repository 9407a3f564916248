//! A first try that is held back at each of its steps. Meanwhile its driver sends the write again through another Keyward, and others
//! change what it was about. Then it goes on: it changes nothing, and gives up no key that a document holds.

use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use bson::{Bson, Document, doc};
use testbed::Cluster;
use testkit::agreement::held_and_reserved;
use testkit::relay::{Fate, Judge, Relay};
use testkit::wire::send;
use testkit::{Keyward, comparable, natively_unique};

use crate::every_path::gate::step;
use crate::every_path::paths::{self, Kind, PATHS, Path};
use crate::every_path::{FEW, settles, users};

/// Longer than anybody waits here.
const LEASE: &str = "20s\nsweep: 1d";
/// So many first tries are held back at a time: most of the time they wait.
const WORKERS: usize = 3;
/// More steps than any write takes.
const STEPS_MAX: usize = 40;

#[tokio::test(flavor = "multi_thread")]
async fn a_first_try_that_is_overtaken_by_its_retry_changes_nothing() {
    overtake_everywhere("overtaken", "compensating").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn so_it_is_in_strict_mode() {
    overtake_everywhere("overtaken_strictly", "transaction").await;
}

async fn overtake_everywhere(database: &'static str, strategy: &str) {
    let _few = FEW.acquire().await.unwrap();
    let cluster = users(database);
    let constraints = ["email: 1 }", "phone: 1 }, sparse: true"]
        .map(|key| format!("  - {{ collection: {database}.users, key: {{ {key}, strategy: {strategy} }}\n"))
        .concat();
    let other = Keyward::start_with_lease(&cluster.uri(), LEASE, &constraints);
    let native = natively_unique(database).await;
    let retried = PATHS.iter().filter(|path| path.kind == Kind::Retryable);
    let next = Mutex::new((1..).zip(retried));
    let work = || {
        let holding = Arc::new(Holding::default());
        let of_relay = holding.clone();
        let relay = Relay::judged_by_connection(cluster.router_address(), move || {
            let holding = of_relay.clone();
            Judge::of(move |request| holding.judge(request), |_| Fate::Passed)
        });
        let trials = Trials {
            database,
            first: Keyward::start_with_lease(&relay.uri(), LEASE, &constraints),
            other: &other.address,
            native: &native,
            router: cluster.router_address(),
            holding,
        };
        loop {
            let Some((number, path)) = next.lock().unwrap().next() else {
                break;
            };
            trials.at_each_step(number * 10_000, path);
        }
    };
    tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            (0..WORKERS).for_each(|_| drop(scope.spawn(work)));
        });
    });
    for field in ["email", "phone"] {
        let [held, reserved] = held_and_reserved(cluster.shards(), database, field).await;
        let unprotected: Vec<_> = held.difference(&reserved).collect();
        assert!(unprotected.is_empty(), "{unprotected:?}");
    }
    forget_sweeps(cluster, database);
    for field in ["email", "phone"] {
        settles(&cluster.uri(), cluster.shards(), database, &constraints, field).await;
    }
}

/// The next Keyward that sweeps begins at once.
fn forget_sweeps(cluster: &Cluster, database: &str) {
    let every = doc! { "q": {}, "u": { "$unset": { "sweep": 1 } }, "multi": true };
    let forget = doc! { "update": "keyward.constraints", "updates": [every] };
    cluster.run(database, forget).unwrap();
}

struct Trials<'t> {
    database: &'static str,
    /// Whose commands are held back.
    first: Keyward,
    other: &'t str,
    /// A server with a native unique index.
    native: &'t str,
    router: String,
    holding: Arc<Holding>,
}

/// What others do between the retry and the end of the first try.
const MEANWHILE: [fn(i32) -> Vec<Document>; 4] = [
    |_| Vec::new(),
    |base| {
        let delete = |id: i32, region: &str| doc! { "q": { "_id": id, "region": region }, "limit": 1 };
        let both = [delete(base, "a"), delete(base + 1, "z")];
        vec![doc! { "delete": "users", "deletes": both.to_vec() }, heir(base)]
    },
    |base| vec![set(base, "a", 3), set(base + 1, "z", 4), heir(base)],
    |base| {
        let back = doc! { "q": { "_id": base, "region": "a" }, "u": { "$set": { "email": paths::old(base) } } };
        vec![doc! { "update": "users", "updates": [back] }]
    },
];

fn set(id: i32, region: &str, number: i32) -> Document {
    let email = format!("other{id}-{number}@x");
    let one = doc! { "q": { "_id": id, "region": region }, "u": { "$set": { "email": email } } };
    doc! { "update": "users", "updates": [one] }
}

/// A document that takes the new key, if that is free.
fn heir(base: i32) -> Document {
    doc! { "insert": "users", "documents": [{ "_id": base + 8, "region": "a", "email": paths::new(base) }] }
}

impl Trials<'_> {
    fn at_each_step(&self, first_base: i32, path: &Path) {
        let mut base = first_base;
        for step in 0..=STEPS_MAX {
            assert!(step < STEPS_MAX, "{} never ends", path.name);
            for (number, meanwhile) in MEANWHILE.iter().enumerate() {
                base += 10;
                let name = format!("{} {} at step {step}, {number}, {base}", self.database, path.name);
                if !self.overtake(&name, path, base, step, meanwhile(base)) {
                    return;
                }
            }
        }
    }

    /// Whether the write has so many steps.
    fn overtake(&self, name: &str, path: &Path, base: i32, step: usize, meanwhile: Vec<Document>) -> bool {
        let there = doc! { "insert": "users", "documents": paths::there(base) };
        self.same(name, &there);
        let command = (path.write)(base).remove(0);
        self.holding.hold(step);
        let (address, database, first_try) = (self.first.address.clone(), self.database, command.clone());
        let first_try = std::thread::spawn(move || send(&address, database, first_try));
        let is_held = self.holding.has_come_before(&first_try);
        if !is_held {
            let reply = first_try.join().unwrap().unwrap();
            assert_eq!(as_first(reply), as_first(self.natively(&command)), "{name}");
            return false;
        }
        self.same(name, &command);
        for command in meanwhile {
            self.same(name, &command);
        }
        self.holding.release();
        let late = first_try.join().unwrap();
        assert_eq!(
            documents(&self.router, self.database, base),
            documents(self.native, self.database, base),
            "{name}: {late:?}"
        );
        true
    }

    /// Runs the command natively and through the other Keyward.
    fn same(&self, name: &str, command: &Document) {
        let expected = as_first(self.natively(command));
        let mut got = send(self.other, self.database, command.clone()).unwrap();
        let is_to_be_sent_again = |reply: &Document| {
            let labels = reply.get_array("errorLabels");
            labels.is_ok_and(|labels| labels.contains(&Bson::String("RetryableWriteError".to_owned())))
        };
        if is_to_be_sent_again(&got) {
            got = send(self.other, self.database, command.clone()).unwrap();
        }
        assert_eq!(as_first(got), expected, "{name}: {command}");
    }

    fn natively(&self, command: &Document) -> Document {
        send(self.native, self.database, command.clone()).unwrap()
    }
}

/// The documents that a write is about.
fn documents(address: &str, database: &str, base: i32) -> Vec<Bson> {
    let find = doc! {
        "find": "users", "filter": { "_id": { "$gte": base, "$lt": base + 10 } }, "sort": { "_id": 1 },
        "readConcern": { "level": "local" },
    };
    let reply = send(address, database, find).unwrap();
    let cursor = reply.get_document("cursor").unwrap_or_else(|_| panic!("{reply}"));
    cursor.get_array("firstBatch").unwrap().clone()
}

/// The reply without what only a repetition has.
fn as_first(reply: Document) -> Document {
    let mut reply = comparable(reply);
    for field in ["recoveryToken", "retriedStmtIds", "retriedStmtId"] {
        reply.remove(field);
    }
    reply
}

/// Holds one command of a Keyward back.
#[derive(Default)]
struct Holding {
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Default)]
struct State {
    /// So many commands come before the one that is held back; none if none is to be.
    left: Option<usize>,
    is_held: bool,
}

impl Holding {
    fn hold(&self, step: usize) {
        let mut state = self.state.lock().unwrap();
        (state.left, state.is_held) = (Some(step), false);
    }

    fn judge(&self, request: &[u8]) -> Fate {
        let mut state = self.state.lock().unwrap();
        let left = state.left.filter(|_| step(request).is_some());
        match left {
            Some(0) => {
                (state.left, state.is_held) = (None, true);
                drop(self.released.wait_while(state, |state| state.is_held).unwrap());
            }
            Some(left) => state.left = Some(left - 1),
            None => {}
        }
        Fate::Passed
    }

    /// Whether the command comes before the write has its answer.
    fn has_come_before<T>(&self, write: &JoinHandle<T>) -> bool {
        loop {
            // In this order: the answer comes after the command.
            let has_ended = write.is_finished();
            let mut state = self.state.lock().unwrap();
            if state.is_held {
                return true;
            }
            if has_ended {
                state.left = None;
                return false;
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn release(&self) {
        self.state.lock().unwrap().is_held = false;
        self.released.notify_all();
    }
}
