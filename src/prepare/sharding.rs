//! Creates proxy collections and spreads them evenly over the shards before the first write.
//!
//! The splits lie on `h`, Keyward's own hash of the key, so that keys that grow monotonically spread, too. Every step
//! can be repeated, and several Keywards may run it at once, with the same result.
//!
//! The collection that records the results of retryable statements ([`crate::write::retry::results`]) is made here, too. On shards it is
//! sharded by the hash of its `_id`. Otherwise every retryable write that runs in a transaction of Keyward's would write to one shard. The
//! server distributes the chunks of a hashed collection while it is empty. A collection of an older Keyward that isn't empty stays one chunk
//! on its shard. The balancer leaves it there while it is smaller than the balancer's threshold (three times 128 MB from MongoDB 6.0 on),
//! which it usually is: records expire after an hour.

use std::time::Duration;

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::Client;
use tokio::time::Instant;

use super::PrepareError;
use crate::constraint::{Constraint, Key, Sharding};
use crate::namespace::Namespace;
use crate::server::{code, driver};
use crate::upstream::{shard_keys, sharded_collection};
use crate::write::retry::results;

/// How long spreading one proxy collection may take, including the same work by other Keywards.
const SPREAD_MAX: Duration = Duration::from_secs(120);
/// How long to wait before checking chunks again that another Keyward may be moving.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How long a result is kept: longer than an unused session lives (30 min), and so longer than its retries can arrive.
const SECONDS_KEPT: i32 = 3_600;

/// The kind of deployment upstream.
#[derive(Debug, Clone)]
pub(super) enum Deployment {
    /// A `mongos`, with the names of its shards, sorted.
    Sharded(Vec<String>),
    /// A replica set.
    Unsharded,
}

impl Deployment {
    pub(super) async fn of(client: &Client) -> Result<Deployment, PrepareError> {
        let admin = client.database("admin");
        let hello = admin.run_command(doc! { "hello": 1 }).await?;
        if !driver::is_of_router(&hello) {
            hello.get_str("setName").map_err(|_| PrepareError::Standalone)?;
            return Ok(Deployment::Unsharded);
        }
        let reply = admin.run_command(doc! { "listShards": 1 }).await?;
        let shards = reply.get_array("shards").map(Vec::as_slice).unwrap_or_default();
        let name = |shard: &Bson| Some(shard.as_document()?.get_str("_id").ok()?.to_owned());
        let mut names: Vec<String> = shards.iter().filter_map(name).collect();
        names.sort();
        Ok(Deployment::Sharded(names))
    }

    /// Creates the collection of results in `database`, with the index that lets results expire. Repeating it changes nothing.
    pub(super) async fn create_results(&self, client: &Client, database: &str) -> Result<(), PrepareError> {
        let namespace = Namespace::new(database, results::COLLECTION);
        // Keyward reads and upserts records by `_id`: by another shard key a router finds no shard for an upsert.
        let paths = self.shard_key(client, &namespace).await?;
        if !paths.is_empty() && paths != ["_id"] {
            return Err(PrepareError::OtherResults(namespace, paths.join(", ")));
        }
        let mut indexes = vec![doc! { "key": { "at": 1 }, "name": "at_1", "expireAfterSeconds": SECONDS_KEPT }];
        let shard_key = doc! { "_id": "hashed" };
        if self.is_sharded() {
            // `shardCollection` requires it where the collection isn't empty.
            indexes.push(doc! { "key": shard_key.clone(), "name": "_id_hashed" });
        }
        let command: Document = doc! { "createIndexes": results::COLLECTION, "indexes": indexes };
        client.database(database).run_command(command).await?;
        self.shard(client, &namespace, shard_key).await?;
        Ok(())
    }

    /// Refuses a shard of a cluster, which looks like a replica set.
    pub(super) async fn refuse_shard(&self, client: &Client) -> Result<(), PrepareError> {
        if let Deployment::Sharded(_) = self {
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
            Deployment::Sharded(_) => {
                let keys = shard_keys(client, &[namespace]).await?;
                Ok(keys.into_values().next().unwrap_or_default())
            }
        }
    }

    pub(super) fn is_sharded(&self) -> bool {
        matches!(self, Deployment::Sharded(_))
    }

    /// Shards a collection by `key` unless it is sharded. Gives the shard key that it has now; a replica set has none.
    pub(super) async fn shard(
        &self,
        client: &Client,
        namespace: &Namespace,
        key: Document,
    ) -> Result<Document, PrepareError> {
        if !self.is_sharded() {
            return Ok(Document::new());
        }
        // `shardCollection` locks a collection even if it is sharded already. The lock waits for open transactions
        // there, and every write waits for the lock.
        let entry = sharded_collection(client, namespace).await?;
        if let Some(key) = entry.as_ref().and_then(|entry| entry.get_document("key").ok()) {
            return Ok(key.clone());
        }
        let command = doc! { "shardCollection": namespace.to_string(), "key": key.clone() };
        client.database("admin").run_command(command).await?;
        Ok(key)
    }

    /// Creates the proxy collection of `constraint`, and spreads it over the shards. If it `was_complete` once, it is
    /// not spread: the balancer then places its chunks.
    pub(super) async fn create(
        &self,
        client: &Client,
        constraint: &Constraint,
        was_complete: bool,
    ) -> Result<(), PrepareError> {
        let namespace = constraint.proxy_collection();
        let Deployment::Sharded(shards) = self else {
            return create_unsharded(client, &namespace).await;
        };
        let key = self.shard(client, &namespace, doc! { "_id": 1 }).await?;
        // With a hashed shard key, 1 and 1.0 may be on two shards.
        if key != doc! { "_id": 1 } {
            return Err(PrepareError::NotOurs(
                namespace,
                "is sharded otherwise than by { _id: 1 }",
            ));
        }
        if !was_complete && constraint.sharding() == Sharding::Hashed {
            spread(client, &namespace, shards).await?;
        }
        Ok(())
    }
}

async fn create_unsharded(client: &Client, namespace: &Namespace) -> Result<(), PrepareError> {
    let command = doc! { "create": namespace.collection.as_str() };
    match client.database(&namespace.database).run_command(command).await {
        Err(error) if driver::code_of(&error) != Some(code::NAMESPACE_EXISTS) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Splits at equal steps of `h` and moves one range to each shard, until the chunks are so placed.
async fn spread(client: &Client, namespace: &Namespace, shards: &[String]) -> Result<(), PrepareError> {
    let deadline = Instant::now() + SPREAD_MAX;
    loop {
        let mut failure = None;
        for command in missing(client, namespace, shards).await? {
            // Another Keyward may be doing the same: only the final places of the chunks count.
            if let Err(error) = client.database("admin").run_command(command).await {
                failure = Some(driver::in_words(&error));
            }
        }
        let Some(failure) = failure else { return Ok(()) };
        if Instant::now() > deadline {
            return Err(PrepareError::NotSpread(namespace.clone(), failure));
        }
        tracing::debug!(%namespace, failure, "spreading again");
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// The commands that are still missing for one range of `h` on each shard.
async fn missing(client: &Client, namespace: &Namespace, shards: &[String]) -> Result<Vec<Document>, PrepareError> {
    let chunks = chunks(client, namespace).await?;
    let mut commands = Vec::new();
    for (index, shard) in shards.iter().enumerate() {
        let bound = bound(index, shards.len());
        let lower = doc! { "_id": { "h": bound } };
        // The first range reaches down to MinKey and needs no split.
        let chunk = match index {
            0 => chunks.first(),
            _ => chunks
                .iter()
                .find(|chunk| chunk.get_document("min").is_ok_and(|min| *min == lower)),
        };
        if chunk.is_none() {
            commands.push(doc! { "split": namespace.to_string(), "middle": lower.clone() });
        }
        if chunk.is_none_or(|chunk| chunk.get_str("shard").ok() != Some(shard.as_str())) {
            commands.push(doc! { "moveChunk": namespace.to_string(), "find": lower, "to": shard });
        }
    }
    Ok(commands)
}

/// The first `h` of the range with this index.
fn bound(index: usize, ranges: usize) -> i32 {
    let bound = index * Key::BUCKETS / ranges;
    i32::try_from(bound).unwrap_or(i32::MAX)
}

async fn chunks(client: &Client, namespace: &Namespace) -> Result<Vec<Document>, PrepareError> {
    let Some(entry) = sharded_collection(client, namespace).await? else {
        return Ok(Vec::new());
    };
    let filter = match entry.get("uuid") {
        Some(uuid) => doc! { "uuid": uuid.clone() },
        // Before 5.0 chunks were listed by name.
        None => doc! { "ns": namespace.to_string() },
    };
    let chunks = client.database("config").collection::<Document>("chunks");
    Ok(chunks.find(filter).sort(doc! { "min": 1 }).await?.try_collect().await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_even() {
        let bounds: Vec<i32> = (0..3).map(|index| bound(index, 3)).collect();
        assert_eq!(bounds, [0, 21_845, 43_690]);
    }
}
