//! An examination that is interrupted, or can't drop its scratch database.

use std::process::Stdio;

use bson::doc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testbed::{Cluster, command};
use testkit::altering::Altering;
use testkit::relay::Relay;

use super::{config, doctor, scratch_databases};

/// Interrupts the examination while a command is under way. The command still ends, and nothing stays.
fn interrupted_by(signal: Signal) {
    let cluster = Cluster::alone().unwrap();
    let relay = Relay::start(cluster.router_address());
    // In the middle of a transaction that holds a lock.
    let held = relay.hold(b"abortTransaction\0");
    let config = config(&relay.uri());
    let mut command = doctor(&config, &[]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    held.wait();
    assert_eq!(scratch_databases(&cluster.router_address()).len(), 1);
    kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
    drop(held);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("dropping the scratch database"), "{errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("- linearizable read: skipped, interrupted"), "{text}");
    assert_eq!(scratch_databases(&cluster.router_address()), [""; 0]);
}

#[test]
fn sigint() {
    interrupted_by(Signal::SIGINT);
}

#[test]
fn sigterm() {
    interrupted_by(Signal::SIGTERM);
}

/// A transaction that a check leaves open doesn't keep the database.
#[test]
fn an_open_transaction_does_not_keep_it() {
    let cluster = Cluster::alone().unwrap();
    let relay = Altering::replies(cluster.router_address(), |request, reply| {
        if request.get_str("insert").is_ok() && request.contains_key("autocommit") {
            *reply = doc! { "ok": 0.0, "code": 8000, "errmsg": "as if refused" };
        }
    });
    let begun = std::time::Instant::now();
    let output = doctor(&config(&relay.uri()), &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(
        begun.elapsed() < std::time::Duration::from_secs(50),
        "it has waited for the server's limit"
    );
    assert_eq!(scratch_databases(&cluster.router_address()), [""; 0]);
}

#[test]
fn what_can_not_be_dropped_is_named() {
    let cluster = Cluster::alone().unwrap();
    let refused = |request: &mut bson::Document| {
        if request.remove("dropDatabase").is_some() {
            let mut refused = doc! { "dropNothing": 1 };
            refused.extend(std::mem::take(request));
            *request = refused;
        }
    };
    let relay = Altering::start(cluster.router_address(), refused, |_, _| {});
    let output = doctor(&config(&relay.uri()), &[]).output().unwrap();
    let left = scratch_databases(&cluster.router_address());
    assert_eq!(left.len(), 1);
    let text = String::from_utf8_lossy(&output.stdout);
    let says = format!(
        "The scratch database {} may still exist (no such command: 'dropNothing' (code 59, CommandNotFound)). Drop it.",
        left[0]
    );
    assert!(text.contains(&says), "{text}");
    assert_eq!(output.status.code(), Some(1), "{text}");
    command::run(&cluster.router_address(), &left[0], doc! { "dropDatabase": 1 }).unwrap();
}
