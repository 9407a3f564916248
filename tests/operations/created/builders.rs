//! Keywards that stand still or are killed while a client's constraint is built.

use std::time::{Duration, Instant};

use testkit::wire::Connection;

use super::*;

/// A Keyward that others take for gone after 12 s.
fn start_hastened() -> Keyward {
    start_hastened_at(&CLUSTER)
}

/// The same at another cluster.
pub fn start_hastened_at(cluster: &Cluster) -> Keyward {
    let settings = format!("upstream: {}\nlease: 10s\nconstraints: []\n", cluster.uri());
    Keyward::of_in(
        &settings,
        &[("KEYWARD_REGISTER_HASTE", "10"), ("KEYWARD_TRANSACTIONS_HASTE", "10")],
    )
    .leaving()
}

/// Two Keywards. The second one may write to `users` and stands still, so constraints wait for it.
fn beside_frozen(database: &str) -> [Keyward; 2] {
    shard_users(database);
    let keywards = [start(), start()];
    write_first(&keywards[1], database);
    keywards[1].freeze();
    keywards
}

/// Whether a constraint waits for another Keyward.
fn waits(keyward: &Keyward) -> bool {
    keyward.get("/readyz").contains("reserving: waits for Keyward ")
}

#[test]
fn the_time_limit_ends_the_build() {
    const DATABASE: &str = "created_in_vain";
    let keywards = beside_frozen(DATABASE);
    let mut command = create([unique_email()]);
    // The shards' own index builds take a part of it. The frozen Keyward holds the constraint up for minutes.
    command.insert("maxTimeMS", 10_000);
    let begun = Instant::now();
    let refused = reply(&keywards[0], DATABASE, &command);
    let elapsed = begun.elapsed();
    keywards[1].wake();
    assert_eq!(refused.get_i32("code").ok(), Some(50), "{refused}");
    assert!(
        elapsed < Duration::from_secs(17),
        "waited on for the frozen one: {elapsed:?}"
    );
    assert_eq!(indexes(&keywards[0], DATABASE).len(), 2);
    until_no_constraint(&keywards[0], DATABASE);
}

#[test]
fn no_duplicate_passes_through_a_keyward_that_stood_still() {
    const DATABASE: &str = "created_beside_frozen";
    let keywards = beside_frozen(DATABASE);
    std::thread::scope(|scope| {
        let made = scope.spawn(|| reply(&keywards[0], DATABASE, &create([unique_email()])));
        // The builder has reserved for its own writes and waits for the other one.
        keywards[0].until("the wait", || waits(&keywards[0]));
        assert!(!made.is_finished());
        keywards[1].wake();
        let made = made.join().unwrap();
        must(&made);
    });
    for keyward in &keywards {
        assert_first_is_held(keyward, DATABASE);
    }
}

/// Otherwise each client that gives up, and sends its command again, leaves one more that asks the cluster once a second.
#[test]
fn a_client_that_leaves_ends_its_wait_for_a_build_of_another_command() {
    const DATABASE: &str = "created_without_waiting";
    let keywards = beside_frozen(DATABASE);
    std::thread::scope(|scope| {
        let made = scope.spawn(|| reply(&keywards[0], DATABASE, &create([unique_email()])));
        keywards[0].until("the wait", || waits(&keywards[0]));
        let closed = || keywards[0].metric("keyward_client_connections_closed_total");
        let before = closed();
        let mut joined = Connection::greeted(&keywards[0].address);
        joined.send(DATABASE, &create([unique_email()])).unwrap();
        drop(joined);
        keywards[0].until("the end of its wait", || closed() > before);
        assert!(!made.is_finished());
        keywards[1].wake();
        must(&made.join().unwrap());
    });
    assert_first_is_held(&keywards[1], DATABASE);
}

/// The command that made the index drops it, if documents violate the constraint.
#[test]
fn the_index_of_a_client_that_leaves_does_not_outlast_its_build() {
    const DATABASE: &str = "created_in_absence";
    shard_users(DATABASE);
    let keywards = [start(), start()];
    for region in ["a", "z"] {
        let user = doc! { "_id": region, "region": region, "email": "x" };
        keywards[1].insert(DATABASE, user).unwrap();
    }
    keywards[1].freeze();
    let mut connection = Connection::greeted(&keywards[0].address);
    connection.send(DATABASE, &create([unique_email()])).unwrap();
    keywards[0].until("the wait", || waits(&keywards[0]));
    drop(connection);
    keywards[1].wake();
    keywards[0].until("the index is gone", || indexes(&keywards[0], DATABASE).len() == 2);
    until_no_constraint(&keywards[0], DATABASE);
}

#[test]
fn another_keyward_builds_what_a_killed_one_began() {
    const DATABASE: &str = "created_by_killed";
    shard_users(DATABASE);
    let mut first = start_hastened();
    let second = start_hastened();
    write_first(&second, DATABASE);
    second.freeze();
    std::thread::scope(|scope| {
        let address = first.address.clone();
        let cut_off = scope.spawn(move || testbed::command::run(&address, DATABASE, create([unique_email()])));
        first.until("the wait", || waits(&first));
        first.kill();
        assert!(cut_off.join().unwrap().is_err());
    });
    second.wake();
    // The client sends it again, through whatever Keyward it reaches.
    let made = reply(&second, DATABASE, &create([unique_email()]));
    must(&made);
    assert_first_is_held(&second, DATABASE);
}
