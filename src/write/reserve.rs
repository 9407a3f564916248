//! Reserves one candidate's keys, and waits for other attempts at them.

use tokio::time::Instant;

use super::back_off::BackOff;
use super::operation::WriteOp;
use crate::claims::{Candidate, advance_attempts};
use crate::reply::WriteRefusal;
use crate::reservation::{Ended, Event, NotHeld};

/// The result of a candidate's attempt at its keys. A key is given by its position in the candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReserveOutcome {
    /// The candidate holds all of them.
    Held,
    /// A document holds this one.
    Duplicate(usize),
    /// Keyward refuses the write: the cluster gave no sure answer, or another attempt still held a key when the time was up.
    Refused(WriteRefusal),
}

impl WriteOp<'_> {
    /// Reserves the candidate's keys. Waits for other attempts at them until Keyward gives up. On failure no key is held.
    pub async fn reserve(&self, candidate: &mut Candidate<'_>) -> ReserveOutcome {
        let mut back_off = BackOff::default();
        let check = self.takeover_check();
        loop {
            let awaited = advance_attempts(self.protected, std::slice::from_mut(candidate), &check).await;
            match candidate.attempt.ended() {
                Some(Ended::NotHeld(NotHeld::Duplicate(key))) => return ReserveOutcome::Duplicate(key),
                Some(Ended::NotHeld(NotHeld::Unsure(key))) => {
                    return ReserveOutcome::Refused(self.unsure(candidate.keys[key].constraint));
                }
                _ => {}
            }
            let Some(conflicting) = awaited.first() else {
                return ReserveOutcome::Held;
            };
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                candidate.withdraw();
                return ReserveOutcome::Refused(WriteRefusal::TimeLimit);
            }
            let wait = back_off.next().min(left);
            self.context.writes.wait_for(conflicting.write, wait).await;
            candidate.step(&Event::WaitOver);
        }
    }
}
