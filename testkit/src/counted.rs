//! Counts what Keyward does for one operation: runs of the whole process under `callgrind` that differ in how many there
//! were, so that start, preparation and end cancel out.
//!
//! What Keyward does by the clock, such as a look at the register each second, is no part of an operation. A run that only waits counts it.

use std::collections::HashMap;
use std::process::Command;
use std::time::{Duration, Instant};

use bson::{Document, doc};
use testbed::Cluster;

use crate::keyward::Keyward;
use crate::wire::Connection;

/// So many both have, so that nothing is done for the first time between them.
const WARM_UP: usize = 200;
/// So much longer one run waits than the other, without an operation.
const IDLE: Duration = Duration::from_secs(10);

const DATABASE: &str = "instructions";
/// What is unique in it.
pub const CONSTRAINTS: &str = "  - { collection: instructions.users, key: { email: 1 } }\n";

/// What one operation costs, on average.
pub struct Counted {
    /// What figures call it.
    pub name: &'static str,
    /// Instructions, all in all.
    pub instructions: f64,
    /// By function, the most expensive first: without what others do that it calls.
    pub by_function: Vec<(String, f64)>,
}

/// An operation, and the `n`th time it is done.
pub struct Operation {
    /// What figures call it.
    pub name: &'static str,
    /// So many more of it one run has than the other: enough that what happens once, at some time in either, hardly matters.
    more: usize,
    /// The command that does it.
    pub command: fn(n: usize) -> Document,
}

/// - A `find` by `_id` in a collection without constraints: read, classified, sent on, and so is the reply.
/// - An `update` of a field that no key is made of, in a collection with a constraint: it should cost what a `find` costs.
/// - One document as drivers send it: its key is reserved, then the document is inserted.
pub const OPERATIONS: [Operation; 3] = [
    Operation {
        name: "forwarded message",
        more: 20_000,
        command: |n| doc! { "find": "plain", "filter": { "_id": n as i64 }, "limit": 1, "$db": DATABASE },
    },
    Operation {
        name: "update of no key",
        more: 30_000,
        command: |n| {
            let change = doc! { "q": { "_id": n as i64 }, "u": { "$set": { "name": "x" } } };
            doc! { "update": "users", "updates": [change], "$db": DATABASE }
        },
    },
    Operation {
        name: "protected insert",
        more: 3_000,
        command: |n| {
            let user = doc! { "_id": n as i64, "email": format!("{n:010}@example.com"), "name": "x".repeat(200) };
            doc! { "insert": "users", "documents": [user], "$db": DATABASE }
        },
    },
];

/// Whether this machine can count.
pub fn has_valgrind() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok()
}

/// Instructions by function, and the time in which Keyward took them.
struct Run {
    by_function: HashMap<String, u64>,
    time: Duration,
}

/// Counts all operations.
pub fn all() -> [Counted; 3] {
    let cluster = Cluster::shared();
    prepare(cluster);
    let neither = run(cluster, None, Duration::ZERO);
    let idle = run(cluster, None, IDLE);
    OPERATIONS.each_ref().map(|operation| {
        let with = run(cluster, Some(operation), Duration::ZERO);
        Counted::between(operation, [&neither, &idle], &with)
    })
}

/// Makes what is made once only, before anything is counted, and takes away what an earlier count has left.
pub fn prepare(cluster: &Cluster) {
    cluster.run("admin", doc! { "enableSharding": DATABASE }).unwrap();
    for collection in ["plain", "users"] {
        let namespace = format!("{DATABASE}.{collection}");
        let key = doc! { "_id": "hashed" };
        cluster
            .run("admin", doc! { "shardCollection": namespace, "key": key })
            .unwrap();
    }
    Keyward::quiet(&cluster.uri(), CONSTRAINTS).stop();
    empty(cluster);
}

/// Takes away what was inserted, so that the next may be inserted again.
fn empty(cluster: &Cluster) {
    for collection in ["users", "keyward.users.email_1"] {
        let all = doc! { "q": {}, "limit": 0 };
        cluster
            .run(DATABASE, doc! { "delete": collection, "deletes": [all] })
            .unwrap();
    }
}

/// Runs a Keyward for a few of each operation, for many of one of them, and for `idle` without any.
fn run(cluster: &Cluster, one: Option<&Operation>, idle: Duration) -> Run {
    let counts = tempfile::NamedTempFile::new().unwrap();
    let keyward = Keyward::counted(&cluster.uri(), CONSTRAINTS, counts.path());
    let mut connection = Connection::greeted(&keyward.address);
    empty(cluster);
    let begun = Instant::now();
    for operation in &OPERATIONS {
        let more = one.filter(|one| one.name == operation.name).map_or(0, |one| one.more);
        for n in 0..WARM_UP + more {
            connection.must_raw(&(operation.command)(n));
        }
    }
    std::thread::sleep(idle);
    let time = begun.elapsed();
    drop(connection);
    keyward.stop();
    let table = Command::new("callgrind_annotate")
        .args(["--threshold=100", "--auto=no", "--show-percs=no"])
        .arg(counts.path())
        .output()
        .unwrap();
    assert!(table.status.success(), "{}", String::from_utf8_lossy(&table.stderr));
    let by_function = by_function(&String::from_utf8(table.stdout).unwrap());
    Run { by_function, time }
}

/// Reads lines such as `1,234,567  file:function [object]`.
fn by_function(table: &str) -> HashMap<String, u64> {
    let mut by_function = HashMap::new();
    for line in table.lines() {
        let Some((count, function)) = line.trim_start().split_once(' ') else {
            continue;
        };
        let (Ok(count), Some((_, function))) = (count.replace(',', "").parse::<u64>(), function.split_once(':')) else {
            continue;
        };
        let function = function.rsplit_once(" [").map_or(function, |(function, _)| function);
        *by_function.entry(function.to_owned()).or_default() += count;
    }
    by_function
}

impl Run {
    /// What this one has more of than `other` in `function`, and for how many seconds longer it was at work.
    fn beyond(&self, other: &Run, function: &str) -> (f64, f64) {
        let of = |run: &Run| run.by_function.get(function).copied().unwrap_or(0) as f64;
        (of(self) - of(other), self.time.as_secs_f64() - other.time.as_secs_f64())
    }
}

impl Counted {
    /// `neither` and `idle` have the same operations, and `with` has more of one.
    fn between(operation: &Operation, [neither, idle]: [&Run; 2], with: &Run) -> Counted {
        let of = |function: &str| {
            let (by_clock, idle_for) = idle.beyond(neither, function);
            assert!(
                idle_for > IDLE.as_secs_f64() / 2.0,
                "the run without a wait was too slow"
            );
            let (more, longer) = with.beyond(neither, function);
            (more - by_clock / idle_for * longer) / operation.more as f64
        };
        let mut functions: Vec<&String> = [neither, idle, with]
            .iter()
            .flat_map(|run| run.by_function.keys())
            .collect();
        functions.sort();
        functions.dedup();
        let mut by_function: Vec<(String, f64)> = functions
            .into_iter()
            .map(|function| (function.clone(), of(function)))
            .collect();
        by_function.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        Counted {
            name: operation.name,
            instructions: by_function.iter().map(|(_, count)| count).sum(),
            by_function,
        }
    }
}
