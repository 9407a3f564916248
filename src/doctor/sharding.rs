//! Checks how a cluster places documents: equal keys, moved chunks, and what moves chunks by itself.

use std::time::{Duration, Instant};

use bson::{Bson, Decimal128, Document, doc};

use super::check::{CheckError, CheckOutcome};
use super::scratch::Scratch;
use crate::counted::Counted;
use crate::server::{code, driver};

/// The collection that is sharded as a proxy collection is.
const KEYS: &str = "keys";
/// The `h` of equal numbers, and that of the document whose chunk moves.
const H_OF_NUMBERS: i32 = 7;
const H_OF_MOVED: i32 = 1;
/// How long to wait for the balancer's own work.
const BUSY_MAX: Duration = Duration::from_secs(20);
const BUSY_PAUSE: Duration = Duration::from_millis(500);

/// Numbers of different types that are equal are one key, also as part of a shard key.
pub async fn equal_numbers(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let fraction: Decimal128 = "3.75".parse().map_err(|_| unexpected("3.75 as a Decimal128"))?;
    let whole: Decimal128 = "3".parse().map_err(|_| unexpected("3 as a Decimal128"))?;
    shard_keys(scratch).await?;
    let equal: [(&str, Vec<Bson>); 2] = [
        ("3.75", vec![Bson::Double(3.75), Bson::Decimal128(fraction)]),
        (
            "3",
            vec![
                Bson::Int32(3),
                Bson::Int64(3),
                Bson::Double(3.0),
                Bson::Decimal128(whole),
            ],
        ),
    ];
    for (name, values) in equal {
        for (position, value) in values.into_iter().enumerate() {
            let id = doc! { "h": H_OF_NUMBERS, "k": { "n": value } };
            let insert = doc! { "insert": KEYS, "documents": [{ "_id": id }], "writeConcern": { "w": "majority" } };
            let reply = scratch.run(insert).await?;
            let error = driver::first_write_error(&reply).and_then(driver::error_code);
            let expected = (position > 0).then_some(code::DUPLICATE_KEY);
            if error != expected {
                let seen = match error {
                    None => format!("{name} exists twice, as numbers of two types"),
                    Some(code) => format!("{name} can't be inserted ({code})"),
                };
                return Ok(CheckOutcome::Failed(seen));
            }
        }
    }
    Ok(CheckOutcome::passed())
}

/// A chunk that moves takes the memory of retryable writes along.
pub async fn moved_chunk(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let shards = scratch.shards.as_deref().unwrap_or_default();
    if shards.len() < 2 {
        return Err(CheckError::Impossible("the cluster has one shard".to_owned()));
    }
    shard_keys(scratch).await?;
    let mut session = scratch.session().await?;
    let number = scratch.next_number();
    let id = doc! { "h": H_OF_MOVED, "k": { "n": "moved" } };
    let insert = doc! { "insert": KEYS, "documents": [{ "_id": id.clone() }] };
    let first = session.write(insert.clone(), number).await?;
    if !first.is_ok() {
        return Ok(CheckOutcome::Failed(first.shown()));
    }
    let chunk = doc! { "_id.h": H_OF_MOVED };
    let from = scratch.shard_of(KEYS, chunk.clone()).await?;
    let to = shards.iter().find(|shard| **shard != from);
    let to = to.ok_or_else(|| unexpected("a second shard"))?;
    let namespace = format!("{}.{KEYS}", scratch.name());
    moved(scratch, doc! { "moveChunk": namespace, "find": chunk, "to": to }).await?;
    let second = session.write(insert, number).await?;
    Ok(CheckOutcome::of(
        second.is_ok() && driver::names_its_statement(&second.reply),
        || {
            format!(
                "after the move, the insert's repetition is answered: {}",
                second.shown()
            )
        },
    ))
}

/// Moves a chunk; a balancer at work is waited for. Managed services don't give the privilege for it.
async fn moved(scratch: &Scratch, command: Document) -> Result<(), CheckError> {
    let deadline = Instant::now() + BUSY_MAX;
    loop {
        match scratch.run_in("admin", command.clone()).await {
            Err(CheckError::Driver(error))
                if driver::code_of(&error) != Some(code::UNAUTHORIZED) && Instant::now() < deadline =>
            {
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            Err(CheckError::Driver(error)) => {
                let why = format!("no chunk can be moved: {}", driver::in_words(&error));
                return Err(CheckError::Impossible(why));
            }
            Err(error) => return Err(error),
            Ok(_) => return Ok(()),
        }
    }
}

/// Shards the collection where there are shards, unless a check has.
async fn shard_keys(scratch: &Scratch) -> Result<(), CheckError> {
    if scratch.shards.is_none() {
        return Ok(());
    }
    let namespace = format!("{}.{KEYS}", scratch.name());
    let shard = doc! { "shardCollection": namespace, "key": { "_id.h": "hashed" } };
    scratch.run_in("admin", shard).await.map(drop)
}

/// The balancer's mode, draining shards and zones: all of it works, and some of it takes time.
pub async fn balancer(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let reply = scratch.run_in("admin", doc! { "balancerStatus": 1 }).await?;
    let mode = reply.get_str("mode").unwrap_or("unknown").to_owned();
    let reply = scratch.run_in("admin", doc! { "listShards": 1 }).await?;
    let shards = reply.get_array("shards").ok().into_iter().flatten();
    let is_draining = |shard: &&Bson| {
        let draining = shard.as_document().and_then(|shard| shard.get("draining"));
        draining.is_some_and(|draining| draining.as_bool() != Some(false))
    };
    let draining = shards.filter(is_draining).count();
    let find = doc! { "find": "tags", "filter": {}, "limit": 1_000, "batchSize": 1_000, "singleBatch": true };
    let zones = match scratch.run_in("config", find).await {
        Ok(reply) => driver::first_batch(&reply).map_or(0, <[_]>::len),
        Err(CheckError::Driver(_)) => {
            let draining = Counted(draining, "shard");
            let seen = format!("balancer {mode}, {draining} draining, unknown ranges of zones");
            return Ok(CheckOutcome::Passed(seen));
        }
        Err(error) => return Err(error),
    };
    let (draining, ranges) = (Counted(draining, "shard"), Counted(zones, "range"));
    let seen = format!("balancer {mode}, {draining} draining, {ranges} of zones");
    Ok(CheckOutcome::Passed(seen))
}

fn unexpected(what: &str) -> CheckError {
    CheckError::Unexpected(format!("{what} can't be had"))
}
