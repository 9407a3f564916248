//! Spreads a collection over two shards.

use bson::{Document, doc};

/// Shards `db.collection` on `key`, with one chunk on each of two shards, split at `at`.
pub fn shard_on_two(cluster: &testbed::Cluster, namespace: &str, key: Document, at: Document) {
    let database = namespace.split('.').next().unwrap();
    cluster.run("admin", doc! { "enableSharding": database }).unwrap();
    cluster
        .run("admin", doc! { "shardCollection": namespace, "key": key })
        .unwrap();
    spread_on_two(cluster, namespace, at);
}

/// Creates a collection with a default collation that ignores case, and shards it by `region` over two shards.
pub fn shard_collated_on_two(cluster: &testbed::Cluster, namespace: &str) {
    shard_collated_with(cluster, namespace, doc! {});
}

/// The same, clustered: its documents lie in the order of their `_id`s under that collation.
pub fn shard_clustered_and_collated_on_two(cluster: &testbed::Cluster, namespace: &str) {
    let clustered = doc! { "clusteredIndex": { "key": { "_id": 1 }, "unique": true } };
    shard_collated_with(cluster, namespace, clustered);
}

fn shard_collated_with(cluster: &testbed::Cluster, namespace: &str, options: Document) {
    let (database, collection) = namespace.split_once('.').unwrap();
    let mut create = doc! { "create": collection, "collation": { "locale": "en", "strength": 2 } };
    create.extend(options);
    cluster.run(database, create).unwrap();
    let shard = doc! { "shardCollection": namespace, "key": { "region": 1 }, "collation": { "locale": "simple" } };
    cluster.run("admin", shard).unwrap();
    spread_on_two(cluster, namespace, doc! { "region": "m" });
}

/// Splits a sharded collection at `at` and moves the upper half to another shard.
pub fn spread_on_two(cluster: &testbed::Cluster, namespace: &str, at: Document) {
    let database = namespace.split('.').next().unwrap();
    cluster
        .run("admin", doc! { "split": namespace, "middle": at.clone() })
        .unwrap();
    let owner = primary_shard(cluster, database);
    let other = cluster
        .shards()
        .iter()
        .map(|shard| shard.name())
        .find(|name| *name != owner)
        .unwrap();
    // One shard takes part in one move at a time; other tests move chunks, too.
    let busy = |error: &testbed::Error| error.to_string().contains("Unable to start new balancer operation");
    let move_chunk = doc! { "moveChunk": namespace, "find": at, "to": other };
    while let Err(error) = cluster.run("admin", move_chunk.clone()) {
        assert!(busy(&error), "{error}");
    }
}

fn primary_shard(cluster: &testbed::Cluster, database: &str) -> String {
    let find = doc! { "find": "databases", "filter": { "_id": database } };
    let reply = cluster.run("config", find).unwrap();
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch[0].as_document().unwrap().get_str("primary").unwrap().to_owned()
}
