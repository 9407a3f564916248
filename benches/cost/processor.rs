//! Processor time that Keyward takes for one operation, its own and the system's for it.

use std::time::Duration;

use testbed::Cluster;

use testkit::Keyward;
use testkit::counted::{self, Operation};
use testkit::wire::Connection;

/// So many of each: the system counts time in hundredths of a second.
const OPERATIONS: usize = 20_000;

/// The table of both operations.
pub fn table() -> String {
    let cluster = Cluster::shared();
    counted::prepare(cluster);
    let keyward = Keyward::quiet(&cluster.uri(), counted::CONSTRAINTS);
    let mut connection = Connection::greeted(&keyward.address);
    let mut table = "| operation | processor time, µs |\n| --- | ---: |".to_owned();
    for operation in &counted::OPERATIONS {
        run(&mut connection, operation, 0..1_000);
        let before = keyward.cpu_time();
        run(&mut connection, operation, 1_000..1_000 + OPERATIONS);
        let each: Duration = (keyward.cpu_time() - before) / OPERATIONS as u32;
        table += &format!("\n| {} | {:.0} |", operation.name, each.as_nanos() as f64 / 1e3);
    }
    table
}

fn run(connection: &mut Connection, operation: &Operation, numbers: std::ops::Range<usize>) {
    for n in numbers {
        connection.must_raw(&(operation.command)(n));
    }
}
