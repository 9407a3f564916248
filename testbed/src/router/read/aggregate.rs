//! `aggregate`: on the one shard that can answer it as it came; over several shards through the router that runs inside
//! every shard's server, which knows how to split and merge any pipeline.
//!
//! Inside a transaction that inner router can't be used (`lsid` with `txnNumber` crashes it, measured on 6.0.5): there a
//! pipeline over several shards is split here if its first stages work document by document, else refused.

use std::sync::Arc;

use bson::spec::ElementType;
use bytes::Bytes;

use super::change_stream;
use super::cursor::{Source, cursor_id, cursor_reply};
use super::find::first_reply;
use super::merge::Merged;
use super::{on_one, read_on, targets};
use crate::router::attempts::Attempts;
use crate::router::error::{Failure, code, refuse};
use crate::router::message::Outgoing;
use crate::router::operation::{Access, Operation, ShardCommand};
use crate::router::raw::{Builder, Doc};
use crate::router::reply::Reply;
use crate::router::routing::{CONFIG, Routing, Version};
use crate::router::shard::Preference;

/// As many documents as a first batch holds unless the client says otherwise.
const FIRST_BATCH: usize = 101;

/// Stages that read or write other collections, or the whole deployment.
const FAR_STAGES: [&[u8]; 14] = [
    b"$lookup",
    b"$graphLookup",
    b"$unionWith",
    b"$facet",
    b"$out",
    b"$merge",
    b"$changeStream",
    b"$currentOp",
    b"$listSessions",
    b"$listLocalSessions",
    b"$collStats",
    b"$indexStats",
    b"$planCacheStats",
    b"$shardedDataDistribution",
];

/// Stages that look at one document at a time: right on each shard by itself.
const LOCAL_STAGES: [&[u8]; 9] = [
    b"$match",
    b"$project",
    b"$addFields",
    b"$set",
    b"$unset",
    b"$unwind",
    b"$replaceRoot",
    b"$replaceWith",
    b"$redact",
];

/// Runs `aggregate`.
///
/// # Errors
/// What a shard says, or that the router can't run the pipeline.
pub async fn run(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let command = &operation.command;
    let pipeline = stages(command.nested("pipeline").unwrap_or_else(Doc::empty));
    let far = reaches_far(command.doc());
    if pipeline
        .first()
        .is_some_and(|first| is_one_of(first, &[b"$changeStream"]))
    {
        return change_stream::open(operation, &pipeline).await;
    }
    if command.text("aggregate").is_none() {
        return through_shards_router(operation, &format!("{}.$cmd.aggregate", command.db)).await;
    }
    let namespace = command.namespace()?;
    let query = pipeline.first().and_then(matched).unwrap_or_else(Doc::empty);
    let mut attempts = Attempts::new(operation, &namespace);
    loop {
        let Some(routing) = attempts.routing().await? else {
            return Ok(cursor_reply(
                "firstBatch",
                &[],
                0,
                &namespace,
                operation.at_cluster_time,
            ));
        };
        let shards = targets(operation, &routing, query);
        let internal = shards.iter().any(|shard| shard.as_ref() == CONFIG);
        let answer = match shards.as_slice() {
            [only] if !far || internal => on_one(operation, &routing, only).await,
            [only] if operation.transaction.is_some() => {
                on_one_with_neighbours(operation, &routing, only, &pipeline).await
            }
            _ if operation.transaction.is_some() => split(operation, &routing, &shards, &pipeline).await,
            _ => return through_shards_router(operation, &namespace).await,
        };
        match answer {
            Err(Failure::Stale(why)) => attempts.stale(&routing, why).await?,
            Err(Failure::Shard(reply)) if reply.code() == code::VIEW_NEEDS_ROUTER => {
                return through_shards_router(operation, &namespace).await;
            }
            answer => return answer,
        }
    }
}

/// Whether the pipeline of an `aggregate` reads or writes more than its collection.
pub fn reaches_far(aggregate: Doc<'_>) -> bool {
    let pipeline = aggregate
        .get("pipeline")
        .ok()
        .flatten()
        .and_then(|pipeline| pipeline.as_document_or_array().ok()?);
    let pipeline = stages(pipeline.unwrap_or_else(Doc::empty));
    pipeline.iter().any(|stage| is_one_of(stage, &FAR_STAGES))
}

/// Explains an `aggregate` through the router inside a shard's server, as a part of the client's `explain`.
///
/// # Errors
/// What the pipeline fails with.
pub async fn explain(operation: &Operation, aggregate: Doc<'_>, namespace: &str) -> Result<Vec<u8>, Failure> {
    let mut renamed = Builder::new();
    for (position, field) in aggregate.elements().enumerate() {
        let field = field?;
        match position {
            0 => renamed.append(field.kind, b"clusterAggregate", field.value),
            _ => renamed.element(&field),
        };
    }
    renamed.boolean("explain", true);
    inner_router(operation, namespace, renamed).await
}

/// In a transaction a join is right on one shard only while what it joins is there as a whole.
async fn on_one_with_neighbours(
    operation: &Operation,
    routing: &Routing,
    shard: &str,
    pipeline: &[Bytes],
) -> Result<Vec<u8>, Failure> {
    for other in pipeline.iter().filter_map(joined_collection) {
        let namespace = format!("{}.{other}", operation.command.db);
        let found = operation
            .router
            .catalog
            .routing(&operation.router.link(), &namespace)
            .await?;
        let here =
            |routing: Routing| matches!(routing, Routing::Unsharded { shard: there, .. } if there.as_ref() == shard);
        if !found.is_none_or(here) {
            return refuse(
                code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
                format!("this router can't join {namespace} inside a transaction"),
            );
        }
    }
    if pipeline.iter().any(|stage| is_one_of(stage, &[b"$facet"])) {
        return refuse(
            code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
            "this router can't run $facet inside a transaction",
        );
    }
    on_one(operation, routing, shard).await
}

/// Runs the document-by-document stages on each shard, and the rest on one of them over what came.
async fn split(
    operation: &Operation,
    routing: &Routing,
    shards: &[Arc<str>],
    pipeline: &[Bytes],
) -> Result<Vec<u8>, Failure> {
    let local = pipeline
        .iter()
        .take_while(|stage| is_one_of(stage, &LOCAL_STAGES))
        .count();
    let (on_each, rest) = pipeline.split_at(local);
    let mut body = operation.command.forward(&["pipeline", "cursor"]);
    append_pipeline(&mut body, on_each);
    body.open(ElementType::EmbeddedDocument, b"cursor").close();
    let namespace = operation.command.namespace()?;
    let collection = operation.command.text("aggregate").unwrap_or_default();
    let mut merged = Merged::new(collection, None, 0, None);
    merged.at(operation.at_cluster_time);
    let commands = shards
        .iter()
        .map(|shard| read_on(routing, shard, body.clone()))
        .collect();
    for (shard, answer) in shards.iter().zip(operation.call_all(commands).await) {
        let (reply, host) = answer?;
        merged.add(shard, &host, &reply.success()?);
    }
    if rest.is_empty() {
        return first_reply(operation, merged, &namespace, batch_size(operation)).await;
    }
    let documents = merged.next_batch(operation, None).await?;
    if !merged.is_exhausted() {
        merged.kill(operation).await;
        return refuse(
            code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
            "this router can't aggregate more than 16 MB from several shards inside a transaction",
        );
    }
    finish_split(operation, &shards[0], &documents, rest, &namespace).await
}

/// The stages that need all documents, over `$documents`: outside the transaction, as they read nothing else.
async fn finish_split(
    operation: &Operation,
    shard: &str,
    documents: &[Bytes],
    rest: &[Bytes],
    namespace: &str,
) -> Result<Vec<u8>, Failure> {
    if rest.iter().any(|stage| is_one_of(stage, &FAR_STAGES)) {
        return refuse(
            code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
            "this router can't run that stage over several shards inside a transaction",
        );
    }
    let mut source = Builder::new();
    source.open(ElementType::Array, b"$documents");
    for (position, document) in documents.iter().enumerate() {
        source.open(ElementType::EmbeddedDocument, position.to_string().as_bytes());
        source.append(ElementType::EmbeddedDocument, b"$literal", document);
        source.close();
    }
    let mut whole = vec![Bytes::from(source.finish())];
    whole.extend_from_slice(rest);
    let mut body = Builder::new();
    body.int32("aggregate", 1);
    append_pipeline(&mut body, &whole);
    for field in ["let", "collation", "allowDiskUse"] {
        if let Some(field) = operation.command.get(field) {
            body.element(&field);
        }
    }
    body.open(ElementType::EmbeddedDocument, b"cursor");
    // Whatever comes of it fits one batch or is refused: the cursor would live outside the transaction.
    body.int32("batchSize", i32::MAX).close();
    body.string("$db", operation.command.db.as_bytes());
    let outgoing = Outgoing {
        body: body.finish(),
        sequence: None,
    };
    let shard = operation.shard(shard)?;
    let reply = operation
        .send(&shard, Preference::Primary, &outgoing, true)
        .await?
        .0
        .success()?;
    if cursor_id(reply.nested("cursor").unwrap_or_else(Doc::empty)) != 0 {
        return refuse(
            code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
            "this router can't return more than 16 MB from several shards inside a transaction",
        );
    }
    let batch = super::merge::batch(&reply);
    Ok(cursor_reply(
        "firstBatch",
        &batch,
        0,
        namespace,
        operation.at_cluster_time,
    ))
}

/// The whole pipeline through the router inside a shard's server.
async fn through_shards_router(operation: &Operation, namespace: &str) -> Result<Vec<u8>, Failure> {
    let command = &operation.command;
    let Some(name) = command.get("aggregate") else {
        return refuse(code::FAILED_TO_PARSE, "no collection given");
    };
    let mut renamed = Builder::new();
    renamed.append(name.kind, b"clusterAggregate", name.value);
    let rest = command.forward(&["aggregate", "$readPreference"]).finish();
    for field in Doc::new(&rest)?.elements() {
        renamed.element(&field?);
    }
    inner_router(operation, namespace, renamed).await
}

async fn inner_router(operation: &Operation, namespace: &str, body: Builder) -> Result<Vec<u8>, Failure> {
    if operation.transaction.is_some() {
        return refuse(
            code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
            "this router can't run that pipeline inside a transaction",
        );
    }
    let catalog = &operation.router.catalog;
    let database = catalog
        .database(&operation.router.link(), &operation.command.db)
        .await?;
    let shard = match database {
        Some(database) => database.primary.to_string(),
        None => catalog
            .shards
            .all()
            .first()
            .map(|shard| shard.name.clone())
            .unwrap_or_default(),
    };
    let command = ShardCommand {
        shard,
        version: Version::Unchecked,
        body,
        sequence: None,
        access: Access::InnerRouter,
    };
    let (reply, host) = operation.call(command).await?;
    let reply = reply.success()?;
    let id = cursor_id(reply.nested("cursor").unwrap_or_else(Doc::empty));
    operation
        .router
        .cursors
        .keep(id, namespace, Source::ShardsRouter { host });
    Ok(reply.public())
}

/// `find` on a view over a sharded collection, as a pipeline.
///
/// # Errors
/// What the pipeline fails with.
pub async fn find_on_view(operation: &Operation, namespace: &str) -> Result<Vec<u8>, Failure> {
    let command = &operation.command;
    let stage = |stages: &mut Vec<Bytes>, name: &str, field: &str| {
        if let Some(value) = command.get(field) {
            let mut stage = Builder::new();
            stage.append(value.kind, name.as_bytes(), value.value);
            stages.push(stage.finish().into());
        }
    };
    let mut stages = Vec::new();
    stage(&mut stages, "$match", "filter");
    if command.nested("sort").is_some_and(|sort| !sort.is_empty()) {
        stage(&mut stages, "$sort", "sort");
    }
    if command.number("skip").is_some_and(|skip| skip > 0) {
        stage(&mut stages, "$skip", "skip");
    }
    if command.number("limit").is_some_and(|limit| limit > 0) {
        stage(&mut stages, "$limit", "limit");
    }
    if command
        .nested("projection")
        .is_some_and(|projection| !projection.is_empty())
    {
        stage(&mut stages, "$project", "projection");
    }
    let collection = command.text("find").unwrap_or_default();
    inner_router(operation, namespace, view_pipeline(operation, collection, &stages)).await
}

/// `count` on a view over a sharded collection.
///
/// # Errors
/// What the pipeline fails with.
pub async fn count_on_view(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let query = operation.command.nested("query").unwrap_or_else(Doc::empty);
    let mut matching = Builder::new();
    matching.document("$match", query);
    let mut counting = Builder::new();
    counting.string("$count", b"n");
    let stages = [matching.finish().into(), counting.finish().into()];
    let collection = operation.command.text("count").unwrap_or_default();
    let body = view_pipeline(operation, collection, &stages);
    let reply = inner_router(operation, &operation.command.namespace()?, body).await?;
    let first = super::merge::batch(&Reply::new(reply.into())).into_iter().next();
    let n = first
        .as_ref()
        .and_then(|first| Doc::new(first).ok()?.get("n").ok()??.as_whole_number());
    let mut reply = Builder::new();
    reply.int32("n", n.unwrap_or(0) as i32).double("ok", 1.0);
    Ok(reply.finish())
}

/// `distinct` on a view over a sharded collection is refused.
///
/// # Errors
/// Always.
pub async fn distinct_on_view(_operation: &Operation) -> Result<Vec<u8>, Failure> {
    refuse(
        code::COMMAND_NOT_SUPPORTED,
        "distinct on a view over a sharded collection is not supported by this router",
    )
}

fn view_pipeline(operation: &Operation, collection: &str, stages: &[Bytes]) -> Builder {
    let mut body = Builder::new();
    body.string("clusterAggregate", collection.as_bytes());
    append_pipeline(&mut body, stages);
    body.open(ElementType::EmbeddedDocument, b"cursor").close();
    for field in ["collation", "let", "comment", "maxTimeMS"] {
        if let Some(field) = operation.command.get(field) {
            body.element(&field);
        }
    }
    body
}

fn append_pipeline(body: &mut Builder, stages: &[Bytes]) {
    body.open(ElementType::Array, b"pipeline");
    for (position, stage) in stages.iter().enumerate() {
        body.append(ElementType::EmbeddedDocument, position.to_string().as_bytes(), stage);
    }
    body.close();
}

fn stages(pipeline: Doc<'_>) -> Vec<Bytes> {
    let stages = pipeline.elements().flatten();
    stages.map(|stage| Bytes::copy_from_slice(stage.value)).collect()
}

fn is_one_of(stage: &[u8], names: &[&[u8]]) -> bool {
    let first = Doc::new(stage).ok().and_then(|stage| stage.elements().next());
    matches!(first, Some(Ok(first)) if names.contains(&first.name))
}

fn matched(stage: &Bytes) -> Option<Doc<'_>> {
    Doc::new(stage).ok()?.get("$match").ok()??.as_document_or_array().ok()?
}

/// The collection that `$lookup`, `$graphLookup` or `$unionWith` reads.
fn joined_collection(stage: &Bytes) -> Option<String> {
    let first = Doc::new(stage).ok()?.elements().next()?.ok()?;
    if let (b"$unionWith", Some(name)) = (first.name, first.as_str()) {
        return Some(name.to_owned());
    }
    let settings = first.as_document_or_array().ok()??;
    let name = match first.name {
        b"$unionWith" => settings.get("coll"),
        b"$lookup" | b"$graphLookup" => settings.get("from"),
        _ => return None,
    };
    name.ok()??.as_str().map(str::to_owned)
}

fn batch_size(operation: &Operation) -> usize {
    let cursor = operation.command.nested("cursor");
    let size = cursor
        .and_then(|cursor| cursor.get("batchSize").ok()?)
        .and_then(|size| size.as_whole_number());
    size.and_then(|size| usize::try_from(size).ok()).unwrap_or(FIRST_BATCH)
}
