//! Begins and ends a transaction of Keyward's own user: for a takeover that proves an owner absent, or a read at one moment.
//!
//! The rules are those of a transaction on a client's connection (`write/txn/`). An error with the label for transient errors
//! proves that the transaction had no effect. A commit of unknown outcome is repeated. No abort follows a commit.

use mongodb::ClientSession;
use mongodb::error::{Error, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT};
use mongodb::options::{ReadConcern, WriteConcern};

use super::{ProxyCollection, StoreError};

/// How often Keyward sends a commit whose outcome is unknown.
const COMMITS_MAX: u32 = 5;

/// How to end a transaction whose commands had this result.
pub(super) enum TransactionEnd<T> {
    Commit(T),
    Abort(T),
}

impl ProxyCollection {
    /// Begins a transaction that sees all shards as of one moment, and that counts once a majority has it.
    pub(super) async fn begin(&self) -> Result<ClientSession, StoreError> {
        let mut session = self.client.start_session().await?;
        session
            .start_transaction()
            .read_concern(ReadConcern::snapshot())
            .write_concern(WriteConcern::majority())
            .await?;
        Ok(session)
    }
}

/// Ends the transaction of `session`, and returns the result of its commands.
///
/// # Errors
/// [`StoreError`] of a command or of the commit; [`is_transient`] shows whether another try is worth it.
pub(super) async fn end<T>(
    session: &mut ClientSession,
    ending: Result<TransactionEnd<T>, StoreError>,
) -> Result<T, StoreError> {
    let result = match ending {
        Ok(TransactionEnd::Commit(result)) => {
            commit(session).await?;
            return Ok(result);
        }
        Ok(TransactionEnd::Abort(result)) => Ok(result),
        Err(error) => Err(error),
    };
    // The server may have aborted it. If the server gets no abort, its own time limit ends the transaction.
    let _ = session.abort_transaction().await;
    result
}

/// Whether the error proves that the transaction had no effect, so that it may be tried again.
pub(super) fn is_transient(error: &StoreError) -> bool {
    matches!(error, StoreError::Driver(error) if error.contains_label(TRANSIENT_TRANSACTION_ERROR))
}

async fn commit(session: &mut ClientSession) -> Result<(), Error> {
    let is_unknown = |committed: &Result<(), Error>| matches!(committed, Err(error) if error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT));
    let mut committed = session.commit_transaction().await;
    for _ in 1..COMMITS_MAX {
        if !is_unknown(&committed) {
            break;
        }
        committed = session.commit_transaction().await;
    }
    committed
}
