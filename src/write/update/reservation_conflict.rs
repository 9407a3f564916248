//! Resolves a reservation conflict outside the transaction that met it: does a document hold the key? If none does, the stale
//! reservation is removed.
//!
//! The attempt that an insert makes at its keys decides. It is made at the one key, and what it gains is released.

use std::borrow::Cow;

use super::reservation_diff::ReservationConflict;
use crate::claims::Candidate;
use crate::reservation::Token;
use crate::write::operation::WriteOp;
use crate::write::reserve::Claimed;

/// Resolves the conflict, and waits until Keyward gives up for other attempts at the key. If the key can be held it is free
/// now, and the transaction may be tried again.
pub async fn resolve(op: &WriteOp<'_>, conflict: &ReservationConflict) -> Claimed {
    let under_way = op.context.in_flight.begin();
    let token = Token::of(under_way.attempt());
    let key = conflict.key.clone();
    let mut candidate = Candidate::of_keys(token, Cow::Borrowed(&[]), conflict.owner.clone(), vec![key]);
    let claimed = match op.reserve(&mut candidate).await {
        Claimed::Held => {
            candidate.withdraw();
            Claimed::Held
        }
        // The very document has come to hold it: tried again, the statement finds it so.
        Claimed::Duplicate(key) if candidate.conflicts_with_itself(key) => Claimed::Held,
        claimed => claimed,
    };
    op.release(std::slice::from_mut(&mut candidate)).await;
    claimed
}
