//! `explain`: every shard's own plan, put together as `mongos` does.

use bson::{Bson, Document, doc};

use super::{aggregate, read_on, targets};
use crate::router::attempts::Attempts;
use crate::router::ddl::decode;
use crate::router::error::{Failure, code, refuse};
use crate::router::operation::{Access, Operation, ShardCommand};
use crate::router::raw::{Builder, Doc};
use crate::router::reply::{self, Reply};
use crate::router::routing::Routing;

/// Explains a find, count, distinct, aggregate, findAndModify, update or delete.
///
/// # Errors
/// What a shard says.
pub async fn run(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let Some(explained) = operation.command.nested("explain") else {
        return refuse(code::FAILED_TO_PARSE, "explain command requires a nested object");
    };
    let first = explained.elements().next().transpose()?;
    let Some(collection) = first.and_then(|first| first.as_str()) else {
        return refuse(code::INVALID_NAMESPACE, "collection name has invalid type");
    };
    let namespace = format!("{}.{collection}", operation.command.db);
    if aggregate::reaches_far(explained) {
        return aggregate::explain(operation, explained, &namespace).await;
    }
    let query = query_of(explained)?;
    let mut attempts = Attempts::new(operation, &namespace);
    loop {
        let Some(routing) = attempts.routing().await? else {
            return refuse(
                code::NAMESPACE_NOT_FOUND,
                format!("database {} not found", operation.command.db),
            );
        };
        let shards = targets(operation, &routing, query.unwrap_or_else(Doc::empty));
        let commands = shards
            .iter()
            .map(|shard| explain_on(operation, &routing, shard))
            .collect();
        let answers = operation.call_all(commands).await.into_iter();
        let replies: Result<Vec<Reply>, Failure> = answers.map(|answer| answer?.0.success()).collect();
        match replies {
            Err(Failure::Stale(why)) => attempts.stale(&routing, why).await?,
            Err(failure) => return Err(failure),
            Ok(replies) => {
                let pairs = shards
                    .iter()
                    .map(|shard| shard.to_string())
                    .zip(replies)
                    .collect::<Vec<_>>();
                return together(operation, &pairs);
            }
        }
    }
}

fn explain_on(operation: &Operation, routing: &Routing, shard: &str) -> ShardCommand {
    let body: Builder = operation.command.forward(&[]);
    ShardCommand {
        access: Access::Plain,
        ..read_on(routing, shard, body)
    }
}

/// The part of the explained command that says which documents.
fn query_of(explained: Doc<'_>) -> Result<Option<Doc<'_>>, Failure> {
    for name in ["filter", "query"] {
        if let Some(query) = explained.get(name)? {
            return Ok(query.as_document_or_array()?);
        }
    }
    for (list, field) in [("updates", "q"), ("deletes", "q"), ("pipeline", "$match")] {
        let Some(list) = explained
            .get(list)?
            .map(|list| list.as_document_or_array())
            .transpose()?
            .flatten()
        else {
            continue;
        };
        let Some(first) = list.elements().next().transpose()? else {
            continue;
        };
        let first = first.as_document_or_array()?.unwrap_or_else(Doc::empty);
        if let Some(query) = first.get(field)? {
            return Ok(query.as_document_or_array()?);
        }
    }
    Ok(None)
}

fn together(operation: &Operation, replies: &[(String, Reply)]) -> Result<Vec<u8>, Failure> {
    let mut plans = Vec::new();
    let mut executions = Vec::new();
    let mut totals = doc! { "nReturned": 0, "executionTimeMillis": 0, "totalKeysExamined": 0, "totalDocsExamined": 0 };
    for (shard, reply) in replies {
        let mut explained = decode(reply.doc());
        let mut plan = doc! { "shardName": shard, "connectionString": operation.shard(shard)?.connection_string() };
        if let Some(server) = explained.remove("serverInfo") {
            plan.insert("serverInfo", server);
        }
        for part in ["queryPlanner", "stages"] {
            match explained.remove(part) {
                Some(Bson::Document(planner)) => plan.extend(planner),
                Some(other) => drop(plan.insert(part, other)),
                None => (),
            }
        }
        plans.push(plan);
        if let Some(Bson::Document(mut stats)) = explained.remove("executionStats") {
            add_up(&mut totals, &stats);
            stats.insert("shardName", shard);
            executions.push(stats);
        }
    }
    let stage = if replies.len() == 1 {
        "SINGLE_SHARD"
    } else {
        "SHARD_MERGE"
    };
    let mut answer =
        doc! { "queryPlanner": { "mongosPlannerVersion": 1, "winningPlan": { "stage": stage, "shards": plans } } };
    if !executions.is_empty() {
        totals.insert("executionStages", doc! { "stage": stage, "shards": executions });
        answer.insert("executionStats", totals);
    }
    let command = operation.command.nested("explain").map(decode).unwrap_or_default();
    answer.insert("command", command);
    Ok(reply::from_document(answer))
}

fn add_up(totals: &mut Document, stats: &Document) {
    for (name, total) in totals.iter_mut() {
        if let (Bson::Int32(total), Some(Bson::Int32(more))) = (total, stats.get(name)) {
            *total = total.saturating_add(*more);
        }
    }
}
