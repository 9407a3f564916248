//! create, drop, dropDatabase, collMod, renameCollection.

use bson::{Document, doc};

use super::{body_of, database, database_for_write, field, on_primary_shard};
use crate::router::error::{Failure, code, refuse};
use crate::router::operation::Operation;
use crate::router::raw::Builder;
use crate::router::reply::{self, Reply};

/// `create`: on the primary shard; in a transaction as part of it.
pub async fn create(operation: &Operation) -> Result<Vec<u8>, Failure> {
    database_for_write(operation, &operation.command.db).await?;
    let reply = on_primary_shard(operation, &operation.command.db, &operation.command.forward(&[])).await?;
    operation.router.catalog.invalidate(&operation.command.namespace()?);
    Ok(reply.public())
}

/// A command that the primary shard runs on an unsharded collection as it came.
pub async fn on_primary(operation: &Operation) -> Result<Vec<u8>, Failure> {
    Ok(
        on_primary_shard(operation, &operation.command.db, &operation.command.forward(&[]))
            .await?
            .public(),
    )
}

/// `drop`: everywhere, chunks included. Of what isn't there nothing is dropped.
pub async fn drop(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let namespace = operation.command.namespace()?;
    if database(operation, &operation.command.db).await?.is_none() {
        return Ok(reply::ok());
    }
    if operation.transaction.is_some() {
        return refuse(
            code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
            "Cannot run 'drop' in a multi-document transaction.",
        );
    }
    let mut command = doc! { "_shardsvrDropCollection": collection_name(&namespace) };
    if let Some(uuid) = field(operation, "collectionUUID") {
        command.insert("collectionUUID", uuid);
    }
    let body = body_of(&command);
    let reply = on_primary_shard(operation, &operation.command.db, &body).await;
    operation.router.catalog.invalidate(&namespace);
    Ok(reply?.public())
}

/// `dropDatabase`.
pub async fn drop_database(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let db = &operation.command.db;
    if database(operation, db).await?.is_some() {
        let dropped = on_primary_shard(operation, db, &body_of(&doc! { "_shardsvrDropDatabase": 1 })).await;
        operation.router.catalog.clear();
        match dropped {
            Err(failure) if failure.code() != code::NAMESPACE_NOT_FOUND => return Err(failure),
            _ => (),
        }
    }
    Ok(reply::from_document(doc! { "dropped": db }))
}

/// `collMod`: the primary shard changes the collection on every shard. What to change stands beside the command's name;
/// inside a field of its own it would be ignored (measured on 6.0.5).
pub async fn modify(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let namespace = operation.command.namespace()?;
    let mut body = Builder::new();
    body.string("_shardsvrCollMod", collection_name(&namespace).as_bytes());
    let request = operation
        .command
        .forward(&["collMod", "comment", "maxTimeMS", "$readPreference"]);
    for field in crate::router::raw::Doc::new(&request.finish())?.elements() {
        body.element(&field?);
    }
    let reply = on_primary_shard(operation, &operation.command.db, &body).await?;
    operation.router.catalog.invalidate(&namespace);
    Ok(reply.public())
}

/// `renameCollection`, within one database.
pub async fn rename(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let from = operation.command.full_namespace()?;
    let to = operation.command.text("to").unwrap_or_default().to_owned();
    let (Some((db, collection)), Some((to_db, _))) = (from.split_once('.'), to.split_once('.')) else {
        return refuse(code::INVALID_NAMESPACE, format!("Invalid target namespace: {to}"));
    };
    if db != to_db {
        return refuse(
            code::COMMAND_NOT_SUPPORTED,
            "renameCollection across databases is not supported by this router",
        );
    }
    let mut command = doc! { "_shardsvrRenameCollection": collection, "to": &to };
    command.insert("dropTarget", field(operation, "dropTarget").unwrap_or(false.into()));
    let reply = in_database(operation, db, &command).await;
    operation.router.catalog.invalidate(&from);
    operation.router.catalog.invalidate(&to);
    reply?;
    Ok(reply::ok())
}

/// Runs a shards' command in a database that isn't the client's current one.
pub async fn in_database(operation: &Operation, db: &str, command: &Document) -> Result<Reply, Failure> {
    let mut own = operation.own();
    own.command.db = db.to_owned();
    own.command.txn_number = None;
    on_primary_shard(&own, db, &body_of(command)).await
}

/// The part of a namespace after the database's name.
pub fn collection_name(namespace: &str) -> &str {
    namespace.split_once('.').map_or("", |(_, collection)| collection)
}
