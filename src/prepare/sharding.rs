//! Creates proxy collections, and shards them before the first write.
//!
//! A proxy collection is sharded by the server's hash of `_id.h`, an int32. `h` is Keyward's own hash of the key. So equal keys are on one
//! shard, where the index on `_id` decides. The server distributes the chunks of a hashed collection while it is empty. So Keyward
//! needs no privilege to split and move chunks, and doesn't wait for the balancer. With `sharding: ranged` the shard key is `{_id: 1}`.
//! Earlier versions of Keyward used it for all proxy collections, and split and moved the chunks. Such collections stay as they are.
//!
//! Every step can be repeated, and several Keywards may run it at once, with the same result.
//!
//! The collection that records the results of retryable statements ([`crate::write::retry::results`]) is made here, too. On shards it is
//! sharded by the hash of its `_id`. Otherwise every retryable write that runs in a transaction of Keyward's would write to one shard.
//!
//! A collection that isn't empty when it is sharded stays one chunk on its shard: that of a replica set that became a cluster, or the
//! results of an older Keyward. The balancer leaves it there while it is smaller than the balancer's threshold (three times 128 MB from
//! MongoDB 6.0 on).

use bson::{Document, doc};
use mongodb::Client;

use super::PrepareError;
use crate::constraint::{Constraint, Sharding};
use crate::namespace::Namespace;
use crate::server::{code, driver};
use crate::upstream::{shard_keys, sharded_collection};
use crate::write::retry::results;

/// How long a result is kept: longer than an unused session lives (30 min), and so longer than its retries can arrive.
const SECONDS_KEPT: i32 = 3_600;

/// The kind of deployment upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deployment {
    /// A `mongos`.
    Sharded,
    /// A replica set.
    Unsharded,
}

impl Deployment {
    pub(super) async fn of(client: &Client) -> Result<Deployment, PrepareError> {
        let hello = client.database("admin").run_command(doc! { "hello": 1 }).await?;
        if driver::is_of_router(&hello) {
            return Ok(Deployment::Sharded);
        }
        hello.get_str("setName").map_err(|_| PrepareError::Standalone)?;
        Ok(Deployment::Unsharded)
    }

    /// Creates the collection of results in `database`, with the index that lets results expire. Repeating it changes nothing.
    pub(super) async fn create_results(&self, client: &Client, database: &str) -> Result<(), PrepareError> {
        let namespace = Namespace::new(database, results::COLLECTION);
        // Keyward reads and upserts records by `_id`: by another shard key a router finds no shard for an upsert.
        let paths = self.shard_key(client, &namespace).await?;
        if !paths.is_empty() && paths != ["_id"] {
            return Err(PrepareError::OtherResults(namespace, paths.join(", ")));
        }
        create_index(
            client,
            &namespace,
            doc! { "key": { "at": 1 }, "name": "at_1", "expireAfterSeconds": SECONDS_KEPT },
        )
        .await?;
        if *self == Deployment::Sharded {
            shard_by_hash(client, &namespace, "_id").await?;
        }
        Ok(())
    }

    /// Refuses a shard of a cluster, which looks like a replica set.
    pub(super) async fn refuse_shard(&self, client: &Client) -> Result<(), PrepareError> {
        if *self == Deployment::Sharded {
            return Ok(());
        }
        let state = doc! { "shardingState": 1 };
        let state = client.database("admin").run_command(state).await?;
        match state.get_bool("enabled") {
            Ok(true) => Err(PrepareError::Shard),
            _ => Ok(()),
        }
    }

    /// The paths of a collection's shard key; empty if it isn't sharded.
    pub(super) async fn shard_key(&self, client: &Client, namespace: &Namespace) -> Result<Vec<String>, PrepareError> {
        match self {
            Deployment::Unsharded => Ok(Vec::new()),
            Deployment::Sharded => {
                let keys = shard_keys(client, &[namespace]).await?;
                Ok(keys.into_values().next().unwrap_or_default())
            }
        }
    }

    /// Creates the proxy collection of `constraint`, and shards it.
    pub(super) async fn create(&self, client: &Client, constraint: &Constraint) -> Result<(), PrepareError> {
        let namespace = constraint.proxy_collection();
        let by_id = doc! { "_id": 1 };
        let (key, others) = match (self, constraint.sharding()) {
            (Deployment::Unsharded, _) => return create_unsharded(client, &namespace).await,
            (Deployment::Sharded, Sharding::Hashed) => (
                shard_by_hash(client, &namespace, "_id.h").await?,
                "is sharded otherwise than by { \"_id.h\": \"hashed\" } or { _id: 1 }",
            ),
            (Deployment::Sharded, Sharding::Ranged) => (
                shard(client, &namespace, by_id.clone()).await?,
                "is sharded otherwise than by { _id: 1 }",
            ),
        };
        // By the hash of the whole `_id`, 1.5 as a double and as a Decimal128 may be on two shards.
        let is_by_h = constraint.sharding() == Sharding::Hashed && key == doc! { "_id.h": "hashed" };
        match is_by_h || key == by_id {
            true => Ok(()),
            false => Err(PrepareError::NotOurs(namespace, others)),
        }
    }
}

async fn create_unsharded(client: &Client, namespace: &Namespace) -> Result<(), PrepareError> {
    let command = doc! { "create": namespace.collection.as_str() };
    match client.database(&namespace.database).run_command(command).await {
        Err(error) if driver::code_of(&error) != Some(code::NAMESPACE_EXISTS) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Shards a collection by the hash of `path` unless it is sharded. Returns the shard key that it has now.
async fn shard_by_hash(client: &Client, namespace: &Namespace, path: &str) -> Result<Document, PrepareError> {
    if let Some(key) = shard_key_of(client, namespace).await? {
        return Ok(key);
    }
    let key = doc! { path: "hashed" };
    // `shardCollection` makes this index only if the collection is empty.
    create_index(
        client,
        namespace,
        doc! { "key": key.clone(), "name": format!("{path}_hashed") },
    )
    .await?;
    shard(client, namespace, key).await
}

/// Shards a collection by `key` unless it is sharded. Returns the shard key that it has now.
async fn shard(client: &Client, namespace: &Namespace, key: Document) -> Result<Document, PrepareError> {
    // `shardCollection` locks a collection even if it is sharded already. The lock waits for open transactions
    // there, and every write waits for the lock.
    if let Some(key) = shard_key_of(client, namespace).await? {
        return Ok(key);
    }
    let command = doc! { "shardCollection": namespace.to_string(), "key": key.clone() };
    match client.database("admin").run_command(command).await {
        Ok(_) => Ok(key),
        // Another Keyward, of an earlier version, may have sharded it by another key meanwhile.
        Err(error) => shard_key_of(client, namespace).await?.ok_or_else(|| error.into()),
    }
}

async fn shard_key_of(client: &Client, namespace: &Namespace) -> Result<Option<Document>, PrepareError> {
    let entry = sharded_collection(client, namespace).await?;
    Ok(entry.and_then(|entry| entry.get_document("key").ok().cloned()))
}

async fn create_index(client: &Client, namespace: &Namespace, index: Document) -> Result<(), PrepareError> {
    let command = doc! { "createIndexes": namespace.collection.as_str(), "indexes": [index] };
    client.database(&namespace.database).run_command(command).await?;
    Ok(())
}
