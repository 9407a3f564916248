//! `currentOp` and `killOp`: what runs on the shards, each operation named by its shard and its number there.

use bson::{Bson, Document, doc};

use super::ddl::{decode, on_each_shard};
use super::error::{Failure, code, refuse};
use super::operation::{Access, Operation, ShardCommand};
use super::raw::{Builder, Doc};
use super::reply;
use super::routing::Version;

/// `currentOp`: the operations of all shards.
///
/// # Errors
/// What a shard says.
pub async fn list(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let mut all: Vec<Bson> = Vec::new();
    for (shard, reply) in on_each_shard(operation, &operation.command.forward(&[])).await? {
        let listed = reply.nested("inprog").unwrap_or_else(Doc::empty).elements().flatten();
        for one in listed.filter_map(|one| Doc::new(one.value).ok()).map(decode) {
            let mut named = doc! { "shard": &shard };
            named.extend(one);
            if let Some(number) = named.get("opid").map(ToString::to_string) {
                named.insert("opid", format!("{shard}:{number}"));
            }
            all.push(named.into());
        }
    }
    Ok(reply::from_document(doc! { "inprog": all }))
}

/// `killOp` of an operation of a shard.
///
/// # Errors
/// What a `mongos` says of an operation that names no shard, and what the shard says.
pub async fn kill(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let Some((shard, number)) = operation.command.text("op").and_then(|op| op.split_once(':')) else {
        return refuse(
            code::COMMAND_NOT_SUPPORTED,
            "this router ends only operations of shards",
        );
    };
    let router = &operation.router;
    router.catalog.load_shards(&router.link()).await?;
    if !router.catalog.shards.all().iter().any(|one| one.name == shard) {
        return refuse(code::SHARD_NOT_FOUND, format!("Could not find shard: {shard}"));
    }
    let Ok(number) = number.parse::<i32>() else {
        return refuse(code::FAILED_TO_PARSE, format!("Did not consume whole string: {number}"));
    };
    let mut body = Builder::new();
    body.int32("killOp", 1).int32("op", number).string("$db", b"admin");
    let command = ShardCommand {
        shard: shard.to_owned(),
        version: Version::Unchecked,
        body,
        sequence: None,
        access: Access::Plain,
    };
    operation.call(command).await?.0.success()?;
    let answer: Document = doc! { "shard": shard, "shardid": number };
    Ok(reply::from_document(answer))
}
