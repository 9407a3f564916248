//! Checks the cluster time, and the clocks of servers.
//!
//! Correctness rests on the cluster time only.

use std::time::{Duration, Instant};

use bson::{Document, Timestamp, doc};

use super::check::{CheckError, CheckOutcome};
use super::scratch::{DOCUMENTS, Scratch};
use crate::counted::Counted;
use crate::prepare;
use crate::proxy_collection::StoreError;
use crate::server::driver;

/// How long a new deployment may take until it states the cluster time.
const STATED_MAX: Duration = Duration::from_secs(10);
const STATED_PAUSE: Duration = Duration::from_millis(500);

/// Replies state the cluster time.
pub async fn stated(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let deadline = Instant::now() + STATED_MAX;
    loop {
        let asked = prepare::check_time(scratch.client(), &scratch.hello).await;
        match asked {
            Ok(()) => return Ok(CheckOutcome::passed()),
            // A new deployment with users needs some time to make the keys that sign it.
            Err(StoreError::Unexpected(_)) if Instant::now() < deadline && !scratch.is_interrupted() => {
                tokio::time::sleep(STATED_PAUSE).await;
            }
            Err(StoreError::Unexpected(what)) => return Ok(CheckOutcome::Failed(what.to_owned())),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A reply's `$clusterTime` isn't before the time of any shard that took part, and goes on with each of them.
pub async fn gossip(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let places = scratch.places()?;
    let mut last = Timestamp { time: 0, increment: 0 };
    for h in [places.first, places.second, places.first] {
        let update =
            doc! { "q": { "_id": format!("gossip {h}"), "h": h }, "u": { "$inc": { "v": 1 } }, "upsert": true };
        let update = doc! { "update": DOCUMENTS, "updates": [update], "writeConcern": { "w": "majority" } };
        let reply = scratch.run(update).await?;
        let cluster = reply.get_document("$clusterTime").ok();
        let cluster = cluster.and_then(|time| time.get_timestamp("clusterTime").ok());
        let (Some(cluster), Ok(operation)) = (cluster, reply.get_timestamp("operationTime")) else {
            let seen = "a reply to a write without $clusterTime or operationTime".to_owned();
            return Ok(CheckOutcome::Failed(seen));
        };
        if cluster < operation {
            return Ok(CheckOutcome::Failed(
                "$clusterTime is before the write's own operationTime".to_owned(),
            ));
        }
        if operation <= last {
            let seen = "a write's operationTime isn't after that of an acknowledged write on another shard";
            return Ok(CheckOutcome::Failed(seen.to_owned()));
        }
        last = operation;
    }
    Ok(CheckOutcome::passed())
}

/// A clock's reading, as far as the answer's way lets it be known.
struct ClockReading {
    of: String,
    /// Milliseconds after the beginning of the check by this host's clock; less than zero if the clock is behind.
    ahead_ms: i64,
    /// How much of that may be the way.
    unsure_ms: i64,
}

/// The servers' clocks don't differ by more than a quarter of the lease.
pub async fn spread(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let mut readings = Vec::new();
    for address in scratch.servers() {
        let sent = ClockQuestion::now();
        if let Ok(hello) = scratch.hello_of(&address).await {
            readings.extend(sent.read(address, &hello));
        }
    }
    if scratch.lacks(super::check::Needs::TwoShards).is_none() {
        readings.extend(of_shards(scratch).await?);
    }
    let earliest = readings.iter().map(|one| one.ahead_ms + one.unsure_ms).min();
    let latest = readings.iter().map(|one| one.ahead_ms - one.unsure_ms).max();
    let (Some(earliest), Some(latest)) = (earliest, latest) else {
        return Err(CheckError::Impossible("no server states its clock".to_owned()));
    };
    let spread = Duration::from_millis(u64::try_from(latest - earliest).unwrap_or(0));
    if spread <= scratch.lease / 4 {
        return Ok(CheckOutcome::Passed(format!(
            "{}, within {}",
            Counted(readings.len(), "clock"),
            shown(spread)
        )));
    }
    let of = |end: i64, sign: i64| readings.iter().find(|one| one.ahead_ms - sign * one.unsure_ms == end);
    let names = [of(earliest, -1), of(latest, 1)].map(|one| one.map_or("", |one| one.of.as_str()));
    let seen = format!("{} and {} differ by {} at least", names[0], names[1], shown(spread));
    Ok(CheckOutcome::Warned(seen))
}

/// The clock of the member of each shard that answers.
async fn of_shards(scratch: &Scratch) -> Result<Vec<ClockReading>, CheckError> {
    let ask = doc! { "aggregate": DOCUMENTS, "pipeline": [{ "$collStats": { "latencyStats": {} } }], "cursor": {} };
    let sent = ClockQuestion::now();
    let reply = match scratch.run(ask).await {
        Ok(reply) => reply,
        Err(CheckError::Driver(_)) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let documents = driver::first_batch(&reply).unwrap_or_default().iter();
    let readings = documents.filter_map(|document| {
        let document = document.as_document()?;
        let of = document
            .get_str("host")
            .or(document.get_str("shard"))
            .unwrap_or("a shard");
        sent.read(of.to_owned(), document)
    });
    Ok(readings.collect())
}

struct ClockQuestion {
    at: Instant,
    clock: bson::DateTime,
}

impl ClockQuestion {
    fn now() -> ClockQuestion {
        ClockQuestion {
            at: Instant::now(),
            clock: bson::DateTime::now(),
        }
    }

    fn read(&self, of: String, reply: &Document) -> Option<ClockReading> {
        let way = i64::try_from(self.at.elapsed().as_millis()).ok()?;
        let there = reply.get_datetime("localTime").ok()?.timestamp_millis();
        Some(ClockReading {
            of,
            ahead_ms: there - self.clock.timestamp_millis() - way / 2,
            unsure_ms: way / 2 + 1,
        })
    }
}

fn shown(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}
