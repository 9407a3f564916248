//! Creates the collection that records the results of retryable statements ([`crate::write::retry::results`]).
//!
//! It isn't sharded: its documents are small and live for an hour, which is longer than a driver retries.

use bson::doc;
use mongodb::Client;

use super::PrepareError;
use crate::write::retry::results;

/// How long a result is kept: longer than an unused session lives (30 min), and so longer than its retries can arrive.
const SECONDS_KEPT: i32 = 3_600;

/// Creates the collection in `database`, with the index that lets results expire. Repeating it changes nothing.
pub(super) async fn create(client: &Client, database: &str) -> Result<(), PrepareError> {
    let index = doc! { "key": { "at": 1 }, "name": "at_1", "expireAfterSeconds": SECONDS_KEPT };
    let command = doc! { "createIndexes": results::COLLECTION, "indexes": [index] };
    client.database(database).run_command(command).await?;
    Ok(())
}
