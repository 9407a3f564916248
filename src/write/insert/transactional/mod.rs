//! Transactional mode's insert: documents go in by a transaction that takes effect only if their keys are reserved for them then.
//!
//! It either checks the reservations that were written before, as of one moment on all shards, or, where everything is on
//! one replica set, writes them itself. A takeover makes itself felt as a conflict ([`crate::proxy_collection`]), so it
//! doesn't matter how long anything takes: a Keyward that was stopped for an hour inserts nothing that isn't its own.
//! All but the commit is sent without waiting. The commit waits for the replies: a command that the server refuses before
//! it looks at the session (for its shape, or without the privilege) leaves the transaction open, so that a commit sent
//! behind it would commit the others without it.

mod attempt;
mod group_commit;
mod in_group;
mod progress;
mod reservations;

use std::collections::HashSet;

use tokio::time::Instant;

use crate::claims::Candidate;
use crate::reply::Refusal;
use crate::write::back_off::BackOff;
use crate::write::catalog_epoch::TRANSACTION_LIFE;
use crate::write::forward::ForwardError;
use crate::write::insert::part::Part;
use crate::write::operation::WriteOp;
use crate::write::txn::Failure;

use crate::write::retry::inserted::{end_first_try, is_retry};
pub use attempt::Transactional;
use attempt::{Reservations, Tried};
pub use group_commit::Groups;
use progress::Progress;

/// How often a reservation that is ours may not be seen yet: a router may lag behind.
const UNSEEN_MAX: u32 = 20;

impl Transactional {
    /// Inserts all of `candidates` with their reservations, none of which may be there yet; `None` if that can't be done
    /// just so, and nothing was done.
    ///
    /// # Errors
    /// [`ForwardError`]: the outcome of every candidate is unknown then.
    pub async fn insert_at_once(
        &self,
        op: &mut WriteOp<'_>,
        candidates: &[&Candidate<'_>],
    ) -> Result<Option<Part>, ForwardError> {
        let mut progress = Progress::new(candidates.len());
        match self.attempt(op, candidates, Reservations::Written).await? {
            Tried::Committed(reply) => progress.committed(reply, op.command.ordered),
            Tried::InDoubt(body) => progress.in_doubt(body),
            _ => return Ok(None),
        }
        Ok(Some(progress.into_part()?))
    }

    /// The positions of those of `candidates` that an earlier try of a retryable command has inserted; they may be gone
    /// again since.
    ///
    /// # Errors
    /// [`Failure`] if that can't be found out.
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
    pub async fn insert(&self, op: &mut WriteOp<'_>, ready: &[&Candidate<'_>]) -> Result<Part, ForwardError> {
        WriteOp::assert_held(ready.iter().copied());
        let is_retry = ready.iter().any(|candidate| is_retry(candidate));
        if let Some(first) = self.first.filter(|_| is_retry) {
            end_first_try(op, first).await?;
        }
        // The first try's group may be open until the server ends it. A client's own limit stands.
        let outlasts_first_try = is_retry && op.deadline.is_none();
        let give_up = match outlasts_first_try {
            true => Instant::now() + TRANSACTION_LIFE,
            false => self.give_up,
        };
        let mut progress = Progress::new(ready.len());
        let mut back_off = BackOff::default();
        let mut unseen = 0;
        while let Some(these) = progress.next() {
            let these: Vec<&Candidate<'_>> = these.iter().map(|index| ready[*index]).collect();
            match self.attempt(op, &these, Reservations::Checked).await? {
                Tried::Committed(reply) => progress.committed(reply, op.command.ordered),
                Tried::Before(statements) => {
                    let is_done = |index: &usize| {
                        let statement = Self::statement(op, ready[*index].position);
                        statement.filter(|statement| statements.contains(statement))
                    };
                    progress.done_before(is_done);
                }
                // Its own reservations will be seen.
                Tried::Lost(lost) if lost.is_empty() => {
                    unseen += 1;
                    if unseen > UNSEEN_MAX {
                        let refusal = Self::unsure(op, &these);
                        progress.fail(refusal.body(&op.protected.times()));
                    }
                }
                Tried::Lost(lost) => progress.lost(&lost),
                Tried::Refused(index, error) => progress.refused(index, error, op.command.ordered),
                Tried::Failed(body) => progress.fail(body),
                Tried::InDoubt(body) => progress.in_doubt(body),
                Tried::Conflict => {}
            }
            if progress.has_ended() {
                break;
            }
            if !progress.has_moved() {
                if Instant::now() >= give_up {
                    let times = op.protected.times();
                    match outlasts_first_try {
                        // The first try may yet take effect.
                        true => progress.in_doubt(Self::unsure(op, &these).body(&times)),
                        false => progress.fail(Refusal::TimeLimit.body(&times)),
                    }
                    break;
                }
                tokio::time::sleep(back_off.next()).await;
            }
        }
        Ok(progress.into_part()?)
    }
}
