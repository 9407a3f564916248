//! Creates the collection that records the results of retryable statements ([`crate::write::retry::results`]).
//!
//! On shards it is sharded by the hash of its `_id`. Otherwise every retryable write that runs in a transaction of Keyward's would write to
//! one shard. The server distributes the chunks of a hashed collection while it is empty. A collection of an older Keyward that isn't
//! empty stays one chunk on its shard. The balancer leaves it there while it is smaller than the balancer's threshold (three times
//! 128 MB from MongoDB 6.0 on), which it usually is: records expire after an hour.

use bson::{Document, doc};
use mongodb::Client;

use super::PrepareError;
use super::sharding::Deployment;
use crate::namespace::Namespace;
use crate::write::retry::results;

/// How long a result is kept: longer than an unused session lives (30 min), and so longer than its retries can arrive.
const SECONDS_KEPT: i32 = 3_600;

/// Creates the collection in `database`, with the index that lets results expire. Repeating it changes nothing.
pub(super) async fn create(client: &Client, database: &str, deployment: &Deployment) -> Result<(), PrepareError> {
    let namespace = Namespace::new(database, results::COLLECTION);
    // Keyward reads and upserts records by `_id`: by another shard key a router finds no shard for an upsert.
    let paths = deployment.shard_key(client, &namespace).await?;
    if !paths.is_empty() && paths != ["_id"] {
        return Err(PrepareError::OtherResults(namespace, paths.join(", ")));
    }
    let mut indexes = vec![doc! { "key": { "at": 1 }, "name": "at_1", "expireAfterSeconds": SECONDS_KEPT }];
    let shard_key = doc! { "_id": "hashed" };
    if deployment.is_sharded() {
        // `shardCollection` requires it where the collection isn't empty.
        indexes.push(doc! { "key": shard_key.clone(), "name": "_id_hashed" });
    }
    let command: Document = doc! { "createIndexes": results::COLLECTION, "indexes": indexes };
    client.database(database).run_command(command).await?;
    deployment.shard(client, &namespace, shard_key).await?;
    Ok(())
}
