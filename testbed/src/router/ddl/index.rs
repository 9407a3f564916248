//! createIndexes, dropIndexes, listIndexes, validate: on every shard that owns chunks, with the shard's version, so that
//! each checks for itself what a sharded collection forbids.

use std::sync::Arc;

use bson::spec::ElementType;

use super::collection::collection_name;
use super::{database_for_write, on_primary_shard};
use crate::router::attempts::Attempts;
use crate::router::error::{Failure, code, is_stale, refuse};
use crate::router::operation::{Access, Operation, ShardCommand};
use crate::router::raw::{Builder, Doc};
use crate::router::read::keep_shards_cursor;
use crate::router::reply::Reply;
use crate::router::routing::Routing;

/// `createIndexes`.
pub async fn create(operation: &Operation) -> Result<Vec<u8>, Failure> {
    database_for_write(operation, &operation.command.db).await?;
    on_owners(operation, &operation.command.forward(&[]), Access::Write).await
}

/// `validate`.
pub async fn validate(operation: &Operation) -> Result<Vec<u8>, Failure> {
    on_owners(operation, &operation.command.forward(&[]), Access::Plain).await
}

/// `dropIndexes`.
pub async fn drop(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let namespace = operation.command.namespace()?;
    let Some(index) = operation.command.get("index") else {
        return refuse(40414, "BSON field 'dropIndexes.index' is missing but a required field");
    };
    let mut body = Builder::new();
    body.string("_shardsvrDropIndexes", collection_name(&namespace).as_bytes());
    body.element(&index);
    let reply = on_primary_shard(operation, &operation.command.db, &body).await?;
    Ok(reply.public())
}

/// `listIndexes`: of one shard that owns chunks, as all have the same.
pub async fn list(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let namespace = operation.command.namespace()?;
    let mut attempts = Attempts::new(operation, &namespace);
    loop {
        let Some(routing) = attempts.routing().await? else {
            return refuse(code::NAMESPACE_NOT_FOUND, format!("ns does not exist: {namespace}"));
        };
        let shard = match &routing {
            Routing::Unsharded { shard, .. } => Arc::clone(shard),
            Routing::Sharded(collection) => Arc::clone(&collection.chunks[0].shard),
        };
        let command = ShardCommand {
            shard: shard.to_string(),
            version: routing.version(&shard),
            body: operation.command.forward(&[]),
            sequence: None,
            access: Access::Plain,
        };
        let (reply, host) = operation.call(command).await?;
        match reply.success() {
            Err(Failure::Stale(why)) => attempts.stale(&routing, why).await?,
            reply => return Ok(keep_shards_cursor(operation, &reply?, &shard, &host)),
        }
    }
}

/// Runs a command on every shard that owns chunks; the reply holds each one's own under `raw`.
async fn on_owners(operation: &Operation, body: &Builder, access: Access) -> Result<Vec<u8>, Failure> {
    let namespace = operation.command.namespace()?;
    let mut attempts = Attempts::new(operation, &namespace);
    loop {
        let Some(routing) = attempts.routing().await? else {
            return refuse(code::NAMESPACE_NOT_FOUND, format!("ns does not exist: {namespace}"));
        };
        let shards = routing.shards();
        let command = |shard: &Arc<str>| ShardCommand {
            shard: shard.to_string(),
            version: routing.version(shard),
            body: body.clone(),
            sequence: None,
            access,
        };
        let answers = operation.call_all(shards.iter().map(command).collect()).await;
        let replies: Vec<Reply> = answers
            .into_iter()
            .map(|answer| answer.map(|(reply, _)| reply))
            .collect::<Result<_, _>>()?;
        if let Some(stale) = replies.iter().find(|reply| !reply.is_ok() && is_stale(reply.code())) {
            attempts.stale(&routing, stale.bytes().clone()).await?;
            continue;
        }
        return merge(operation, &shards, &replies);
    }
}

fn merge(operation: &Operation, shards: &[Arc<str>], replies: &[Reply]) -> Result<Vec<u8>, Failure> {
    let mut merged = Builder::new();
    merged.open(ElementType::EmbeddedDocument, b"raw");
    for (shard, reply) in shards.iter().zip(replies) {
        let name = operation.shard(shard)?.connection_string();
        merged.document(&name, Doc::new(&reply.public())?);
    }
    merged.close();
    let failed = replies.iter().find(|reply| !reply.is_ok());
    merged.double("ok", f64::from(u8::from(failed.is_none())));
    if let Some(failed) = failed {
        for name in ["code", "codeName", "errmsg", "keyPattern", "keyValue"] {
            if let Some(field) = failed.get(name) {
                merged.element(&field);
            }
        }
        return Err(Failure::Shard(Reply::new(merged.finish().into())));
    }
    Ok(merged.finish())
}
