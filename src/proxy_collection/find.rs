//! Reads on primaries as Keyward's own user, and notes the cluster times of the replies.
//!
//! The driver's usual cursors hide `operationTime`, which Keyward reports to clients and [`super::watch`] brings to all
//! shards. They also fail on documents with text that isn't UTF-8. So Keyward reads the replies as bytes.

use std::time::Duration;

use bson::{RawDocumentBuf, cstr, rawdoc};
use futures_util::TryStreamExt;
use mongodb::raw_batch_cursor::RawBatch;
use mongodb::{ClientSession, Database};

use super::StoreError;
use super::sessions::Sessions;
use super::time_out::within;
use crate::reply::Times;

/// The batch size of a first reply: more documents than exist. The reply also ends at 16 MB.
pub(super) const ALL_AT_ONCE: i32 = 1_000_000;

/// How many replies to a `find` to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CursorReplies {
    /// All of them.
    All,
    /// The first one: those to a `getMore` ignore prepared transactions.
    First,
}

/// Runs commands in one database, and remembers the latest cluster times of the replies.
#[derive(Debug, Clone)]
pub(super) struct Finder {
    pub(super) sessions: Sessions,
    pub(super) database: Database,
    /// How long to wait for the answer to a command.
    pub(super) limit: Duration,
}

impl Finder {
    /// Each command may take `limit`.
    pub(super) fn new(sessions: Sessions, database: &Database, limit: Duration) -> Finder {
        Finder {
            sessions,
            database: database.clone(),
            limit,
        }
    }

    /// Runs `command` (a whole `find` command) and reads its cursor to the end.
    pub(super) async fn find(&self, command: RawDocumentBuf) -> Result<Vec<RawDocumentBuf>, StoreError> {
        let found = self.find_each(command, CursorReplies::All, Ok).await?;
        Ok(found.unwrap_or_default())
    }

    /// The same, but keeps only what `take` makes of each document: together they may have gigabytes. `None` if there is more than one reply,
    /// and only one may be read.
    pub(super) async fn find_each<T>(
        &self,
        command: RawDocumentBuf,
        replies: CursorReplies,
        take: impl Fn(RawDocumentBuf) -> Result<T, StoreError>,
    ) -> Result<Option<Vec<T>>, StoreError> {
        let mut session = self.sessions.take().await?;
        let (taken, times) = within(
            self.limit,
            find_each_in_transaction(&mut session, &self.database, as_a_write_sees(command), replies, take),
        )
        .await?;
        self.sessions.keep(session);
        self.sessions.note(times);
        Ok(taken)
    }

    /// The latest cluster times of its reads, and of the writes in the same sessions.
    pub(super) fn times(&self) -> Times {
        self.sessions.times()
    }
}

/// Makes a command read what a write on the primary sees, unless the command has a read concern.
///
/// Otherwise the cluster's default would apply: `available` returns orphaned documents of moved chunks, and `majority`
/// misses the latest writes. Not for a transaction's commands: the start of a transaction sets the read concern for all of
/// them.
pub(super) fn as_a_write_sees(mut command: RawDocumentBuf) -> RawDocumentBuf {
    if !matches!(command.get("readConcern"), Ok(Some(_))) {
        command.append(cstr!("readConcern"), rawdoc! { "level": "local" });
    }
    command
}

/// Works as [`Finder::find`], in `session`, and in its transaction if it has one. Also returns the latest cluster times of the replies.
pub(super) async fn find_in_transaction(
    session: &mut ClientSession,
    database: &Database,
    command: RawDocumentBuf,
) -> Result<(Vec<RawDocumentBuf>, Times), StoreError> {
    let (documents, times) = find_each_in_transaction(session, database, command, CursorReplies::All, Ok).await?;
    Ok((documents.unwrap_or_default(), times))
}

/// The same as [`Finder::find_each`] does, in `session`.
async fn find_each_in_transaction<T>(
    session: &mut ClientSession,
    database: &Database,
    command: RawDocumentBuf,
    replies: CursorReplies,
    take: impl Fn(RawDocumentBuf) -> Result<T, StoreError>,
) -> Result<(Option<Vec<T>>, Times), StoreError> {
    let cursor = database.run_raw_cursor_command(command).session(&mut *session);
    let mut cursor = cursor.batch().await?;
    let mut batches = cursor.stream(session);
    let (mut taken, mut times) = (Vec::new(), Times::default());
    while let Some(batch) = batches.try_next().await? {
        times.advance(Times::of_raw(batch.as_raw_document()));
        for document in documents_of(&batch)? {
            taken.push(take(document)?);
        }
        if replies == CursorReplies::First && is_followed(&batch) {
            return Ok((None, times));
        }
    }
    Ok((Some(taken), times))
}

/// Whether the server has more documents than this batch and those before.
fn is_followed(batch: &RawBatch) -> bool {
    let cursor = batch.as_raw_document().get_document("cursor");
    !cursor.and_then(|cursor| cursor.get_i64("id")).is_ok_and(|id| id == 0)
}

/// The documents of one batch of a cursor.
pub(super) fn documents_of(batch: &RawBatch) -> Result<Vec<RawDocumentBuf>, StoreError> {
    let unexpected = || StoreError::Unexpected("the reply to a find");
    let mut documents = Vec::new();
    for document in batch.doc_slices()? {
        let document = document.map_err(|_| unexpected())?;
        documents.push(document.as_document().ok_or_else(unexpected)?.to_owned());
    }
    Ok(documents)
}
