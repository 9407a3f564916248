//! Reads: on one shard the shard's own answer, on several one cursor made of theirs.

mod aggregate;
mod change_stream;
mod count;
mod cursor;
mod explain;
mod find;
mod merge;

pub use cursor::{Cursors, cursor_reply, keep_shards_cursor};
pub use explain::run as explain;

use std::sync::Arc;

use super::error::Failure;
use super::operation::{Access, Operation, ShardCommand};
use super::raw::{Builder, Doc};
use super::routing::{Routing, shards_for};
use super::write::is_simple;

/// Runs the command if it is a read.
pub async fn run(operation: &Operation, name: &str) -> Option<Result<Vec<u8>, Failure>> {
    Some(match name {
        "find" => find::run(operation).await,
        "aggregate" => aggregate::run(operation).await,
        "getMore" => cursor::get_more(operation).await,
        "killCursors" => cursor::kill(operation).await,
        "count" => count::count(operation).await,
        "distinct" => count::distinct(operation).await,
        _ => return None,
    })
}

/// The shards on which a query can match; at least one.
pub fn targets(operation: &Operation, routing: &Routing, query: Doc<'_>) -> Vec<Arc<str>> {
    let Routing::Sharded(collection) = routing else {
        return routing.shards();
    };
    let simple = is_simple(operation.command.nested("collation"), collection.collation.as_deref());
    shards_for(collection, query, simple, operation.read_time())
}

/// The same read for one shard.
pub fn read_on(routing: &Routing, shard: &str, body: Builder) -> ShardCommand {
    ShardCommand {
        shard: shard.to_owned(),
        version: routing.version(shard),
        body,
        sequence: None,
        access: Access::Read,
    }
}

/// The client's read as it came, on the one shard that can answer it.
async fn on_one(operation: &Operation, routing: &Routing, shard: &str) -> Result<Vec<u8>, Failure> {
    let command = read_on(routing, shard, operation.command.forward(&[]));
    let (reply, host) = operation.call(command).await?;
    Ok(keep_shards_cursor(operation, &reply.success()?, shard, &host))
}
