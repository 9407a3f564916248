//! Walks reservations from the last `_id` to the first: page by page.
//!
//! Downwards, since most `_id`s are made in rising order: what is written meanwhile doesn't make the way longer. Each page
//! is a command of its own and ends where the reply of one does, so no cursor can time out, no page is larger than a reply,
//! and whoever goes on later needs the last `_id` only. All through the router, which leaves out what a chunk that was
//! moved has left behind.

use bson::raw::{RawBsonRef, RawDocument};
use bson::{RawBson, RawDocumentBuf, cstr, rawdoc};

use super::owner::equal_to;
use super::{ProxyCollection, Reservation, StoreError, answered, key_of};
use crate::constraint::Key;

/// A document of a proxy collection.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its `_id`.
    pub id: RawBson,
    /// The reservation that it is; or why it is none.
    pub read: Result<(Key, Reservation), Unreadable>,
}

/// Why a document of a proxy collection isn't a reservation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Fields are missing, or are what they can't be.
    #[error("a field of it is missing, or isn't what it must be")]
    Fields,
    /// Its `_id` is none that Keyward writes: nobody will ever look there.
    #[error("its _id isn't the form of a key: {0}")]
    Key(String),
}

impl ProxyCollection {
    /// Reads at most `limit` reservations that come after `after`, and whatever else is among them.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster gave no sure answer.
    pub async fn page(&self, after: Option<&RawBson>, limit: i32) -> Result<Vec<Entry>, StoreError> {
        let Some(command) = page(self.reservations.name(), after, limit) else {
            return Ok(Vec::new());
        };
        let found = self.find(command).await?;
        found.documents.iter().map(|document| self.entry(document)).collect()
    }

    pub(super) fn entry(&self, document: &RawDocument) -> Result<Entry, StoreError> {
        let read = match (Reservation::from_document(document), key_of(&self.constraint, document)) {
            (_, Err(reason)) => Err(Unreadable::Key(reason)),
            (None, _) => Err(Unreadable::Fields),
            (Some(reservation), Ok(key)) => Ok((key, reservation)),
        };
        let id = id_of(document)?;
        Ok(Entry { id, read })
    }

    /// What stands in the proxy collection under `id`, if it still isn't a reservation.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster gave no sure answer.
    pub async fn unreadable(&self, id: &RawBson) -> Result<Option<Unreadable>, StoreError> {
        let filter = rawdoc! { "_id": equal_to(id.clone()) };
        let found = self
            .find(rawdoc! { "find": self.reservations.name(), "filter": filter })
            .await?;
        let Some(document) = found.documents.first() else {
            return Ok(None);
        };
        Ok(self.entry(document)?.read.err())
    }

    /// Every document of the protected collection with this `_id`: on different shards there may be several.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster gave no sure answer.
    pub async fn documents_of_same_id(
        &self,
        id: &RawBson,
        shard_key: &[String],
    ) -> Result<Vec<RawDocumentBuf>, StoreError> {
        let command = rawdoc! {
            "find": self.protected.name(), "filter": { "_id": equal_to(id.clone()) },
            "projection": self.projection(shard_key)?,
        };
        Ok(self.find(command).await?.documents)
    }

    /// About how many documents and how many reservations there are.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster gave no answer.
    pub async fn estimate(&self) -> Result<(u64, u64), StoreError> {
        let documents = answered(self.protected.estimated_document_count().into_future()).await?;
        let reservations = answered(self.reservations.estimated_document_count().into_future()).await?;
        Ok((documents, reservations))
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

/// The `find` of the page after the `_id` `after`; none if nothing can come after it. Where it goes on is a bound of the index,
/// not a condition: `$lt` would only find values of its own kind. Of an index's range the lower end belongs to it and the
/// upper end doesn't, stated or not: upwards, `MaxKey` would be left out.
fn page(collection: &str, after: Option<&RawBson>, limit: i32) -> Option<RawDocumentBuf> {
    let mut command = walk(collection, after, limit)?;
    command.append(cstr!("limit"), limit);
    command.append(cstr!("singleBatch"), true);
    Some(command)
}

/// The same with all that comes after it, so many at a time.
pub(super) fn walk(collection: &str, after: Option<&RawBson>, batch: i32) -> Option<RawDocumentBuf> {
    let mut command = rawdoc! { "find": collection };
    match after {
        None => {}
        // The server refuses a range without anything in it.
        Some(RawBson::MinKey) => return None,
        Some(after) => command.append(cstr!("max"), rawdoc! { "_id": after.clone() }),
    }
    command.append(cstr!("hint"), rawdoc! { "_id": 1 });
    command.append(cstr!("sort"), rawdoc! { "_id": -1 });
    command.append(cstr!("batchSize"), batch);
    Some(command)
}
