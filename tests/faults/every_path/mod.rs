//! Each way that a write can take through Keyward, put to the test: its Keyward killed at each of its steps and the write
//! sent again, and many clients at once through two Keywards. In the end documents and reservations agree.

#![allow(clippy::unwrap_used)]

mod crossing;
mod dropped;
mod gate;
mod killed;
mod overtaken;
mod paths;
mod trial;

use std::time::{Duration, Instant};

use bson::doc;
use testbed::{Cluster, ReplicaSet};
use testkit::agreement::held_and_reserved;
use testkit::shard_on_two;

/// Each of these tests loads the machine: beside more than one other, leases would measure that.
static FEW: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(2);

const EMAIL: &str = "  - { collection: DB.users, key: { email: 1 } }\n";
const STRICT: &str = "  - { collection: DB.users, key: { email: 1 }, strategy: transaction }\n";

/// `users` of a database of its own, on two shards: regions below `m` on one, the others on the other.
fn users(database: &str) -> &'static Cluster {
    users_on(Cluster::shared(), database)
}

/// The same on another cluster.
fn users_on<'c>(cluster: &'c Cluster, database: &str) -> &'c Cluster {
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    cluster
}

/// Whatever crashes left behind, a sweeping Keyward brings documents and reservations to agreement.
async fn settles(uri: &str, shards: &[ReplicaSet], database: &str, constraints: &str, field: &str) {
    let _sweeping = testkit::Keyward::start_sweeping(uri, constraints);
    let started = Instant::now();
    loop {
        let [held, reserved] = held_and_reserved(shards, database, field).await;
        assert!(
            held.is_subset(&reserved),
            "unprotected: {:?}",
            held.difference(&reserved)
        );
        if held == reserved {
            return;
        }
        let left = reserved.difference(&held).collect::<Vec<_>>();
        // Whoever swept last, before the last write, has said that a minute may pass until the next sweep.
        assert!(started.elapsed() < Duration::from_secs(100), "still reserved: {left:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
