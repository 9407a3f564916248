//! Carries out a statement about one document without a transaction: its new keys can be read from it
//! ([`crate::command::key_update`]). If that turns out to be impossible, the statement goes on in a transaction of its own
//! ([`super::in_transaction`]).
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

use futures_util::future::join;
use tokio::time::Instant;

use super::change::{Change, PlannedChange, change_of};
use super::document_keys::{self, DocumentAsRead};
use super::first_try::{as_upsert, done_elsewhere, first_try, without_match};
use super::old_reservations::{LostKeys, OldReservation, read_old, release_old};
use super::result::StatementResult;
use super::routed::AtOwner;
use super::sending::{InPlaceOutcome, note_outcome, send};
use super::statement_run::StatementRun;
use super::upsert::insert_new;
use crate::claims::{Candidate, ConstrainedKey};
use crate::command::key_update::KeyUpdate;
use crate::command::statement::Selection;
use crate::constraint::KeyError;
use crate::raw::Doc;
use crate::reply::WriteRefusal;
use crate::server::reply::{documents_affected, is_from_memory};
use crate::write::back_off::BackOff;
use crate::write::forward::{Outcome, Sent, UnappliedReason};
use crate::write::forward_error::ForwardError;
use crate::write::reserve::ReserveOutcome;
use crate::write::txn::ErrorReply;

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
        if Instant::now() > run.op.deadline {
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
        (Ok(None), None) => return answer_without_match(run).await,
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
    let Change { rewritten, new, old } = match change_of(run.statement, run.op.protected, key_update, &seen)? {
        PlannedChange::Sendable(change) => change,
        PlannedChange::Refused => return run.meet_obstacle().await,
        PlannedChange::Unindexable(error) => return run.meet_unindexable(error).await,
        PlannedChange::TooLarge => return Ok(InPlaceOutcome::Ran(too_large(run).await?)),
    };
    let not_enforced = run.op.not_enforced();
    let guard = run.op.context.writes.begin();
    let token = run.token(&guard);
    let mut candidate = Candidate::of_keys(token, Cow::Borrowed(&[]), seen.document_keys.owner.clone(), new);
    let reserving = run.op.reserve(&mut candidate);
    let lost = [LostKeys {
        owner: &seen.document_keys.owner,
        keys: &old,
    }];
    let (reserved, old) = join(reserving, read_old((run.op.protected, &not_enforced), &lost)).await;
    let tried = match reserved {
        ReserveOutcome::Held => write_and_release(run, &rewritten, &seen, &old, &mut candidate).await,
        // By now this same document holds the key.
        ReserveOutcome::Duplicate(key) if candidate.conflicts_with_itself(key) => Ok(InPlaceOutcome::Again),
        ReserveOutcome::Duplicate(_) => run.meet_obstacle().await,
        ReserveOutcome::Refused(refusal) => run.meet_refusal(refusal).await,
    };
    run.op.release(std::slice::from_mut(&mut candidate)).await;
    tried
}

/// Answers a statement for which Keyward read no document. The server lets a read pass by transactions that it is about to commit, but a
/// write waits for them. So the document may be there after the server's answer: then the statement begins anew.
async fn answer_without_match(run: &mut StatementRun<'_, '_>) -> Result<InPlaceOutcome, ForwardError> {
    let nothing = without_match(run).await?;
    let is_no_match = matches!(nothing.outcome, Outcome::NotApplied(UnappliedReason::NoMatch));
    if is_no_match && matches!(read_document(run).await?, Ok(Some(_))) {
        return Ok(InPlaceOutcome::Again);
    }
    Ok(InPlaceOutcome::Ran(nothing.into()))
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
        let read = document_keys::read_outside(run.op, &selection).await?;
        at_owner.note(matches!(read, Ok(Some(_))), run.op);
        if let Ok(Some(seen)) = read {
            return Ok(Ok(Some(seen)));
        }
    }
    let read = document_keys::read_outside(run.op, &selection).await?;
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

/// Forwards the statement after its keys are held, and releases the `old` ones.
async fn write_and_release(
    run: &mut StatementRun<'_, '_>,
    rewritten: &[u8],
    seen: &DocumentAsRead,
    old: &[OldReservation],
    candidate: &mut Candidate<'_>,
) -> Result<InPlaceOutcome, ForwardError> {
    let written = write(run, rewritten, seen, candidate).await?;
    if written.frees_old {
        release_old(run.op.protected, old).await;
    }
    Ok(written.outcome)
}

/// A statement that was sent, unless too little of the lease was left.
pub struct SentStatement {
    /// The outcome of the try.
    pub outcome: InPlaceOutcome,
    /// Whether its document definitely no longer holds the keys that it was to lose.
    pub frees_old: bool,
}

/// Forwards the statement after its keys are held.
///
/// # Errors
/// [`ForwardError`] if the connection is gone: the outcome is unknown then.
pub async fn write(
    run: &mut StatementRun<'_, '_>,
    rewritten: &[u8],
    seen: &DocumentAsRead,
    candidate: &mut Candidate<'_>,
) -> Result<SentStatement, ForwardError> {
    let keeps_old = |outcome| SentStatement {
        outcome,
        frees_old: false,
    };
    let Some(sent) = send(run, rewritten, candidate).await? else {
        return Ok(keeps_old(InPlaceOutcome::Again));
    };
    let sent = as_upsert(run, sent)
        .await
        .inspect_err(|_| run.op.note_in_doubt(candidate))?;
    note_if_given_twice(run, candidate, &sent).await?;
    let frees_old = note_outcome(run, &seen.document_keys, candidate, &sent).await?;
    if sent.outcome == Outcome::NotApplied(UnappliedReason::NoMatch) {
        return Ok(keeps_old(InPlaceOutcome::Missed(seen.document.clone())));
    }
    Ok(SentStatement {
        outcome: InPlaceOutcome::Ran(sent.into()),
        frees_old,
    })
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
