//! Rewrites a client's command into a form that needs the same rights and can't write, so that the server itself can refuse it.
//!
//! If Keyward sent the command unchanged, the server could accept it because the privilege was granted just now. It would then bypass
//! the constraints.

use bson::spec::ElementType;

use super::RightsError;
use super::needs::{Actions, Need};
use crate::classify::Write;
use crate::command::running::{API, append_fields};
use crate::raw::{Builder, Doc, Malformed};
use crate::server::code;
use crate::upstream::{Connection, Reply};
use crate::wire::{Draft, OpMsg};

/// The server's answers to the harmless form of a `findAndModify` if the client has the privileges: an array can't be an `_id`, and a
/// query that no document meets names no shard.
pub const OF_WHO_MAY: [i32; 3] = [
    code::INVALID_ID_FIELD,
    code::NOT_SINGLE_VALUE_FIELD,
    code::SHARD_KEY_NOT_FOUND,
];

/// Fields that would make the command part of a transaction or a session, make it wait, or count its statements.
const LEFT_OUT: [&[u8]; 10] = [
    b"txnNumber",
    b"autocommit",
    b"startTransaction",
    b"startOrContinueTransaction",
    b"coordinator",
    b"stmtId",
    b"stmtIds",
    b"readConcern",
    b"writeConcern",
    b"arrayFilters",
];

/// Sends the harmless form of `write` and returns the server's reply.
///
/// # Errors
/// [`RightsError`] if the connection can't be used any more.
pub async fn send(
    write: &Write<'_>,
    message: &OpMsg<'_>,
    missing: &Need<'_>,
    upstream: &mut Connection,
) -> Result<Reply, RightsError> {
    let body = message.body;
    let upserts = missing.actions.contain(Actions::INSERT);
    let (name, statement) = match write {
        Write::Insert(_) => ("documents", document()),
        Write::Update(_) => ("updates", update(upserts)),
        Write::Delete(_) => ("deletes", delete()),
        Write::FindAndModify(_) => {
            let command = find_and_modify(body)?;
            return Ok(upstream.request(&Draft::of_body(&command)).await?);
        }
        // Its statements are sent one by one; the first of a kind that is missing says what is.
        Write::BulkWrite | Write::Drop(_) | Write::ShardKeyChange | Write::DropDatabase { .. } => {
            let (command, name, statement) = of_bulk(body, missing)?;
            return request(&command, name, &statement, upstream).await;
        }
    };
    let command = without(body, &[name.as_bytes()])?.finish();
    request(&command, name, &statement, upstream).await
}

async fn request(
    command: &[u8],
    name: &str,
    statement: &[u8],
    upstream: &mut Connection,
) -> Result<Reply, RightsError> {
    let draft = Draft::with_documents(command, name, [statement]);
    Ok(upstream.request(&draft).await?)
}

/// The body without what could have an effect, and without `fields`.
fn without(body: Doc<'_>, fields: &[&[u8]]) -> Result<Builder, Malformed> {
    let mut rest = Builder::new();
    rest.elements_where(body, |element| {
        !LEFT_OUT.contains(&element.name) && !fields.contains(&element.name)
    })?;
    Ok(rest)
}

/// A document that no collection takes.
fn document() -> Vec<u8> {
    let mut document = Builder::new();
    document.open(ElementType::Array, b"_id").close();
    document.finish()
}

/// A query that no document meets, and that needs none to be looked at. A router that knows it for false may ask all shards or
/// none: nothing that a shard remembers is asked for here.
fn nothing() -> Vec<u8> {
    let mut query = Builder::new();
    query
        .open(ElementType::EmbeddedDocument, b"_id")
        .open(ElementType::Array, b"$in")
        .close()
        .close();
    query.finish()
}

fn update(upserts: bool) -> Vec<u8> {
    let mut update = Builder::new();
    append(&mut update, b"q", &nothing());
    append(&mut update, b"u", &document());
    update.boolean("upsert", upserts);
    update.finish()
}

fn delete() -> Vec<u8> {
    let mut delete = Builder::new();
    append(&mut delete, b"q", &nothing());
    delete.int32("limit", 0);
    delete.finish()
}

/// The harmless form of a `findAndModify`: its query matches nothing. Most other fields stay in place, so that the server shows the
/// command nearly as the client sent it.
fn find_and_modify(body: Doc<'_>) -> Result<Vec<u8>, Malformed> {
    let mut command = Builder::new();
    let mut has_query = false;
    for element in body.elements() {
        let element = element?;
        match element.name {
            b"query" => {
                has_query = true;
                append(&mut command, b"query", &nothing());
            }
            b"update" => append(&mut command, b"update", &document()),
            name if LEFT_OUT.contains(&name) => {}
            _ => {
                command.element(&element);
            }
        }
    }
    if !has_query {
        append(&mut command, b"query", &nothing());
    }
    Ok(command.finish())
}

/// The statement of a `bulkWrite` that needs what is missing.
fn of_bulk<'n>(body: Doc<'_>, missing: &Need<'_>) -> Result<(Vec<u8>, &'n str, Vec<u8>), Malformed> {
    let actions = missing.actions;
    let (command, name, statement) = if actions.contain(Actions::UPDATE) {
        ("update", "updates", update(actions.contain(Actions::INSERT)))
    } else if actions.contain(Actions::REMOVE) {
        ("delete", "deletes", delete())
    } else {
        ("insert", "documents", document())
    };
    let mut harmless = Builder::new();
    harmless.string(command, missing.collection);
    append_fields(&mut harmless, body, &["bypassDocumentValidation", "lsid"])?;
    append_fields(&mut harmless, body, &API)?;
    append_fields(&mut harmless, body, &["$clusterTime"])?;
    harmless.string("$db", missing.database);
    Ok((harmless.finish(), name, statement))
}

fn append(to: &mut Builder, name: &[u8], document: &[u8]) {
    to.append(ElementType::EmbeddedDocument, name, document);
}
