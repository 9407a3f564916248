//! Defines the outcome of documents that were sent in one command, with any strategy.

use crate::reply::{Times, WriteError, WriteRefusal};

/// The outcome of one document, with the server's error for it. Without an error, an earlier document's error may have stopped
/// the batch.
#[derive(Debug, Clone)]
pub enum DocumentOutcome {
    /// It is inserted.
    Applied,
    /// It isn't inserted, and never will be.
    NotApplied(Option<WriteError>),
    /// It may be inserted, now or later.
    InDoubt(Option<WriteError>),
    /// It isn't inserted, and never will be, because another attempt has taken a key over.
    Superseded,
    /// It wasn't tried, because another document of its transaction has to wait.
    Untried,
}

/// Documents that were sent in one command or several, and answered.
#[derive(Debug)]
pub struct SentDocuments {
    /// One outcome for each document.
    pub outcomes: Vec<DocumentOutcome>,
    /// The body of the server's reply, with the number of inserted documents. `None` if no command succeeded.
    pub reply: Option<Vec<u8>>,
    /// The reply of a command that failed as a whole, so that no further documents may follow.
    pub failed: Option<Vec<u8>>,
    /// Keyward's refusal, if it sent none of them.
    pub refusal: Option<WriteRefusal>,
}

impl SentDocuments {
    /// The documents of a refused command: none of the `count` documents was sent.
    pub fn refused(refusal: WriteRefusal, times: &Times, count: usize) -> SentDocuments {
        SentDocuments {
            outcomes: vec![DocumentOutcome::NotApplied(None); count],
            reply: None,
            failed: Some(refusal.body(times)),
            refusal: Some(refusal),
        }
    }
}
