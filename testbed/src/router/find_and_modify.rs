//! `findAndModify`: on the one shard that the query's shard key names; elsewhere `mongos` 6.0 refuses it, and so does this. But
//! what can't be met is answered by nothing, as by the newest.

use bson::spec::ElementType;

use super::attempts::Attempts;
use super::error::{Failure, code, refuse};
use super::operation::{Access, Operation, ShardCommand};
use super::raw::{Builder, Doc};
use super::reply::Reply;
use super::routing::{Routing, exact_point};
use super::transaction_end::{abort_participants, begin_own, commit_own};
use super::write::{Change, Changed, is_simple, move_document};

/// How often the transaction of a retryable write is run when others interfere.
const ATTEMPTS_MAX: usize = 10;

/// Runs the command.
///
/// # Errors
/// What the shard says.
pub async fn run(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let namespace = operation.command.namespace()?;
    match send(operation, &namespace).await {
        Ok(reply) => Ok(reply.public()),
        Err(Failure::Shard(error)) if error.code() == code::WOULD_CHANGE_OWNING_SHARD => {
            match operation.transaction.is_some() {
                true => change_shard(operation, &namespace, &error).await,
                false => in_own_transaction(operation, &namespace).await,
            }
        }
        Err(failure) => Err(failure),
    }
}

async fn send(operation: &Operation, namespace: &str) -> Result<Reply, Failure> {
    let mut attempts = Attempts::new(operation, namespace);
    loop {
        let routing = attempts.routing_for_write().await?;
        if let Routing::Sharded(_) = routing
            && is_for_nothing(operation)
        {
            return Ok(Reply::new(reply_for_nothing(operation).into()));
        }
        let shard = target(operation, &routing)?;
        let command = ShardCommand {
            version: routing.version(&shard),
            shard,
            body: operation.command.forward(&[]),
            sequence: None,
            access: Access::Write,
        };
        match operation.call(command).await?.0.success() {
            Err(Failure::Stale(why)) => attempts.stale(&routing, why).await?,
            answer => return answer,
        }
    }
}

fn target(operation: &Operation, routing: &Routing) -> Result<String, Failure> {
    let collection = match routing {
        Routing::Unsharded { shard, .. } => return Ok(shard.to_string()),
        Routing::Sharded(collection) => collection,
    };
    let command = &operation.command;
    let query = command.nested("query").unwrap_or_else(Doc::empty);
    let simple = is_simple(command.nested("collation"), collection.collation.as_deref());
    match exact_point(&collection.key, query) {
        Some(point) => match collection.chunk_for(&point, simple) {
            Ok(chunk) => Ok(chunk.owner(operation.read_time()).to_string()),
            Err(reason) => refuse(code::SHARD_KEY_NOT_FOUND, reason),
        },
        None => refuse(
            code::SHARD_KEY_NOT_FOUND,
            "Query for sharded findAndModify must contain the shard key",
        ),
    }
}

/// Whether no document can meet the query: the newest `mongos` folds that before it looks for a shard key, looks for the
/// document on all shards and finds none.
fn is_for_nothing(operation: &Operation) -> bool {
    let query = operation.command.nested("query").unwrap_or_else(Doc::empty);
    !operation.command.flag("upsert", false) && operation.router.is_for_nothing(query)
}

fn reply_for_nothing(operation: &Operation) -> Vec<u8> {
    let mut body = Builder::new();
    body.open(ElementType::EmbeddedDocument, b"lastErrorObject");
    body.int32("n", 0);
    if !operation.command.flag("remove", false) {
        body.boolean("updatedExisting", false);
    }
    body.close();
    body.append(ElementType::Null, b"value", &[]).double("ok", 1.0);
    body.finish()
}

/// Runs the command again, in a transaction under its own number.
async fn in_own_transaction(operation: &Operation, namespace: &str) -> Result<Vec<u8>, Failure> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let mut own = operation.own();
        begin_own(&mut own, operation.command.txn_number.unwrap_or(0));
        let outcome = attempt_once(&own, namespace).await;
        let Err(failure) = outcome else { return outcome };
        if let Some(session) = &own.transaction {
            abort_participants(&own, session).await;
        }
        let again = matches!(failure.code(), 112 | code::NO_SUCH_TRANSACTION | code::STALE_CONFIG);
        if !again || attempt >= ATTEMPTS_MAX {
            return Err(failure);
        }
    }
}

async fn attempt_once(operation: &Operation, namespace: &str) -> Result<Vec<u8>, Failure> {
    let body = match send(operation, namespace).await {
        Ok(reply) => reply.public(),
        Err(Failure::Shard(error)) if error.code() == code::WOULD_CHANGE_OWNING_SHARD => {
            change_shard(operation, namespace, &error).await?
        }
        Err(failure) => return Err(failure),
    };
    commit_own(operation).await?;
    Ok(body)
}

async fn change_shard(operation: &Operation, namespace: &str, error: &Reply) -> Result<Vec<u8>, Failure> {
    let Some(change) = Change::from_error(error) else {
        return Err(Failure::Shard(error.clone()));
    };
    let changed = move_document(operation, namespace, &change).await?;
    Ok(reply(operation, &change, changed))
}

fn reply(operation: &Operation, change: &Change, changed: Changed) -> Vec<u8> {
    let moved = changed == Changed::Moved;
    let mut body = Builder::new();
    body.open(ElementType::EmbeddedDocument, b"lastErrorObject");
    body.int32("n", i32::from(moved))
        .boolean("updatedExisting", moved && !change.upsert);
    let id = Doc::new(&change.after).ok().and_then(|after| after.get("_id").ok()?);
    if let (true, Some(id)) = (change.upsert, id) {
        body.append(id.kind, b"upserted", id.value);
    }
    body.close();
    let wants_new = operation.command.flag("new", false) || operation.command.flag("returnNewDocument", false);
    let value = match (moved, wants_new, change.upsert) {
        (true, true, _) => Some(&change.after),
        (true, false, false) => Some(&change.before),
        _ => None,
    };
    match value {
        Some(value) => body.append(ElementType::EmbeddedDocument, b"value", value),
        None => body.append(ElementType::Null, b"value", &[]),
    };
    body.double("ok", 1.0);
    body.finish()
}
