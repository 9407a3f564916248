//! Reserves one candidate's keys, and waits for other attempts at them.

use tokio::time::Instant;

use super::back_off::BackOff;
use super::context::Context;
use crate::catalog::Protected;
use crate::claims::{Candidate, advance_attempts};
use crate::reservation::{Ended, Event, NotHeld};

/// The result of a candidate's attempt at its keys. A key is given by its position in the candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReserveOutcome {
    /// The candidate holds all of them.
    Held,
    /// A document holds this one.
    Duplicate(usize),
    /// The cluster gave no sure answer about this one.
    Unsure(usize),
    /// Another attempt still held a key when the time was up.
    TimeLimit,
}

/// Reserves the candidate's keys, and waits for other attempts at them until `give_up`. On failure no key is held.
pub async fn reserve(
    context: &Context,
    protected: &Protected,
    candidate: &mut Candidate<'_>,
    give_up: Instant,
) -> ReserveOutcome {
    let mut back_off = BackOff::default();
    loop {
        let awaited = advance_attempts(protected, context.lease, std::slice::from_mut(candidate)).await;
        match candidate.attempt.ended() {
            Some(Ended::NotHeld(NotHeld::Duplicate(key))) => return ReserveOutcome::Duplicate(key),
            Some(Ended::NotHeld(NotHeld::Unsure(key))) => return ReserveOutcome::Unsure(key),
            _ => {}
        }
        let Some(conflicting) = awaited.first() else {
            return ReserveOutcome::Held;
        };
        let left = give_up.saturating_duration_since(Instant::now());
        if left.is_zero() {
            candidate.withdraw();
            return ReserveOutcome::TimeLimit;
        }
        context
            .attempts
            .wait_for(conflicting.attempt, back_off.next().min(left))
            .await;
        candidate.step(&Event::WaitOver);
    }
}
