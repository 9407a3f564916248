//! Defines the outcome of documents that were sent in one command, with any strategy.

use crate::reply::{Times, WriteError, WriteRefusal};
use crate::write::forward::Outcome;

/// The outcome of one document, with the server's error for it. Without an error, an earlier document's error may have stopped
/// the batch.
pub type DocumentOutcome = Outcome<Option<WriteError>>;

/// Documents that were sent in one command, and answered.
#[derive(Debug)]
pub struct SentDocuments {
    /// One outcome for each document. `None` for a document that wasn't tried, because another document of its transaction has
    /// to wait.
    pub outcomes: Vec<Option<DocumentOutcome>>,
    /// The reply's body.
    pub body: Vec<u8>,
    /// Whether the command failed as a whole, so that the body is the client's reply and no further documents may follow.
    pub failed: bool,
    /// Keyward's refusal, if it sent none of them.
    pub refusal: Option<WriteRefusal>,
}

impl SentDocuments {
    /// The documents of a refused command: none of the `count` documents was sent.
    pub fn refused(refusal: WriteRefusal, times: &Times, count: usize) -> SentDocuments {
        SentDocuments {
            outcomes: vec![Some(Outcome::NotApplied(None)); count],
            body: refusal.body(times),
            failed: true,
            refusal: Some(refusal),
        }
    }
}
