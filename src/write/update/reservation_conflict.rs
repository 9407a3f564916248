//! A reservation stood in the way of a transaction: finds out, outside it, whether a document holds the key, and clears
//! the reservation away if nobody does.
//!
//! The same attempt that an insert makes at its keys decides: it is made at the one key, and what it gains is given back.

use std::borrow::Cow;

use tokio::time::Instant;

use super::reservation_diff::ReservationConflict;
use crate::catalog::Protected;
use crate::claims::{Candidate, give_back};
use crate::reservation::Token;
use crate::write::Context;
use crate::write::reserve::{Claimed, reserve};

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
pub async fn resolve(
    context: &Context,
    protected: &Protected,
    conflict: &ReservationConflict,
    deadline: Instant,
) -> Resolved {
    let under_way = context.in_flight.begin();
    let token = Token::of(under_way.attempt());
    let key = conflict.key.clone();
    let mut candidate = Candidate::of_keys(token, Cow::Borrowed(&[]), conflict.owner.clone(), vec![key]);
    let resolved = match reserve(context, protected, &mut candidate, deadline).await {
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
    give_back(protected, context.lease, std::slice::from_mut(&mut candidate)).await;
    resolved
}
