//! Reads documents of the protected collection: all of them, from the last `_id` to the first, or a few at random.
//!
//! A walk over all has a cursor. Each shard reads each of its documents once. The walk goes through the router, which leaves out orphaned documents of
//! moved chunks.

use std::time::Duration;

use bson::spec::ElementType;
use bson::{Document, RawBson, RawDocumentBuf, Timestamp, cstr, doc, rawdoc};
use futures_util::TryStreamExt;
use mongodb::raw_batch_cursor::RawBatchCursor;

use super::find::documents_of;
use super::time_out::{answered, within};
use super::walk::{id_of, walk, walk_clustered};
use super::{ProxyCollection, StoreError};
use crate::raw::Doc;

/// How long a walk that goes on in a clustered collection waits for its first reply. The server first reads all earlier documents again.
const RESCAN_MAX: Duration = Duration::from_secs(3_600);

impl ProxyCollection {
    /// Walks the documents of the protected collection after the `_id` `after`, about `batch` at a time.
    ///
    /// Each comes with only the top-level fields that the constraint and `shard_key` read.
    pub fn all_documents<'p>(
        &'p self,
        after: Option<RawBson>,
        batch: i32,
        shard_key: &'p [String],
    ) -> AllDocuments<'p> {
        AllDocuments {
            proxy: self,
            shard_key,
            size: batch,
            after,
            concern: rawdoc! { "level": "local" },
            cursor: None,
            same_id: Vec::new(),
        }
    }

    /// About `size` documents of the protected collection, each with only the top-level fields that the constraint and `shard_key` read.
    /// The server may give a document twice. From a collection that isn't much larger it gives all, and some of them may be missing if they
    /// are written meanwhile.
    pub async fn sample(&self, size: u32, shard_key: &[String]) -> Result<Vec<RawDocumentBuf>, StoreError> {
        let projection = self.projection_of_existing(shard_key)?;
        let projection = Document::try_from(&projection).map_err(|_| StoreError::Unexpected("a projection"))?;
        let stages = [
            doc! { "$sample": { "size": i64::from(size) } },
            doc! { "$project": projection },
        ];
        let sampled = self.protected.aggregate(stages).with_type::<RawDocumentBuf>();
        answered(answered(sampled.into_future()).await?.try_collect()).await
    }
}

/// A walk over documents with a cursor. If the cursor is lost, the walk goes on after the last batch with a new one.
pub struct AllDocuments<'p> {
    proxy: &'p ProxyCollection,
    shard_key: &'p [String],
    size: i32,
    after: Option<RawBson>,
    concern: RawDocumentBuf,
    cursor: Option<RawBatchCursor>,
    /// The documents with the last `_id` of the last batch, on all shards.
    same_id: Vec<RawDocumentBuf>,
}

impl<'p> AllDocuments<'p> {
    /// Reads what a majority has, as of `moment` or later. No failover undoes what this walk has read. A primary alone may show a deletion
    /// that is undone: its document would be missed.
    #[must_use]
    pub fn by_majority(self, moment: Timestamp) -> AllDocuments<'p> {
        let concern = rawdoc! { "level": "majority", "afterClusterTime": moment };
        AllDocuments { concern, ..self }
    }

    /// Returns the next batch and its last `_id`; `None` after the last batch.
    pub async fn next(&mut self) -> Result<Option<(Vec<RawDocumentBuf>, RawBson)>, StoreError> {
        loop {
            let (mut cursor, is_new) = match self.cursor.take() {
                Some(cursor) => (cursor, false),
                None => match self.open().await? {
                    Some(cursor) => (cursor, true),
                    None => return Ok(None),
                },
            };
            let batch = match within(self.proxy.limit, cursor.try_next()).await {
                Ok(Some(batch)) => batch,
                Ok(None) => return Ok(None),
                Err(error) if is_new => return Err(error),
                Err(_) => continue,
            };
            let mut documents = documents_of(&batch)?;
            self.cursor = Some(cursor);
            // An empty batch doesn't end the walk.
            let Some(last) = documents.last().map(|last| id_of(last)).transpose()? else {
                continue;
            };
            self.add_same_id(&last, &mut documents).await?;
            self.after = Some(last.clone());
            return Ok(Some((documents, last)));
        }
    }

    /// The documents of the last batch that the next one may have again. Their `_id`s equal the last one by the collection's own collation.
    pub fn may_come_again(&self) -> &[RawDocumentBuf] {
        &self.same_id
    }

    async fn open(&mut self) -> Result<Option<RawBatchCursor>, StoreError> {
        let name = self.proxy.protected.name();
        let (command, limit) = match &self.after {
            Some(after) if self.proxy.is_clustered => (walk_clustered(name, after, self.size), RESCAN_MAX),
            after => (walk(name, after.as_ref(), self.size), self.proxy.limit),
        };
        let Some(mut command) = command else {
            return Ok(None);
        };
        command.append(cstr!("projection"), self.proxy.projection_of_existing(self.shard_key)?);
        command.append(cstr!("readConcern"), self.concern.clone());
        let size = u32::try_from(self.size).unwrap_or(u32::MAX);
        let cursor = self.proxy.database.run_raw_cursor_command(command).batch_size(size);
        within(limit, cursor.batch()).await.map(Some)
    }

    /// Adds the documents with this `_id` on other shards: a walk that goes on after this `_id` doesn't meet them.
    async fn add_same_id(&mut self, id: &RawBson, documents: &mut Vec<RawDocumentBuf>) -> Result<(), StoreError> {
        if !self.shard_key.is_empty() {
            let mut command = self.proxy.find_same_id(id, self.shard_key)?;
            command.append(cstr!("readConcern"), self.concern.clone());
            self.same_id = self.proxy.find(command).await?;
            let is_read = |same_id: &RawDocumentBuf| {
                let is_same = |read: &RawDocumentBuf| read == same_id || first_fields(read) == first_fields(same_id);
                documents.iter().rev().any(is_same)
            };
            let mut unread = self.same_id.clone();
            unread.retain(|same_id| !is_read(same_id));
            documents.append(&mut unread);
        }
        Ok(())
    }
}

/// The first field of each name. If a router sorts, it shows the value of the first one for all of the same name.
fn first_fields(document: &RawDocumentBuf) -> Vec<(&[u8], ElementType, &[u8])> {
    let mut first: Vec<(&[u8], ElementType, &[u8])> = Vec::new();
    for field in Doc::new(document.as_bytes())
        .into_iter()
        .flat_map(Doc::elements)
        .flatten()
    {
        if !first.iter().any(|(name, ..)| *name == field.name) {
            first.push((field.name, field.kind, field.value));
        }
    }
    first
}
