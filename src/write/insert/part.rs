//! The outcome of documents that were sent together, with any strategy.

use crate::reply::{Refusal, Times, WriteError};
use crate::write::outcome::Outcome;

/// The outcome of one document, with the server's error for it. An error of an earlier document may have stopped the batch before
/// it.
pub type DocumentOutcome = Outcome<Option<WriteError>>;

/// The reply to one part.
#[derive(Debug)]
pub struct Part {
    /// One for each document; none for a document that wasn't tried, because one that shares its transaction has to wait.
    pub outcomes: Vec<Option<DocumentOutcome>>,
    /// The reply's body.
    pub body: Vec<u8>,
    /// Whether the command as a whole failed, so that the body is the client's reply and nothing may follow.
    pub failed: bool,
}

impl Part {
    /// None of `count` documents was sent, and the command is refused.
    pub fn refused(refusal: &Refusal, times: &Times, count: usize) -> Part {
        Part {
            outcomes: vec![Some(Outcome::NotApplied(None)); count],
            body: refusal.body(times),
            failed: true,
        }
    }
}
