//! A statement about one document whose new keys can be read from it ([`crate::command::key_update`]): the new keys are reserved, the
//! server carries the statement out, and the old keys are given up. Cheaper than a transaction over several shards.
//!
//! The statement goes on under the client's own number, so the server knows a driver's retry by itself; it is pinned to
//! the document that was looked at and to the values that were seen in it, so what was reserved is what it will hold.
//! Old keys are given up only once a majority has the change and the document is seen not to hold them any more; and
//! only the very reservations that were there before it. Killed at any point, this leaves reservations whose owner
//! doesn't hold them: whoever meets one finds out.

use std::borrow::Cow;
use std::collections::BTreeSet;

use futures_util::future::join;
use tokio::time::Instant;

use super::document_keys::{self, DocumentSnapshot};
use super::in_transaction::StatementRun;
use super::result::StatementResult;
use crate::claims::{Candidate, ConstrainedKey, keys_of};
use crate::command::filter_rewriting;
use crate::command::key_update::KeyUpdate;
use crate::proxy_collection::Reservation;
use crate::raw::{Doc, Malformed};
use crate::reply::Refusal;
use crate::reservation::{Event, Scope, Token};
use crate::server::reply::is_from_memory;
use crate::wire::BODY_BYTES_MAX;
use crate::write::back_off::BackOff;
use crate::write::forward;
use crate::write::forward::{Acknowledged, ForwardError, Reason};
use crate::write::lease_left::LeaseLeft;
use crate::write::operation::WriteOp;
use crate::write::outcome::Outcome;
use crate::write::reserve::Claimed;
use crate::write::retry::server_memory::{done_elsewhere, first_try, without_match};
use crate::write::txn::Refused;

/// A statement larger than this, with the values that it is pinned to, isn't sent: a command has fields besides, and a router
/// adds its own.
const PINNED_BYTES_MAX: usize = BODY_BYTES_MAX - 8 * 1024;

/// So many times the statement may miss a document that stands there unchanged. There are values that an expression of the
/// server's doesn't find equal to themselves: a DBPointer with a zero byte in its name is one.
const MISSES_MAX: usize = 3;

/// The outcome of one try.
enum Tried {
    Ran(StatementResult),
    /// The document changed meanwhile.
    Again,
    /// No document was as this one was seen.
    Missed(Vec<u8>),
}

/// The reservations of keys that are to be given up, as they stood before.
type GivenUp = Vec<(ConstrainedKey, Reservation)>;

/// Carries the statement out.
///
/// # Errors
/// [`ForwardError`] if the connection is gone: a retry finds out what happened.
pub async fn update_in_place(
    run: &mut StatementRun<'_, '_>,
    key_update: &KeyUpdate<'_>,
) -> Result<StatementResult, ForwardError> {
    let mut back_off = BackOff::default();
    let (mut missed, mut misses) = (Vec::new(), 0);
    loop {
        match attempt(run, key_update).await? {
            Tried::Ran(result) => return Ok(result),
            // A retry would take this way again, where nothing is known of what a transaction did.
            Tried::Missed(document) if document == missed && misses + 1 == MISSES_MAX && run.operation.is_none() => {
                return run.run_in_own_transaction().await;
            }
            Tried::Missed(document) if document == missed => misses += 1,
            Tried::Missed(document) => (missed, misses) = (document, 1),
            Tried::Again => {}
        }
        if Instant::now() > run.op.give_up {
            return Ok(StatementResult::Refused(Refusal::TimeLimit));
        }
        tokio::time::sleep(back_off.next()).await;
    }
}

async fn attempt(run: &mut StatementRun<'_, '_>, key_update: &KeyUpdate<'_>) -> Result<Tried, ForwardError> {
    let seen = match look(run).await? {
        Ok(seen) => seen,
        Err(result) => return Ok(Tried::Ran(result)),
    };
    if let Some(result) = done_elsewhere(run).await? {
        return Ok(Tried::Ran(result));
    }
    let document = Doc::new(&seen.document)?;
    let before: BTreeSet<ConstrainedKey> = seen.image.keys.iter().flatten().cloned().collect();
    let after = match key_update.applied_to(document)? {
        Some(after) => keys_of(run.op.protected, Doc::new(&after)?),
        None => Ok(Vec::new()),
    };
    let Ok(after) = after else {
        return refused(run).await;
    };
    let after: BTreeSet<ConstrainedKey> = after.into_iter().collect();
    let own = pinned(run, key_update, &seen)?;
    if own.len() > PINNED_BYTES_MAX {
        return Ok(Tried::Ran(too_large(run).await?));
    }

    let new: Vec<ConstrainedKey> = after.difference(&before).cloned().collect();
    let old: Vec<ConstrainedKey> = before.difference(&after).cloned().collect();
    let under_way = run.op.context.in_flight.begin();
    let token = Token {
        attempt: under_way.attempt(),
        position: u32::try_from(run.index).unwrap_or(u32::MAX),
        operation: run.operation,
    };
    let mut candidate = Candidate::of_keys(token, Cow::Borrowed(&[]), seen.image.owner.clone(), new);
    let reserving = run.op.reserve(&mut candidate);
    let (reserved, given_up) = join(reserving, reservations(run, &seen, old)).await;
    let tried = match reserved {
        Claimed::Held => write(run, &own, &seen, given_up, &mut candidate).await,
        // It is this document that holds the key by now.
        Claimed::Duplicate(key) if candidate.conflicts_with_itself(key) => Ok(Tried::Again),
        Claimed::Duplicate(_) => refused(run).await,
        Claimed::Unsure(key) => Ok(Tried::Ran(StatementResult::Refused(
            run.op.unsure(candidate.keys[key].constraint),
        ))),
        Claimed::TimeLimit => Ok(Tried::Ran(StatementResult::Refused(Refusal::TimeLimit))),
    };
    run.op.release(std::slice::from_mut(&mut candidate)).await;
    tried
}

/// Reads the document that the statement matches. Without one, the error is the statement's result.
async fn look(run: &mut StatementRun<'_, '_>) -> Result<Result<DocumentSnapshot, StatementResult>, ForwardError> {
    let selection = run.statement.selection()?;
    let looked = document_keys::look(run.op.protected, run.statement.body, &selection, run.op.upstream).await?;
    let refused = match looked {
        Ok(Some(seen)) => return Ok(Ok(seen)),
        Ok(None) => return Ok(Err(without_match(run).await?.into())),
        Err(refused) => refused,
    };
    // If the statement is wrong, the server's own answer says so; otherwise the read was refused.
    let nothing = without_match(run).await?;
    Ok(Err(match nothing.outcome {
        Outcome::NotApplied(Reason::NoMatch) => StatementResult::Failed(refused),
        // In the client's words, where it quotes the query.
        Outcome::NotApplied(_) => run.unseen(Refused { body: refused }).await?,
        _ => nothing.into(),
    }))
}

/// Sends the statement on, now that its keys are held.
async fn write(
    run: &mut StatementRun<'_, '_>,
    own: &[u8],
    seen: &DocumentSnapshot,
    given_up: GivenUp,
    candidate: &mut Candidate<'_>,
) -> Result<Tried, ForwardError> {
    let left = LeaseLeft::new(run.op.context.lease, candidate.since);
    let time = left.time_to_write(run.op.deadline);
    let Some(time) = time.filter(|_| !left.is_too_little()) else {
        candidate.withdraw();
        return Ok(Tried::Again);
    };
    let which = (run.statement.kind, run.index);
    WriteOp::assert_held([&*candidate]);
    let lease = run.op.context.lease;
    let sent = forward::statement(run.op, which, own, Acknowledged::ByMajority, Some(time));
    let sent = forward::within(lease, sent).await;
    let sent = sent.inspect_err(|_| in_doubt(run, candidate))?;
    match sent.outcome {
        Outcome::Applied if sent.by_majority => settle(run, seen, given_up, candidate, &sent.body).await?,
        // It may be undone, and then the old keys are needed.
        Outcome::Applied => candidate.step(&Event::Applied),
        Outcome::NotApplied(Reason::NoMatch) => {
            candidate.step(&Event::NotApplied);
            return Ok(Tried::Missed(seen.document.clone()));
        }
        Outcome::NotApplied(_) | Outcome::Superseded => candidate.step(&Event::NotApplied),
        Outcome::InDoubt(_) => in_doubt(run, candidate),
    }
    Ok(Tried::Ran(sent.into()))
}

fn in_doubt(run: &mut StatementRun<'_, '_>, candidate: &mut Candidate<'_>) {
    candidate.step(&Event::InDoubt);
    run.op.note_in_doubt(candidate);
}

/// Gives up what the document doesn't hold any more, and what it didn't come to hold.
///
/// The server may have answered from its memory of a first try. That may have been about another document, and what stands
/// in the places of the old keys since then may be a later write's that is under way: whoever meets it finds out.
async fn settle(
    run: &mut StatementRun<'_, '_>,
    seen: &DocumentSnapshot,
    given_up: GivenUp,
    candidate: &mut Candidate<'_>,
    reply: &[u8],
) -> Result<(), ForwardError> {
    let given_up = match is_from_memory(Doc::new(reply)?)? {
        true => GivenUp::new(),
        false => given_up,
    };
    let mut held = Ok(Vec::new());
    if run.operation.is_some() {
        held = document_keys::look_again(
            run.op.protected,
            run.statement.body,
            &seen.image,
            Doc::new(reply)?,
            run.op.upstream,
        )
        .await?;
    }
    // It was carried out, now or before, so nothing of it is on its way any more: each key is decided by itself.
    candidate.step(&Event::Applied);
    let Ok(held) = held else { return Ok(()) };
    for (constraint, proxy) in run.op.protected.constraints.iter().enumerate() {
        let is_free = |key: &ConstrainedKey| key.constraint == constraint && !held.contains(key);
        let given_up = given_up.iter().filter(|(key, _)| is_free(key));
        let given_up = given_up.map(|(key, seen)| (&key.key, seen));
        // Elsewhere it may be another document's with the same `_id`, or this one's from before it was sharded anew.
        let (given_up, elsewhere): (Vec<_>, Vec<_>) =
            given_up.partition(|(_, before)| before.owner == seen.image.owner);
        let new = candidate
            .keys
            .iter()
            .filter(|key| run.operation.is_some() && is_free(key));
        let not_come: Vec<_> = new.map(|key| (&key.key, candidate.attempt.token())).collect();
        if given_up.len() + elsewhere.len() + not_come.len() == 0 {
            continue;
        }
        let released = async {
            let given_up = [given_up, proxy.unheld(elsewhere, Scope::Linearizable).await?].concat();
            proxy.release_seen(&given_up).await?;
            proxy.release(&not_come).await
        };
        proxy.or_left_behind(released).await;
    }
    Ok(())
}

/// The document's reservations of the keys that it is to give up. A reservation that can't be read stays until a write meets it.
///
/// The transaction that gave the document a key may be committed on the document's shard and still be prepared on the key's: what
/// isn't found is read once more, when that is decided.
async fn reservations(run: &StatementRun<'_, '_>, seen: &DocumentSnapshot, old: Vec<ConstrainedKey>) -> GivenUp {
    let mut given_up = GivenUp::new();
    for (constraint, proxy) in run.op.protected.constraints.iter().enumerate() {
        let keys: Vec<&ConstrainedKey> = old.iter().filter(|key| key.constraint == constraint).collect();
        if keys.is_empty() {
            continue;
        }
        let reads = proxy.read(&keys.iter().map(|key| &key.key).collect::<Vec<_>>()).await;
        let reads = reads.unwrap_or_else(|error| {
            tracing::warn!(%error, constraint = proxy.constraint.name(), "could not read what is to be released");
            Vec::new()
        });
        let is_own = |read: &Reservation| read.owner.id == seen.image.owner.id;
        let mut missing = Vec::new();
        for (key, read) in keys.into_iter().zip(reads) {
            match read.filter(is_own) {
                Some(read) => given_up.push((key.clone(), read)),
                None => missing.push(&key.key),
            }
        }
        if missing.is_empty() {
            continue;
        }
        let decided = proxy.read_decided(&missing).await.unwrap_or_else(|error| {
            tracing::warn!(%error, constraint = proxy.constraint.name(), "could not read what is to be released");
            Vec::new()
        });
        let decided = decided.into_iter().filter(|(_, read)| is_own(read));
        given_up.extend(decided.map(|(key, read)| (ConstrainedKey { constraint, key }, read)));
    }
    given_up
}

/// A document holds a key that the statement would need, or it couldn't be indexed. Why the server refuses it, which may
/// be for another reason that comes first, is seen in a transaction that is never committed.
async fn refused(run: &mut StatementRun<'_, '_>) -> Result<Tried, ForwardError> {
    let Some(result) = run.obstacle().await? else {
        return Ok(Tried::Again);
    };
    // Asked last: the first try may have come to its end meanwhile.
    let first_try = first_try(run).await?;
    Ok(Tried::Ran(first_try.unwrap_or(result)))
}

/// The result of a statement that can't be pinned to the values that it is to replace. One that may come again can't take
/// another way than it would take the next time, when the document may be smaller.
async fn too_large(run: &mut StatementRun<'_, '_>) -> Result<StatementResult, ForwardError> {
    if run.operation.is_none() {
        return run.run_in_own_transaction().await;
    }
    let namespace = run.op.protected.namespace.clone();
    let first_try = first_try(run).await?;
    Ok(first_try.unwrap_or(StatementResult::Refused(Refusal::TooLarge { namespace })))
}

/// The statement for the very document with the very values that keys are made of.
fn pinned(
    run: &mut StatementRun<'_, '_>,
    key_update: &KeyUpdate<'_>,
    seen: &DocumentSnapshot,
) -> Result<Vec<u8>, Malformed> {
    let query = filter_rewriting::pin(
        run.statement.query()?.unwrap_or(Doc::empty()),
        &seen.image.id,
        &seen.image.owner,
    )?;
    let document = Doc::new(&seen.document)?;
    let (mut paths, mut type_tests) = (Vec::new(), Vec::new());
    for proxy in &run.op.protected.constraints {
        if proxy.constraint.paths().any(|path| key_update.affects_keys(path)) {
            paths.extend(proxy.constraint.paths());
            type_tests.extend(proxy.constraint.type_tests(document)?);
        }
    }
    let query = filter_rewriting::unchanged(Doc::new(&query)?, document, &paths)?;
    let query = filter_rewriting::of_same_types(Doc::new(&query)?, &type_tests)?;
    run.statement.with_query(&query)
}
