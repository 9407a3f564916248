//! Change streams: one on each shard, merged in the order of their resume tokens, which all begin with the cluster time.
//!
//! An event is handed on once every other shard has told that it is past the event's time, so that none comes too late. A shard
//! that has nothing to tell is told to write a note into its oplog, which moves its time on.
//! Resuming starts every shard at the token's time and drops what isn't after the token. `updateLookup` looks on the event's
//! own shard only.

use std::collections::VecDeque;
use std::time::Duration;

use bson::doc;
use bson::spec::ElementType;
use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::cursor::{Source, cursor_id, fetch_more, kill_on};
use super::merge::batch;
use crate::router::error::{Failure, code, refuse};
use crate::router::message::Outgoing;
use crate::router::operation::{Access, Operation, ShardCommand};
use crate::router::raw::{Builder, Doc};
use crate::router::reply::{Reply, encode, timestamp_value};
use crate::router::routing::Version;
use crate::router::shard::Preference;

/// How long one `getMore` waits for events if the client doesn't say.
const AWAIT: Duration = Duration::from_secs(1);
/// How long a shard is asked to wait at once: the others' events wait no longer for it.
const AWAIT_ONE: Duration = Duration::from_millis(100);
/// A batch ends before it gets longer than this, in bytes.
const BATCH_BYTES_MAX: usize = 15 * 1024 * 1024;

/// One shard's stream.
#[derive(Debug)]
struct Part {
    shard: String,
    host: String,
    id: i64,
    /// Token and event.
    buffer: VecDeque<(String, Bytes)>,
    /// Everything up to this token has been told.
    told: String,
}

/// An open change stream.
#[derive(Debug)]
pub struct ChangeStream {
    parts: Vec<Part>,
    /// Events up to this token are known to the client already.
    resumed_after: String,
    /// The token that the client is to resume after.
    position: String,
    collection: String,
}

/// Opens a change stream.
///
/// # Errors
/// What a shard says of it.
pub async fn open(operation: &Operation, pipeline: &[Bytes]) -> Result<Vec<u8>, Failure> {
    if operation.transaction.is_some() {
        return refuse(
            code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
            "$changeStream cannot be used in a transaction",
        );
    }
    let router = &operation.router;
    router.catalog.load_shards(&router.link()).await?;
    let collection = operation
        .command
        .text("aggregate")
        .unwrap_or("$cmd.aggregate")
        .to_owned();
    let start = Start::of(operation, pipeline)?;
    let body = start.body(operation, pipeline);
    let shards = router.catalog.shards.all();
    let commands = shards.iter().map(|shard| ShardCommand {
        shard: shard.name.clone(),
        version: Version::Unchecked,
        body: body.clone(),
        sequence: None,
        access: Access::Read,
    });
    let mut stream = ChangeStream {
        parts: Vec::new(),
        resumed_after: start.token.clone(),
        position: start.token,
        collection: collection.clone(),
    };
    for (shard, answer) in shards.iter().zip(operation.call_all(commands.collect()).await) {
        let (reply, host) = answer?;
        stream.add(&shard.name, &host, &reply.success()?);
    }
    let events = stream.ready();
    let id = router.cursors.new_id();
    let namespace = format!("{}.{collection}", operation.command.db);
    let reply = stream.reply("firstBatch", &events, id, &namespace);
    router
        .cursors
        .keep(id, &namespace, Source::ChangeStream(Box::new(stream)));
    Ok(reply)
}

/// Where a stream starts: a time for the shards, and a token below which events are dropped.
struct Start {
    time: u64,
    token: String,
}

impl Start {
    fn of(operation: &Operation, pipeline: &[Bytes]) -> Result<Start, Failure> {
        let stage = pipeline
            .first()
            .map(|stage| Doc::new(stage))
            .transpose()?
            .unwrap_or_else(Doc::empty);
        let options = stage
            .get("$changeStream")?
            .map(|options| options.as_document_or_array())
            .transpose()?
            .flatten();
        let option = |name| options.and_then(|options| options.get(name).ok().flatten());
        if let Some(time) = timestamp_value(option("startAtOperationTime")) {
            return Ok(Start {
                time,
                token: String::new(),
            });
        }
        let Some(resume) = option("resumeAfter").or(option("startAfter")) else {
            // What has happened by now isn't news.
            let time = operation.router.clock.now() + 1;
            return Ok(Start {
                time,
                token: String::new(),
            });
        };
        let token = resume
            .as_document_or_array()?
            .map(|token| token_of(token))
            .unwrap_or_default();
        match token_time(&token) {
            Some(time) => Ok(Start { time, token }),
            None => refuse(40647, "Invalid resume token"),
        }
    }

    /// The client's command, starting at the time instead of wherever it said.
    fn body(&self, operation: &Operation, pipeline: &[Bytes]) -> Builder {
        let mut body = operation.command.forward(&["pipeline"]);
        body.open(ElementType::Array, b"pipeline");
        body.open(ElementType::EmbeddedDocument, b"0");
        body.open(ElementType::EmbeddedDocument, b"$changeStream");
        let options = pipeline.first().and_then(|stage| {
            let options = Doc::new(stage).ok()?.get("$changeStream").ok()??;
            Doc::new(options.value).ok().map(|options| options.bytes().to_vec())
        });
        for option in options
            .iter()
            .filter_map(|options| Doc::new(options).ok())
            .flat_map(Doc::elements)
            .flatten()
        {
            if !matches!(option.name, b"resumeAfter" | b"startAfter" | b"startAtOperationTime") {
                body.element(&option);
            }
        }
        body.timestamp("startAtOperationTime", self.time);
        body.close().close();
        for (position, stage) in pipeline.iter().enumerate().skip(1) {
            body.append(ElementType::EmbeddedDocument, position.to_string().as_bytes(), stage);
        }
        body.close();
        body
    }
}

impl ChangeStream {
    fn add(&mut self, shard: &str, host: &str, reply: &Reply) {
        let mut part = Part {
            shard: shard.to_owned(),
            host: host.to_owned(),
            id: 0,
            buffer: VecDeque::new(),
            told: String::new(),
        };
        part.take(reply, &self.resumed_after);
        self.parts.push(part);
    }

    /// `getMore`: waits until there is an event to hand on, or the time is over.
    ///
    /// # Errors
    /// A shard's error; the stream is then over.
    pub async fn next_reply(&mut self, operation: &Operation, id: i64, namespace: &str) -> Result<Vec<u8>, Failure> {
        let limit = Instant::now() + operation.command.time_limit.unwrap_or(AWAIT);
        loop {
            self.fetch(operation, limit).await?;
            let events = self.ready();
            if events.is_empty() && Instant::now() < limit {
                self.wake_laggards(operation).await;
                continue;
            }
            let over = events.iter().any(is_invalidate);
            let id = if over { 0 } else { id };
            if over {
                self.kill(operation).await;
            }
            return Ok(self.reply("nextBatch", &events, id, namespace));
        }
    }

    /// Asks every shard of which nothing is buffered.
    async fn fetch(&mut self, operation: &Operation, limit: Instant) -> Result<(), Failure> {
        let wait = limit.saturating_duration_since(Instant::now()).min(AWAIT_ONE);
        let (collection, after) = (self.collection.clone(), self.resumed_after.clone());
        let empty = self
            .parts
            .iter_mut()
            .filter(|part| part.buffer.is_empty() && part.id != 0);
        let fetches = empty.map(|part| part.fetch(operation, &collection, &after, wait));
        for fetched in join_all(fetches).await {
            fetched?;
        }
        Ok(())
    }

    /// The events that no other shard can precede any more, in order.
    fn ready(&mut self) -> Vec<Bytes> {
        let mut events = Vec::new();
        let mut bytes = 0;
        loop {
            let filled = (0..self.parts.len()).filter(|part| !self.parts[*part].buffer.is_empty());
            let token = |part: usize| self.parts[part].buffer.front().map(|(token, _)| token.clone());
            let Some((first, token)) = filled
                .filter_map(|part| Some((part, token(part)?)))
                .min_by(|left, right| left.1.cmp(&right.1))
            else {
                break;
            };
            let others = self.parts.iter().filter(|part| part.buffer.is_empty() && part.id != 0);
            if others.map(|part| &part.told).any(|told| *told < token) || bytes > BATCH_BYTES_MAX {
                break;
            }
            if let Some((token, event)) = self.parts[first].buffer.pop_front() {
                bytes += event.len();
                self.position = token;
                events.push(event);
            }
            // The stream ends here, whatever else is buffered.
            if events.last().is_some_and(is_invalidate) {
                return events;
            }
        }
        if self.parts.iter().all(|part| part.buffer.is_empty()) {
            let told = self
                .parts
                .iter()
                .map(|part| &part.told)
                .min()
                .cloned()
                .unwrap_or_default();
            self.position = told.max(std::mem::take(&mut self.position));
        }
        events
    }

    /// Shards that hold back others' events get a note written, which moves their time on.
    async fn wake_laggards(&self, operation: &Operation) {
        let waiting = self
            .parts
            .iter()
            .filter_map(|part| part.buffer.front())
            .map(|(token, _)| token)
            .max();
        let Some(waiting) = waiting else { return };
        let note = Outgoing {
            body: encode(&doc! { "appendOplogNote": 1, "data": { "msg": "change stream" }, "$db": "admin" }),
            sequence: None,
        };
        for part in self
            .parts
            .iter()
            .filter(|part| part.buffer.is_empty() && part.told < *waiting)
        {
            if let Ok(shard) = operation.shard(&part.shard) {
                let _ = operation.send(&shard, Preference::Primary, &note, true).await;
            }
        }
    }

    /// Kills the shards' streams.
    pub async fn kill(&self, operation: &Operation) {
        let open = self.parts.iter().filter(|part| part.id != 0);
        join_all(open.map(|part| kill_on(operation, &part.host, &self.collection, part.id))).await;
    }

    fn reply(&self, batch_name: &str, events: &[Bytes], id: i64, namespace: &str) -> Vec<u8> {
        let mut reply = Builder::new();
        reply.open(ElementType::EmbeddedDocument, b"cursor");
        reply.open(ElementType::Array, batch_name.as_bytes());
        for (position, event) in events.iter().enumerate() {
            reply.append(ElementType::EmbeddedDocument, position.to_string().as_bytes(), event);
        }
        reply.close();
        if !self.position.is_empty() {
            reply.open(ElementType::EmbeddedDocument, b"postBatchResumeToken");
            reply.string("_data", self.position.as_bytes());
            reply.close();
        }
        reply.int64("id", id).string("ns", namespace.as_bytes());
        reply.close();
        reply.double("ok", 1.0);
        reply.finish()
    }
}

impl Part {
    async fn fetch(
        &mut self,
        operation: &Operation,
        collection: &str,
        after: &str,
        wait: Duration,
    ) -> Result<(), Failure> {
        let outgoing = fetch_more(operation, &self.shard, collection, self.id, Some(wait));
        let reply = operation.send_to(&self.host, &outgoing).await?.success()?;
        self.take(&reply, after);
        Ok(())
    }

    fn take(&mut self, reply: &Reply, after: &str) {
        let cursor = reply.nested("cursor").unwrap_or_else(Doc::empty);
        self.id = cursor_id(cursor);
        for event in batch(reply) {
            let id = Doc::new(&event).ok().and_then(|event| event.get("_id").ok()?);
            let token = id
                .and_then(|id| id.as_document_or_array().ok()?)
                .map(token_of)
                .unwrap_or_default();
            if token.as_str() > after {
                self.buffer.push_back((token, event));
            }
        }
        let told = cursor.get("postBatchResumeToken").ok().flatten();
        if let Some(Ok(Some(told))) = told.map(|told| told.as_document_or_array()) {
            self.told = token_of(told);
        }
    }
}

/// `_data`: hexadecimal digits that order as the events do.
fn token_of(token: Doc<'_>) -> String {
    let data = token.get("_data").ok().flatten();
    data.and_then(|data| data.as_str()).unwrap_or_default().to_owned()
}

/// The cluster time that a token begins with, after the byte that says "timestamp".
fn token_time(token: &str) -> Option<u64> {
    let time = token.strip_prefix("82")?.get(..16)?;
    u64::from_str_radix(time, 16).ok()
}

fn is_invalidate(event: &Bytes) -> bool {
    let kind = Doc::new(event).ok().and_then(|event| event.get("operationType").ok()?);
    kind.is_some_and(|kind| kind.as_str() == Some("invalidate"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_tells_its_time() {
        assert_eq!(
            token_time("82655B1C2A000000012B0229296E1404"),
            Some(0x655B_1C2A_0000_0001)
        );
        assert_eq!(token_time("nonsense"), None);
    }
}
