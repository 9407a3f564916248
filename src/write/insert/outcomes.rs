//! Notes the outcome of each document of an `insert`, and makes the reply of them.

use futures_util::stream::{self, StreamExt};

use super::sent_documents::{DocumentOutcome, SentDocuments};
use super::{Insert, Stopped, is_duplicate};
use crate::catalog::Protected;
use crate::claims::{Candidate, ConstrainedKey};
use crate::constraint::DuplicateKey;
use crate::raw::{Doc, Malformed};
use crate::reply::{WriteError, WriteRefusal, WriteReply, loses_results};
use crate::reservation::{Ended, Event, NotHeld};
use crate::write::forward_error::ForwardError;

/// For how many duplicates at a time the server is asked how their errors show text under a collation.
const ASKED_AT_ONCE: usize = 4;

impl Insert<'_> {
    /// Notes the outcomes of the forwarded candidates.
    pub(super) fn take_sent<'p, 'd: 'p>(
        &mut self,
        sent: SentDocuments,
        forwarded: impl Iterator<Item = &'p mut Candidate<'d>>,
    ) -> Result<(), ForwardError> {
        let mut positions = Vec::with_capacity(sent.outcomes.len());
        for (candidate, outcome) in forwarded.zip(&sent.outcomes) {
            positions.push(candidate.position);
            match outcome {
                DocumentOutcome::Applied => candidate.step(&Event::Applied),
                DocumentOutcome::NotApplied(_) => candidate.step(&Event::NotApplied),
                DocumentOutcome::InDoubt(_) => self.op.note_in_doubt(candidate),
                DocumentOutcome::Superseded => {
                    candidate.step(&Event::Superseded);
                    candidate.since = None;
                }
                DocumentOutcome::Untried => {}
            }
        }
        Ok(self.take_results(sent, &positions)?)
    }

    /// Adds the results of the documents at `positions` to the reply.
    pub(super) fn take_results(&mut self, sent: SentDocuments, positions: &[usize]) -> Result<(), Malformed> {
        if let Some(reply) = &sent.reply {
            self.reply.add_part(Doc::new(reply)?)?;
        }
        let of_rest = self.error_of_rest(&sent)?;
        for (position, outcome) in positions.iter().zip(sent.outcomes) {
            let error = match outcome {
                DocumentOutcome::NotApplied(Some(error)) | DocumentOutcome::InDoubt(Some(error)) => Some(error),
                DocumentOutcome::NotApplied(None) | DocumentOutcome::InDoubt(None) => of_rest.clone(),
                DocumentOutcome::Applied | DocumentOutcome::Superseded | DocumentOutcome::Untried => None,
            };
            if let Some(error) = error {
                self.error(*position, error);
            }
        }
        if let Some(failed) = sent.failed.filter(|_| of_rest.is_none()) {
            self.stopped = Some(Stopped::Whole(failed));
        }
        Ok(())
    }

    /// The error that each of the documents without a result gets, if the command for them failed. `None` if the client's whole command
    /// fails.
    fn error_of_rest(&self, sent: &SentDocuments) -> Result<Option<WriteError>, Malformed> {
        let has_result = |outcome: &DocumentOutcome| {
            matches!(outcome, DocumentOutcome::Applied | DocumentOutcome::NotApplied(Some(_)))
        };
        let has_results = self.has_results() || sent.outcomes.iter().any(has_result);
        let is_of_each = |refusal: &&WriteRefusal| refusal.is_of_one_statement(has_results);
        if let Some(refusal) = sent.refusal.as_ref().filter(is_of_each) {
            return Ok(Some(WriteError::refused(refusal)));
        }
        let Some(failed) = sent.failed.as_deref().filter(|_| has_results) else {
            return Ok(None);
        };
        let is_in_doubt = |outcome: &&DocumentOutcome| matches!(outcome, DocumentOutcome::InDoubt(_));
        let in_doubt = sent.outcomes.iter().filter(is_in_doubt).count();
        let failed = Doc::new(failed)?;
        match loses_results(failed, in_doubt, self.op.terms())? {
            true => Ok(Some(WriteError::of_reply(failed)?)),
            false => Ok(None),
        }
    }

    /// Notes the candidates that won't be forwarded: duplicates, and keys whose state is uncertain.
    pub(super) async fn report_not_held(&mut self, pending: &[Candidate<'_>]) {
        let mut duplicates = match pending.iter().any(is_duplicate) {
            // Boxed, because most inserts have none.
            true => Box::pin(duplicates(self.op.protected, pending)).await.into_iter(),
            false => Vec::new().into_iter(),
        };
        for candidate in pending {
            match candidate.attempt.ended() {
                Some(Ended::NotHeld(NotHeld::Duplicate(_))) => {
                    if let Some(duplicate) = duplicates.next() {
                        self.error(candidate.position, WriteError::duplicate(&duplicate));
                    }
                }
                Some(Ended::NotHeld(NotHeld::Unsure(key))) => {
                    self.refuse_one(candidate.position, &self.op.unsure(candidate.keys[key].constraint));
                }
                _ => {}
            }
        }
    }

    pub(super) fn error(&mut self, position: usize, error: WriteError) {
        if self.op.command.ordered {
            if self.stopped.is_some() {
                return;
            }
            self.stopped = Some(Stopped::AtFirstError);
        }
        self.reply.error(position, error);
    }

    /// Whether documents of the client's command have results.
    fn has_results(&self) -> bool {
        self.reply.has_results() || self.op.others_have_results
    }

    /// Refuses one document, or the command as a whole if that loses no results.
    pub(super) fn refuse_one(&mut self, position: usize, refusal: &WriteRefusal) {
        match refusal.is_of_one_statement(self.has_results()) {
            true => self.error(position, WriteError::refused(refusal)),
            false => self.refuse(refusal),
        }
    }

    /// Fails the command as a whole, unless it is ordered and has met its first error already.
    pub(super) fn refuse(&mut self, refusal: &WriteRefusal) {
        if self.stopped.is_none() {
            self.stopped = Some(Stopped::Whole(refusal.body(&self.op.protected.times())));
        }
    }

    pub(super) fn into_body(mut self) -> Result<Vec<u8>, Malformed> {
        if let Some(Stopped::Whole(body)) = self.stopped {
            return Ok(body);
        }
        let times = self.op.protected.times();
        self.reply.advance(times);
        match self.op.command.unacknowledged {
            true => WriteReply::default().body(),
            false => self.reply.body(),
        }
    }
}

/// The errors for those of the documents whose keys others hold, in their order.
async fn duplicates(protected: &Protected, pending: &[Candidate<'_>]) -> Vec<DuplicateKey> {
    let asked = pending.iter().filter_map(|candidate| match candidate.attempt.ended() {
        Some(Ended::NotHeld(NotHeld::Duplicate(key))) => Some(duplicate(protected, candidate, key)),
        _ => None,
    });
    // As a list: the compiler can't see that an iterator of such futures may be sent to another thread.
    let asked: Vec<_> = asked.collect();
    stream::iter(asked).buffered(ASKED_AT_ONCE).collect().await
}

/// The error for a document whose key at position `key` another one holds. It counts the refused document.
async fn duplicate(protected: &Protected, candidate: &Candidate<'_>, key: usize) -> DuplicateKey {
    let ConstrainedKey { constraint, key: taken } = &candidate.keys[key];
    let proxy = &protected.constraints[*constraint];
    match candidate.conflicts_with_itself(key) {
        // This same document exists: the server checks `_id` first.
        true => {
            proxy.metrics.duplicates.inc();
            DuplicateKey::of_id(&protected.namespace, &candidate.owner.id)
        }
        false => proxy.refuse(taken).await,
    }
}
