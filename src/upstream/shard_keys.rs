//! Reads sharded collections from the cluster's own catalog (`config.collections`).

use std::collections::HashMap;

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::Client;
use mongodb::error::Error;
use mongodb::options::ReadConcern;

use crate::namespace::Namespace;

/// The paths of the shard keys of those of `namespaces` that are sharded, by `database.collection`.
pub async fn shard_keys(client: &Client, namespaces: &[&Namespace]) -> Result<HashMap<String, Vec<String>>, Error> {
    let names: Vec<String> = namespaces.iter().map(ToString::to_string).collect();
    let collections = client.database("config").collection::<Document>("collections");
    let entries: Vec<Document> = collections.find(sharded(&names)).await?.try_collect().await?;
    let key_of = |entry: Document| {
        let paths = entry.get_document("key").ok()?.keys().cloned().collect();
        Some((entry.get_str("_id").ok()?.to_owned(), paths))
    };
    Ok(entries.into_iter().filter_map(key_of).collect())
}

/// The catalog's entry of a collection, if it is sharded.
pub async fn sharded_collection(client: &Client, namespace: &Namespace) -> Result<Option<Document>, Error> {
    let collections = client.database("config").collection::<Document>("collections");
    collections.find_one(sharded(&[namespace.to_string()])).await
}

/// The names of the sharded collections that match a regular expression, as `database.collection`; none on a replica set.
pub async fn sharded_collections(client: &Client, pattern: &str) -> Result<Vec<String>, Error> {
    let collections = client.database("config").collection::<Document>("collections");
    let entries: Vec<Document> = collections
        .find(sharded_with(doc! { "$regex": pattern }))
        .await?
        .try_collect()
        .await?;
    let name_of = |entry: Document| Some(entry.get_str("_id").ok()?.to_owned());
    Ok(entries.into_iter().filter_map(name_of).collect())
}

/// How a collection is sharded at one moment. Dropped and made again, sharded anew or by a longer key, it is another one; moved
/// chunks change nothing about it.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectionSharding {
    /// The paths of its shard key; empty where it isn't sharded.
    pub key: Vec<String>,
    identity: Vec<Option<Bson>>,
}

impl CollectionSharding {
    /// The sharding as a majority of the config server has it now.
    pub async fn of(client: &Client, namespace: &Namespace) -> Result<CollectionSharding, Error> {
        let collections = client.database("config").collection::<Document>("collections");
        let found = collections.find_one(sharded(&[namespace.to_string()]));
        let entry = found.read_concern(ReadConcern::majority()).await?.unwrap_or_default();
        let key = entry.get_document("key").map(|key| key.keys().cloned().collect());
        let identity = ["uuid", "lastmodEpoch", "timestamp"].map(|field| entry.get(field).cloned());
        Ok(CollectionSharding {
            key: key.unwrap_or_default(),
            identity: identity.to_vec(),
        })
    }
}

/// Newer servers list unsharded collections, too; older ones those that were dropped.
fn sharded(names: &[String]) -> Document {
    sharded_with(doc! { "$in": names })
}

fn sharded_with(name: Document) -> Document {
    doc! { "_id": name, "dropped": { "$ne": true }, "unsplittable": { "$ne": true } }
}
