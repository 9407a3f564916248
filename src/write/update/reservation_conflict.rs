//! A reservation stood in the way of a transaction: finds out, outside it, whether a document holds the key, and clears
//! the reservation away if nobody does.
//!
//! The same attempt that an insert makes at its keys decides: it is made at the one key, and what it gains is given back.

use std::borrow::Cow;

use super::reservation_diff::ReservationConflict;
use crate::claims::Candidate;
use crate::reservation::Token;
use crate::write::operation::WriteOp;
use crate::write::reserve::Claimed;

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

/// Resolves the conflict, and waits until Keyward gives up for other attempts at the key.
pub async fn resolve(op: &WriteOp<'_>, conflict: &ReservationConflict) -> Resolved {
    let under_way = op.context.in_flight.begin();
    let token = Token::of(under_way.attempt());
    let key = conflict.key.clone();
    let mut candidate = Candidate::of_keys(token, Cow::Borrowed(&[]), conflict.owner.clone(), vec![key]);
    let resolved = match op.reserve(&mut candidate).await {
        Claimed::Held => {
            candidate.withdraw();
            Resolved::Cleared
        }
        // The very document has come to hold it: tried again, the statement finds it so.
        Claimed::Duplicate(key) if candidate.conflicts_with_itself(key) => Resolved::Cleared,
        Claimed::Duplicate(_) => Resolved::Duplicate,
        Claimed::Unsure(_) => Resolved::Unsure,
        Claimed::TimeLimit => Resolved::TimeLimit,
    };
    op.release(std::slice::from_mut(&mut candidate)).await;
    resolved
}
