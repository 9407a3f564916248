//! Sends a statement about one document whose keys are held, and notes its outcome.

use super::document_keys::{self, DocumentKeys};
use super::first_try::first_try;
use super::result::StatementResult;
use super::statement_run::StatementRun;
use crate::claims::Candidate;
use crate::constraint::KeyError;
use crate::raw::Doc;
use crate::reply::WriteRefusal;
use crate::reservation::Event;
use crate::server::reply::is_from_memory;
use crate::write::acknowledged::Acknowledged;
use crate::write::forward::{self, Outcome, Sent};
use crate::write::forward_error::ForwardError;
use crate::write::operation::WriteOp;

/// The outcome of one try.
pub enum InPlaceOutcome {
    /// The statement has its result.
    Ran(StatementResult),
    /// The document changed meanwhile.
    Again,
    /// No document still had the values that Keyward had read.
    Missed(Vec<u8>),
}

/// Sends the `rewritten` statement within the lease of the candidate's keys. `None` if too little of the lease is left.
///
/// # Errors
/// [`ForwardError`] if the connection is gone: the outcome is unknown then.
pub async fn send(
    run: &mut StatementRun<'_, '_>,
    rewritten: &[u8],
    candidate: &mut Candidate<'_>,
) -> Result<Option<Sent>, ForwardError> {
    let lease = run.op.lease_of([&*candidate]);
    let left = run.op.lease_left(lease, candidate.since);
    let time = left.time_to_write(rewritten.len(), run.op.client_deadline);
    let Some(time) = time.filter(|_| !left.is_too_little()) else {
        candidate.withdraw();
        return Ok(None);
    };
    let which = (run.statement.kind, run.index);
    WriteOp::assert_held([&*candidate]);
    let sent = forward::statement(run.op, which, rewritten, Acknowledged::ByMajority, Some(time));
    let sent = forward::reply_within(lease, sent).await;
    Ok(Some(sent.inspect_err(|_| run.op.note_in_doubt(candidate))?))
}

/// Notes the outcome of the statement, `sent` about the document of `target`. Returns whether that document definitely no longer
/// holds its old keys.
pub async fn note_outcome(
    run: &mut StatementRun<'_, '_>,
    target: &DocumentKeys,
    candidate: &mut Candidate<'_>,
    sent: &Sent,
) -> Result<bool, ForwardError> {
    match sent.outcome {
        Outcome::Applied if sent.by_majority => return note_applied(run, target, candidate, &sent.body).await,
        // The statement may still be undone, and then the old keys are needed.
        Outcome::Applied => candidate.step(&Event::Applied),
        Outcome::NotApplied(_) => candidate.step(&Event::NotApplied),
        Outcome::InDoubt(_) => run.op.note_in_doubt(candidate),
    }
    Ok(false)
}

/// Notes that the statement has taken effect, and a majority has it. Releases the new keys that the document of `target` didn't get.
/// Returns whether that document definitely no longer holds its old keys.
///
/// If the server carried the statement out now, the document was as Keyward had read it. So it holds just the new keys, and
/// Keyward needn't read it again.
///
/// If the server answered from its memory, the first try may have changed another document. Since then, another write may have
/// reserved the old keys, so Keyward keeps them: the next write that meets one finds out whether it is stale. The document may
/// hold the new keys, or not.
async fn note_applied(
    run: &mut StatementRun<'_, '_>,
    target: &DocumentKeys,
    candidate: &mut Candidate<'_>,
    reply: &[u8],
) -> Result<bool, ForwardError> {
    let reply = Doc::new(reply)?;
    if !is_from_memory(reply)? {
        candidate.step(&Event::Applied);
        return Ok(true);
    }
    let read = document_keys::read_after(run.op, target, reply).await?;
    // The statement was carried out before, so it can't take effect later: each key is decided separately.
    candidate.step(&Event::Applied);
    // The document may have got other keys, and be elsewhere now. So this one read by its shard key isn't enough for those.
    if let Ok(held) = read {
        run.op
            .release_unheld(&[candidate], held.as_deref().unwrap_or_default())
            .await;
    }
    Ok(false)
}

impl StatementRun<'_, '_> {
    /// Ends a try if a document holds a key that the statement needs, or if the document can't be indexed. The server may refuse
    /// the statement for another reason first. Keyward finds the reason in a transaction that is never committed.
    pub async fn meet_obstacle(&mut self) -> Result<InPlaceOutcome, ForwardError> {
        let Some(result) = self.obstacle().await? else {
            return Ok(InPlaceOutcome::Again);
        };
        // This comes last: the first try may have ended meanwhile.
        let first_try = first_try(self).await?;
        Ok(InPlaceOutcome::Ran(first_try.unwrap_or(result)))
    }

    /// Ends a try that got no sure answer about a key, or waited too long for it. An earlier try of the statement may have taken effect: the
    /// key is one that the document would get by a second one.
    pub async fn meet_refusal(&mut self, refusal: WriteRefusal) -> Result<InPlaceOutcome, ForwardError> {
        let first_try = first_try(self).await?;
        let result = first_try.unwrap_or(StatementResult::Refused(refusal));
        Ok(InPlaceOutcome::Ran(result))
    }

    /// Ends a try whose new document can't be indexed. A reader may not see that a field comes twice, so Keyward doesn't ask the server then.
    pub async fn meet_unindexable(&mut self, error: KeyError) -> Result<InPlaceOutcome, ForwardError> {
        match error {
            KeyError::Repeated { .. } => Ok(InPlaceOutcome::Ran(StatementResult::Unindexable(error))),
            _ => self.meet_obstacle().await,
        }
    }
}
