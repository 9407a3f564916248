//! A backfill that is broken off because the list of clients' constraints changes.

use std::time::{Duration, Instant};

use testkit::relay::{Relay, insert_into};

use super::*;

/// A cluster of its own: only the test changes the list.
fn start_alone(databases: &[&str]) -> testbed::Alone<Cluster> {
    let cluster = Cluster::alone().unwrap();
    for database in databases {
        shard_users_of(&cluster, database);
    }
    cluster
}

/// An application makes the indexes of many collections when it starts, and no build may wait for the claims of those before.
#[test]
fn it_goes_on_at_once() {
    const DATABASE: &str = "created_and_broken_off";
    const OTHER: &str = "created_meanwhile";
    let cluster = start_alone(&[DATABASE, OTHER]);
    let user = doc! { "_id": 1, "region": "a", "email": "x" };
    cluster
        .run(DATABASE, doc! { "insert": "users", "documents": [user] })
        .unwrap();
    let relay = Relay::start(cluster.router_address());
    let builder = Keyward::of(&format!("upstream: {}\nlease: 10s\nconstraints: []\n", relay.uri())).leaving();
    let other = start_at(&cluster);
    std::thread::scope(|scope| {
        let reserving = relay.hold(&insert_into("keyward.users.email_1"));
        let made = scope.spawn(|| reply(&builder, DATABASE, &create([unique_email()])));
        reserving.wait();
        must(&reply(&other, OTHER, &create([unique_email()])));
        let begun = Instant::now();
        // The reservation of the backfill before is held all the time.
        must(&made.join().unwrap());
        let elapsed = begun.elapsed();
        assert!(
            elapsed < Duration::from_secs(20),
            "waited for its own claim: {elapsed:?}"
        );
        drop(reserving);
    });
    assert_first_is_held(&builder, DATABASE);
}

/// Each reading reads all documents, and reports all that violate the constraint.
#[test]
fn violating_documents_are_not_read_again_at_once() {
    const DATABASE: &str = "created_beside_violated";
    let cluster = start_alone(&[DATABASE]);
    shard_on_two(
        &cluster,
        &format!("{DATABASE}.orders"),
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let former = start_at(&cluster);
    write_first(&former, DATABASE);
    let order = doc! { "_id": 0, "region": "a", "n": 0 };
    former
        .run(DATABASE, doc! { "insert": "orders", "documents": [order] })
        .unwrap();
    // The constraint waits for the Keyward that has written without it.
    let of_orders = format!("{{ collection: {DATABASE}.orders, key: {{ n: 1 }} }}");
    let uri = cluster.uri();
    let keyward = Keyward::of(&format!("upstream: {uri}\nlease: 10s\nconstraints: [{of_orders}]\n")).leaving();
    assert!(keyward.get("/readyz").contains("reserving: waits for Keyward "));
    let orders = [1, 2].map(|id| doc! { "_id": id, "region": "a", "n": 1 });
    cluster
        .run(DATABASE, doc! { "insert": "orders", "documents": orders.to_vec() })
        .unwrap();
    former.stop();
    let is_read = |line: &&str| line.contains("constraints aren't enforced");
    let count_reads = || keyward.log().lines().filter(is_read).count();
    keyward.until("the report", || count_reads() == 1);
    let begun = Instant::now();
    must(&reply(&keyward, DATABASE, &create([unique_email()])));
    // Its next look at the constraint found the claim.
    let is_claimed = || {
        keyward
            .get("/readyz")
            .contains("reserving: a Keyward reads the documents")
    };
    keyward.until("the claim", || is_claimed() || count_reads() > 1);
    // The claim lasts 30 s.
    let is_over = begun.elapsed() > Duration::from_secs(28);
    assert!(is_over || count_reads() == 1, "{}", keyward.log());
}
