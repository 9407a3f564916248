//! How the documents of an `insert` become one with their reservations: the one place that chooses, and all that differs.

use std::collections::HashSet;

use super::compensating;
use super::part::Part;
use super::transactional::Transactional;
use crate::claims::Candidate;
use crate::constraint::Strategy;
use crate::write::forward::ForwardError;
use crate::write::operation::WriteOp;
use crate::write::retry::server_memory::done_before;
use crate::write::txn::Failure;

/// How the documents of one slice are inserted, once their keys are reserved.
#[derive(Debug)]
pub enum InsertWay {
    /// They are forwarded within the lease of their keys, and the keys of those that the server refuses are released.
    Compensating,
    /// They are inserted by a transaction, which takes effect only if their keys are reserved for them then.
    Transactional(Transactional),
}

impl InsertWay {
    /// The way of the slice that begins at `first`. A slice without keys is only forwarded, whatever the strategy; so is its
    /// retry.
    pub fn of_slice(op: &WriteOp<'_>, strategy: Strategy, first: usize, candidates: &[Candidate<'_>]) -> InsertWay {
        let has_keys = candidates.iter().any(|candidate| !candidate.keys.is_empty());
        match strategy {
            Strategy::Transaction if has_keys => InsertWay::Transactional(Transactional::new(op, first)),
            Strategy::Transaction | Strategy::Compensating => InsertWay::Compensating,
        }
    }

    /// Inserts `ready`, whose keys are reserved.
    ///
    /// # Errors
    /// [`ForwardError`]: the outcome of every candidate is unknown then.
    pub async fn insert(&self, op: &mut WriteOp<'_>, ready: &[&Candidate<'_>]) -> Result<Part, ForwardError> {
        match self {
            InsertWay::Compensating => compensating::insert(op, ready).await,
            InsertWay::Transactional(transactional) => transactional.insert(op, ready).await,
        }
    }

    /// The positions of those of `duplicates` that an earlier try of the command inserted; the documents may be gone since.
    ///
    /// # Errors
    /// [`Failure`] if that can't be found out.
    pub async fn done_before(
        &self,
        op: &mut WriteOp<'_>,
        duplicates: &[&Candidate<'_>],
    ) -> Result<HashSet<usize>, Failure> {
        match self {
            InsertWay::Compensating => Ok(done_before(op, duplicates).await?),
            InsertWay::Transactional(transactional) => transactional.inserted_before(op, duplicates).await,
        }
    }

    /// Whether the candidate's keys are to be claimed anew before it is written.
    pub fn is_late(&self, op: &WriteOp<'_>, candidate: &Candidate<'_>) -> bool {
        match self {
            InsertWay::Compensating => compensating::is_late(op, candidate),
            InsertWay::Transactional(_) => false,
        }
    }
}
