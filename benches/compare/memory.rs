//! What a Keyward occupies of the machine's memory: alone, and for each connection that does nothing.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use testbed::Cluster;

use crate::goal::verdict;
use crate::ground::DATABASE;
use testkit::Keyward;
use testkit::wire::Connection;

const IDLE_MIB_MAX: f64 = 15.0;
const CONNECTION_KIB_MAX: f64 = 16.0;
const CONNECTIONS: usize = 1_000;

/// Measures it `rounds` times, each on a Keyward of its own; the table of the medians.
pub fn table(rounds: usize) -> String {
    // Each connection is a socket here, and two at the router that stands in for `mongos`, which runs here.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let cluster = Cluster::shared();
    let constraint = format!("  - {{ collection: {DATABASE}.protected, key: {{ email: 1 }} }}\n");
    let (mut idle, mut each) = (Vec::new(), Vec::new());
    for _ in 0..rounds.max(1) {
        let keyward = Keyward::quiet(&cluster.uri(), &constraint);
        let alone = keyward.resident_kib() as f64;
        let clients: Vec<Connection> = (0..CONNECTIONS)
            .map(|_| Connection::greeted(&keyward.address))
            .collect();
        let with_clients = keyward.resident_kib() as f64;
        drop(clients);
        idle.push(alone / 1024.0);
        each.push((with_clients - alone) / CONNECTIONS as f64);
    }
    let (idle, each) = (crate::spread::Spread::of(idle), crate::spread::Spread::of(each));
    format!(
        "| what | resident | goal |\n| --- | --- | --- |\n| idle | {idle} MiB | ≤ {IDLE_MIB_MAX:.0} MiB: {} |\n| an idle \
         connection, of {CONNECTIONS} | {each} KiB | ≤ {CONNECTION_KIB_MAX:.0} KiB: {} |",
        verdict(idle.median <= IDLE_MIB_MAX),
        verdict(each.median <= CONNECTION_KIB_MAX),
    )
}
