//! Resolves a reservation conflict outside the transaction that met it: removes the reservation if no document holds the key.
//!
//! Keyward makes the same attempt at the key that an insert makes, and releases any reservation that it gains.

use std::borrow::Cow;

use super::result::ReservationConflict;
use crate::claims::Candidate;
use crate::reservation::Token;
use crate::write::operation::WriteOp;
use crate::write::reserve::ReserveOutcome;

/// Resolves the conflict. Waits for other attempts at the key until Keyward gives up. If the key can be held it is free now,
/// and Keyward may try the transaction again.
pub async fn resolve(op: &WriteOp<'_>, conflict: &ReservationConflict) -> ReserveOutcome {
    let guard = op.context.writes.begin();
    let token = Token::of(guard.id());
    let key = conflict.key.clone();
    let mut candidate = Candidate::of_keys(token, Cow::Borrowed(&[]), conflict.owner.clone(), vec![key]);
    let claimed = match op.reserve(&mut candidate).await {
        ReserveOutcome::Held => {
            candidate.withdraw();
            ReserveOutcome::Held
        }
        // This same document now holds the key: another try of the statement finds it so.
        ReserveOutcome::Duplicate(key) if candidate.conflicts_with_itself(key) => ReserveOutcome::Held,
        claimed => claimed,
    };
    op.release(std::slice::from_mut(&mut candidate)).await;
    claimed
}
