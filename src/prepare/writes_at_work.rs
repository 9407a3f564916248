//! Waits until the writes have ended that servers were carrying out at one moment.
//!
//! A server carries a write to its end, even if the client that sent it is gone. So an `updateMany` may change documents for hours after
//! its Keyward was killed. That Keyward may have lacked the constraint, and the backfill may be past those documents.

use std::collections::{BTreeSet, HashSet};
use std::future::IntoFuture;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bson::{Bson, Document, doc};
use mongodb::Client;
use mongodb::action::Action;
use mongodb::options::{SelectionCriteria, ServerAddress};
use tokio::time::Instant;

use crate::namespace::Namespace;
use crate::proxy_collection::{StoreError, answered};
use crate::server::driver;

/// How long to leave it between two looks.
const POLL: Duration = Duration::from_millis(250);
/// How long to wait before the log says so, and between two such lines.
const QUIET: Duration = Duration::from_secs(10);

/// Waits until every write to `namespace` has ended that a server, or a router that Keyward reaches, carries out now. There is no time
/// limit.
///
/// # Errors
/// [`StoreError`] if the deployment doesn't say.
pub(super) async fn ended(client: &Client, namespace: &Namespace) -> Result<(), StoreError> {
    let mut at_work = at_work(client, namespace).await?;
    let mut logged = Instant::now();
    while !at_work.is_empty() {
        if logged.elapsed() >= QUIET {
            logged = Instant::now();
            let operations: Vec<&str> = at_work.iter().map(String::as_str).collect();
            let operations = operations.join(", ");
            tracing::info!(
                %namespace, operations,
                "the backfill waits for writes that servers are still carrying out; killOp ends one"
            );
        }
        tokio::time::sleep(POLL).await;
        let now = self::at_work(client, namespace).await?;
        at_work.retain(|operation| now.contains(operation));
    }
    Ok(())
}

/// The writes to `namespace` that are being carried out, by the names that `killOp` takes; a router's have its address before them.
async fn at_work(client: &Client, namespace: &Namespace) -> Result<BTreeSet<String>, StoreError> {
    let mut found = BTreeSet::new();
    // The routers first: a router sends the statements of one command to the shards one after the other.
    for router in routers(client).await? {
        let here = doc! { "allUsers": true, "localOps": true };
        let at = router.clone();
        let only = SelectionCriteria::Predicate(Arc::new(move |server| *server.address() == at));
        let operations = operations(client, here, namespace, Some(only)).await?;
        found.extend(operations.into_iter().map(|name| format!("{router} {name}")));
    }
    found.extend(operations(client, doc! { "allUsers": true }, namespace, None).await?);
    Ok(found)
}

/// The routers that Keyward's driver reaches now: several `mongos` may be named upstream, and each knows its own operations only.
async fn routers(client: &Client) -> Result<HashSet<ServerAddress>, StoreError> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = seen.clone();
    let all = SelectionCriteria::Predicate(Arc::new(move |server| {
        let mut seen = note.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push(server.address().clone());
        true
    }));
    let admin = client.database("admin");
    let hello = admin.run_command(doc! { "hello": 1 }).selection_criteria(all);
    let hello = answered(hello.into_future()).await?;
    let seen = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(match driver::is_of_router(&hello) {
        true => seen.into_iter().collect(),
        false => HashSet::new(),
    })
}

/// The names of the operations that may write to `namespace`, in the place that `stage` describes.
async fn operations(
    client: &Client,
    stage: Document,
    namespace: &Namespace,
    selection: Option<SelectionCriteria>,
) -> Result<Vec<String>, StoreError> {
    let pipeline = vec![
        doc! { "$currentOp": stage },
        doc! { "$match": writes_to(namespace) },
        doc! { "$project": { "opid": 1 } },
    ];
    // Stated, because a cluster may have another default.
    let local = doc! { "level": "local" };
    let command =
        doc! { "aggregate": 1, "pipeline": pipeline, "cursor": { "batchSize": 100_000 }, "readConcern": local };
    let admin = client.database("admin");
    let running = admin
        .run_command(command)
        .optional(selection, |run, selection| run.selection_criteria(selection));
    let reply = answered(running.into_future()).await?;
    let cursor = reply.get_document("cursor");
    let batch = cursor.and_then(|cursor| cursor.get_array("firstBatch"));
    let batch = batch.map_err(|_| StoreError::Unexpected("the operations in progress"))?;
    Ok(batch.iter().filter_map(name_of).collect())
}

/// Matches operations that may write to `namespace`.
fn writes_to(namespace: &Namespace) -> Document {
    let by_command = ["update", "insert", "delete", "findAndModify", "findandmodify"];
    let by_command = by_command.map(|name| doc! { format!("command.{name}"): { "$exists": true } });
    let mut kinds = vec![doc! { "op": { "$in": ["update", "insert", "remove"] } }];
    kinds.extend(by_command);
    let mut any = vec![doc! { "ns": namespace.to_string(), "$or": kinds }];
    // The others name their targets inside the command. Their namespace is the collection that they read.
    any.push(doc! { "op": "bulkWrite" });
    for name in ["bulkWrite", "mapReduce", "mapreduce"] {
        any.push(doc! { format!("command.{name}"): { "$exists": true } });
    }
    for target in ["$merge", "$merge.into", "$merge.into.coll", "$out", "$out.coll"] {
        any.push(doc! { format!("command.pipeline.{target}"): &namespace.collection });
    }
    doc! { "active": true, "$or": any }
}

/// A number, or with the shard's name before it.
fn name_of(operation: &Bson) -> Option<String> {
    match operation.as_document()?.get("opid")? {
        Bson::String(name) => Some(name.clone()),
        number => Some(number.to_string()),
    }
}
