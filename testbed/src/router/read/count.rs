//! `count` and `distinct`: every shard's own, added up or united.

use std::cmp::Ordering;

use bson::spec::ElementType;

use super::{aggregate, read_on, targets};
use crate::router::attempts::Attempts;
use crate::router::error::{Failure, code};
use crate::router::operation::Operation;
use crate::router::raw::{Builder, Doc};
use crate::router::reply::Reply;
use crate::router::routing::{KeyValue, compare_elements};

/// `count`.
///
/// # Errors
/// What a shard says.
pub async fn count(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let number = |name| operation.command.number(name).unwrap_or(0).unsigned_abs();
    let (skip, limit) = (number("skip"), number("limit"));
    let mut body = operation.command.forward(&["skip", "limit"]);
    if limit > 0 {
        body.int64("limit", limit.saturating_add(skip).min(i64::MAX as u64) as i64);
    }
    let replies = match on_targets(operation, &body).await {
        Err(Failure::Shard(reply)) if reply.code() == code::VIEW_NEEDS_ROUTER => {
            return aggregate::count_on_view(operation).await;
        }
        replies => replies?,
    };
    let found: u64 = replies.iter().map(|reply| reply.number("n").unsigned_abs()).sum();
    let counted = found.saturating_sub(skip);
    let counted = if limit > 0 { counted.min(limit) } else { counted };
    let mut reply = Builder::new();
    match i32::try_from(counted) {
        Ok(counted) => reply.int32("n", counted),
        Err(_) => reply.int64("n", counted as i64),
    };
    reply.double("ok", 1.0);
    Ok(reply.finish())
}

/// `distinct`.
///
/// # Errors
/// What a shard says.
pub async fn distinct(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let replies = match on_targets(operation, &operation.command.forward(&[])).await {
        Err(Failure::Shard(reply)) if reply.code() == code::VIEW_NEEDS_ROUTER => {
            return aggregate::distinct_on_view(operation).await;
        }
        replies => replies?,
    };
    let mut values = Vec::new();
    for reply in &replies {
        let listed = reply.nested("values").unwrap_or_else(Doc::empty);
        values.extend(
            listed
                .elements()
                .flatten()
                .map(|value| KeyValue::from_element(&value).into_owned()),
        );
    }
    if replies.len() > 1 {
        let compare =
            |left: &KeyValue<'_>, right: &KeyValue<'_>| compare_elements(&left.as_element(), &right.as_element());
        values.sort_by(compare);
        values.dedup_by(|left, right| compare(left, right) == Ordering::Equal);
    }
    let mut reply = Builder::new();
    reply.open(ElementType::Array, b"values");
    for (position, value) in values.iter().enumerate() {
        let value = value.as_element();
        reply.append(value.kind, position.to_string().as_bytes(), value.value);
    }
    reply.close();
    reply.double("ok", 1.0);
    Ok(reply.finish())
}

/// The same command on every shard that the query can match on.
async fn on_targets(operation: &Operation, body: &Builder) -> Result<Vec<Reply>, Failure> {
    let namespace = operation.command.namespace()?;
    let query = operation.command.nested("query").unwrap_or_else(Doc::empty);
    let mut attempts = Attempts::new(operation, &namespace);
    loop {
        let Some(routing) = attempts.routing().await? else {
            return Ok(Vec::new());
        };
        let shards = targets(operation, &routing, query);
        let commands = shards
            .iter()
            .map(|shard| read_on(&routing, shard, body.clone()))
            .collect();
        let answers = operation.call_all(commands).await.into_iter();
        match answers.map(|answer| answer?.0.success()).collect() {
            Err(Failure::Stale(why)) => attempts.stale(&routing, why).await?,
            replies => return replies,
        }
    }
}
