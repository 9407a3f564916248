//! Carries out a statement about one document in place: its new keys can be read from it ([`crate::command::key_update`]).
//!
//! Keyward reserves the new keys, forwards the statement, and releases the old keys. That is cheaper than a transaction over
//! several shards.
//!
//! Keyward forwards the statement under the client's own number, so the server recognises a driver's retry itself. Keyward pins
//! the statement to the document that it read and to the values in it. So the document will hold exactly the reserved keys.
//! Keyward releases old keys only after a majority has the update and a read shows that the document no longer holds them. It
//! releases exactly the reservations that it read before the update. If Keyward is killed at any point, this leaves
//! reservations whose owner doesn't hold them: the next write that meets one finds that out.

use std::borrow::Cow;
use std::collections::BTreeSet;

use futures_util::future::join;
use tokio::time::Instant;

use super::document_keys::{self, DocumentSnapshot};
use super::in_transaction::StatementRun;
use super::result::StatementResult;
use super::routed::AtOwner;
use crate::claims::{Candidate, ConstrainedKey, keys_of};
use crate::command::filter_rewriting;
use crate::command::key_update::KeyUpdate;
use crate::command::statement::Selection;
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

/// Keyward doesn't send a statement that is larger than this, with the values that it is pinned to: a command has other fields,
/// and a router adds its own.
const PINNED_BYTES_MAX: usize = BODY_BYTES_MAX - 8 * 1024;

/// How often the statement may miss a document that is unchanged. Some values aren't equal to themselves in a server
/// expression: a DBPointer with a zero byte in its name is one.
const MISSES_MAX: usize = 3;

/// The outcome of one try.
enum Tried {
    Ran(StatementResult),
    /// The document changed meanwhile.
    Again,
    /// No document still had the values that Keyward had read.
    Missed(Vec<u8>),
}

/// The reservations of keys that the document is to release, as they were before.
type GivenUp = Vec<(ConstrainedKey, Reservation)>;

/// Carries out the statement.
///
/// # Errors
/// [`ForwardError`] if the connection is gone: a retry finds out the outcome.
pub async fn update_in_place(
    run: &mut StatementRun<'_, '_>,
    key_update: &KeyUpdate<'_>,
) -> Result<StatementResult, ForwardError> {
    let mut back_off = BackOff::default();
    let (mut missed, mut misses) = (Vec::new(), 0);
    loop {
        match attempt(run, key_update).await? {
            Tried::Ran(result) => return Ok(result),
            // A retryable statement stays in place: its retry would run in place again, and could not find a transaction's
            // result.
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
        // By now this same document holds the key.
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
    if let Some(at_owner) = AtOwner::of(run.statement, run.op).await? {
        let selection = Selection {
            query: Some(Doc::new(&at_owner.query)?),
            ..selection
        };
        let looked = document_keys::look(run.op.protected, run.statement.body, &selection, run.op.upstream).await?;
        at_owner.note(matches!(looked, Ok(Some(_))), run.op);
        if let Ok(Some(seen)) = looked {
            return Ok(Ok(seen));
        }
    }
    let looked = document_keys::look(run.op.protected, run.statement.body, &selection, run.op.upstream).await?;
    let refused = match looked {
        Ok(Some(seen)) => return Ok(Ok(seen)),
        Ok(None) => return Ok(Err(without_match(run).await?.into())),
        Err(refused) => refused,
    };
    // If the statement is wrong, the server's own answer reports it; otherwise the server refused the read.
    let nothing = without_match(run).await?;
    Ok(Err(match nothing.outcome {
        Outcome::NotApplied(Reason::NoMatch) => StatementResult::Failed(refused),
        // With the client's own query, which the error may quote.
        Outcome::NotApplied(_) => run.unseen(Refused { body: refused }).await?,
        _ => nothing.into(),
    }))
}

/// Forwards the statement after its keys are held.
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
        // The update may still be undone, and then the old keys are needed.
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

/// Releases the old keys that the document no longer holds, and the new keys that it didn't get.
///
/// The server may have answered from its memory of a first try, which may have concerned another document. Since then, a later
/// write in progress may have reserved the old keys. Keyward then keeps them: the next write that meets one finds out whether
/// it is stale.
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
    // The statement was carried out, now or before, so it can't take effect later: each key is decided separately.
    candidate.step(&Event::Applied);
    let Ok(held) = held else { return Ok(()) };
    for (constraint, proxy) in run.op.protected.constraints.iter().enumerate() {
        let is_free = |key: &ConstrainedKey| key.constraint == constraint && !held.contains(key);
        let given_up = given_up.iter().filter(|(key, _)| is_free(key));
        let given_up = given_up.map(|(key, seen)| (&key.key, seen));
        // On another route, the owner may be another document with the same `_id`, or this one before the collection was
        // resharded.
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

/// The document's reservations of the keys that it is to release. A reservation that can't be read stays until a write meets
/// it.
///
/// The transaction that gave the document a key may be committed on the document's shard but still be prepared on the key's
/// shard. So Keyward reads missing reservations again after that transaction is decided.
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

/// The result if a document holds a key that the statement needs, or if the document can't be indexed. The server may refuse
/// the statement for another reason first. Keyward finds the reason in a transaction that is never committed.
async fn refused(run: &mut StatementRun<'_, '_>) -> Result<Tried, ForwardError> {
    let Some(result) = run.obstacle().await? else {
        return Ok(Tried::Again);
    };
    // Asked last: the first try may have ended meanwhile.
    let first_try = first_try(run).await?;
    Ok(Tried::Ran(first_try.unwrap_or(result)))
}

/// The result of a statement that can't be pinned to the values that it is to replace. A retryable statement must not change to
/// a transaction: its retry may find a smaller document, and would run in place.
async fn too_large(run: &mut StatementRun<'_, '_>) -> Result<StatementResult, ForwardError> {
    if run.operation.is_none() {
        return run.run_in_own_transaction().await;
    }
    let namespace = run.op.protected.namespace.clone();
    let first_try = first_try(run).await?;
    Ok(first_try.unwrap_or(StatementResult::Refused(Refusal::TooLarge { namespace })))
}

/// The statement, pinned to this document and to the values that its keys are made of.
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
