//! `$merge` into a protected collection: the same documents and replies as with a native unique index.

mod drivers;
mod generate;
mod generated;
mod long;
mod refused;

use bson::{Document, doc};
use testbed::{Cluster, ReplicaSet};
use testkit::wire::Connection;
use testkit::{Keyward, shard_on_two, spread_on_two};

/// The constraint of these tests, on the collection `users` of the database.
fn email(database: &str) -> String {
    format!("  - {{ collection: {database}.users, key: {{ email: 1 }} }}\n")
}

/// A Keyward before the shared cluster, on which `users` of `database` is spread over two shards by `_id`.
fn sharded(database: &str) -> Keyward {
    let cluster = Cluster::shared();
    cluster.run("admin", doc! { "enableSharding": database }).unwrap();
    let users = format!("{database}.users");
    let shard = doc! { "shardCollection": &users, "key": { "_id": 1 } };
    cluster.run("admin", shard).unwrap();
    spread_on_two(cluster, &users, doc! { "_id": 3 });
    Keyward::start(&cluster.uri(), &email(database))
}

/// A Keyward before the shared cluster, on which `users` of `database` is spread over two shards by a field inside `place`.
fn sharded_inside(database: &str, strategy: &str) -> Keyward {
    let (cluster, users) = (Cluster::shared(), format!("{database}.users"));
    let (key, at) = (doc! { "place.region": 1 }, doc! { "place.region": "m" });
    shard_on_two(cluster, &users, key, at);
    let index = doc! { "key": { "place.region": 1, "_id": 1 }, "name": "by_place", "unique": true };
    cluster
        .run(database, doc! { "createIndexes": "users", "indexes": [index] })
        .unwrap();
    let constraint = format!("  - {{ collection: {users}, key: {{ email: 1 }}, strategy: {strategy} }}\n");
    Keyward::start(&cluster.uri(), &constraint)
}

/// A Keyward before a replica set of its own.
fn unsharded(database: &str) -> (ReplicaSet, Keyward) {
    let set = ReplicaSet::start(1).unwrap();
    let keyward = Keyward::start(&set.uri(), &email(database));
    (set, keyward)
}

/// The shared replica set, with a native unique index on `users` of `database`.
async fn native(database: &str) -> Connection {
    Connection::open(&testkit::natively_unique(database).await)
}

fn merge(stage: Document) -> Document {
    doc! { "aggregate": "source", "pipeline": [{ "$merge": stage }], "cursor": {} }
}

/// Replaces what is in the collection.
fn fill(connection: &mut Connection, database: &str, collection: &str, documents: &[Document]) {
    let everything = doc! { "delete": collection, "deletes": [{ "q": {}, "limit": 0 }] };
    connection.must(database, &everything);
    if !documents.is_empty() {
        let reply = connection.must(database, &doc! { "insert": collection, "documents": documents });
        assert_eq!(reply.get_i32("n").unwrap(), i32::try_from(documents.len()).unwrap());
    }
}
