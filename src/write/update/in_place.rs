//! Carries out a statement about one document without a transaction: its new keys can be read from it
//! ([`crate::command::key_update`]).
//! Statements that are planned to run in a transaction go on to [`super::in_transaction`].
//!
//! Keyward reserves the new keys, forwards the statement, and releases the old keys. That is cheaper than a transaction over
//! several shards.
//!
//! A value that the server computes from the old one is computed by Keyward, too ([`crate::command::arithmetic`]).
//!
//! Keyward forwards the statement under the client's own number, so the server recognises a driver's retry itself. Keyward pins
//! the statement to the document that it read and to the values in it. So the document will hold exactly the reserved keys.
//! Keyward releases old keys only after a majority has the update. It releases exactly the reservations that it read before the
//! update. If Keyward is killed at any point, this leaves reservations whose owner doesn't hold them: the next write that meets
//! one finds that out.
//!
//! A plain upsert that matches no document inserts one instead ([`super::upsert`]).

use std::borrow::Cow;
use std::collections::BTreeSet;

use futures_util::future::join;
use tokio::time::Instant;

use super::document_keys::{self, DocumentAsRead, with_same_keys};
use super::result::StatementResult;
use super::routed::AtOwner;
use super::sending::{InPlaceOutcome, OldReservations, release_after, send};
use super::statement_run::StatementRun;
use super::upsert::insert_new;
use crate::claims::{Candidate, ConstrainedKey, keys_of};
use crate::command::filter_rewriting::pin;
use crate::command::key_update::{KeyUpdate, UpdatedDocument};
use crate::command::statement::Selection;
use crate::constraint::KeyError;
use crate::proxy_collection::{ProxyCollection, Reservation};
use crate::raw::{Doc, Malformed};
use crate::reply::WriteRefusal;
use crate::reservation::Event;
use crate::server::reply::{documents_affected, is_from_memory};
use crate::wire::BODY_BYTES_MAX;
use crate::write::back_off::BackOff;
use crate::write::forward::{ForwardError, Outcome, Sent, UnappliedReason};
use crate::write::reserve::ReserveOutcome;
use crate::write::retry::server_memory::{as_upsert, done_elsewhere, first_try, without_match};
use crate::write::txn::ErrorReply;

/// Keyward doesn't send a statement that is larger than this, with the values that it is pinned to: a command has other fields,
/// and a router adds its own.
const PINNED_BYTES_MAX: usize = BODY_BYTES_MAX - 8 * 1024;

/// How often the statement may miss a document that is unchanged. Some values aren't equal to themselves in a server
/// expression: a DBPointer with a zero byte in its name is one.
const MISSES_MAX: usize = 3;

/// Carries out the statement, whose effect on an existing document is `key_update`. If none matches, an upsert inserts
/// `new_document`, of which these are the fields that keys are made of.
pub async fn run_in_place(
    run: &mut StatementRun<'_, '_>,
    key_update: &KeyUpdate<'_>,
    new_document: Option<&[u8]>,
) -> Result<StatementResult, ForwardError> {
    let mut back_off = BackOff::default();
    let (mut missed, mut misses) = (Vec::new(), 0);
    loop {
        match try_once(run, key_update, new_document).await? {
            InPlaceOutcome::Ran(result) => return Ok(result),
            // A retryable statement stays in place: its retry would run in place again, and could not find a transaction's
            // result.
            InPlaceOutcome::Missed(document)
                if document == missed && misses + 1 == MISSES_MAX && run.retry_id.is_none() =>
            {
                return run.run_in_own_transaction().await;
            }
            InPlaceOutcome::Missed(document) if document == missed => misses += 1,
            InPlaceOutcome::Missed(document) => (missed, misses) = (document, 1),
            InPlaceOutcome::Again => {}
        }
        if Instant::now() > run.op.give_up {
            return Ok(StatementResult::Refused(WriteRefusal::TimeLimit));
        }
        tokio::time::sleep(back_off.next()).await;
    }
}

async fn try_once(
    run: &mut StatementRun<'_, '_>,
    key_update: &KeyUpdate<'_>,
    new_document: Option<&[u8]>,
) -> Result<InPlaceOutcome, ForwardError> {
    let seen = match (read_document(run).await?, new_document) {
        (Ok(Some(seen)), _) => seen,
        (Ok(None), Some(new_document)) => return insert_new(run, new_document).await,
        (Ok(None), None) => return Ok(InPlaceOutcome::Ran(without_match(run).await?.into())),
        (Err(result), _) => return Ok(InPlaceOutcome::Ran(result)),
    };
    if let Some(error @ KeyError::Repeated { .. }) = &seen.document_keys.unindexable {
        let result = run_on_repeated(run, error).await?;
        return Ok(InPlaceOutcome::Ran(result));
    }
    if seen.is_one_of_several && *key_update != KeyUpdate::Removal {
        // A router may send the statement to all of them, and all would get the key. The next command knows the shard key.
        run.op.context.renew_shard_keys().await;
        return Ok(InPlaceOutcome::Ran(StatementResult::Refused(run.op.unsure(0))));
    }
    if let Some(result) = done_elsewhere(run).await? {
        return Ok(InPlaceOutcome::Ran(result));
    }
    let document = Doc::new(&seen.document)?;
    let before: BTreeSet<ConstrainedKey> = seen.document_keys.keys.iter().cloned().collect();
    let after = match key_update.applied_to(document)? {
        UpdatedDocument::Kept(after) => keys_of(run.op.protected, Doc::new(&after)?).all(),
        UpdatedDocument::Removed => Ok(Vec::new()),
        UpdatedDocument::Refused => return run.meet_obstacle().await,
    };
    let after: BTreeSet<ConstrainedKey> = match after {
        Ok(after) => after.into_iter().collect(),
        Err(error) => return run.meet_unindexable(error).await,
    };
    let rewritten = pinned(run, key_update, &seen)?;
    if rewritten.len() > PINNED_BYTES_MAX {
        return Ok(InPlaceOutcome::Ran(too_large(run).await?));
    }

    let new: Vec<ConstrainedKey> = after.difference(&before).cloned().collect();
    let old: Vec<ConstrainedKey> = before.difference(&after).cloned().collect();
    let guard = run.op.context.attempts.begin();
    let token = run.token(&guard);
    let mut candidate = Candidate::of_keys(token, Cow::Borrowed(&[]), seen.document_keys.owner.clone(), new);
    let reserving = run.op.reserve(&mut candidate);
    let (reserved, old) = join(reserving, old_reservations(run, &seen, old)).await;
    let tried = match reserved {
        ReserveOutcome::Held => write(run, &rewritten, &seen, old, &mut candidate).await,
        // By now this same document holds the key.
        ReserveOutcome::Duplicate(key) if candidate.conflicts_with_itself(key) => Ok(InPlaceOutcome::Again),
        ReserveOutcome::Duplicate(_) => run.meet_obstacle().await,
        ReserveOutcome::Refused(refusal) => Ok(InPlaceOutcome::Ran(StatementResult::Refused(refusal))),
    };
    run.op.release(std::slice::from_mut(&mut candidate)).await;
    tried
}

/// Reads the document that the statement matches, if there is one. If the server refuses, the error is the statement's result.
async fn read_document(
    run: &mut StatementRun<'_, '_>,
) -> Result<Result<Option<DocumentAsRead>, StatementResult>, ForwardError> {
    let selection = run.statement.selection()?;
    if let Some(at_owner) = AtOwner::of(run.statement, run.op).await? {
        let selection = Selection {
            query: Some(Doc::new(&at_owner.query)?),
            ..selection
        };
        let read =
            document_keys::read_outside(run.op.protected, run.statement.body, &selection, run.op.upstream).await?;
        at_owner.note(matches!(read, Ok(Some(_))), run.op);
        if let Ok(Some(seen)) = read {
            return Ok(Ok(Some(seen)));
        }
    }
    let read = document_keys::read_outside(run.op.protected, run.statement.body, &selection, run.op.upstream).await?;
    let refused = match read {
        Ok(seen) => return Ok(Ok(seen)),
        Err(refused) => refused,
    };
    // If the statement is wrong, the server's own answer reports it; otherwise the server refused the read.
    let nothing = without_match(run).await?;
    Ok(Err(match nothing.outcome {
        Outcome::NotApplied(UnappliedReason::NoMatch) => StatementResult::ErrorReply(refused),
        // With the client's own query, which the error may quote.
        Outcome::NotApplied(_) => run.answer_to_refused_read(ErrorReply { body: refused }).await?,
        _ => nothing.into(),
    }))
}

/// Forwards the statement after its keys are held.
async fn write(
    run: &mut StatementRun<'_, '_>,
    rewritten: &[u8],
    seen: &DocumentAsRead,
    old: OldReservations,
    candidate: &mut Candidate<'_>,
) -> Result<InPlaceOutcome, ForwardError> {
    let Some(sent) = send(run, rewritten, candidate).await? else {
        return Ok(InPlaceOutcome::Again);
    };
    let sent = as_upsert(run, sent)
        .await
        .inspect_err(|_| run.op.note_in_doubt(candidate))?;
    note_if_given_twice(run, candidate, &sent).await?;
    match sent.outcome {
        Outcome::Applied if sent.by_majority => {
            release_after(run, &seen.document_keys, old, candidate, &sent.body).await?
        }
        // The update may still be undone, and then the old keys are needed.
        Outcome::Applied => candidate.step(&Event::Applied),
        Outcome::NotApplied(UnappliedReason::NoMatch) => {
            candidate.step(&Event::NotApplied);
            return Ok(InPlaceOutcome::Missed(seen.document.clone()));
        }
        Outcome::NotApplied(_) | Outcome::Superseded => candidate.step(&Event::NotApplied),
        Outcome::InDoubt(_) => run.op.note_in_doubt(candidate),
    }
    Ok(InPlaceOutcome::Ran(sent.into()))
}

/// Notes keys that two documents have got. A second document with the same `_id` has come to another shard between the read and the
/// statement. Keyward doesn't know that document's shard key yet. A router sent the statement to both.
async fn note_if_given_twice(
    run: &StatementRun<'_, '_>,
    candidate: &Candidate<'_>,
    sent: &Sent,
) -> Result<(), ForwardError> {
    let reply = Doc::new(&sent.body)?;
    // Two shards may remember the statement: the document's chunk may have moved.
    if candidate.keys.is_empty() || documents_affected(reply)? < 2 || is_from_memory(reply)? {
        return Ok(());
    }
    for ConstrainedKey { constraint, .. } in &candidate.keys {
        let proxy = &run.op.protected.constraints[*constraint];
        proxy.metrics.given_twice.inc();
        tracing::error!(
            collection = %run.op.protected.namespace,
            constraint = proxy.constraint.name(),
            _id = %candidate.owner,
            "two documents with one _id hold one key: the collection was sharded anew while a statement was under way; \
             keyward verify shows them"
        );
    }
    run.op.context.renew_shard_keys().await;
    Ok(())
}

/// The document's reservations of the keys that it is to release. A reservation that can't be read stays until a write meets
/// it.
///
/// The transaction that gave the document a key may be committed on the document's shard but still be prepared on the key's
/// shard. So Keyward reads missing reservations again after that transaction is decided.
async fn old_reservations(
    run: &StatementRun<'_, '_>,
    seen: &DocumentAsRead,
    old_keys: Vec<ConstrainedKey>,
) -> OldReservations {
    let mut old = OldReservations::new();
    for (constraint, proxy) in run.op.protected.constraints.iter().enumerate() {
        let keys: Vec<&ConstrainedKey> = old_keys.iter().filter(|key| key.constraint == constraint).collect();
        if keys.is_empty() {
            continue;
        }
        let reads = proxy.read(&keys.iter().map(|key| &key.key).collect::<Vec<_>>()).await;
        let reads = reads.unwrap_or_else(|error| {
            tracing::warn!(%error, constraint = proxy.constraint.name(), "could not read what is to be released");
            Vec::new()
        });
        let is_own = |read: &Reservation| read.owner.has_same_id_as(&seen.document_keys.owner);
        let mut missing = Vec::new();
        for (key, read) in keys.into_iter().zip(reads) {
            match read.filter(is_own) {
                Some(read) => old.push((key.clone(), read)),
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
        old.extend(decided.map(|(key, read)| (ConstrainedKey { constraint, key }, read)));
    }
    old
}

/// The result of a statement that can't be pinned to the values that it is to replace. A retryable statement must not change to
/// a transaction: its retry may find a smaller document, and would run in place.
async fn too_large(run: &mut StatementRun<'_, '_>) -> Result<StatementResult, ForwardError> {
    if run.retry_id.is_none() {
        return run.run_in_own_transaction().await;
    }
    let namespace = run.op.protected.namespace.clone();
    let first_try = first_try(run).await?;
    Ok(first_try.unwrap_or(StatementResult::Refused(WriteRefusal::TooLarge { namespace })))
}

/// The result of a statement about a document that has a field twice. The read doesn't show all of its fields, so the statement can't be
/// pinned to their values. As above, a retryable statement must not change to a transaction.
async fn run_on_repeated(run: &mut StatementRun<'_, '_>, error: &KeyError) -> Result<StatementResult, ForwardError> {
    if run.retry_id.is_none() {
        return run.run_in_own_transaction().await;
    }
    let first_try = first_try(run).await?;
    Ok(first_try.unwrap_or_else(|| StatementResult::Unindexable(error.clone())))
}

/// The statement, pinned to this document and to the values that its keys are made of.
fn pinned(
    run: &mut StatementRun<'_, '_>,
    key_update: &KeyUpdate<'_>,
    seen: &DocumentAsRead,
) -> Result<Vec<u8>, Malformed> {
    let query = pin(
        run.statement.query()?.unwrap_or(Doc::empty()),
        &seen.document_keys.id,
        &seen.document_keys.owner,
    )?;
    let is_affected = |proxy: &&ProxyCollection| proxy.constraint.paths().any(|path| key_update.changes(path));
    let affected = run.op.protected.constraints.iter().filter(is_affected);
    let query = with_same_keys(
        affected,
        &key_update.operands(),
        Doc::new(&query)?,
        Doc::new(&seen.document)?,
    )?;
    run.statement.without_upsert(&query)
}
