//! Open cursors: a shard's own under its own id, or several shards' as one.
//!
//! A cursor that nobody asks for anything for as long as the server would keep it is forgotten.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bson::spec::ElementType;
use bytes::Bytes;

use super::change_stream::ChangeStream;
use super::merge::Merged;
use crate::router::error::{Failure, code, refuse};
use crate::router::message::Outgoing;
use crate::router::operation::Operation;
use crate::router::raw::{Builder, Doc};
use crate::router::reply::Reply;

/// As long as the server keeps an idle cursor.
const IDLE_MAX: Duration = Duration::from_secs(10 * 60);

/// Where a cursor's documents come from.
#[derive(Debug)]
pub enum Source {
    /// A shard's cursor; the client's `getMore` goes there as it is.
    Shard {
        /// Its name.
        shard: String,
        /// The member that holds the cursor.
        host: String,
    },
    /// A cursor of the router that runs inside a shard's server.
    ShardsRouter {
        /// The member that holds the cursor.
        host: String,
    },
    /// Several shards' cursors.
    Merged(Box<Merged>),
    /// A change stream on every shard.
    ChangeStream(Box<ChangeStream>),
}

#[derive(Debug)]
struct Cursor {
    source: Arc<tokio::sync::Mutex<Source>>,
    namespace: String,
    used: Instant,
}

/// All open cursors.
#[derive(Debug, Default)]
pub struct Cursors(Mutex<HashMap<i64, Cursor>>);

impl Cursors {
    /// Keeps a cursor under an id; 0 is none and isn't kept.
    pub fn keep(&self, id: i64, namespace: &str, source: Source) {
        if id == 0 {
            return;
        }
        let mut cursors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cursors.retain(|_, cursor| cursor.used.elapsed() < IDLE_MAX);
        let cursor = Cursor {
            source: Arc::new(tokio::sync::Mutex::new(source)),
            namespace: namespace.to_owned(),
            used: Instant::now(),
        };
        cursors.insert(id, cursor);
    }

    /// An id that no cursor has.
    pub fn new_id(&self) -> i64 {
        let cursors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let id = rand::random_range(1..i64::MAX);
            if !cursors.contains_key(&id) {
                return id;
            }
        }
    }

    fn find(&self, id: i64) -> Option<(Arc<tokio::sync::Mutex<Source>>, String)> {
        let mut cursors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let cursor = cursors.get_mut(&id)?;
        cursor.used = Instant::now();
        Some((Arc::clone(&cursor.source), cursor.namespace.clone()))
    }

    fn remove(&self, id: i64) -> Option<Arc<tokio::sync::Mutex<Source>>> {
        let removed = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        removed.map(|cursor| cursor.source)
    }
}

/// Keeps the cursor that a shard's reply opened, and hands the reply on.
pub fn keep_shards_cursor(operation: &Operation, reply: &Reply, shard: &str, host: &str) -> Vec<u8> {
    let cursor = reply.nested("cursor").unwrap_or_else(Doc::empty);
    let namespace = cursor
        .get("ns")
        .ok()
        .flatten()
        .and_then(|ns| ns.as_str())
        .unwrap_or_default();
    let source = Source::Shard {
        shard: shard.to_owned(),
        host: host.to_owned(),
    };
    operation.router.cursors.keep(cursor_id(cursor), namespace, source);
    reply.public()
}

/// `cursor.id`.
pub fn cursor_id(cursor: Doc<'_>) -> i64 {
    let id = cursor.get("id").ok().flatten().and_then(|id| id.as_whole_number());
    id.unwrap_or(0)
}

/// `getMore`.
///
/// # Errors
/// CursorNotFound, or what the shard says.
pub async fn get_more(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let command = &operation.command;
    let id = command.number("getMore").unwrap_or(0);
    let namespace = format!("{}.{}", command.db, command.text("collection").unwrap_or_default());
    let Some((source, opened_on)) = operation.router.cursors.find(id) else {
        return refuse(code::CURSOR_NOT_FOUND, format!("cursor id {id} not found"));
    };
    if opened_on != namespace {
        let message = format!(
            "Requested getMore on namespace '{namespace}', but cursor belongs to a different namespace {opened_on}"
        );
        return refuse(13, message);
    }
    let mut source = source.lock().await;
    let answer = match &mut *source {
        Source::Shard { shard, host } => forward(operation, shard, host).await,
        Source::ShardsRouter { host } => forward_to_shards_router(operation, host).await,
        Source::ChangeStream(stream) => stream.next_reply(operation, id, &namespace).await,
        Source::Merged(merged) => {
            let size = command.number("batchSize").and_then(|size| usize::try_from(size).ok());
            merged
                .next_reply(operation, id, &namespace, size.filter(|size| *size > 0))
                .await
        }
    };
    let finished = match &answer {
        Ok(body) => Doc::new(body)
            .ok()
            .and_then(|body| body.get("cursor").ok()?)
            .is_none_or(|cursor| Doc::new(cursor.value).map_or(0, cursor_id) == 0),
        Err(failure) => failure.code() != code::MAX_TIME_MS_EXPIRED,
    };
    if finished {
        operation.router.cursors.remove(id);
        if answer.is_err() {
            // What other shards still have open would keep copies of chunks that have moved away.
            kill_source(operation, id, &source).await;
        }
    }
    answer
}

async fn forward(operation: &Operation, shard: &str, host: &str) -> Result<Vec<u8>, Failure> {
    let mut body = operation.command.forward(&[]);
    body.string("$db", operation.command.db.as_bytes());
    operation.append_session(&mut body, shard);
    operation.router.clock.append(&mut body);
    let outgoing = Outgoing {
        body: body.finish(),
        sequence: None,
    };
    Ok(operation.send_to(host, &outgoing).await?.success()?.public())
}

/// A `getMore` of the router's own, for a cursor on a member of `shard`; `wait` is how long it may await data.
pub fn fetch_more(operation: &Operation, shard: &str, collection: &str, id: i64, wait: Option<Duration>) -> Outgoing {
    let mut body = Builder::new();
    body.int64("getMore", id).string("collection", collection.as_bytes());
    if let Some(wait) = wait {
        body.int64("maxTimeMS", wait.as_millis().max(1) as i64);
    }
    body.string("$db", operation.command.db.as_bytes());
    operation.append_session(&mut body, shard);
    operation.router.clock.append(&mut body);
    Outgoing {
        body: body.finish(),
        sequence: None,
    }
}

/// `maxTimeMS`, or a session with a transaction number, would crash the shard's server (measured on 6.0.5).
async fn forward_to_shards_router(operation: &Operation, host: &str) -> Result<Vec<u8>, Failure> {
    let command = &operation.command;
    let mut body = Builder::new();
    body.int64("clusterGetMore", command.number("getMore").unwrap_or(0));
    for field in ["collection", "batchSize", "comment"] {
        if let Some(field) = command.get(field) {
            body.element(&field);
        }
    }
    body.string("$db", command.db.as_bytes());
    operation.router.clock.append(&mut body);
    let outgoing = Outgoing {
        body: body.finish(),
        sequence: None,
    };
    Ok(operation.send_to(host, &outgoing).await?.success()?.public())
}

/// `killCursors`.
///
/// # Errors
/// If the ids are no array.
pub async fn kill(operation: &Operation) -> Result<Vec<u8>, Failure> {
    let Some(ids) = operation.command.nested("cursors") else {
        return refuse(
            40414,
            "BSON field 'killCursors.cursors' is missing but a required field",
        );
    };
    let ids: Vec<i64> = ids.elements().flatten().filter_map(|id| id.as_whole_number()).collect();
    let mut killed = Vec::new();
    let mut not_found = Vec::new();
    for id in ids {
        match operation.router.cursors.remove(id) {
            Some(source) => {
                kill_source(operation, id, &*source.lock().await).await;
                killed.push(id);
            }
            None => not_found.push(id),
        }
    }
    let mut reply = Builder::new();
    append_ids(&mut reply, "cursorsKilled", &killed);
    append_ids(&mut reply, "cursorsNotFound", &not_found);
    append_ids(&mut reply, "cursorsAlive", &[]);
    append_ids(&mut reply, "cursorsUnknown", &[]);
    reply.double("ok", 1.0);
    Ok(reply.finish())
}

async fn kill_source(operation: &Operation, id: i64, source: &Source) {
    let collection = operation
        .command
        .text("killCursors")
        .or(operation.command.text("collection"));
    let collection = collection.unwrap_or_default();
    match source {
        Source::Shard { host, .. } => kill_on(operation, host, collection, id).await,
        // There is no command for it: the server drops it when it has been idle.
        Source::ShardsRouter { .. } => (),
        Source::Merged(merged) => merged.kill(operation).await,
        Source::ChangeStream(stream) => stream.kill(operation).await,
    }
}

/// Kills one cursor on a member; whether that works matters to nobody.
pub async fn kill_on(operation: &Operation, host: &str, collection: &str, id: i64) {
    let mut body = Builder::new();
    body.string("killCursors", collection.as_bytes());
    append_ids(&mut body, "cursors", &[id]);
    body.string("$db", operation.command.db.as_bytes());
    if let Some(lsid) = &operation.command.lsid {
        body.append(ElementType::EmbeddedDocument, b"lsid", lsid);
    }
    let outgoing = Outgoing {
        body: body.finish(),
        sequence: None,
    };
    let _ = operation.send_to(host, &outgoing).await;
}

fn append_ids(body: &mut Builder, name: &str, ids: &[i64]) {
    body.open(ElementType::Array, name.as_bytes());
    for (position, id) in ids.iter().enumerate() {
        body.int64(&position.to_string(), *id);
    }
    body.close();
}

/// A cursor's reply.
pub fn cursor_reply(
    batch_name: &str,
    batch: &[Bytes],
    id: i64,
    namespace: &str,
    at_cluster_time: Option<u64>,
) -> Vec<u8> {
    let mut reply = Builder::new();
    reply.open(ElementType::EmbeddedDocument, b"cursor");
    reply.open(ElementType::Array, batch_name.as_bytes());
    for (position, document) in batch.iter().enumerate() {
        reply.append(ElementType::EmbeddedDocument, position.to_string().as_bytes(), document);
    }
    reply.close();
    reply.int64("id", id).string("ns", namespace.as_bytes());
    if let Some(time) = at_cluster_time {
        reply.timestamp("atClusterTime", time);
    }
    reply.close();
    reply.double("ok", 1.0);
    reply.finish()
}
