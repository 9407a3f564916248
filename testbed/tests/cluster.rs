//! What a cluster lets a test do: see the shards themselves, freeze, kill and restart any part, inject faults.

use std::time::Duration;

use bson::{Document, doc};
use testbed::command::{CommandError, Connection, majority};
use testbed::{Cluster, Error, ReplicaSet};

/// Shards `database.users` by hashed `_id`, by the commands that `mongos` sends: primary shard 0, two chunks on each.
fn shard_users(cluster: &Cluster, database: &str) {
    let create = doc! {
        "_configsvrCreateDatabase": database, "primaryShardId": "shard0", "writeConcern": majority(),
    };
    cluster.config_server().run("admin", create).unwrap();
    let entry = doc! { "find": "databases", "filter": { "_id": database }, "readConcern": { "level": "majority" } };
    let version = first(&cluster.config_server().run("config", entry).unwrap())
        .get("version")
        .unwrap()
        .clone();
    let create = doc! {
        "_shardsvrCreateCollection": "users", "shardKey": { "_id": "hashed" }, "unique": false,
        "writeConcern": majority(), "databaseVersion": version,
    };
    cluster.shards()[0].run(database, create).unwrap();
}

fn first(reply: &Document) -> &Document {
    reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap()[0]
        .as_document()
        .unwrap()
}

fn count(set: &ReplicaSet, database: &str) -> i32 {
    set.run(database, doc! { "count": "users" })
        .unwrap()
        .get_i32("n")
        .unwrap()
}

fn insert(set: &ReplicaSet, database: &str, id: i32) -> Result<Document, Error> {
    set.run(
        database,
        doc! { "insert": "users", "documents": [{ "_id": id }], "writeConcern": majority() },
    )
}

#[test]
fn a_sharded_collection_lies_on_both_shards() {
    // Another test starts the balancer of the shared one.
    let cluster = Cluster::alone().unwrap();
    shard_users(&cluster, "spread");
    // A router inside the server places each document on its shard.
    let documents: Vec<Document> = (0..100).map(|id| doc! { "_id": id }).collect();
    cluster.shards()[0]
        .run("spread", doc! { "clusterInsert": "users", "documents": documents })
        .unwrap();
    let counts: Vec<i32> = cluster.shards().iter().map(|shard| count(shard, "spread")).collect();
    assert_eq!(counts.iter().sum::<i32>(), 100);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

#[test]
fn the_balancer_is_off() {
    let cluster = Cluster::alone().unwrap();
    let status = cluster.run("admin", doc! { "balancerStatus": 1 }).unwrap();
    assert_eq!(status.get_str("mode").unwrap(), "off");
}

#[test]
fn a_shard_takes_retryable_majority_writes() {
    let shard = Cluster::shared().shard("shard1").unwrap();
    let lsid = bson::Uuid::new();
    let insert = doc! {
        "insert": "users", "documents": [{ "_id": 1 }], "writeConcern": majority(), "lsid": { "id": lsid }, "txnNumber": 1_i64,
    };
    shard.run("retryable", insert.clone()).unwrap();
    let again = shard.run("retryable", insert).unwrap();
    assert_eq!(again.get_i32("n").unwrap(), 1);
    assert_eq!(count(shard, "retryable"), 1);
}

#[test]
fn parts_are_frozen_killed_and_restarted() {
    let cluster = Cluster::builder().shards(1).start().unwrap();
    let shard = &cluster.shards()[0];
    let member = &shard.members()[0];
    insert(shard, "parts", 1).unwrap();

    let mut connection = Connection::open(&member.address()).unwrap();
    connection.reply_timeout(Duration::from_millis(300)).unwrap();
    member.stop().unwrap();
    assert!(matches!(
        connection.run("admin", doc! { "ping": 1 }),
        Err(CommandError::Unreachable { .. })
    ));
    member.resume().unwrap();
    assert_eq!(count(shard, "parts"), 1);

    let address = member.address();
    member.kill().unwrap();
    assert!(member.id().is_none());
    assert!(Connection::open(&address).is_err());
    member.restart().unwrap();
    assert_eq!(member.address(), address);
    assert_eq!(count(shard, "parts"), 1, "a majority write survives");

    // A frozen one ends, too.
    member.stop().unwrap();
    member.terminate().unwrap();
    assert!(Connection::open(&address).is_err());
}

#[test]
fn the_router_is_frozen_killed_and_restarted() {
    let cluster = Cluster::builder().shards(1).start().unwrap();
    let address = cluster.router_address();
    let mut connection = Connection::open(&address).unwrap();
    connection.run("admin", doc! { "ping": 1 }).unwrap();

    cluster.mongos().stop().unwrap();
    connection.reply_timeout(Duration::from_millis(300)).unwrap();
    assert!(matches!(
        connection.run("admin", doc! { "ping": 1 }),
        Err(CommandError::Unreachable { .. })
    ));
    cluster.mongos().resume().unwrap();
    let mut connection = Connection::open(&address).unwrap();
    connection.run("admin", doc! { "ping": 1 }).unwrap();

    cluster.mongos().kill().unwrap();
    assert!(matches!(
        Connection::open(&address),
        Err(CommandError::Unreachable { .. })
    ));
    assert!(connection.run("admin", doc! { "ping": 1 }).is_err());
    cluster.mongos().restart().unwrap();
    assert_eq!(cluster.router_address(), address);
    cluster.run("admin", doc! { "ping": 1 }).unwrap();
}

#[tokio::test]
async fn a_cluster_may_be_used_and_dropped_inside_a_runtime() {
    let cluster = Cluster::builder().shards(1).start().unwrap();
    cluster
        .client()
        .database("inside")
        .run_command(doc! { "ping": 1 })
        .await
        .unwrap();
    cluster.mongos().kill().unwrap();
    cluster.mongos().restart().unwrap();
    drop(cluster);
}

#[test]
fn ranges_lie_on_the_shards_in_their_order() {
    let cluster = Cluster::shared();
    cluster.shard_by_ranges("ranges.users", "n", &[10]).unwrap();
    let documents: Vec<Document> = (0..15).map(|n| doc! { "n": n }).collect();
    cluster
        .run("ranges", doc! { "insert": "users", "documents": documents })
        .unwrap();
    assert_eq!(count(&cluster.shards()[0], "ranges"), 10);
    assert_eq!(count(&cluster.shards()[1], "ranges"), 5);
}

#[test]
fn a_parameter_replaces_the_preset_one() {
    let cluster = Cluster::builder()
        .shards(1)
        .parameter("orphanCleanupDelaySecs", "3600")
        .start()
        .unwrap();
    let reply = cluster.shards()[0]
        .run("admin", doc! { "getParameter": 1, "orphanCleanupDelaySecs": 1 })
        .unwrap();
    assert_eq!(reply.get_i32("orphanCleanupDelaySecs").unwrap(), 3600);
}

#[test]
fn two_clusters_run_side_by_side() {
    let (one, other) = (Cluster::shared(), Cluster::builder().shards(1).start().unwrap());
    insert(&one.shards()[0], "side", 1).unwrap();
    insert(&other.shards()[0], "side", 2).unwrap();
    insert(&other.shards()[0], "side", 3).unwrap();
    assert_eq!(count(&one.shards()[0], "side"), 1);
    assert_eq!(count(&other.shards()[0], "side"), 2);
}

#[test]
fn a_fail_point_is_on_while_it_is_held() {
    let set = ReplicaSet::shared();
    let data = doc! { "failCommands": ["insert"], "errorCode": 91, "namespace": "failing.users" };
    let fail_point = set.fail_point("failCommand", "alwaysOn", data).unwrap();
    let refused = insert(set, "failing", 1).unwrap_err();
    assert!(matches!(refused, Error::Command(error) if error.code() == Some(91)));
    drop(fail_point);
    insert(set, "failing", 1).unwrap();
}
