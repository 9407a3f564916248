//! Walks the documents that reservations are for, from the last `_id` to the first, with a cursor: each shard reads each of its
//! own once. Through the router, which leaves out what a chunk that was moved has left behind.

use bson::{RawBson, RawDocumentBuf, cstr};
use futures_util::TryStreamExt;
use mongodb::raw_batch_cursor::RawBatchCursor;

use super::find::{as_a_write_sees, documents_of};
use super::time_out::within;
use super::walk::{id_of, walk};
use super::{ProxyCollection, StoreError};

impl ProxyCollection {
    /// All documents of the protected collection that come after the `_id` `after`, about `batch` at a time: no more of them
    /// than what the constraint and `shard_key` read.
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
            cursor: None,
        }
    }
}

/// A walk over documents with a cursor, which begins anew where the last batch ended if that is lost.
pub struct AllDocuments<'p> {
    proxy: &'p ProxyCollection,
    shard_key: &'p [String],
    size: i32,
    after: Option<RawBson>,
    cursor: Option<RawBatchCursor>,
}

impl AllDocuments<'_> {
    /// The next batch and the last `_id` in it; none after the last one.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster gave no sure answer.
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
            // An empty batch isn't the last one.
            let Some(last) = documents.last().map(|last| id_of(last)).transpose()? else {
                continue;
            };
            self.add_namesakes(&last, &mut documents).await?;
            self.after = Some(last.clone());
            return Ok(Some((documents, last)));
        }
    }

    async fn open(&mut self) -> Result<Option<RawBatchCursor>, StoreError> {
        let Some(mut command) = walk(self.proxy.protected.name(), self.after.as_ref(), self.size) else {
            return Ok(None);
        };
        command.append(cstr!("projection"), self.proxy.projection(self.shard_key)?);
        let size = u32::try_from(self.size).unwrap_or(u32::MAX);
        let cursor = self
            .proxy
            .database
            .run_raw_cursor_command(as_a_write_sees(command))
            .batch_size(size);
        within(self.proxy.limit, cursor.batch()).await.map(Some)
    }

    /// Those with the last one's `_id` on other shards: who goes on behind it later doesn't meet them.
    async fn add_namesakes(&mut self, id: &RawBson, documents: &mut Vec<RawDocumentBuf>) -> Result<(), StoreError> {
        if !self.shard_key.is_empty() {
            let mut documents_of_same_id = self.proxy.documents_of_same_id(id, self.shard_key).await?;
            documents_of_same_id.retain(|same_id| !documents.contains(same_id));
            documents.append(&mut documents_of_same_id);
        }
        Ok(())
    }
}
