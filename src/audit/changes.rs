//! Reads the change stream of one collection, batch by batch.

use std::time::Duration;

use bson::{RawDocumentBuf, Timestamp, doc};
use mongodb::Client;
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::{ChangeStreamEvent, OperationType, ResumeToken};
use mongodb::options::{FullDocumentType, ReadConcern};
use tokio::time::Instant;

use crate::namespace::Namespace;
use crate::proxy_collection::{StoreError, answered};

/// The number of changes that are audited together.
const BATCH: usize = 1_000;
/// About the most bytes of documents that are audited together.
const BATCH_BYTES: usize = 16 << 20;
/// How long the server waits for a change before it answers that there is none, and about how long a batch waits for more. Until a batch ends,
/// its documents lack their reservations, and the turn isn't renewed.
const AWAITED: Duration = Duration::from_secs(1);

/// The changes of one collection.
pub(super) struct ChangeReader {
    stream: ChangeStream<ChangeStreamEvent<RawDocumentBuf>>,
}

/// Changes that follow each other.
pub(super) struct ChangeBatch {
    /// The documents that were written, as they are now.
    pub documents: Vec<RawDocumentBuf>,
    /// Behind the last of them.
    pub token: Option<ResumeToken>,
    /// The cluster time of the last of them.
    pub time: Option<Timestamp>,
    /// Whether there were no more changes.
    pub is_last: bool,
    /// The collection is gone, so the stream has ended. Another one may begin behind the token.
    pub is_invalidated: bool,
}

impl ChangeReader {
    /// The reader of the changes after `token`, or of those from now on.
    ///
    /// The driver fails on a field with text that isn't UTF-8. So each change has only the fields that an audit needs: the token of the
    /// change (`_id`), its kind and time, and the document, which stays bytes.
    pub(super) async fn of(
        client: &Client,
        namespace: &Namespace,
        token: Option<ResumeToken>,
    ) -> Result<ChangeReader, StoreError> {
        let database = client.database(&namespace.database);
        let collection = database.collection::<RawDocumentBuf>(&namespace.collection);
        let watch = collection
            .watch()
            .pipeline([doc! { "$project": { "operationType": 1, "clusterTime": 1, "fullDocument": 1 } }])
            .full_document(FullDocumentType::UpdateLookup)
            .read_concern(ReadConcern::majority())
            .max_await_time(AWAITED);
        let stream = match token {
            Some(token) => answered(watch.start_after(token).into_future()).await?,
            None => answered(watch.into_future()).await?,
        };
        Ok(ChangeReader { stream })
    }

    /// The next batch. It waits for about a second if there are no changes.
    pub(super) async fn next(&mut self) -> Result<ChangeBatch, StoreError> {
        let mut batch = ChangeBatch {
            documents: Vec::new(),
            token: None,
            time: None,
            is_last: false,
            is_invalidated: false,
        };
        let (mut bytes, begun) = (0, Instant::now());
        let is_full = |batch: &ChangeBatch, bytes| {
            batch.documents.len() >= BATCH || bytes >= BATCH_BYTES || begun.elapsed() >= AWAITED
        };
        while !batch.is_last && !batch.is_invalidated && !is_full(&batch, bytes) {
            match self.stream.next_if_any().await? {
                Some(event) => {
                    batch.time = event.cluster_time.or(batch.time);
                    batch.is_invalidated = event.operation_type == OperationType::Invalidate;
                    bytes += event
                        .full_document
                        .as_ref()
                        .map_or(0, |document| document.as_bytes().len());
                    batch.documents.extend(event.full_document);
                }
                None => batch.is_last = true,
            }
        }
        batch.token = self.stream.resume_token();
        Ok(batch)
    }
}
