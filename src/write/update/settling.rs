//! Sends a statement about one document whose keys are held, and settles the keys after its reply.

use super::document_keys::{self, DocumentKeys};
use super::in_transaction::StatementRun;
use super::result::StatementResult;
use crate::claims::{Candidate, ConstrainedKey};
use crate::proxy_collection::Reservation;
use crate::raw::Doc;
use crate::reservation::{Event, Scope};
use crate::server::reply::is_from_memory;
use crate::write::forward::{self, Acknowledged, ForwardError, Sent};
use crate::write::lease_left::LeaseLeft;
use crate::write::operation::WriteOp;
use crate::write::retry::server_memory::first_try;

/// The outcome of one try.
pub enum InPlaceOutcome {
    /// The statement has its result.
    Ran(StatementResult),
    /// The document changed meanwhile.
    Again,
    /// No document still had the values that Keyward had read.
    Missed(Vec<u8>),
}

/// The reservations of keys that the document is to release, as they were before.
pub type GivenUp = Vec<(ConstrainedKey, Reservation)>;

/// Sends the statement in the form `own` within the lease of the candidate's keys. `None` if too little of the lease is left.
///
/// # Errors
/// [`ForwardError`] if the connection is gone: the outcome is unknown then.
pub async fn send(
    run: &mut StatementRun<'_, '_>,
    own: &[u8],
    candidate: &mut Candidate<'_>,
) -> Result<Option<Sent>, ForwardError> {
    let left = LeaseLeft::new(run.op.context.lease, candidate.since);
    let time = left.time_to_write(run.op.deadline);
    let Some(time) = time.filter(|_| !left.is_too_little()) else {
        candidate.withdraw();
        return Ok(None);
    };
    let which = (run.statement.kind, run.index);
    WriteOp::assert_held([&*candidate]);
    let lease = run.op.context.lease;
    let sent = forward::statement(run.op, which, own, Acknowledged::ByMajority, Some(time));
    let sent = forward::within(lease, sent).await;
    Ok(Some(sent.inspect_err(|_| in_doubt(run, candidate))?))
}

/// Notes that the statement may have taken effect, or may still do so.
pub fn in_doubt(run: &mut StatementRun<'_, '_>, candidate: &mut Candidate<'_>) {
    candidate.step(&Event::InDoubt);
    run.op.note_in_doubt(candidate);
}

/// Releases the old keys that the document of `image` no longer holds, and the new keys that it didn't get.
///
/// If the server carried the statement out now, the document was as Keyward had read it. So it holds just the new keys, and
/// Keyward needn't read it again.
///
/// The server may have answered from its memory of a first try, which may have concerned another document. Since then, a later
/// write in progress may have reserved the old keys. Keyward then keeps them: the next write that meets one finds out whether
/// it is stale. The new keys may be held, or not.
///
/// # Errors
/// [`ForwardError`] if the connection is gone.
pub async fn settle(
    run: &mut StatementRun<'_, '_>,
    image: &DocumentKeys,
    given_up: GivenUp,
    candidate: &mut Candidate<'_>,
    reply: &[u8],
) -> Result<(), ForwardError> {
    let reply = Doc::new(reply)?;
    if !is_from_memory(reply)? {
        candidate.step(&Event::Applied);
        release_old(run, image, &given_up).await;
        return Ok(());
    }
    let (protected, body) = (run.op.protected, run.statement.body);
    let looked = document_keys::look_again(protected, body, image, reply, run.op.upstream).await?;
    // The statement was carried out before, so it can't take effect later: each key is decided separately.
    candidate.step(&Event::Applied);
    if let Ok(held) = looked {
        release_new(run, candidate, held.as_deref().unwrap_or_default()).await;
    }
    Ok(())
}

async fn release_old(run: &StatementRun<'_, '_>, image: &DocumentKeys, given_up: &GivenUp) {
    for (constraint, proxy) in run.op.protected.constraints.iter().enumerate() {
        let given_up = given_up.iter().filter(|(key, _)| key.constraint == constraint);
        let given_up = given_up.map(|(key, seen)| (&key.key, seen));
        // On another route, the owner may be another document with the same `_id`, or this one before the collection was
        // resharded.
        let (given_up, elsewhere): (Vec<_>, Vec<_>) = given_up.partition(|(_, before)| before.owner == image.owner);
        if given_up.len() + elsewhere.len() == 0 {
            continue;
        }
        let released = async {
            let given_up = [given_up, proxy.unheld(elsewhere, Scope::Linearizable).await?].concat();
            proxy.release_seen(&given_up).await
        };
        proxy.or_left_behind(released).await;
    }
}

async fn release_new(run: &StatementRun<'_, '_>, candidate: &Candidate<'_>, held: &[ConstrainedKey]) {
    for (constraint, proxy) in run.op.protected.constraints.iter().enumerate() {
        let not_come = candidate.keys.iter();
        let not_come = not_come.filter(|key| key.constraint == constraint && !held.contains(key));
        let claims: Vec<_> = not_come.map(|key| (&key.key, &candidate.owner)).collect();
        if claims.is_empty() {
            continue;
        }
        let released = async {
            // The document may have got these keys, and be elsewhere now: one look by its shard key isn't enough.
            let held = proxy.look_up(&claims, Scope::Linearizable).await?;
            let not_come = claims.iter().zip(held).filter(|(_, held)| !held);
            let token = candidate.attempt.token();
            let not_come: Vec<_> = not_come.map(|((key, _), _)| (*key, token)).collect();
            proxy.release(&not_come).await
        };
        proxy.or_left_behind(released).await;
    }
}

/// The result if a document holds a key that the statement needs, or if the document can't be indexed. The server may refuse
/// the statement for another reason first. Keyward finds the reason in a transaction that is never committed.
///
/// # Errors
/// [`ForwardError`] if the connection is gone.
pub async fn refused(run: &mut StatementRun<'_, '_>, upserts: &mut usize) -> Result<InPlaceOutcome, ForwardError> {
    let Some(result) = run.obstacle(upserts).await? else {
        return Ok(InPlaceOutcome::Again);
    };
    // Asked last: the first try may have ended meanwhile.
    let first_try = first_try(run).await?;
    Ok(InPlaceOutcome::Ran(first_try.unwrap_or(result)))
}
