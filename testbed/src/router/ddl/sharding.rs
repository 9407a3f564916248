//! enableSharding, shardCollection, split, moveChunk, and what lists and steers the shards themselves.

use std::sync::Arc;

use bson::{Bson, Document, Timestamp, doc};

use super::collection::{collection_name, in_database};
use super::{body_of, create_database, database_for_write, decode, field, on_config, on_primary_shard};
use crate::router::error::{Failure, code, is_stale, refuse};
use crate::router::operation::{Access, Operation, ShardCommand};
use crate::router::raw::Doc;
use crate::router::reply::{self, encode};
use crate::router::routing::{Chunk, Collection, Routing, Version, exact_point};

/// `enableSharding`.
pub async fn enable(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let command = &operation.command;
    let Some(db) = command.text(&command.name) else {
        return refuse(code::FAILED_TO_PARSE, "enableSharding needs a database name");
    };
    create_database(operation, db, command.text("primaryShard")).await?;
    Ok(reply::ok())
}

/// `shardCollection`: the database's primary shard does it.
pub async fn shard(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let namespace = operation.command.full_namespace()?;
    let db = namespace.split_once('.').map_or("", |(db, _)| db);
    let Some(key) = operation.command.nested("key") else {
        return refuse(
            40414,
            "BSON field 'shardCollection.key' is missing but a required field",
        );
    };
    database_for_write(operation, db).await?;
    let mut command = doc! { "_shardsvrCreateCollection": collection_name(&namespace), "shardKey": decode(key) };
    command.insert("unique", operation.command.flag("unique", false));
    for name in [
        "numInitialChunks",
        "presplitHashedZones",
        "collation",
        "timeseries",
        "implicitlyCreateIndex",
        "enforceUniquenessCheck",
    ] {
        if let Some(value) = field(operation, name) {
            command.insert(name, value);
        }
    }
    let sharded = in_database(operation, db, &command).await;
    operation.router.catalog.invalidate(&namespace);
    let uuid = decode(sharded?.doc()).remove("collectionUUID");
    let mut answer = doc! { "collectionsharded": &namespace };
    if let Some(uuid) = uuid {
        answer.insert("collectionUUID", uuid);
    }
    Ok(reply::from_document(answer))
}

/// `refineCollectionShardKey`: the database's primary shard does it.
pub async fn refine(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let (namespace, key) = namespace_and_key(operation).await?;
    let (db, name) = namespace.split_once('.').unwrap_or_default();
    let request = doc! { "_shardsvrRefineCollectionShardKey": name, "newShardKey": key };
    let refined = in_database(operation, db, &request).await;
    operation.router.catalog.invalidate(&namespace);
    refined.map(|_| reply::ok())
}

/// `reshardCollection`: the database's primary shard has the config server do it, which has all documents copied.
pub async fn reshard(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let (namespace, key) = namespace_and_key(operation).await?;
    let db = namespace.split_once('.').map_or("", |(db, _)| db);
    let mut request = doc! { "_shardsvrReshardCollection": &namespace, "key": key };
    for option in ["unique", "collation", "zones", "numInitialChunks"] {
        if let Some(value) = field(operation, option) {
            request.insert(option, value);
        }
    }
    // It stands alone among the shards' commands: sent to the primary shard of the database, but in `admin`.
    let mut in_admin = operation.own();
    in_admin.command.db = "admin".to_owned();
    in_admin.command.txn_number = None;
    let resharded = on_primary_shard(&in_admin, db, &body_of(&request)).await;
    operation.router.catalog.invalidate(&namespace);
    resharded.map(|_| reply::ok())
}

/// The sharded collection that the command names, and its `key`.
async fn namespace_and_key(operation: &Operation) -> Result<(String, Document), Failure> {
    let namespace = operation.command.full_namespace()?;
    let Some(key) = operation.command.nested("key") else {
        let text = format!(
            "BSON field '{}.key' is missing but a required field",
            operation.command.name
        );
        return refuse(40414, text);
    };
    sharded(operation, &namespace).await?;
    Ok((namespace, decode(key)))
}

/// `split` at a middle key, or the middle of the chunk that `find` or `bounds` names.
pub async fn split(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let namespace = operation.command.full_namespace()?;
    let mut attempt = 0;
    loop {
        attempt += 1;
        let collection = sharded(operation, &namespace).await?;
        let chunk = match operation.command.nested("middle") {
            Some(middle) => chunk_of_key(&collection, middle)?,
            None => named_chunk(operation, &collection)?,
        };
        let middle = match operation.command.nested("middle") {
            Some(middle) => decode(middle),
            None => middle_of(operation, &namespace, &collection, chunk).await?,
        };
        if chunk.bounds.0 == encode(&middle) {
            return refuse(
                code::INVALID_OPTIONS,
                format!("new split key {middle} is a boundary key of existing chunk"),
            );
        }
        let command = split_command(&namespace, &collection, chunk, middle);
        let answer = on_shard_admin(operation, &chunk.shard, &command).await;
        operation.router.catalog.invalidate(&namespace);
        match answer {
            Err(failure) if is_stale(failure.code()) && attempt < 10 => (),
            answer => return answer.map(|()| reply::ok()),
        }
    }
}

fn split_command(namespace: &str, collection: &Collection, chunk: &Chunk, middle: Document) -> Document {
    let bound = |bytes: &[u8]| Doc::new(bytes).map(decode).unwrap_or_default();
    doc! {
        "splitChunk": namespace, "from": chunk.shard.as_ref(), "keyPattern": bound(&collection.key.pattern),
        "epoch": collection.epoch, "timestamp": timestamp(collection.timestamp),
        "min": bound(&chunk.bounds.0), "max": bound(&chunk.bounds.1), "splitKeys": [middle],
    }
}

async fn middle_of(
    operation: &Operation,
    namespace: &str,
    collection: &Collection,
    chunk: &Chunk,
) -> Result<Document, Failure> {
    let bound = |bytes: &[u8]| Doc::new(bytes).map(decode).unwrap_or_default();
    let command = doc! {
        "splitVector": namespace, "keyPattern": bound(&collection.key.pattern),
        "min": bound(&chunk.bounds.0), "max": bound(&chunk.bounds.1), "force": true,
    };
    let reply = call_admin(operation, &chunk.shard, &command).await?;
    let keys = decode(reply.doc()).remove("splitKeys");
    match keys {
        Some(Bson::Array(keys)) if !keys.is_empty() => match keys.into_iter().next() {
            Some(Bson::Document(key)) => Ok(key),
            _ => refuse(code::INTERNAL_ERROR, "splitVector gave no key"),
        },
        _ => refuse(
            code::INTERNAL_ERROR,
            "can't split: the chunk holds a single key value or not enough documents",
        ),
    }
}

/// `moveChunk` and `moveRange`: the config server has the shards do it.
pub async fn move_chunk(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let command = &operation.command;
    let namespace = command.full_namespace()?;
    let Some(to) = command.text("to").or(command.text("toShard")) else {
        return refuse(40414, "BSON field 'moveChunk.to' is missing but a required field");
    };
    operation.router.catalog.load_shards(&operation.router.link()).await?;
    operation.shard(to)?;
    let mut attempt = 0;
    loop {
        attempt += 1;
        operation.router.catalog.invalidate(&namespace);
        let collection = sharded(operation, &namespace).await?;
        let request = move_command(operation, &namespace, &collection, to)?;
        let moved = match request {
            Some(request) => on_config(operation, request).await,
            None => return Ok(reply::from_document(doc! { "millis": 0 })),
        };
        operation.router.catalog.invalidate(&namespace);
        match moved {
            Err(Failure::Stale(_)) if attempt < 10 => (),
            moved => return moved.map(|_| reply::from_document(doc! { "millis": 0 })),
        }
    }
}

/// `None` if the range is there already.
fn move_command(
    operation: &Operation,
    namespace: &str,
    collection: &Collection,
    to: &str,
) -> Result<Option<Document>, Failure> {
    let command = &operation.command;
    let mut request = doc! {
        "_configsvrMoveRange": namespace, "epoch": collection.epoch,
        "collectionTimestamp": timestamp(collection.timestamp), "toShard": to,
    };
    let chunk = match (command.nested("min"), command.nested("max")) {
        (None, None) => named_chunk(operation, collection)?,
        (min, max) => {
            let ends = [("min", min), ("max", max)];
            request.extend(
                ends.into_iter()
                    .filter_map(|(name, end)| Some((name.to_owned(), decode(end?).into()))),
            );
            let point = collection.key.bound(min.or(max).unwrap_or_else(Doc::empty))?;
            collection.chunk_at(&point)
        }
    };
    if chunk.shard.as_ref() == to {
        return Ok(None);
    }
    if !request.contains_key("min") && !request.contains_key("max") {
        request.insert("min", decode(Doc::new(&chunk.bounds.0)?));
        request.insert("max", decode(Doc::new(&chunk.bounds.1)?));
    }
    let waits = command.flag("_waitForDelete", command.flag("waitForDelete", false));
    let force = if command.flag("forceJumbo", false) { 1 } else { 0 };
    request.extend(doc! { "forceJumbo": force, "waitForDelete": waits });
    if let Some(secondary_throttle) = field(operation, "_secondaryThrottle").or(field(operation, "secondaryThrottle")) {
        request.insert("secondaryThrottle", secondary_throttle);
    }
    Ok(Some(request))
}

/// The chunk that `find` (a query on the shard key) or `bounds` (its two ends) names.
fn named_chunk<'a>(operation: &Operation, collection: &'a Collection) -> Result<&'a Chunk, Failure> {
    let command = &operation.command;
    if let Some(query) = command.nested("find") {
        return match exact_point(&collection.key, query) {
            Some(point) => Ok(collection.chunk_at(&point)),
            None => refuse(code::SHARD_KEY_NOT_FOUND, "no shard key found in chunk query"),
        };
    }
    let bounds = command.nested("bounds");
    let min = bounds.and_then(|bounds| bounds.elements().next()?.ok());
    let Some(min) = min.and_then(|min| min.as_document_or_array().ok().flatten()) else {
        return refuse(code::INVALID_OPTIONS, "need to specify find, bounds or middle");
    };
    let point = collection.key.bound(min)?;
    let chunk = collection.chunk_at(&point);
    match chunk.min == point {
        true => Ok(chunk),
        false => refuse(code::INVALID_OPTIONS, "no chunk found with the shard key bounds given"),
    }
}

fn chunk_of_key<'a>(collection: &'a Collection, key: Doc<'_>) -> Result<&'a Chunk, Failure> {
    let point = collection.key.bound(key)?;
    match point.len() == collection.key.fields.len() {
        true => Ok(collection.chunk_at(&point)),
        false => refuse(code::SHARD_KEY_NOT_FOUND, "the split key doesn't fit the shard key"),
    }
}

/// The collection as the config server knows it now.
async fn sharded(operation: &Operation, namespace: &str) -> Result<Arc<Collection>, Failure> {
    let router = &operation.router;
    router.catalog.invalidate(namespace);
    match router.catalog.routing(&router.link(), namespace).await? {
        Some(Routing::Sharded(collection)) => Ok(collection),
        _ => refuse(
            code::NAMESPACE_NOT_SHARDED,
            format!("Collection {namespace} is not sharded."),
        ),
    }
}

async fn call_admin(operation: &Operation, shard: &str, command: &Document) -> Result<reply::Reply, Failure> {
    let mut own = operation.own();
    own.command.db = "admin".to_owned();
    own.command.txn_number = None;
    let command = ShardCommand {
        shard: shard.to_owned(),
        version: Version::Unchecked,
        body: body_of(command),
        sequence: None,
        access: Access::Plain,
    };
    own.call(command).await?.0.success()
}

async fn on_shard_admin(operation: &Operation, shard: &str, command: &Document) -> Result<(), Failure> {
    call_admin(operation, shard, command).await.map(|_| ())
}

/// `listShards`.
pub async fn list(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let router = &operation.router;
    let shards = router
        .catalog
        .find(&router.link(), "shards", doc! {}, doc! { "_id": 1 })
        .await?;
    let shards: Vec<Document> = shards
        .iter()
        .filter_map(|shard| Doc::new(shard).ok())
        .map(decode)
        .collect();
    Ok(reply::from_document(doc! { "shards": shards }))
}

/// `addShard`.
pub async fn add(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let command = &operation.command;
    let mut request = doc! { "_configsvrAddShard": command.text(&command.name).unwrap_or_default() };
    for name in ["name", "maxSize"] {
        if let Some(value) = field(operation, name) {
            request.insert(name, value);
        }
    }
    let added = on_config(operation, request).await?;
    operation.router.catalog.load_shards(&operation.router.link()).await?;
    Ok(added.public())
}

/// `removeShard`: starts draining, or tells how far it is.
pub async fn remove(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let command = &operation.command;
    let request = doc! { "_configsvrRemoveShard": command.text(&command.name).unwrap_or_default() };
    Ok(on_config(operation, request).await?.public())
}

/// `balancerStart`, `balancerStop`, `balancerStatus`: these take no write concern.
pub async fn balancer(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let name = match operation.command.name.as_str() {
        "balancerStart" => "_configsvrBalancerStart",
        "balancerStop" => "_configsvrBalancerStop",
        _ => "_configsvrBalancerStatus",
    };
    let router = &operation.router;
    let reply = router
        .catalog
        .run(&router.link(), &doc! { name: 1, "$db": "admin" })
        .await?;
    Ok(reply.success()?.public())
}

/// The zone commands.
pub async fn zone(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let command = &operation.command;
    let own = match command.name.as_str() {
        "addShardToZone" => "_configsvrAddShardToZone",
        "removeShardFromZone" => "_configsvrRemoveShardFromZone",
        _ => "_configsvrUpdateZoneKeyRange",
    };
    let mut request = doc! { own: field(operation, &command.name).unwrap_or(Bson::Null) };
    for name in ["zone", "min", "max"] {
        if let Some(value) = field(operation, name) {
            request.insert(name, value);
        }
    }
    Ok(on_config(operation, request).await?.public())
}

/// `flushRouterConfig`.
pub async fn flush(operation: &Operation) -> Result<Vec<u8>, Failure> {
    operation.router.catalog.clear();
    operation.router.catalog.load_shards(&operation.router.link()).await?;
    Ok(reply::from_document(doc! { "flushed": true }))
}

/// `getShardMap`.
pub async fn map(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let catalog = &operation.router.catalog;
    catalog.load_shards(&operation.router.link()).await?;
    let (mut map, mut hosts, mut strings) = (Document::new(), Document::new(), Document::new());
    let config = std::iter::once(Arc::clone(&catalog.config));
    for shard in catalog.shards.all().into_iter().chain(config) {
        map.insert(&shard.name, shard.connection_string());
        strings.insert(shard.connection_string(), &shard.name);
        hosts.extend(
            shard
                .members()
                .into_iter()
                .map(|host| (host, shard.name.clone().into())),
        );
    }
    Ok(reply::from_document(
        doc! { "map": map, "hosts": hosts, "connStrings": strings },
    ))
}

fn timestamp(value: u64) -> Timestamp {
    Timestamp {
        time: (value >> 32) as u32,
        increment: value as u32,
    }
}
