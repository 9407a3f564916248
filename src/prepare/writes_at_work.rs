//! Waits until the writes have ended that servers were carrying out at one moment.
//!
//! A server carries a write to its end, even if the client that sent it is gone. So an `updateMany` may change documents for hours after
//! its Keyward was killed. That Keyward may have lacked the constraint, and the backfill may be past those documents.

use std::collections::BTreeSet;
use std::time::Duration;

use bson::{Bson, Document, doc};
use mongodb::Client;
use tokio::time::Instant;

use crate::namespace::Namespace;
use crate::proxy_collection::{StoreError, answered};
use crate::server::driver;

/// How long to leave it between two looks.
const POLL: Duration = Duration::from_millis(250);
/// How long to wait before the log says so, and between two such lines.
const QUIET: Duration = Duration::from_secs(10);

/// Waits until every write to `namespace` has ended that a server, or the router, carries out now. There is no time limit.
///
/// # Errors
/// [`StoreError`] if the deployment doesn't say.
pub(super) async fn ended(client: &Client, namespace: &Namespace) -> Result<(), StoreError> {
    let admin = client.database("admin");
    let hello = answered(admin.run_command(doc! { "hello": 1 }).into_future()).await?;
    // A router first: it sends the statements of one command to the shards one after the other.
    let places = match driver::is_of_router(&hello) {
        true => vec![doc! { "allUsers": true, "localOps": true }, doc! { "allUsers": true }],
        false => vec![doc! { "allUsers": true }],
    };
    let mut at_work = at_work(client, namespace, &places).await?;
    let mut logged = Instant::now();
    while !at_work.is_empty() {
        if logged.elapsed() >= QUIET {
            logged = Instant::now();
            let operations: Vec<&str> = at_work.iter().map(String::as_str).collect();
            let operations = operations.join(", ");
            tracing::info!(%namespace, operations, "the backfill waits for writes that servers are still carrying out");
        }
        tokio::time::sleep(POLL).await;
        let now = self::at_work(client, namespace, &places).await?;
        at_work.retain(|operation| now.contains(operation));
    }
    Ok(())
}

/// The writes to `namespace` that are being carried out at these `places`, by the names that `killOp` takes.
async fn at_work(client: &Client, namespace: &Namespace, places: &[Document]) -> Result<BTreeSet<String>, StoreError> {
    let admin = client.database("admin");
    let mut found = BTreeSet::new();
    for place in places {
        let pipeline = vec![
            doc! { "$currentOp": place.clone() },
            doc! { "$match": writes_to(namespace) },
            doc! { "$project": { "opid": 1 } },
        ];
        let command = doc! { "aggregate": 1, "pipeline": pipeline, "cursor": { "batchSize": 100_000 } };
        let reply = answered(admin.run_command(command).into_future()).await?;
        let cursor = reply.get_document("cursor");
        let batch = cursor.and_then(|cursor| cursor.get_array("firstBatch"));
        let batch = batch.map_err(|_| StoreError::Unexpected("the operations in progress"))?;
        found.extend(batch.iter().filter_map(name_of));
    }
    Ok(found)
}

/// Matches operations that may write to `namespace`.
fn writes_to(namespace: &Namespace) -> Document {
    let by_command = [
        "update",
        "insert",
        "delete",
        "findAndModify",
        "findandmodify",
        "mapReduce",
        "mapreduce",
    ];
    let by_command = by_command.map(|name| doc! { format!("command.{name}"): { "$exists": true } });
    let mut kinds = vec![doc! { "op": { "$in": ["update", "insert", "remove"] } }];
    kinds.extend(by_command);
    doc! {
        "active": true,
        "$or": [
            { "ns": namespace.to_string(), "$or": kinds },
            // Its namespaces are inside the command.
            { "op": "bulkWrite" },
            { "command.bulkWrite": { "$exists": true } },
        ],
    }
}

/// A number, or with the shard's name before it.
fn name_of(operation: &Bson) -> Option<String> {
    match operation.as_document()?.get("opid")? {
        Bson::String(name) => Some(name.clone()),
        number => Some(number.to_string()),
    }
}
