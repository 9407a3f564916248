//! A Keyward that stops with an insert in its hands, for longer than any lease, while another one gives the key to
//! somebody else: the first one's insert comes too late and does nothing. Trusting the lease, it would.

use std::time::Duration;

use bson::{Document, doc};

use crate::strict::{EMAIL, assert_agreement, insert, users, write_errors};
use testkit::relay::Relay;
use testkit::relay::insert_into;
use testkit::wire::send;
use testkit::{Keyward, on_each_shard};

const LEASE: &str = "1s";

/// What is held back: everything of the insert, the look at its reservation, or the commit.
fn first_of_transaction() -> Vec<u8> {
    b"\x08startTransaction\0\x01".to_vec()
}

/// Only a strict insert's look has this projection.
fn look() -> Vec<u8> {
    b"\x10_id\0\0\0\0\0\x10at\0\x01\0\0\0".to_vec()
}

fn commit() -> Vec<u8> {
    b"\x10commitTransaction\0".to_vec()
}

struct Outcome {
    /// None if its connection was closed.
    stopped: Option<Document>,
    other: Document,
}

/// Lets one Keyward begin an insert, holds back what `bytes` says and stops it; has another one insert the same address;
/// and lets the first one go on once `meanwhile` is over or, if it says so, while the other one waits.
async fn try_it(database: &str, constraint: &str, bytes: Vec<u8>, other_lease: &str, other_waits: bool) -> Outcome {
    let cluster = users(database);
    let constraint = constraint.replace("DB", database);
    let forwarder = Relay::start(cluster.router_address());
    let stopped = Keyward::start_with_lease(&format!("mongodb://{}/", forwarder.address), LEASE, &constraint);
    let other = Keyward::start_with_lease(&cluster.uri(), other_lease, &constraint);
    let insert_at = |address: String, id: i32, region: &str| {
        let command = insert(vec![doc! { "_id": id, "region": region, "email": "a@x" }], true);
        let database = database.to_owned();
        tokio::task::spawn_blocking(move || send(&address, &database, command).ok())
    };
    let held = forwarder.hold(&bytes);
    let first = insert_at(stopped.address.clone(), 1, "a");
    let held = tokio::task::spawn_blocking(move || {
        held.wait();
        held
    });
    let held = held.await.unwrap();
    stopped.freeze();
    let mut second = insert_at(other.address.clone(), 2, "z");
    let other = match other_waits {
        false => (&mut second).await.unwrap(),
        // Nobody can tell that it will wait for ever; it does for several leases.
        true => {
            let early = tokio::time::timeout(Duration::from_secs(4), &mut second).await;
            assert!(early.is_err(), "{early:?}");
            None
        }
    };
    stopped.wake();
    drop(held);
    let stopped = first.await.unwrap();
    let other = match other {
        Some(other) => other,
        None => second.await.unwrap().unwrap(),
    };
    Outcome { stopped, other }
}

async fn documents(database: &str) -> Vec<i32> {
    let documents = on_each_shard(users_of().shards(), database, "users").await.concat();
    documents
        .iter()
        .map(|document| document.get_i32("_id").unwrap())
        .collect()
}

fn users_of() -> &'static testbed::Cluster {
    crate::strict::cluster()
}

#[tokio::test(flavor = "multi_thread")]
async fn before_its_transaction_it_comes_too_late() {
    let database = "stopped_before";
    let outcome = try_it(database, EMAIL, first_of_transaction(), LEASE, false).await;
    assert_eq!(outcome.other.get_i32("n").unwrap(), 1, "{}", outcome.other);
    let stopped = outcome.stopped.unwrap();
    assert_eq!(write_errors(&stopped), [(0, 11000)], "{stopped}");
    assert_eq!(documents(database).await, [2]);
    assert_agreement(users_of(), database, "email").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn between_its_insert_and_its_look_the_other_one_waits() {
    let database = "stopped_midway";
    let outcome = try_it(database, EMAIL, look(), LEASE, true).await;
    let stopped = outcome.stopped.unwrap();
    assert_eq!(stopped.get_i32("n").unwrap(), 1, "{stopped}");
    assert_eq!(write_errors(&outcome.other), [(0, 11000)], "{}", outcome.other);
    assert_eq!(documents(database).await, [1]);
    assert_agreement(users_of(), database, "email").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn before_its_commit_the_other_one_waits() {
    let database = "stopped_at_the_end";
    let outcome = try_it(database, EMAIL, commit(), LEASE, true).await;
    let stopped = outcome.stopped.unwrap();
    assert_eq!(stopped.get_i32("n").unwrap(), 1, "{stopped}");
    assert_eq!(write_errors(&outcome.other), [(0, 11000)], "{}", outcome.other);
    assert_eq!(documents(database).await, [1]);
    assert_agreement(users_of(), database, "email").await;
}

/// What a lease rests on: that what is sent arrives before it ends. This shows that the trials above can fail.
#[tokio::test(flavor = "multi_thread")]
async fn compensating_its_insert_would_take_effect() {
    let database = "stopped_compensating";
    let constraint = EMAIL.replace(", strategy: transaction", "");
    // The other one's insert has to come within its lease. It waits for the longer of the two.
    let outcome = try_it(database, &constraint, insert_into("users"), "4s", false).await;
    assert_eq!(outcome.other.get_i32("n").unwrap(), 1, "{}", outcome.other);
    // Its Keyward, awake, may have given up waiting for the reply before it came.
    if let Some(stopped) = outcome.stopped {
        assert_eq!(stopped.get_i32("n").unwrap(), 1, "{stopped}");
    }
    let began = std::time::Instant::now();
    while documents(database).await.len() < 2 {
        assert!(began.elapsed() < Duration::from_secs(20), "it didn't take effect");
    }
}

/// The first document of an ordered batch loses its key before it is there, and the second one is a duplicate: the first one
/// gets its key again, and only then the error is told. Told at once, the driver takes the first one to be inserted.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_loses_its_key_is_not_passed_over_for_the_error_behind_it() {
    let database = "lost_before_an_error";
    let cluster = users(database);
    let constraint = EMAIL.replace("DB", database);
    let forwarder = Relay::start(cluster.router_address());
    let first = Keyward::start_with_lease(&format!("mongodb://{}/", forwarder.address), LEASE, &constraint);
    let other = Keyward::start_with_lease(&cluster.uri(), LEASE, &constraint);
    let user = |id: i32, email: &str| doc! { "_id": id, "region": "a", "email": email };
    send(&other.address, database, insert(vec![user(9, "b@x")], true)).unwrap();
    let held = forwarder.hold(&first_of_transaction());
    let address = first.address.clone();
    let batch = insert(vec![user(1, "a@x"), user(2, "b@x"), user(3, "c@x")], true);
    let inserting = std::thread::spawn(move || send(&address, database, batch).unwrap());
    held.wait();
    // After the lease the other one takes the key over, and frees it.
    let reply = send(&other.address, database, insert(vec![user(8, "a@x")], true)).unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    let delete = doc! { "delete": "users", "deletes": [{ "q": { "_id": 8, "region": "a" }, "limit": 1 }] };
    assert_eq!(send(&other.address, database, delete).unwrap().get_i32("n").unwrap(), 1);
    drop(held);
    let reply = inserting.join().unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    assert_eq!(write_errors(&reply), [(1, 11000)], "{reply}");
    let mut there = documents(database).await;
    there.sort_unstable();
    assert_eq!(there, [1, 9]);
    assert_agreement(cluster, database, "email").await;
}
