//! Several shards' cursors as one: in sort order where there is one, else as they come.
//!
//! In sort order each shard adds `$sortKey` to its documents (collation already applied there); it is taken off again here.

use std::cmp::Ordering;
use std::collections::VecDeque;

use bson::spec::ElementType;
use bytes::Bytes;
use futures_util::future::join_all;

use super::cursor::{cursor_id, cursor_reply, fetch_more, kill_on};
use crate::router::error::Failure;
use crate::router::operation::Operation;
use crate::router::raw::{Builder, Doc};
use crate::router::reply::Reply;
use crate::router::routing::compare_elements;

/// The most that a batch holds, in bytes.
const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The field by which shards tell a document's place.
pub const SORT_KEY: &str = "$sortKey";

/// One shard's part.
#[derive(Debug)]
struct Part {
    shard: String,
    host: String,
    /// 0 once it is exhausted.
    id: i64,
    buffer: VecDeque<Bytes>,
}

/// A cursor over several shards.
#[derive(Debug)]
pub struct Merged {
    parts: Vec<Part>,
    /// For each field of the sort whether it descends; `None` without a sort.
    descending: Option<Vec<bool>>,
    skip: u64,
    /// How many documents the client may still get.
    left: Option<u64>,
    collection: String,
    at_cluster_time: Option<u64>,
}

impl Merged {
    /// A cursor without parts.
    pub fn new(collection: &str, sort: Option<Doc<'_>>, skip: u64, limit: Option<u64>) -> Self {
        let descends = |field: crate::router::raw::Element<'_>| {
            field.as_whole_number().is_some_and(|direction| direction < 0)
                || field.kind == ElementType::EmbeddedDocument
        };
        Merged {
            parts: Vec::new(),
            descending: sort.map(|sort| sort.elements().flatten().map(descends).collect()),
            skip,
            left: limit,
            collection: collection.to_owned(),
            at_cluster_time: None,
        }
    }

    /// Adds a shard's first reply.
    pub fn add(&mut self, shard: &str, host: &str, reply: &Reply) {
        let cursor = reply.nested("cursor").unwrap_or_else(Doc::empty);
        self.parts.push(Part {
            shard: shard.to_owned(),
            host: host.to_owned(),
            id: cursor_id(cursor),
            buffer: batch(reply).into(),
        });
    }

    /// Reports the one time that all shards were read at.
    pub fn at(&mut self, time: Option<u64>) {
        self.at_cluster_time = time;
    }

    /// The next batch of at most `size` documents.
    ///
    /// # Errors
    /// A shard's error; the cursor is then of no further use.
    pub async fn next_batch(&mut self, operation: &Operation, size: Option<usize>) -> Result<Vec<Bytes>, Failure> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while size.is_none_or(|size| batch.len() < size) && self.left != Some(0) {
            self.refill(operation).await?;
            let Some(part) = self.next_part() else { break };
            let Some(next) = self.parts[part].buffer.front() else {
                break;
            };
            if !batch.is_empty() && bytes + next.len() > BATCH_BYTES_MAX {
                break;
            }
            let Some(next) = self.parts[part].buffer.pop_front() else {
                break;
            };
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            bytes += next.len();
            batch.push(if self.descending.is_some() {
                without_sort_key(&next)
            } else {
                next
            });
            self.left = self.left.map(|left| left - 1);
        }
        Ok(batch)
    }

    /// `getMore`'s reply.
    ///
    /// # Errors
    /// As [`Merged::next_batch`].
    pub async fn next_reply(
        &mut self,
        operation: &Operation,
        id: i64,
        namespace: &str,
        size: Option<usize>,
    ) -> Result<Vec<u8>, Failure> {
        let batch = self.next_batch(operation, size).await?;
        let id = if self.is_exhausted() { 0 } else { id };
        if id == 0 {
            self.kill(operation).await;
        }
        Ok(cursor_reply("nextBatch", &batch, id, namespace, self.at_cluster_time))
    }

    /// Whether there is surely nothing left.
    pub fn is_exhausted(&self) -> bool {
        self.left == Some(0) || self.parts.iter().all(|part| part.id == 0 && part.buffer.is_empty())
    }

    /// Kills what is open on the shards.
    pub async fn kill(&self, operation: &Operation) {
        let open = self.parts.iter().filter(|part| part.id != 0);
        join_all(open.map(|part| kill_on(operation, &part.host, &self.collection, part.id))).await;
    }

    /// Fetches for parts that have run dry: in sort order all of them, else only when there is nothing at all.
    async fn refill(&mut self, operation: &Operation) -> Result<(), Failure> {
        loop {
            let nothing = self.parts.iter().all(|part| part.buffer.is_empty());
            if self.descending.is_none() && !nothing {
                return Ok(());
            }
            let collection = self.collection.clone();
            let dry = self
                .parts
                .iter_mut()
                .filter(|part| part.buffer.is_empty() && part.id != 0);
            let fetches: Vec<_> = dry.map(|part| part.fetch(operation, &collection)).collect();
            if fetches.is_empty() {
                return Ok(());
            }
            for fetched in join_all(fetches).await {
                fetched?;
            }
        }
    }

    fn next_part(&self) -> Option<usize> {
        let filled = (0..self.parts.len()).filter(|part| !self.parts[*part].buffer.is_empty());
        match &self.descending {
            None => filled.into_iter().next(),
            Some(descending) => filled.min_by(|left, right| {
                let front = |part: usize| {
                    self.parts[part]
                        .buffer
                        .front()
                        .map(|front| &front[..])
                        .unwrap_or_default()
                };
                compare_sort_keys(front(*left), front(*right), descending)
            }),
        }
    }
}

impl Part {
    async fn fetch(&mut self, operation: &Operation, collection: &str) -> Result<(), Failure> {
        let outgoing = fetch_more(operation, &self.shard, collection, self.id, None);
        let reply = operation.send_to(&self.host, &outgoing).await?.success()?;
        self.id = cursor_id(reply.nested("cursor").unwrap_or_else(Doc::empty));
        self.buffer.extend(batch(&reply));
        Ok(())
    }
}

/// The documents of a reply's batch.
pub fn batch(reply: &Reply) -> Vec<Bytes> {
    let Some(cursor) = reply.nested("cursor") else {
        return Vec::new();
    };
    let field = |name| cursor.get(name).ok().flatten();
    let batch = field("firstBatch").or(field("nextBatch"));
    let batch = batch.and_then(|batch| batch.as_document_or_array().ok().flatten());
    let documents = batch.iter().flat_map(|batch| batch.elements()).flatten();
    documents
        .map(|document| reply.bytes().slice_ref(document.value))
        .collect()
}

fn compare_sort_keys(left: &[u8], right: &[u8], descending: &[bool]) -> Ordering {
    let keys = |document| {
        let key = Doc::new(document).ok()?.get(SORT_KEY).ok()??;
        key.as_document_or_array().ok()?
    };
    let (Some(left), Some(right)) = (keys(left), keys(right)) else {
        return Ordering::Equal;
    };
    let pairs = left.elements().flatten().zip(right.elements().flatten());
    pairs
        .zip(descending)
        .map(|((left, right), descending)| {
            let order = compare_elements(&left, &right);
            if *descending { order.reverse() } else { order }
        })
        .find(|order| *order != Ordering::Equal)
        .unwrap_or(Ordering::Equal)
}

fn without_sort_key(document: &Bytes) -> Bytes {
    let mut copy = Builder::new();
    for field in Doc::new(document)
        .iter()
        .flat_map(|document| document.elements())
        .flatten()
    {
        if field.name != SORT_KEY.as_bytes() {
            copy.element(&field);
        }
    }
    copy.finish().into()
}
