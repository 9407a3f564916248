//! What became of documents that were forwarded together, whatever the strategy.

use crate::reply::{Refusal, Times, WriteError};

/// What became of one forwarded document.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// It is there.
    Applied,
    /// It isn't, and won't be; with the server's error unless an earlier one stopped the batch.
    NotApplied(Option<WriteError>),
    /// Nobody knows; with the server's error if it gave one.
    InDoubt(Option<WriteError>),
    /// It isn't, and won't be, because a key isn't its any more.
    Lost,
    /// It isn't yet: it was in company that had to wait.
    NotTried,
}

/// The reply to one part.
#[derive(Debug)]
pub struct Part {
    /// One for each document forwarded.
    pub outcomes: Vec<Outcome>,
    /// The reply's body.
    pub body: Vec<u8>,
    /// Whether the command as a whole failed, so that the body is the client's reply and nothing may follow.
    pub failed: bool,
}

impl Part {
    /// None of `count` documents was sent, and the command is refused.
    pub fn refused(refusal: &Refusal, times: &Times, count: usize) -> Part {
        Part {
            outcomes: vec![Outcome::NotApplied(None); count],
            body: refusal.body(times),
            failed: true,
        }
    }
}
