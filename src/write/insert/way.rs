//! Chooses how a slice of an `insert` is carried out, by its keys and the strategy: forwarded within the lease, or in a transaction.

use std::collections::HashSet;
use std::time::Duration;

use super::compensating;
use super::sent_documents::SentDocuments;
use super::strict::StrictInsert;
use crate::claims::Candidate;
use crate::constraint::Strategy;
use crate::write::forward_error::ForwardError;
use crate::write::operation::WriteOp;
use crate::write::retry::server_memory::done_before;
use crate::write::txn::Failure;

/// How the documents of one slice are inserted, once their keys are reserved.
#[derive(Debug)]
pub enum InsertWay {
    /// Keyward forwards them within the lease of their keys, and releases the keys of documents that the server refuses.
    Compensating {
        /// The lease of the slice's keys. Documents that reserve nothing have it, too: others may hold keys meanwhile.
        lease: Duration,
    },
    /// A transaction inserts them. It takes effect only if their keys are reserved for them then.
    Strict(StrictInsert),
}

impl InsertWay {
    /// The way of the slice that begins at `first`, or of its rest. Keyward only forwards a slice without keys, with any strategy; also when it
    /// is retried.
    pub fn of_slice(op: &WriteOp<'_>, (first, is_rest): (usize, bool), candidates: &[Candidate<'_>]) -> InsertWay {
        let has_keys = is_rest || candidates.iter().any(|candidate| !candidate.keys.is_empty());
        match op.protected.strategy() {
            Strategy::Strict if has_keys => InsertWay::Strict(StrictInsert::new(op, first)),
            Strategy::Strict | Strategy::Compensating => InsertWay::Compensating {
                lease: op.lease_of(candidates),
            },
        }
    }

    /// The transactions that can insert documents together with their reservations: only strict ones, and only if all data is
    /// on one replica set.
    pub fn at_once(&self, op: &WriteOp<'_>) -> Option<&StrictInsert> {
        match self {
            InsertWay::Strict(strict) if op.protected.is_on_one_replica_set => Some(strict),
            InsertWay::Strict(_) | InsertWay::Compensating { .. } => None,
        }
    }

    /// Inserts `ready`, whose keys are reserved.
    ///
    /// # Errors
    /// [`ForwardError`]: the outcome of every candidate is unknown then.
    pub async fn insert(&self, op: &mut WriteOp<'_>, ready: &[&Candidate<'_>]) -> Result<SentDocuments, ForwardError> {
        match self {
            InsertWay::Compensating { lease } => compensating::insert(op, ready, *lease).await,
            // Boxed: its state is several times that of a compensating insert.
            InsertWay::Strict(strict) => Box::pin(strict.insert(op, ready)).await,
        }
    }

    /// The positions of those of `duplicates` that an earlier try of the command inserted; the documents may be gone since.
    ///
    /// # Errors
    /// [`Failure`] if Keyward can't find that out.
    pub async fn done_before(
        &self,
        op: &mut WriteOp<'_>,
        duplicates: &[&Candidate<'_>],
    ) -> Result<HashSet<usize>, Failure> {
        match self {
            InsertWay::Compensating { .. } => done_before(op, duplicates).await,
            InsertWay::Strict(strict) => strict.inserted_before(op, duplicates).await,
        }
    }

    /// Whether Keyward should claim the candidate's keys anew before it writes the document: a forwarded write must end before the lease
    /// of its keys.
    pub fn must_claim_anew(&self, op: &WriteOp<'_>, candidate: &Candidate<'_>) -> bool {
        match self {
            InsertWay::Compensating { lease } => {
                candidate.attempt.may_forward() && op.lease_left(*lease, candidate.since).is_too_little()
            }
            InsertWay::Strict(_) => false,
        }
    }
}
