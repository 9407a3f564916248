//! Inserts documents in strict mode: in transactions that take effect only if the documents' keys are reserved for them then.
//!
//! On shards, Keyward checks the reservations between the insert and the commit, at a moment that isn't before the
//! transaction's snapshots. If all data is on one replica set, the transaction writes the reservations itself. A takeover
//! causes a conflict ([`crate::proxy_collection`]), so delays do no harm: a Keyward that was stopped for an hour inserts no
//! document whose keys it has lost. `transaction.rs` states why the commit waits for the other commands' replies.

mod group_commit;
mod in_group;
mod progress;
mod reservations;
mod transaction;

use std::collections::HashSet;

use tokio::time::Instant;

use crate::claims::Candidate;
use crate::raw::Doc;
use crate::reply::WriteRefusal;
use crate::server::reply::code;
use crate::write::absent_collection::{CollectionCheck, may_report_absence};
use crate::write::back_off::BackOff;
use crate::write::catalog_epoch::TRANSACTION_LIFE;
use crate::write::forward_error::ForwardError;
use crate::write::insert::sent_documents::SentDocuments;
use crate::write::operation::WriteOp;
use crate::write::txn::Failure;

use crate::write::retry::inserted::{end_first_try, is_retry};
pub use group_commit::Groups;
use progress::InsertProgress;
pub use transaction::StrictInsert;
use transaction::{ReservationMode, TransactionOutcome};

/// How often Keyward's own reservation may be missing in a read: a router may lag behind.
const MISSING_MAX: u32 = 20;

impl StrictInsert {
    /// Inserts all of `candidates` with their reservations, none of which may exist yet. `None` if that isn't possible and the
    /// try had no effect.
    ///
    /// # Errors
    /// [`ForwardError`]: the outcome of every candidate is unknown then.
    pub async fn insert_at_once(
        &self,
        op: &mut WriteOp<'_>,
        candidates: &[&Candidate<'_>],
    ) -> Result<Option<SentDocuments>, ForwardError> {
        let mut progress = InsertProgress::new(candidates.len());
        match self.try_in_group(op, candidates, ReservationMode::Written).await? {
            TransactionOutcome::Committed(reply) => progress.committed(reply, op.command.ordered)?,
            TransactionOutcome::InDoubt(body) => progress.in_doubt(body),
            _ => return Ok(None),
        }
        Ok(Some(progress.into_sent()?))
    }

    /// The positions of those of `candidates` that an earlier try of a retryable command inserted; the documents may be gone
    /// since.
    ///
    /// # Errors
    /// [`Failure`] if Keyward can't find that out.
    pub async fn inserted_before(
        &self,
        op: &mut WriteOp<'_>,
        candidates: &[&Candidate<'_>],
    ) -> Result<HashSet<usize>, Failure> {
        let statements = self.inserted_by_majority(op).await?;
        let is_inserted =
            |position: &usize| Self::statement(op, *position).is_some_and(|own| statements.contains(&own));
        let positions = candidates.iter().map(|candidate| candidate.position);
        Ok(positions.filter(is_inserted).collect())
    }

    /// Inserts `ready`, whose keys are reserved.
    ///
    /// # Errors
    /// [`ForwardError`]: the outcome of every candidate is unknown then.
    pub async fn insert(&self, op: &mut WriteOp<'_>, ready: &[&Candidate<'_>]) -> Result<SentDocuments, ForwardError> {
        WriteOp::assert_held(ready.iter().copied());
        let is_retry = ready.iter().any(|candidate| is_retry(candidate));
        if let Some(first) = self.first.filter(|_| is_retry) {
            end_first_try(op, first).await?;
        }
        // The first try's group may be open until the server ends it. A client's own limit still applies.
        let outlasts_first_try = is_retry && op.client_deadline.is_none();
        let deadline = match outlasts_first_try {
            true => Instant::now() + TRANSACTION_LIFE,
            false => self.deadline,
        };
        let mut progress = InsertProgress::new(ready.len());
        let mut back_off = BackOff::default();
        let mut missing = 0;
        while let Some(these) = progress.next() {
            let these: Vec<&Candidate<'_>> = these.iter().map(|index| ready[*index]).collect();
            let tried = self.try_in_group(op, &these, ReservationMode::Checked).await?;
            match create_for_next_try(op, tried).await? {
                TransactionOutcome::Committed(reply) => progress.committed(reply, op.command.ordered)?,
                TransactionOutcome::DoneBefore(statements) => {
                    let is_done = |index: &usize| {
                        let statement = Self::statement(op, ready[*index].position);
                        statement.filter(|statement| statements.contains(statement))
                    };
                    progress.done_before(is_done);
                }
                // A later try will find the reservations: they are its own.
                TransactionOutcome::NotReserved => {
                    missing += 1;
                    if missing > MISSING_MAX {
                        let refusal = Self::unsure(op, &these);
                        progress.fail(refusal.body(&op.protected.times()));
                    }
                }
                TransactionOutcome::Superseded(indices) => progress.superseded(&indices),
                TransactionOutcome::Refused(index, error) => progress.refused(index, error, op.command.ordered),
                TransactionOutcome::Failed(body) => progress.fail(body),
                TransactionOutcome::InDoubt(body) => progress.in_doubt(body),
                TransactionOutcome::Conflict => {}
            }
            if progress.has_ended() {
                break;
            }
            if !progress.has_moved() {
                if Instant::now() >= deadline {
                    let times = op.protected.times();
                    match outlasts_first_try {
                        // The first try may yet take effect.
                        true => progress.in_doubt(Self::unsure(op, &these).body(&times)),
                        false => progress.fail(WriteRefusal::TimeLimit.body(&times)),
                    }
                    break;
                }
                tokio::time::sleep(back_off.next()).await;
            }
        }
        Ok(progress.into_sent()?)
    }
}

/// The outcome `tried` of a transaction, unless it had no effect because its collection doesn't exist. Then Keyward creates the
/// collection, and the outcome is a conflict that is over.
async fn create_for_next_try(
    op: &mut WriteOp<'_>,
    tried: TransactionOutcome,
) -> Result<TransactionOutcome, ForwardError> {
    let may_lack_collection = match &tried {
        TransactionOutcome::Conflict => true,
        TransactionOutcome::Failed(body) => may_report_absence(code(Doc::new(body)?)?),
        TransactionOutcome::Refused(_, error) => may_report_absence(error.code()),
        _ => false,
    };
    if !may_lack_collection {
        return Ok(tried);
    }
    Ok(match op.create_if_absent().await? {
        CollectionCheck::Created => TransactionOutcome::Conflict,
        CollectionCheck::Unneeded => tried,
        CollectionCheck::Refused(reply) => TransactionOutcome::Failed(reply.body),
    })
}
