//! Sharded collections of every kind of shard key, their chunks spread over three shards.

use bson::{Bson, Document, doc};
use testbed::Cluster;
use testbed::command;

use super::DATABASE;

/// A sharded collection.
pub struct Sharded {
    /// Its name.
    pub name: &'static str,
    /// The paths of its shard key.
    pub paths: Vec<String>,
}

/// Creates them. The shards take the chunks by turns, so neighbours are never on one shard.
pub fn create(cluster: &Cluster) -> Vec<Sharded> {
    cluster.run("admin", doc! { "enableSharding": DATABASE }).unwrap();
    let mut databases = doc! { "find": "databases", "filter": { "_id": DATABASE } };
    databases.insert("limit", 1);
    let found = cluster.run("config", databases).unwrap();
    let found = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap()[0]
        .as_document()
        .unwrap();
    let primary = cluster.shard(found.get_str("primary").unwrap()).unwrap();
    let version = found.get_document("version").unwrap();
    let collation = doc! { "locale": "en", "strength": 2 };
    cluster
        .run(DATABASE, doc! { "create": "by_k_collated", "collation": collation })
        .unwrap();
    let create = |(name, key, points): (&'static str, Document, Vec<Vec<Bson>>)| {
        let paths: Vec<String> = key.keys().cloned().collect();
        let point = |values: &Vec<Bson>| paths.iter().cloned().zip(values.iter().cloned()).collect::<Document>();
        let points: Vec<Document> = points.iter().map(point).collect();
        let command = doc! {
            "_shardsvrCreateCollection": name, "shardKey": key, "unique": false, "initialSplitPoints": points,
            "collation": { "locale": "simple" }, "databaseVersion": version.clone(), "writeConcern": command::majority(),
        };
        primary.run(DATABASE, command).unwrap();
        Sharded { name, paths }
    };
    kinds().into_iter().map(create).collect()
}

fn kinds() -> Vec<(&'static str, Document, Vec<Vec<Bson>>)> {
    let one = |points: Vec<Bson>| points.into_iter().map(|point| vec![point]).collect::<Vec<_>>();
    vec![
        ("by_k", doc! { "k": 1 }, one(values())),
        ("by_k_collated", doc! { "k": 1 }, one(values())),
        ("by_id", doc! { "_id": 1 }, one(values())),
        ("by_nested", doc! { "a.b": 1 }, one(values())),
        ("by_two", doc! { "a": 1, "b": 1 }, pairs()),
        ("by_nested_two", doc! { "a.b": 1, "a.c": 1 }, pairs()),
        ("by_hash", doc! { "k": "hashed" }, one(hashes())),
        ("by_id_hash", doc! { "_id": "hashed" }, one(hashes())),
        ("by_nested_hash", doc! { "_id.h": "hashed" }, one(hashes())),
        (
            "by_hash_and_more",
            doc! { "k": "hashed", "b": 1 },
            pairs_of(&hashes(), &[Bson::Int32(10)]),
        ),
        (
            "by_more_and_hash",
            doc! { "a": 1, "k": "hashed" },
            pairs_of(&bounds(), &hashes()),
        ),
    ]
}

/// In the server's order.
fn values() -> Vec<Bson> {
    vec![
        Bson::Null,
        Bson::Int32(0),
        Bson::Double(10.0),
        Bson::Int64(20),
        Bson::String("a".into()),
        Bson::String("b".into()),
        doc! { "x": 1 }.into(),
        doc! { "x": 2 }.into(),
        Bson::Boolean(false),
        Bson::Boolean(true),
        Bson::DateTime(bson::DateTime::from_millis(0)),
    ]
}

fn bounds() -> Vec<Bson> {
    vec![Bson::Null, Bson::Int32(0), Bson::Int32(10), Bson::String("a".into())]
}

fn pairs() -> Vec<Vec<Bson>> {
    pairs_of(&bounds(), &[Bson::MinKey, Bson::Int32(5), Bson::String("b".into())])
}

fn pairs_of(firsts: &[Bson], seconds: &[Bson]) -> Vec<Vec<Bson>> {
    let pairs = firsts
        .iter()
        .flat_map(|first| seconds.iter().map(|second| vec![first.clone(), second.clone()]));
    pairs.collect()
}

fn hashes() -> Vec<Bson> {
    let part = i64::MAX / 6;
    (-5..=5).map(|at| Bson::Int64(at * part)).collect()
}
