//! listDatabases, listCollections, and the sizes of things, added up over the shards.

use std::collections::BTreeMap;

use bson::{Bson, Document, doc};

use super::{database, decode};
use crate::router::attempts::Attempts;
use crate::router::error::{Failure, code, refuse};
use crate::router::operation::{Access, Operation, ShardCommand};
use crate::router::raw::{Builder, Doc};
use crate::router::read::{cursor_reply, keep_shards_cursor};
use crate::router::reply::{self, Reply};
use crate::router::routing::{CONFIG, Routing, Version};

/// `listDatabases`: what the shards have, and `admin` and `config` from the config server.
pub async fn databases(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let names_only = operation.command.flag("nameOnly", false);
    let mut found: BTreeMap<String, (i64, bool, Document)> = BTreeMap::new();
    let body = operation.command.forward(&[]);
    for (shard, reply) in everywhere(operation, &body).await? {
        let listed = reply.nested("databases").unwrap_or_else(Doc::empty);
        for entry in listed
            .elements()
            .flatten()
            .filter_map(|entry| Doc::new(entry.value).ok())
            .map(decode)
        {
            let name = entry.get_str("name").unwrap_or_default().to_owned();
            if is_shards_own(&name) {
                continue;
            }
            let size = number(&entry, "sizeOnDisk");
            let empty = entry.get_bool("empty").unwrap_or(false);
            let sum = found.entry(name).or_insert_with(|| (0, true, Document::new()));
            *sum = (sum.0 + size, sum.1 && empty, std::mem::take(&mut sum.2));
            sum.2.insert(&shard, size);
        }
    }
    let config = on_config_db(operation).await?;
    let mut listed = Vec::new();
    for (name, (size, empty, shards)) in found {
        listed.push(entry(names_only, &name, size, empty, Some(shards)));
    }
    listed.extend(
        config
            .into_iter()
            .map(|(name, size)| entry(names_only, &name, size, false, None)),
    );
    listed.sort_by_key(|entry| {
        entry
            .as_document()
            .and_then(|entry| entry.get_str("name").ok())
            .map(str::to_owned)
    });
    let total: i64 = listed
        .iter()
        .filter_map(|entry| entry.as_document())
        .map(|entry| number(entry, "sizeOnDisk"))
        .sum();
    let mut answer = doc! { "databases": listed };
    if !names_only {
        answer.extend(doc! { "totalSize": total, "totalSizeMb": total / (1024 * 1024) });
    }
    Ok(reply::from_document(answer))
}

fn entry(names_only: bool, name: &str, size: i64, empty: bool, shards: Option<Document>) -> Bson {
    let mut entry = doc! { "name": name };
    if !names_only {
        entry.extend(doc! { "sizeOnDisk": size, "empty": empty });
        if let Some(shards) = shards {
            entry.insert("shards", shards);
        }
    }
    entry.into()
}

fn is_shards_own(name: &str) -> bool {
    matches!(name, "admin" | "config" | "local")
}

async fn on_config_db(operation: &Operation) -> Result<Vec<(String, i64)>, Failure> {
    let mut command = doc! { "listDatabases": 1 };
    if let Some(filter) = operation.command.nested("filter") {
        command.insert("filter", decode(filter));
    }
    command.insert("$db", "admin");
    let router = &operation.router;
    let reply = router.catalog.run(&router.link(), &command).await?.success()?;
    let listed = reply.nested("databases").unwrap_or_else(Doc::empty);
    let entries = listed
        .elements()
        .flatten()
        .filter_map(|entry| Doc::new(entry.value).ok())
        .map(decode);
    let named = entries.map(|entry| {
        (
            entry.get_str("name").unwrap_or_default().to_owned(),
            number(&entry, "sizeOnDisk"),
        )
    });
    Ok(named
        .filter(|(name, _)| matches!(name.as_str(), "admin" | "config"))
        .collect())
}

/// `listCollections`, of the primary shard.
pub async fn collections(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let db = &operation.command.db;
    let (shard, version) = match db.as_str() {
        "admin" | "config" | "local" => (CONFIG.to_owned(), Version::Unchecked),
        _ => match database(operation, db).await? {
            Some(database) => (database.primary.to_string(), Version::Unchecked),
            None => {
                return Ok(cursor_reply(
                    "firstBatch",
                    &[],
                    0,
                    &format!("{db}.$cmd.listCollections"),
                    None,
                ));
            }
        },
    };
    let command = ShardCommand {
        shard: shard.clone(),
        version,
        body: operation.command.forward(&[]),
        sequence: None,
        access: Access::Plain,
    };
    let (reply, host) = operation.call(command).await?;
    Ok(keep_shards_cursor(operation, &reply.success()?, &shard, &host))
}

/// `dbStats`: every shard's, added up.
pub async fn database_stats(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let replies = everywhere(operation, &operation.command.forward(&[])).await?;
    let mut answer = doc! { "raw": raw(operation, &replies)?, "db": &operation.command.db };
    for field in [
        "collections",
        "views",
        "objects",
        "dataSize",
        "storageSize",
        "totalFreeStorageSize",
        "indexes",
        "indexSize",
        "totalSize",
    ] {
        answer.insert(field, sum(&replies, field));
    }
    let objects = sum(&replies, "objects");
    answer.insert(
        "avgObjSize",
        if objects > 0.0 {
            sum(&replies, "dataSize") / objects
        } else {
            0.0
        },
    );
    answer.insert("scaleFactor", operation.command.number("scale").unwrap_or(1));
    Ok(reply::from_document(answer))
}

/// `collStats`: that of every shard that owns chunks, added up.
pub async fn collection_stats(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let namespace = operation.command.namespace()?;
    let attempts = Attempts::new(operation, &namespace);
    let Some(routing) = attempts.routing().await? else {
        return refuse(
            code::NAMESPACE_NOT_FOUND,
            format!("Database [{}] not found.", operation.command.db),
        );
    };
    let sharded = matches!(routing, Routing::Sharded(_));
    let mut replies = Vec::new();
    for shard in routing.shards() {
        let command = plain(&shard, operation.command.forward(&[]));
        replies.push((shard.to_string(), operation.call(command).await?.0.success()?));
    }
    let mut answer = doc! { "sharded": sharded, "ns": &namespace };
    for field in ["count", "size", "storageSize", "totalIndexSize", "totalSize"] {
        answer.insert(field, sum(&replies, field) as i64);
    }
    let count = sum(&replies, "count");
    answer.insert(
        "avgObjSize",
        if count > 0.0 {
            sum(&replies, "size") / count
        } else {
            0.0
        },
    );
    let first = replies
        .first()
        .map(|(_, reply)| decode(reply.doc()))
        .unwrap_or_default();
    for field in [
        "capped",
        "nindexes",
        "scaleFactor",
        "indexSizes",
        "indexDetails",
        "wiredTiger",
    ] {
        if let Some(value) = first.get(field) {
            answer.insert(field, value.clone());
        }
    }
    let mut shards = Document::new();
    for (shard, reply) in &replies {
        shards.insert(shard, decode(Doc::new(&reply.public())?));
    }
    answer.extend(doc! { "nchunks": chunk_count(&routing), "shards": shards });
    Ok(reply::from_document(answer))
}

fn chunk_count(routing: &Routing) -> i32 {
    match routing {
        Routing::Unsharded { .. } => 1,
        Routing::Sharded(collection) => collection.chunks.len() as i32,
    }
}

/// `dataSize`, of a collection on every shard that owns chunks.
pub async fn data_size(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let namespace = operation.command.full_namespace()?;
    let routing = operation
        .router
        .catalog
        .routing(&operation.router.link(), &namespace)
        .await?;
    let mut replies = Vec::new();
    for shard in routing.iter().flat_map(Routing::shards) {
        let command = plain(&shard, operation.command.forward(&[]));
        replies.push((shard.to_string(), operation.call(command).await?.0.success()?));
    }
    let mut answer = Document::new();
    for field in ["size", "numObjects", "millis"] {
        answer.insert(field, sum(&replies, field) as i64);
    }
    Ok(reply::from_document(answer))
}

/// The same command on every shard.
pub async fn everywhere(operation: &Operation, body: &Builder) -> Result<Vec<(String, Reply)>, Failure> {
    let router = &operation.router;
    router.catalog.load_shards(&router.link()).await?;
    let shards = router.catalog.shards.all();
    let commands = shards.iter().map(|shard| plain(&shard.name, body.clone())).collect();
    let answers = operation.call_all(commands).await;
    let pairs = shards.iter().zip(answers);
    pairs
        .map(|(shard, answer)| Ok((shard.name.clone(), answer?.0.success()?)))
        .collect()
}

fn plain(shard: &str, body: Builder) -> ShardCommand {
    ShardCommand {
        shard: shard.to_owned(),
        version: Version::Unchecked,
        body,
        sequence: None,
        access: Access::Plain,
    }
}

fn raw(operation: &Operation, replies: &[(String, Reply)]) -> Result<Document, Failure> {
    let mut raw = Document::new();
    for (shard, reply) in replies {
        raw.insert(
            operation.shard(shard)?.connection_string(),
            decode(Doc::new(&reply.public())?),
        );
    }
    Ok(raw)
}

fn sum(replies: &[(String, Reply)], field: &str) -> f64 {
    let value = |reply: &Reply| match decode(reply.doc()).get(field) {
        Some(Bson::Double(number)) => *number,
        Some(Bson::Int32(number)) => f64::from(*number),
        Some(Bson::Int64(number)) => *number as f64,
        _ => 0.0,
    };
    replies.iter().map(|(_, reply)| value(reply)).sum()
}

fn number(document: &Document, field: &str) -> i64 {
    match document.get(field) {
        Some(Bson::Int64(number)) => *number,
        Some(Bson::Int32(number)) => (*number).into(),
        Some(Bson::Double(number)) => *number as i64,
        _ => 0,
    }
}
