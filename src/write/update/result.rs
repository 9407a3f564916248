//! Defines the results of a statement: of one evaluation by the server, and of the statement as a whole.

use crate::catalog::Protected;
use crate::claims::ConstrainedKey;
use crate::constraint::KeyError;
use crate::proxy_collection::Owner;
use crate::reply::WriteRefusal;
use crate::write::forward::{Outcome, Sent, UnappliedReason};
use crate::write::txn::ErrorReply;

/// The result of a statement, for the reply.
#[derive(Debug)]
pub enum StatementResult {
    /// The server's reply: the statement applied, or the server refused it.
    Reply(Vec<u8>),
    /// The same for a part of the documents: Keyward must run the statement again.
    Partial(Vec<u8>),
    /// The server's reply with `ok: 0`.
    ErrorReply(Vec<u8>),
    /// A document holds the key.
    Duplicate(ConstrainedKey),
    /// A native index would refuse a document.
    Unindexable(KeyError),
    /// Keyward refuses the statement.
    Refused(WriteRefusal),
}

/// The result of one evaluation in a transaction.
#[derive(Debug)]
pub enum Evaluation {
    /// The statement and its reservations are written; the transaction is open.
    Ran(StatementResult),
    /// The statement has its result, but the transaction must not be committed.
    Abandoned(StatementResult),
    /// A reservation is in the way; the transaction is over.
    ReservationConflict(ReservationConflict),
    /// The statement changed `affected` documents, but not exactly those that Keyward had read, or they are elsewhere than by
    /// the shard key that Keyward knows. The transaction is open, and must not be committed.
    Misplaced {
        /// How many.
        affected: usize,
    },
    /// The server refused to read the documents. The transaction may be open, and must not be committed.
    ReadRefused(ErrorReply),
}

impl Evaluation {
    /// The statement selects more than `documents_max` documents.
    pub fn too_many(protected: &Protected, documents_max: usize) -> Evaluation {
        let namespace = protected.namespace.clone();
        let refusal = WriteRefusal::TooMany {
            namespace,
            documents_max,
        };
        Evaluation::Abandoned(StatementResult::Refused(refusal))
    }
}

/// A reservation exists for a key that Keyward was to reserve: perhaps a duplicate, perhaps stale.
#[derive(Debug, Clone)]
pub struct ReservationConflict {
    /// The key.
    pub key: ConstrainedKey,
    /// The document that was to have the key.
    pub owner: Owner,
}

impl From<Sent> for StatementResult {
    fn from(sent: Sent) -> Self {
        match sent.outcome {
            Outcome::NotApplied(UnappliedReason::Withheld { is_retryable }) => {
                StatementResult::Refused(WriteRefusal::outlasted(is_retryable))
            }
            Outcome::NotApplied(UnappliedReason::Command) | Outcome::InDoubt(UnappliedReason::Command) => {
                StatementResult::ErrorReply(sent.body)
            }
            _ => StatementResult::Reply(sent.body),
        }
    }
}
