//! `find`: on one shard as it came; on several a part each, merged.

use bson::spec::ElementType;
use std::sync::Arc;

use super::aggregate;
use super::cursor::{Source, cursor_reply};
use super::merge::{Merged, SORT_KEY};
use super::{on_one, read_on, targets};
use crate::router::attempts::Attempts;
use crate::router::error::{Failure, code, refuse};
use crate::router::operation::Operation;
use crate::router::raw::{Builder, Doc};
use crate::router::routing::Routing;

/// As many documents as a first batch holds unless the client says otherwise.
const FIRST_BATCH: usize = 101;

/// Runs `find`.
///
/// # Errors
/// What a shard says.
pub async fn run(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let command = &operation.command;
    let namespace = command.namespace()?;
    let query = command.nested("filter").unwrap_or_else(Doc::empty);
    let mut attempts = Attempts::new(operation, &namespace);
    loop {
        let Some(routing) = attempts.routing().await? else {
            return Ok(cursor_reply(
                "firstBatch",
                &[],
                0,
                &namespace,
                operation.at_cluster_time,
            ));
        };
        let shards = targets(operation, &routing, query);
        let answer = match shards.as_slice() {
            [only] => on_one(operation, &routing, only).await,
            _ => on_several(operation, &routing, &shards, &namespace).await,
        };
        match answer {
            Err(Failure::Stale(why)) => attempts.stale(&routing, why).await?,
            Err(Failure::Shard(reply)) if reply.code() == code::VIEW_NEEDS_ROUTER => {
                return aggregate::find_on_view(operation, &namespace).await;
            }
            answer => return answer,
        }
    }
}

async fn on_several(
    operation: &Operation,
    routing: &Routing,
    shards: &[Arc<str>],
    namespace: &str,
) -> Result<Vec<u8>, Failure> {
    let command = &operation.command;
    if command.flag("tailable", false) {
        return refuse(
            code::BAD_VALUE,
            "tailable cursors are not possible on a sharded collection",
        );
    }
    let number = |name| command.number(name).and_then(|number| u64::try_from(number).ok());
    let (skip, limit) = (number("skip").unwrap_or(0), number("limit").filter(|limit| *limit > 0));
    let sort = sort(operation);
    let collection = namespace.split_once('.').map_or("", |(_, collection)| collection);
    let mut merged = Merged::new(collection, sort, skip, limit);
    merged.at(operation.at_cluster_time);
    let body = part(operation, sort.is_some(), skip, limit);
    let commands = shards
        .iter()
        .map(|shard| read_on(routing, shard, body.clone()))
        .collect();
    let mut failed = None;
    for (shard, answer) in shards.iter().zip(operation.call_all(commands).await) {
        match answer.and_then(|(reply, host)| Ok((reply.success()?, host))) {
            Ok((reply, host)) => merged.add(shard, &host, &reply),
            // Stale beats other errors: they may come of it.
            Err(failure) => {
                failed = Some(
                    failed
                        .filter(|other| matches!(other, Failure::Stale(_)))
                        .unwrap_or(failure),
                )
            }
        }
    }
    if let Some(failure) = failed {
        merged.kill(operation).await;
        return Err(failure);
    }
    let size = number("batchSize").map_or(FIRST_BATCH, |size| size as usize);
    let size = if command.flag("singleBatch", false) {
        limit.map_or(size, |limit| limit as usize)
    } else {
        size
    };
    first_reply(operation, merged, namespace, size).await
}

/// The first reply of a merged cursor, which is kept if it holds more.
pub async fn first_reply(
    operation: &Operation,
    mut merged: Merged,
    namespace: &str,
    size: usize,
) -> Result<Vec<u8>, Failure> {
    let batch = merged.next_batch(operation, Some(size)).await;
    let over = batch.is_err() || merged.is_exhausted() || operation.command.flag("singleBatch", false);
    let id = if over { 0 } else { operation.router.cursors.new_id() };
    if over {
        merged.kill(operation).await;
    } else {
        operation
            .router
            .cursors
            .keep(id, namespace, Source::Merged(Box::new(merged)));
    }
    Ok(cursor_reply(
        "firstBatch",
        &batch?,
        id,
        namespace,
        operation.at_cluster_time,
    ))
}

/// A sort that needs merging.
fn sort(operation: &Operation) -> Option<Doc<'_>> {
    let sort = operation.command.nested("sort")?;
    let natural = sort.get("$natural").ok().flatten().is_some();
    (!sort.is_empty() && !natural).then_some(sort)
}

/// One shard's part: enough documents for the skip and the limit together, each with its sort key.
fn part(operation: &Operation, sorted: bool, skip: u64, limit: Option<u64>) -> Builder {
    let mut body = operation
        .command
        .forward(&["skip", "limit", "singleBatch", "projection"]);
    if let Some(limit) = limit {
        body.int64("limit", limit.saturating_add(skip).min(i64::MAX as u64) as i64);
    }
    let projection = operation.command.nested("projection");
    if projection.is_none() && !sorted {
        return body;
    }
    body.open(ElementType::EmbeddedDocument, b"projection");
    for field in projection.iter().flat_map(|projection| projection.elements()).flatten() {
        body.element(&field);
    }
    if sorted {
        body.open(ElementType::EmbeddedDocument, SORT_KEY.as_bytes());
        body.string("$meta", b"sortKey");
        body.close();
    }
    body.close();
    body
}
