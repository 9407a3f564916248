//! The test suite that pymongo publishes, with the drivers' unified tests in it: against the stand-in routers, through Keyward
//! without constraints, and through Keyward with a unique constraint on every collection of the CRUD tests.
//!
//! `failing.txt` lists the tests that fail, each with its reason. A test that fails without being listed fails the run, and so does
//! a listed one that passes. The suite isn't part of this repository: pip fetches it when the tests run.
//!
//! The tests want two routers on ports that follow each other. Each run has a cluster of its own, because the suite kills
//! all sessions.

mod list;
mod suite;

use std::collections::BTreeSet;
use std::fmt::Write;

use testbed::process::Port;
use testbed::{Alone, Cluster, StandIn};
use testkit::Keyward;

use list::{List, Verdict};
use suite::{Outcome, Suite};

/// The unified CRUD tests.
const CRUD: [&str; 1] = ["test_crud_unified.py"];
/// Everything of the suite that is about what Keyward could get wrong.
const ALL: [&str; 17] = [
    "test_bulk.py",
    "test_causal_consistency.py",
    "test_change_stream.py",
    "test_collection_management.py",
    "test_crud_unified.py",
    "test_gridfs_spec.py",
    "test_read_write_concern_spec.py",
    "test_retryable_reads.py",
    "test_retryable_reads_unified.py",
    "test_retryable_writes.py",
    "test_retryable_writes_unified.py",
    "test_run_command.py",
    "test_session.py",
    "test_sessions_unified.py",
    "test_transactions.py",
    "test_transactions_unified.py",
    "test_versioned_api_integration.py",
];

/// Fail points hold for the suite's clients only, not for what Keyward itself does on the same router.
const APPLICATION: (&str, &str) = ("PUBLISHED_APPLICATION", "published");
/// Collections are created before they are filled: a strict insert into a missing one on shards may wait for a minute.
const CREATES: (&str, &str) = ("PUBLISHED_CREATES", "1");

/// The servers of one run. They end in this order.
struct Servers {
    keywards: Vec<(Keyward, Port)>,
    routers: [StandIn; 2],
    _cluster: Alone<Cluster>,
}

impl Servers {
    fn routers() -> Servers {
        let cluster = Cluster::alone().unwrap();
        Servers {
            keywards: Vec::new(),
            routers: cluster.two_routers().unwrap(),
            _cluster: cluster,
        }
    }

    /// A Keyward in front of each router, with these constraints (YAML, a list).
    fn keywards(constraints: &str) -> Servers {
        let mut servers = Servers::routers();
        for (router, port) in servers.routers.iter().zip(Port::lease_two().unwrap()) {
            let settings = format!(
                "upstream: mongodb://{}/\nlisten: {}\nlog: {{ level: 'info,keyward=info' }}\nconstraints:\n{constraints}",
                router.address(),
                port.address()
            );
            servers.keywards.push((Keyward::of(&settings), port));
        }
        servers
    }

    fn port(&self) -> u16 {
        let of_keyward = self.keywards.first().map(|(_, port)| port.address());
        let address = of_keyward.unwrap_or_else(|| self.routers[0].address());
        address.rsplit_once(':').unwrap().1.parse().unwrap()
    }
}

/// Runs `files` of the suite, and compares what fails with the list of `run`. `environment` is for the script.
fn holds(run: &str, files: &[&str], environment: &[(&str, &str)], servers: impl FnOnce(&Suite) -> Servers) {
    let suite = Suite::fetched();
    let servers = servers(&suite);
    let outcomes = suite.run(servers.port(), files, environment);
    drop(servers);
    print_numbers(run, &outcomes);
    let list = List::read();
    if list::is_to_be_accepted() {
        return list.accept(run, &outcomes);
    }
    let mut complaints = String::new();
    for outcome in &outcomes {
        match list.verdict(run, outcome) {
            Verdict::AsListed => {}
            Verdict::NewFailure => {
                writeln!(complaints, "fails: {}\n    {}", outcome.test, outcome.why).unwrap();
            }
            Verdict::PassesNow => writeln!(complaints, "is listed but passes: {}", outcome.test).unwrap(),
        }
    }
    for line in list.without_reason(run) {
        writeln!(complaints, "is listed without a reason: {line}").unwrap();
    }
    assert!(complaints.is_empty(), "{run}, see failing.txt:\n{complaints}");
}

fn print_numbers(run: &str, outcomes: &[Outcome]) {
    let of = |kind: &str| outcomes.iter().filter(|outcome| outcome.outcome == kind).count();
    let seconds: f64 = outcomes.iter().map(|outcome| outcome.seconds).sum();
    println!(
        "{run}: {} passed, {} failed, {} skipped, {seconds:.0} s",
        of("passed"),
        of("failed"),
        of("skipped")
    );
    for outcome in outcomes.iter().filter(|outcome| outcome.outcome == "failed") {
        println!("{run}: {}: {}", outcome.test, outcome.why.replace('\n', " "));
    }
}

/// A constraint on each of these collections. Every document has its own key, because the key contains `_id`.
fn constraints(collections: &BTreeSet<String>, strategy: &str) -> String {
    let mut constraints = String::new();
    for collection in collections {
        writeln!(
            constraints,
            "  - {{ collection: '{collection}', key: {{ kwunique: 1, _id: 1 }}, strategy: {strategy} }}"
        )
        .unwrap();
    }
    constraints
}

#[test]
#[ignore = "two minutes: .ci/nightly runs it"]
fn crud_with_a_compensating_constraint() {
    holds("compensating", &CRUD, &[APPLICATION], |suite| {
        Servers::keywards(&constraints(&suite.collections("crud/unified"), "compensating"))
    });
}

#[test]
#[ignore = "two minutes, and more if Keyward waits: .ci/nightly runs it"]
fn crud_with_a_strict_constraint() {
    holds("strict", &CRUD, &[APPLICATION, CREATES], |suite| {
        Servers::keywards(&constraints(&suite.collections("crud/unified"), "strict"))
    });
}

#[test]
#[ignore = "several minutes: .ci/nightly runs it"]
fn everything_on_the_routers() {
    holds("routers", &ALL, &[], |_| Servers::routers());
}

#[test]
#[ignore = "several minutes: .ci/nightly runs it"]
fn everything_through_keyward_without_constraints() {
    holds("keyward", &ALL, &[APPLICATION], |_| Servers::keywards("  []\n"));
}
