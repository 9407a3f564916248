//! Commands that make, change, list and drop databases, collections and indexes, and those that shard them: what a
//! `mongos` asks of config server and shards, asked of them in the same way.

mod collection;
mod index;
mod list;
mod sharding;

pub use list::everywhere as on_each_shard;

use bson::{Bson, Document, doc};

use super::error::{Failure, ServerError, code};
use super::operation::{Access, Operation, ShardCommand};
use super::raw::{Builder, Doc};
use super::reply::{Reply, encode};
use super::routing::{Database, Version};

/// Runs the command if it is one of these.
pub async fn run(operation: &Operation, name: &str) -> Option<Result<Vec<u8>, Failure>> {
    Some(match name {
        "create" => collection::create(operation).await,
        "drop" => collection::drop(operation).await,
        "dropDatabase" => collection::drop_database(operation).await,
        "collMod" => collection::modify(operation).await,
        "renameCollection" => collection::rename(operation).await,
        "convertToCapped" | "cloneCollectionAsCapped" => collection::on_primary(operation).await,
        "createIndexes" => index::create(operation).await,
        "dropIndexes" | "deleteIndexes" => index::drop(operation).await,
        "listIndexes" => index::list(operation).await,
        "validate" => index::validate(operation).await,
        "collStats" | "collstats" => list::collection_stats(operation).await,
        "dbStats" | "dbstats" => list::database_stats(operation).await,
        "dataSize" => list::data_size(operation).await,
        "listDatabases" => list::databases(operation).await,
        "listCollections" => list::collections(operation).await,
        "enableSharding" | "enablesharding" => sharding::enable(operation).await,
        "shardCollection" | "shardcollection" => sharding::shard(operation).await,
        "refineCollectionShardKey" => sharding::refine(operation).await,
        "reshardCollection" => sharding::reshard(operation).await,
        "split" => sharding::split(operation).await,
        "moveChunk" | "movechunk" | "moveRange" => sharding::move_chunk(operation).await,
        "listShards" | "listshards" => sharding::list(operation).await,
        "addShard" | "addshard" => sharding::add(operation).await,
        "removeShard" | "removeshard" => sharding::remove(operation).await,
        "balancerStart" | "balancerStop" | "balancerStatus" => sharding::balancer(operation).await,
        "addShardToZone" | "removeShardFromZone" | "updateZoneKeyRange" => sharding::zone(operation).await,
        "flushRouterConfig" | "flushrouterconfig" => sharding::flush(operation).await,
        "getShardMap" => sharding::map(operation).await,
        _ => return None,
    })
}

/// Creates a database on a shard that the config server chooses, unless `primary` names one; no error if it is there.
///
/// # Errors
/// What the config server says.
pub async fn create_database(operation: &Operation, db: &str, primary: Option<&str>) -> Result<(), Failure> {
    let mut command = doc! { "_configsvrCreateDatabase": db };
    if let Some(primary) = primary {
        command.insert("primaryShardId", primary);
    }
    on_config(operation, command).await?;
    operation.router.catalog.invalidate_database(db);
    Ok(())
}

/// Runs a command on the config server, with the write concern that its metadata commands demand.
///
/// # Errors
/// What it says.
pub async fn on_config(operation: &Operation, mut command: Document) -> Result<Reply, Failure> {
    command.insert("writeConcern", doc! { "w": "majority", "wtimeout": 60_000 });
    command.insert("$db", "admin");
    let router = &operation.router;
    router.catalog.run(&router.link(), &command).await?.success()
}

/// The database, created if it isn't there.
///
/// # Errors
/// What the config server says.
pub async fn database_for_write(operation: &Operation, db: &str) -> Result<Database, Failure> {
    let catalog = &operation.router.catalog;
    let link = operation.router.link();
    if let Some(database) = catalog.database(&link, db).await? {
        return Ok(database);
    }
    create_database(operation, db, None).await?;
    let found = catalog.database(&link, db).await?;
    found.ok_or_else(|| missing_database(db))
}

/// The database if it is there.
///
/// # Errors
/// The failure to read the config server.
pub async fn database(operation: &Operation, db: &str) -> Result<Option<Database>, Failure> {
    operation.router.catalog.database(&operation.router.link(), db).await
}

fn missing_database(db: &str) -> Failure {
    ServerError::new(code::NAMESPACE_NOT_FOUND, format!("database {db} not found")).into()
}

/// Runs one of the shards' own commands on a database's primary shard, which acts on all shards; again if the database has moved.
///
/// # Errors
/// What the shard says.
pub async fn on_primary_shard(operation: &Operation, db: &str, body: &Builder) -> Result<Reply, Failure> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let Some(database) = database(operation, db).await? else {
            return Err(missing_database(db));
        };
        let command = ShardCommand {
            shard: database.primary.to_string(),
            version: Version::Database {
                database: database.version,
            },
            body: body.clone(),
            sequence: None,
            access: Access::Write,
        };
        match operation.call(command).await?.0.success() {
            Err(Failure::Stale(why)) if attempt >= 10 => return Err(Failure::Shard(Reply::new(why))),
            Err(Failure::Stale(_)) => operation.router.catalog.invalidate_database(db),
            answer => return answer,
        }
    }
}

/// Starts a shards' command from a document of the router's own.
pub fn body_of(command: &Document) -> Builder {
    Builder::from_document(&encode(command))
}

/// A field of the client's command as a value of the `bson` crate; `None` if it isn't there or can't be one.
pub fn field(operation: &Operation, name: &str) -> Option<Bson> {
    let element = operation.command.get(name)?;
    let mut single = Builder::new();
    single.append(element.kind, b"v", element.value);
    Document::from_reader(single.finish().as_slice()).ok()?.remove("v")
}

/// Decodes a document of the shards' or the config server's making.
pub fn decode(document: Doc<'_>) -> Document {
    Document::from_reader(document.bytes()).unwrap_or_default()
}
