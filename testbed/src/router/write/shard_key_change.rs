//! An update that gives a document another shard key value, so that it belongs on another shard: deleted here and inserted
//! there, in one transaction, as `mongos` does it.
//!
//! Inside a client's transaction it joins that; a retryable write gets a transaction of its own under its own number. A
//! crash in between leaves the document where it was.

use bson::spec::ElementType;
use bytes::Bytes;

use super::{Batch, Kind};
use crate::router::attempts::Attempts;
use crate::router::error::{Failure, code, refuse};
use crate::router::message::Sequence;
use crate::router::operation::{Access, Operation, ShardCommand};
use crate::router::raw::{Builder, Doc, Element};
use crate::router::reply::Reply;
use crate::router::routing::Routing;
use crate::router::transaction_end::{abort_participants, begin_own, commit_own, error_document};

/// How often the transaction of a retryable write is run when others interfere.
const ATTEMPTS_MAX: usize = 10;

/// A document before and after.
#[derive(Debug)]
pub struct Change {
    /// As it was.
    pub before: Vec<u8>,
    /// As it is to be.
    pub after: Vec<u8>,
    /// There is none yet: an upsert.
    pub upsert: bool,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// The document is on its new shard.
    Moved,
    /// The document wasn't there any more.
    Gone,
}

impl Change {
    /// Reads the error by which a shard asks for it.
    pub fn from_error(reply: &Reply) -> Option<Self> {
        Some(Change {
            before: error_document(reply, "preImage")?,
            after: error_document(reply, "postImage")?,
            upsert: reply.get("shouldUpsert").is_some_and(|flag| flag.is_truthy()),
        })
    }

    fn new_id(&self) -> Option<Element<'_>> {
        Doc::new(&self.after).ok()?.get("_id").ok()?
    }
}

/// Carries on with an `update` that a shard answered with WouldChangeOwningShard.
///
/// # Errors
/// What the deletion, the insertion or the commit fails with.
pub async fn update(batch: &Batch<'_>, error: &Reply) -> Result<Vec<u8>, Failure> {
    let Some(change) = Change::from_error(error) else {
        return Err(Failure::Shard(error.clone()));
    };
    if batch.operation.transaction.is_some() {
        let changed = move_document(batch.operation, batch.namespace, &change).await?;
        return Ok(reply(&change, changed));
    }
    in_own_transaction(batch).await
}

/// Runs the statement again, in a transaction, where it meets the same error, and moves the document there.
async fn in_own_transaction(batch: &Batch<'_>) -> Result<Vec<u8>, Failure> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let mut operation = batch.operation.own();
        begin_own(&mut operation, batch.operation.command.txn_number.unwrap_or(0));
        let outcome = attempt_once(batch, &operation).await;
        let Err(failure) = outcome else { return outcome };
        if let Some(session) = &operation.transaction {
            abort_participants(&operation, session).await;
        }
        let again = matches!(failure.code(), 112 | code::NO_SUCH_TRANSACTION | code::STALE_CONFIG);
        if !again || attempt >= ATTEMPTS_MAX {
            return Err(failure);
        }
    }
}

async fn attempt_once(batch: &Batch<'_>, operation: &Operation) -> Result<Vec<u8>, Failure> {
    let mut again = Batch {
        operation,
        kind: Kind::Update,
        namespace: batch.namespace,
        statements: batch.statements.clone(),
        statement_ids: batch.statement_ids.clone(),
        ordered: true,
    };
    let body = match again.run_to_the_end().await {
        Ok(outcome) => outcome.reply(Kind::Update)?,
        Err(Failure::Shard(error)) if error.code() == code::WOULD_CHANGE_OWNING_SHARD => {
            let change = Change::from_error(&error).ok_or(Failure::Shard(error))?;
            let changed = move_document(operation, batch.namespace, &change).await?;
            reply(&change, changed)
        }
        Err(failure) => return Err(failure),
    };
    commit_own(operation).await?;
    Ok(body)
}

/// Deletes the document where it was and inserts it where it belongs, within the operation's transaction.
///
/// # Errors
/// What either fails with: the transaction must then be aborted.
pub async fn move_document(operation: &Operation, namespace: &str, change: &Change) -> Result<Changed, Failure> {
    let collection = namespace.split_once('.').map_or("", |(_, collection)| collection);
    let attempts = Attempts::new(operation, namespace);
    let routing = attempts.routing_for_write().await?;
    let Routing::Sharded(table) = &routing else {
        return refuse(code::NAMESPACE_NOT_SHARDED, format!("{namespace} is not sharded"));
    };
    let owner_of = |document: &[u8]| -> Result<String, Failure> {
        let point = table.key.point(Doc::new(document)?)?;
        match point {
            Some(point) => Ok(table.chunk_at(&point).owner(operation.read_time()).to_string()),
            None => refuse(
                code::SHARD_KEY_NOT_FOUND,
                "Shard key cannot contain array values or array descendants.",
            ),
        }
    };
    if !change.upsert {
        let deletion = deletion(Doc::new(&change.before)?, &table.key.fields);
        let shard = owner_of(&change.before)?;
        let deleted = write(operation, &routing, shard, collection, Kind::Delete, deletion).await?;
        if deleted.number("n") == 0 {
            return Ok(Changed::Gone);
        }
    }
    let shard = owner_of(&change.after)?;
    write(
        operation,
        &routing,
        shard,
        collection,
        Kind::Insert,
        change.after.clone().into(),
    )
    .await?;
    Ok(Changed::Moved)
}

async fn write(
    operation: &Operation,
    routing: &Routing,
    shard: String,
    collection: &str,
    kind: Kind,
    statement: Bytes,
) -> Result<Reply, Failure> {
    let mut body = Builder::new();
    let name = if kind == Kind::Insert { "insert" } else { "delete" };
    body.string(name, collection.as_bytes());
    if kind == Kind::Insert {
        // The update's own validation has been done, or bypassed, where it ran.
        body.boolean("bypassDocumentValidation", true);
    }
    let command = ShardCommand {
        version: routing.version(&shard),
        shard,
        body,
        sequence: Some(Sequence {
            name: kind.field().to_owned(),
            documents: vec![statement],
        }),
        access: Access::Write,
    };
    let reply = operation.call(command).await?.0.success()?;
    match first_write_error(&reply) {
        Some(error) => Err(Failure::Shard(error)),
        None => Ok(reply),
    }
}

/// A write error in the form of a command's error.
fn first_write_error(reply: &Reply) -> Option<Reply> {
    let errors = reply.nested("writeErrors")?;
    let error = Doc::new(errors.elements().next()?.ok()?.value).ok()?;
    let mut as_reply = Builder::new();
    as_reply.double("ok", 0.0);
    for field in error.elements().flatten().filter(|field| field.name != b"index") {
        as_reply.element(&field);
    }
    Some(Reply::new(as_reply.finish().into()))
}

/// `{q: {_id, shard key}, limit: 1}` for a document.
fn deletion(document: Doc<'_>, fields: &[crate::router::routing::Field]) -> Bytes {
    let mut statement = Builder::new();
    statement.open(ElementType::EmbeddedDocument, b"q");
    let paths = fields
        .iter()
        .map(|field| field.path.as_str())
        .filter(|path| *path != "_id");
    for path in std::iter::once("_id").chain(paths) {
        if let Some(value) = crate::router::routing::value_at(document, path) {
            statement.open(ElementType::EmbeddedDocument, path.as_bytes());
            statement.append(value.kind, b"$eq", value.value);
            statement.close();
        }
    }
    statement.close();
    statement.int32("limit", 1);
    statement.finish().into()
}

fn reply(change: &Change, changed: Changed) -> Vec<u8> {
    let mut body = Builder::new();
    let n = i32::from(changed == Changed::Moved);
    body.int32("n", n);
    body.int32("nModified", if change.upsert { 0 } else { n });
    if let (true, Some(id)) = (change.upsert, change.new_id()) {
        body.open(ElementType::Array, b"upserted");
        body.open(ElementType::EmbeddedDocument, b"0");
        body.int32("index", 0).append(id.kind, b"_id", id.value);
        body.close().close();
    }
    body.double("ok", 1.0);
    body.finish()
}
