//! Reads reservations page by page, from the last `_id` to the first, by their keys, and those that were written recently.
//!
//! The walk goes downwards: most `_id`s are made in rising order, so reservations written meanwhile don't make it longer.
//! Each page is a command of its own, and ends where its reply ends. So no cursor can time out, and no page is larger than a
//! reply. To go on later, a walk needs the last `_id` only. It goes through the router, which leaves out orphaned documents
//! of moved chunks.

use std::time::Duration;

use bson::raw::{RawBsonRef, RawDocument};
use bson::{RawBson, RawDocumentBuf, Timestamp, cstr, rawdoc};

use super::filter::equal_to;
use super::reading::{find_keys, key_of};
use super::{KEYS_MAX, ProxyCollection, Reservation, StoreError, answered};
use crate::constraint::Key;

/// How long the servers may look for recent reservations, in ms: no index has their times, and a client waits.
const RECENT_MS: i32 = 2_000;

/// A document of a proxy collection.
#[derive(Debug, Clone)]
pub struct ProxyDocument {
    /// Its `_id`.
    pub id: RawBson,
    /// Its key and reservation; or the reason why it isn't a reservation.
    pub read: Result<(Key, Reservation), Unreadable>,
}

/// Why a document of a proxy collection isn't a reservation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Fields are missing or invalid.
    #[error("a field of it is missing, or isn't what it must be")]
    Fields,
    /// Keyward never writes such an `_id`, and so never looks there.
    #[error("its _id isn't the form of a key: {0}")]
    Key(String),
}

impl ProxyCollection {
    /// Reads at most `limit` documents that come after `after`, reservations or not.
    pub async fn page(&self, after: Option<&RawBson>, limit: i32) -> Result<Vec<ProxyDocument>, StoreError> {
        let Some(command) = page(self.reservations.name(), after, limit) else {
            return Ok(Vec::new());
        };
        let found = self.find(command).await?;
        found.iter().map(|document| self.entry(document)).collect()
    }

    /// Reads reservations that aren't known to be older than `span`, at most `limit` of them, in no order.
    ///
    /// A process that hasn't run for that long knows no reservation to be older. Fails if there are too many reservations to look through.
    pub async fn recent(&self, span: Duration, limit: i64) -> Result<Vec<(Key, Reservation)>, StoreError> {
        let long_ago = Timestamp { time: 0, increment: 0 };
        let known = self.watch.known_for(span).unwrap_or(long_ago);
        let command = rawdoc! {
            "find": self.reservations.name(), "filter": { "at": { "$gt": known } }, "limit": limit, "maxTimeMS": RECENT_MS,
        };
        let found = self.find(command).await?;
        let mut recent = Vec::with_capacity(found.len());
        for document in &found {
            // Other documents are skipped: no write waits for them.
            if let Ok(reservation) = self.entry(document)?.read {
                recent.push(reservation);
            }
        }
        Ok(recent)
    }

    /// Reads the documents under these `keys`, reservations or not, in no order.
    pub async fn entries(&self, keys: &[&Key]) -> Result<Vec<ProxyDocument>, StoreError> {
        let mut entries = Vec::with_capacity(keys.len());
        for keys in keys.chunks(KEYS_MAX) {
            let found = self
                .find(find_keys(self.reservations.name(), keys.iter().copied()))
                .await?;
            for document in &found {
                entries.push(self.entry(document)?);
            }
        }
        Ok(entries)
    }

    pub(super) fn entry(&self, document: &RawDocument) -> Result<ProxyDocument, StoreError> {
        let read = match (Reservation::from_document(document), key_of(&self.constraint, document)) {
            (_, Err(reason)) => Err(Unreadable::Key(reason)),
            (None, _) => Err(Unreadable::Fields),
            (Some(reservation), Ok(key)) => Ok((key, reservation)),
        };
        let id = id_of(document)?;
        Ok(ProxyDocument { id, read })
    }

    /// Reads the document at `id` in the proxy collection; returns why it isn't a reservation, if it still isn't one.
    pub async fn unreadable(&self, id: &RawBson) -> Result<Option<Unreadable>, StoreError> {
        let filter = rawdoc! { "_id": equal_to(id.clone()) };
        let found = self
            .find(rawdoc! { "find": self.reservations.name(), "filter": filter })
            .await?;
        let Some(document) = found.first() else {
            return Ok(None);
        };
        Ok(self.entry(document)?.read.err())
    }

    /// Every document of the protected collection with this `_id`: several shards may each have one.
    pub async fn documents_of_same_id(
        &self,
        id: &RawBson,
        shard_key: &[String],
    ) -> Result<Vec<RawDocumentBuf>, StoreError> {
        self.find(self.find_same_id(id, shard_key)?).await
    }

    /// The command for that.
    pub(super) fn find_same_id(&self, id: &RawBson, shard_key: &[String]) -> Result<RawDocumentBuf, StoreError> {
        Ok(rawdoc! {
            "find": self.protected.name(), "filter": { "_id": equal_to(id.clone()) },
            "projection": self.projection_of_existing(shard_key)?,
        })
    }

    /// The approximate numbers of documents and of reservations.
    pub async fn estimate(&self) -> Result<(u64, u64), StoreError> {
        let documents = answered(self.protected.estimated_document_count().into_future()).await?;
        let reservations = answered(self.reservations.estimated_document_count().into_future()).await?;
        Ok((documents, reservations))
    }

    /// About how many reservations there are, from the collection's metadata.
    pub async fn count_reservations(&self) -> Result<u64, StoreError> {
        answered(self.reservations.estimated_document_count().into_future()).await
    }
}

/// The `_id` of a stored document.
///
/// # Errors
/// [`StoreError::Unexpected`] if it has none.
pub fn id_of(document: &RawDocument) -> Result<RawBson, StoreError> {
    let id: Option<RawBsonRef<'_>> = document.get("_id").ok().flatten();
    id.map(RawBson::from).ok_or(StoreError::Unexpected("a document"))
}

/// The `find` of the page after the `_id` `after`; `None` if nothing can come after it.
///
/// The page starts at a bound of the index, not at a condition: `$lt` would only find values of its own type. An index range
/// includes its lower end and excludes its upper end, stated or not. So an upward walk would leave out `MaxKey`.
fn page(collection: &str, after: Option<&RawBson>, limit: i32) -> Option<RawDocumentBuf> {
    let mut command = walk(collection, after, limit)?;
    command.append(cstr!("limit"), limit);
    command.append(cstr!("singleBatch"), true);
    Some(command)
}

/// The `find` of all documents after `after`, `batch` at a time.
pub(super) fn walk(collection: &str, after: Option<&RawBson>, batch: i32) -> Option<RawDocumentBuf> {
    let mut command = rawdoc! { "find": collection };
    match after {
        None => {}
        // The server refuses an empty range.
        Some(RawBson::MinKey) => return None,
        Some(after) => command.append(cstr!("max"), rawdoc! { "_id": after.clone() }),
    }
    command.append(cstr!("hint"), rawdoc! { "_id": 1 });
    command.append(cstr!("sort"), rawdoc! { "_id": -1 });
    command.append(cstr!("batchSize"), batch);
    Some(command)
}

/// The `find` of all documents after `after` in a clustered collection: the server refuses bounds for a downward walk there.
///
/// No filter over several types is a bound, so the server reads all documents before `after` again. It compares values of all types in
/// `$expr`. But it orders values of the deprecated type `DBPointer` differently there than where they lie. `$lt` orders them as they lie,
/// and compares only values of one type. Each condition finds the documents that the other one misses.
pub(super) fn walk_clustered(collection: &str, after: &RawBson, batch: i32) -> Option<RawDocumentBuf> {
    if *after == RawBson::MinKey {
        return None;
    }
    let of_its_type = rawdoc! { "_id": { "$lt": after.clone() } };
    let of_all_types = rawdoc! { "$expr": { "$lt": ["$_id", { "$literal": after.clone() }] } };
    let mut command = walk(collection, None, batch)?;
    command.append(cstr!("filter"), rawdoc! { "$or": [of_its_type, of_all_types] });
    Some(command)
}
