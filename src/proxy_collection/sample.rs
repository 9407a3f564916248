//! Reads a few documents of the protected collection, at random.

use std::future::IntoFuture;

use bson::{Document, RawDocumentBuf, doc};
use futures_util::TryStreamExt;

use super::time_out::answered;
use super::{ProxyCollection, StoreError};

impl ProxyCollection {
    /// About `size` documents of the protected collection, each with only the top-level fields that the constraint and `shard_key` read.
    /// The server may give a document twice. From a collection that isn't much larger it gives all, and some of them may be missing if they
    /// are written meanwhile.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster doesn't answer.
    pub async fn sample(&self, size: u32, shard_key: &[String]) -> Result<Vec<RawDocumentBuf>, StoreError> {
        let projection = self.projection(shard_key)?;
        let projection = Document::try_from(&projection).map_err(|_| StoreError::Unexpected("a projection"))?;
        let stages = [
            doc! { "$sample": { "size": i64::from(size) } },
            doc! { "$project": projection },
        ];
        let sampled = self.protected.aggregate(stages).with_type::<RawDocumentBuf>();
        answered(answered(sampled.into_future()).await?.try_collect()).await
    }
}
