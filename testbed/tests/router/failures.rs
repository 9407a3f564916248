//! Shards that fail: writes are retried where that is safe, errors are those a `mongos` gives, and nothing hangs.

use std::time::{Duration, Instant};

use bson::{Document, doc};
use mongodb::error::RETRYABLE_WRITE_ERROR;
use testbed::Cluster;
use testbed::command::Connection;

use super::on_shards;

#[tokio::test]
async fn retryable_writes_survive_elections() {
    let cluster = Cluster::builder().replicas(3).start().unwrap();
    cluster.shard_by_ranges("elections.c", "k", &[50]).unwrap();
    let collection = cluster.client().database("elections").collection::<Document>("c");
    let mut next = 0;
    let mut batch = || {
        next += 10;
        (next - 10..next)
            .map(|id| doc! { "_id": id, "k": id % 100 })
            .collect::<Vec<_>>()
    };
    collection.insert_many(batch()).await.unwrap();
    cluster.shards()[0].step_down().unwrap();
    collection.insert_many(batch()).await.unwrap();
    cluster.shards()[1].wait_for_primary().unwrap().kill().unwrap();
    for _ in 0..10 {
        collection.insert_many(batch()).await.unwrap();
    }
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 120);
    collection
        .update_many(doc! {}, doc! { "$set": { "seen": true } })
        .await
        .unwrap();
    assert_eq!(collection.count_documents(doc! { "seen": true }).await.unwrap(), 120);
}

#[tokio::test]
async fn a_shard_that_is_gone_is_an_error_and_comes_back() {
    let cluster = Cluster::start().unwrap();
    cluster.shard_by_ranges("gone.c", "k", &[50]).unwrap();
    let collection = cluster.client().database("gone").collection::<Document>("c");
    collection
        .insert_many([1, 60].map(|k| doc! { "_id": k, "k": k }))
        .await
        .unwrap();
    let member = &cluster.shards()[1].members()[0];
    member.kill().unwrap();

    let started = Instant::now();
    let mut connection = Connection::open(&cluster.router_address()).unwrap();
    let find = |k: i32, limit: i32| doc! { "find": "c", "filter": { "k": k }, "maxTimeMS": limit };
    let late = connection.run("gone", find(60, 300)).unwrap_err();
    assert!(matches!(late.code(), Some(6 | 50 | 133)), "{late}");
    connection.run("gone", find(1, 5000)).unwrap();
    let failed = collection.insert_one(doc! { "_id": 61, "k": 61 }).await.unwrap_err();
    assert!(failed.contains_label(RETRYABLE_WRITE_ERROR), "{failed:?}");
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());

    member.restart().unwrap();
    cluster.shards()[1].wait_for_primary().unwrap();
    collection.insert_one(doc! { "_id": 61, "k": 61 }).await.unwrap();
    assert_eq!(on_shards(&cluster, "gone", "c").await[1].len(), 2);
}

#[tokio::test]
async fn a_frozen_shard_does_not_hold_a_command_past_its_time_limit() {
    let cluster = Cluster::start().unwrap();
    cluster.shard_by_ranges("frozen.c", "k", &[50]).unwrap();
    let mut connection = Connection::open(&cluster.router_address()).unwrap();
    connection.run("frozen", doc! { "find": "c" }).unwrap();
    let member = &cluster.shards()[1].members()[0];
    member.stop().unwrap();
    let started = Instant::now();
    let late = connection
        .run("frozen", doc! { "find": "c", "maxTimeMS": 500 })
        .unwrap_err();
    assert_eq!(late.code(), Some(50), "{late}");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    member.resume().unwrap();
    connection.run("frozen", doc! { "find": "c" }).unwrap();
}

#[tokio::test]
async fn a_new_router_knows_what_the_old_one_knew() {
    let cluster = Cluster::start().unwrap();
    cluster.shard_by_ranges("router.c", "k", &[50]).unwrap();
    let collection = cluster.client().database("router").collection::<Document>("c");
    collection
        .insert_many([1, 60].map(|k| doc! { "_id": k, "k": k }))
        .await
        .unwrap();
    cluster.mongos().kill().unwrap();
    assert!(Connection::open(&cluster.router_address()).is_err());
    cluster.mongos().restart().unwrap();
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 2);
}
