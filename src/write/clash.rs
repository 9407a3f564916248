//! A reservation stood in the way of a transaction: finds out, outside it, whether a document holds the key, and clears
//! the reservation away if nobody does.
//!
//! The same attempt that an insert makes at its keys decides: it is made at the one key, and what it gains is given back.

use std::borrow::Cow;

use tokio::time::Instant;

use super::moves::Clash;
use super::{BackOff, Context};
use crate::catalog::Protected;
use crate::claims::{Candidate, give_back, settle};
use crate::reservation::{Ended, Event, NotHeld, Token};

/// What was found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolved {
    /// A document holds the key.
    Duplicate,
    /// The key is free now: the transaction may be tried again.
    Cleared,
    /// The cluster gave no sure answer.
    Unsure,
    /// Somebody else is still at it when the time is up.
    TimeLimit,
}

/// Resolves `clash`, waiting until `deadline` for whoever is at the key.
pub async fn resolve(context: &Context, protected: &Protected, clash: &Clash, deadline: Instant) -> Resolved {
    let under_way = context.in_flight.begin();
    let token = Token {
        attempt: under_way.attempt(),
        position: 0,
        operation: None,
    };
    let key = clash.key.clone();
    let mut candidate = [Candidate::of_one_key(
        token,
        Cow::Borrowed(&[]),
        clash.owner.clone(),
        key,
    )];
    let mut back_off = BackOff::default();
    loop {
        let awaited = settle(protected, context.lease, &mut candidate).await;
        match candidate[0].attempt.ended() {
            Some(Ended::NotHeld(NotHeld::Duplicate(_))) => {
                protected.constraints[clash.key.constraint].metrics.duplicates.inc();
                return Resolved::Duplicate;
            }
            Some(Ended::NotHeld(NotHeld::Unsure(_))) => return Resolved::Unsure,
            _ => {}
        }
        let Some(rival) = awaited.first() else {
            candidate[0].withdraw();
            give_back(protected, context.lease, &mut candidate).await;
            return Resolved::Cleared;
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Resolved::TimeLimit;
        }
        context
            .in_flight
            .wait_for(rival.attempt, back_off.next().min(left))
            .await;
        candidate[0].step(&Event::WaitOver);
    }
}
