//! Inserts the document of a plain upsert ([`crate::command::plain_upsert`]) that matches none.
//!
//! Keyward reserves the new document's keys. Then it sends the client's own upsert, under the client's own number, with a query that
//! matches nothing. So the server makes just this document, or refuses its `_id`. A document that has appeared meanwhile stays
//! unchanged, and Keyward reads again. If the query names a key instead of the `_id`, no such document can appear: Keyward holds
//! its key.
//!
//! Without an `_id` in the query, Keyward chooses it. A retry of the statement gets the same one, as for an insert.

use super::document_keys::DocumentKeys;
use super::sending::{InPlaceOutcome, note_outcome, send};
use super::statement_run::StatementRun;
use crate::claims::Candidate;
use crate::command::filter_rewriting::only_inserts;
use crate::raw::{Doc, Malformed};
use crate::server::{code, reply};
use crate::write::forward::{Outcome, UnappliedReason};
use crate::write::forward_error::ForwardError;
use crate::write::reserve::ReserveOutcome;

/// Inserts the new document, of which `fields` has everything that keys are made of.
///
/// # Errors
/// [`ForwardError`] if the connection is gone: a retry finds out the outcome.
pub async fn insert_new(run: &mut StatementRun<'_, '_>, fields: &[u8]) -> Result<InPlaceOutcome, ForwardError> {
    let guard = run.op.context.writes.begin();
    let mut candidate = match Candidate::new(run.op.protected, run.token(&guard), fields) {
        Ok(candidate) => candidate,
        Err(error) => return run.meet_unindexable(error).await,
    };
    candidate.check_unreserved(&run.op.unenforced());
    let tried = match run.op.reserve(&mut candidate).await {
        ReserveOutcome::Held => write(run, &mut candidate).await,
        ReserveOutcome::Duplicate(_) => Ok(None),
        ReserveOutcome::Refused(refusal) => run.meet_refusal(refusal).await.map(Some),
    };
    run.op.release(std::slice::from_mut(&mut candidate)).await;
    match tried? {
        Some(tried) => Ok(tried),
        // This comes after the release: otherwise the statement would meet its own reservations.
        None => run.meet_obstacle().await,
    }
}

/// Tries once to insert the document, whose keys are held. `None` if another document is in the way.
async fn write(
    run: &mut StatementRun<'_, '_>,
    candidate: &mut Candidate<'_>,
) -> Result<Option<InPlaceOutcome>, ForwardError> {
    let document = candidate.document.to_vec();
    let target = DocumentKeys::of(run.op.protected, Doc::new(&document)?)?;
    let query = only_inserts(run.statement.query()?.unwrap_or(Doc::empty()), Doc::new(&target.id)?)?;
    let rewritten = run.statement.with_query(&query)?;
    let Some(sent) = send(run, &rewritten, candidate).await? else {
        return Ok(Some(InPlaceOutcome::Again));
    };
    // A new document has no old keys.
    note_outcome(run, &target, candidate, &sent).await?;
    Ok(match sent.outcome {
        Outcome::NotApplied(UnappliedReason::NoMatch) => Some(InPlaceOutcome::Again),
        Outcome::NotApplied(_) if is_duplicate(Doc::new(&sent.body)?)? => None,
        _ => Some(InPlaceOutcome::Ran(sent.into())),
    })
}

/// Whether the server refused the document because of another one.
fn is_duplicate(refusal: Doc<'_>) -> Result<bool, Malformed> {
    let of_statement = reply::write_errors(refusal)?.first().map(|error| error.code);
    Ok(of_statement.or(reply::code(refusal)?) == Some(code::DUPLICATE_KEY))
}
