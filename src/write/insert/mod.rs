//! Carries out an `insert`: reserves the keys, inserts the documents, releases the keys of refused documents.
//!
//! Keyward handles the documents in slices, so that a command of 100,000 doesn't outlive its lease. Within a slice, Keyward
//! first inserts every document that has all its keys. Only then does it wait for other attempts, so that waits never chain. If
//! Keyward is killed at any point, this leaves reservations whose owners exist or never arrive. The next write that meets one
//! finds that out.

mod compensating;
mod in_clients_transaction;
mod outcomes;
mod sent_documents;
pub mod strict;
mod way;

use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

use tokio::time::Instant;

use super::back_off::BackOff;
use super::forward_error::ForwardError;
use super::operation::WriteOp;
use super::retry::server_memory::positions_done_before;
use crate::claims::{Candidate, ConstrainedKey, WriteGuard, advance_attempts, anticipate};
use crate::constraint::KeyError;
use crate::proxy_collection::Fitting;
use crate::raw::Doc;
use crate::reply::{WriteError, WriteRefusal, WriteReply};
use crate::reservation::{Ended, Event, NotHeld, Token, WriteId};

pub use in_clients_transaction::insert_in_clients_transaction;
use sent_documents::DocumentOutcome;
use way::InsertWay;

/// The most documents, and bytes of them, that are reserved and forwarded in one slice.
const SLICE: Fitting = Fitting {
    items: 2_000,
    bytes: 16 << 20,
};
/// A slice ends with the document by which its keys take more bytes than this: a key of several fields repeats their values for each element of
/// an array.
const SLICE_KEY_BYTES: usize = 64 << 20;
/// How long keys are computed at most before other tasks of the process get their turn.
const TURN: Duration = Duration::from_millis(10);
/// If the keys of a document get too old to write with more often than this, Keyward refuses the document. As long as no document has its
/// result, it refuses the command as a whole.
const RESTARTS_MAX: u32 = 3;

/// One `insert` in progress.
struct Insert<'a> {
    op: WriteOp<'a>,
    guard: WriteGuard,
    reply: WriteReply,
    stopped: Option<Stopped>,
}

/// The documents that are inserted together.
struct StartedSlice<'a> {
    candidates: Vec<Candidate<'a>>,
    /// The document that ends an ordered slice, and why it can't be indexed.
    unfit: Option<(usize, WriteError)>,
    /// The position behind the last document.
    end: usize,
    /// The bytes of all keys.
    key_bytes: usize,
}

/// Why Keyward attempts no further documents of the command.
enum Stopped {
    /// An ordered command met its first error; the outcomes so far form the reply.
    AtFirstError,
    /// The command failed as a whole with this reply.
    Whole(Vec<u8>),
}

/// Carries out the insert; returns the reply's body.
pub async fn insert(op: WriteOp<'_>) -> Result<Vec<u8>, ForwardError> {
    let command = op.command;
    let mut insert = Insert {
        guard: op.context.writes.begin(),
        op,
        reply: WriteReply::default(),
        stopped: None,
    };
    let mut next = 0;
    while next < command.documents.len() && insert.stopped.is_none() {
        let first = next;
        let end = next + SLICE.count(&command.documents[next..], |document| document.bytes().len());
        while next < end && insert.stopped.is_none() {
            next = insert.slice(first, next..end).await?;
        }
    }
    Ok(insert.into_body()?)
}

impl<'a> Insert<'a> {
    /// Inserts the documents at these positions, or only the first of them if their keys are large. Returns the position behind the last one.
    /// `first` is the first position of the slice, by which a retry finds its record. It depends on the client's documents alone: a retry may
    /// come to another version of Keyward.
    async fn slice(&mut self, first: usize, positions: Range<usize>) -> Result<usize, ForwardError> {
        // The documents before it in the slice have keys.
        let is_rest = positions.start > first;
        let StartedSlice {
            candidates: mut pending,
            unfit,
            end,
            ..
        } = self.start(positions).await;
        anticipate(self.op.protected, &self.op.unenforced(), &mut pending);
        let way = InsertWay::of_slice(&self.op, (first, is_rest), &pending);
        self.insert_at_once(&way, &mut pending).await?;
        let mut back_off = BackOff::default();
        while !pending.is_empty() && self.stopped.is_none() {
            let awaited = advance_attempts(self.op.protected, &mut pending, &self.op.takeover_check()).await;
            if let Err(error) = self.remove_first_tries(&mut pending, &way, is_duplicate).await {
                self.release_all(&mut pending).await;
                return Err(error);
            }
            let positions = pending.iter().map(|candidate| candidate.position);
            let conflicting = first_conflicting(&awaited, self.guard.id(), positions);
            let mut too_late = self.restart_expiring(&way, &mut pending);
            // If this fails or stops the command, it has released all keys of the others itself. They come first, as long as they are in time.
            let rest = self.try_ready(&way, &mut pending).await;
            if !too_late.is_empty() {
                Box::pin(self.op.release(&mut too_late)).await;
            }
            let rest = rest?;
            if self.stopped.is_some() {
                return Ok(end);
            }
            pending.extend(rest);
            if !awaited.is_empty()
                && let Err(error) = self.create_for_takeover().await
            {
                self.release_all(&mut pending).await;
                return Err(error);
            }
            if conflicting.is_some()
                && self.time_left().is_some_and(|left| left.is_zero())
                && let Err(error) = self.end_late(&mut pending, &way).await
            {
                self.release_all(&mut pending).await;
                return Err(error);
            }
            self.wait(conflicting, &mut back_off, &mut pending).await;
        }
        if self.stopped.is_some() {
            // The documents that still wait are not inserted.
            self.release_all(&mut pending).await;
        }
        if let Some((position, error)) = unfit
            && self.stopped.is_none()
        {
            self.error(position, error);
        }
        Ok(end)
    }

    /// Releases the keys of documents that are not inserted.
    async fn release_all(&self, pending: &mut [Candidate<'_>]) {
        pending.iter_mut().for_each(Candidate::withdraw);
        self.op.release(pending).await;
    }

    /// Inserts the candidates that have their keys, notes the outcomes of the others, and releases unneeded keys. Returns the
    /// rest: the documents behind the first one that an ordered command must insert before them. They hold no keys until the
    /// next round.
    async fn try_ready(
        &mut self,
        way: &InsertWay,
        pending: &mut Vec<Candidate<'a>>,
    ) -> Result<Vec<Candidate<'a>>, ForwardError> {
        let is_ordered = self.op.command.ordered;
        let mut rest = match is_ordered {
            true => split_off_after_first(pending, |candidate| !candidate.attempt.may_forward()),
            false => Vec::new(),
        };
        let forwarded = self.forward_ready(way, pending).await;
        if is_ordered {
            // In a transaction a candidate may have lost its keys again. The candidates behind it are not refused before it is
            // inserted.
            let undecided = |candidate: &Candidate<'_>| candidate.attempt.ended().is_none();
            rest.splice(0..0, split_off_after_first(pending, undecided));
        }
        // An ordered command that has just failed attempts no further documents.
        if self.stopped.is_none() {
            self.report_not_held(pending).await;
        }
        if forwarded.is_err() || self.stopped.is_some() {
            pending.append(&mut rest);
            pending.iter_mut().for_each(Candidate::withdraw);
        } else {
            rest.iter_mut().for_each(Candidate::restart);
        }
        // A candidate that only ends because it couldn't release its keys is noted later.
        let mut noted: Vec<_> = pending
            .extract_if(.., |candidate| candidate.attempt.ended().is_some())
            .collect();
        for some in [&mut noted, pending, &mut rest] {
            self.op.release(some).await;
        }
        self.guard.announce();
        forwarded?;
        Ok(rest)
    }

    /// On one replica set, a transaction inserts all documents at once if no reservation is in the way. Otherwise Keyward
    /// claims the keys first.
    async fn insert_at_once(&mut self, way: &InsertWay, pending: &mut Vec<Candidate<'a>>) -> Result<(), ForwardError> {
        let is_any_left = self.stopped.is_none() && !pending.is_empty();
        let Some(strict) = way.at_once(&self.op).filter(|_| is_any_left) else {
            return Ok(());
        };
        let all: Vec<&Candidate<'_>> = pending.iter().collect();
        let Some(sent) = Box::pin(strict.insert_at_once(&mut self.op, &all)).await? else {
            return Ok(());
        };
        let mut positions = Vec::with_capacity(pending.len());
        for (candidate, outcome) in pending.drain(..).zip(&sent.outcomes) {
            positions.push(candidate.position);
            // Either the document and its reservations exist, or none of them.
            if let DocumentOutcome::InDoubt(_) = outcome {
                self.op.context.note_in_doubt();
                continue;
            }
            for key in &candidate.keys {
                self.op.protected.constraints[key.constraint].metrics.reservations.inc();
            }
        }
        Ok(self.take_results(sent, &positions)?)
    }

    /// Starts the attempts of a slice: of the documents at these positions, or only of the first of them if their keys are large.
    async fn start(&mut self, positions: Range<usize>) -> StartedSlice<'a> {
        let mut slice = StartedSlice {
            candidates: Vec::with_capacity(positions.len()),
            unfit: None,
            end: positions.start,
            key_bytes: 0,
        };
        while self.start_next(&mut slice, positions.end) {
            tokio::task::yield_now().await;
        }
        slice
    }

    /// Starts the attempts of the documents from `slice.end` on, up to the one before `end`. A document that can't be indexed is an error of its own. It
    /// ends an ordered slice after the documents before it are done. Returns whether other tasks are to have their turn before the next one.
    fn start_next(&mut self, slice: &mut StartedSlice<'a>, end: usize) -> bool {
        let begun = Instant::now();
        let first = slice.end;
        while slice.end < end && slice.unfit.is_none() && slice.key_bytes <= SLICE_KEY_BYTES {
            if slice.end > first && begun.elapsed() > TURN {
                return true;
            }
            let position = slice.end;
            slice.end += 1;
            let token = Token {
                write: self.guard.id(),
                position: u32::try_from(position).unwrap_or(u32::MAX),
                retry_id: self.op.command.retry_id(position),
            };
            let error = match Candidate::new(self.op.protected, token, self.op.command.documents[position].bytes()) {
                Ok(candidate) => {
                    slice.key_bytes += candidate.keys.iter().map(|key| key.key.size()).sum::<usize>();
                    slice.candidates.push(candidate);
                    continue;
                }
                Err(KeyError::Malformed(error)) => {
                    self.refuse(&WriteRefusal::Malformed(error));
                    continue;
                }
                Err(error) => WriteError::unindexable(&error),
            };
            match self.op.command.ordered {
                true => slice.unfit = Some((position, error)),
                false => self.error(position, error),
            }
        }
        false
    }

    /// Removes those of the candidates that an earlier try of the command inserted itself, if they are `in_question`.
    async fn remove_first_tries(
        &mut self,
        pending: &mut Vec<Candidate<'_>>,
        way: &InsertWay,
        in_question: impl Fn(&Candidate<'_>) -> bool,
    ) -> Result<(), ForwardError> {
        let Some(retry) = &self.op.command.retry else {
            return Ok(());
        };
        let questioned: Vec<&Candidate<'_>> = pending.iter().filter(|candidate| in_question(candidate)).collect();
        if questioned.is_empty() {
            return Ok(());
        }
        let done = match way.done_before(&mut self.op, &questioned).await {
            Ok(done) => done,
            Err(failure) => {
                self.stopped.get_or_insert(Stopped::Whole(failure.into_reply()?.body));
                return Ok(());
            }
        };
        // The keys that the candidates reserved before they met another document's key.
        self.op.release(pending).await;
        let is_done = |candidate: &mut Candidate<'_>| done.contains(&candidate.position);
        let mut done: Vec<_> = pending.extract_if(.., is_done).collect();
        for candidate in &mut done {
            self.reply.retried(retry.retry_id(candidate.position).statement);
            // One that still waits keeps its keys meanwhile.
            candidate.withdraw();
        }
        self.op.release(&mut done).await;
        Ok(())
    }

    /// Claims the keys anew of candidates that have too little of their lease left. It refuses those that had so too often, and returns them:
    /// their keys are to be released.
    fn restart_expiring(&mut self, way: &InsertWay, pending: &mut Vec<Candidate<'a>>) -> Vec<Candidate<'a>> {
        let (op, mut hopeless) = (&self.op, Vec::new());
        for (index, candidate) in pending.iter_mut().enumerate() {
            if !way.must_claim_anew(op, candidate) {
                continue;
            }
            candidate.times_late += 1;
            // An ordered command reports no document before the ones in front of it.
            match candidate.times_late > RESTARTS_MAX && (index == 0 || !op.command.ordered) {
                true => hopeless.push(candidate.position),
                false => candidate.restart(),
            }
        }
        if hopeless.is_empty() {
            return Vec::new();
        }
        let refused = pending.extract_if(.., |candidate| hopeless.contains(&candidate.position));
        let mut refused: Vec<_> = refused.collect();
        for candidate in &mut refused {
            let constraint = candidate.keys.first().map_or(0, |key| key.constraint);
            let name = self.op.protected.constraints[constraint].constraint.full_name();
            tracing::warn!(constraint = %name, "the keys of a document were too old to write with each time that it had all of them");
            self.refuse_one(candidate.position, &self.op.unsure(constraint));
            candidate.withdraw();
        }
        refused
    }

    /// Inserts every candidate that has its keys, and notes its outcome.
    async fn forward_ready(&mut self, way: &InsertWay, pending: &mut [Candidate<'_>]) -> Result<(), ForwardError> {
        let ready: Vec<&Candidate<'_>> = pending
            .iter()
            .filter(|candidate| candidate.attempt.may_forward())
            .collect();
        if ready.is_empty() || self.stopped.is_some() {
            return Ok(());
        }
        let sent = way.insert(&mut self.op, &ready).await;
        let ready = pending.iter_mut().filter(|candidate| candidate.attempt.may_forward());
        match sent {
            Ok(sent) => {
                let reply = sent.reply.clone();
                self.take_sent(sent, ready)?;
                match reply {
                    Some(reply) => self.release_moved_keys(pending, &reply).await,
                    None => Ok(()),
                }
            }
            Err(error) => {
                ready.for_each(|candidate| self.op.note_in_doubt(candidate));
                Err(error)
            }
        }
    }

    /// Releases keys that a document doesn't hold any more: the server may have inserted it before, and it may have changed
    /// since.
    async fn release_moved_keys(&self, candidates: &[Candidate<'_>], reply: &[u8]) -> Result<(), ForwardError> {
        let done = positions_done_before(self.op.command, candidates.iter(), Doc::new(reply)?)?;
        if !done.is_empty() {
            // If a client gives two documents one number, the second one may still wait for its keys.
            let is_done = |one: &&Candidate<'_>| done.contains(&one.position) && one.attempt.ended().is_some();
            let done: Vec<&Candidate<'_>> = candidates.iter().filter(is_done).collect();
            self.op.release_unheld(&done, &[]).await;
        }
        Ok(())
    }

    /// Creates the collection for a takeover, unless the server refuses to: then the command fails.
    async fn create_for_takeover(&mut self) -> Result<(), ForwardError> {
        if let Some(reply) = self.op.create_for_takeover().await? {
            self.stopped.get_or_insert(Stopped::Whole(reply.body));
        }
        Ok(())
    }

    /// Refuses the documents that still wait for another write though the client's time is over. An earlier try of the command
    /// may have inserted them: that other write came for their keys later.
    async fn end_late(&mut self, pending: &mut Vec<Candidate<'_>>, way: &InsertWay) -> Result<(), ForwardError> {
        let waits = |candidate: &Candidate<'_>| candidate.attempt.is_waiting();
        self.remove_first_tries(pending, way, waits).await?;
        if pending.iter().any(waits) {
            self.refuse(&WriteRefusal::TimeLimit);
        }
        Ok(())
    }

    /// How much is left of the client's time, if the client limits it.
    fn time_left(&self) -> Option<Duration> {
        let deadline = self.op.client_deadline?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// Waits until the conflicting attempt may be decided, if there is one.
    async fn wait(&self, conflicting: Option<Token>, back_off: &mut BackOff, pending: &mut [Candidate<'_>]) {
        if let Some(conflicting) = conflicting {
            let at_most = back_off.next();
            let at_most = self.time_left().map_or(at_most, |left| at_most.min(left));
            self.op.context.writes.wait_for(conflicting.write, at_most).await;
        }
        end_waits(pending);
    }
}

/// The first of the `awaited` attempts that isn't decided by the end of the round. Those of the command's own documents that are `pending` in
/// it are. But one that is done already may have left keys that couldn't be released.
fn first_conflicting(awaited: &[Token], own: WriteId, pending: impl Iterator<Item = usize>) -> Option<Token> {
    let pending: HashSet<usize> = match awaited.iter().any(|token| token.write == own) {
        true => pending.collect(),
        false => HashSet::new(),
    };
    let is_pending = |token: &Token| usize::try_from(token.position).is_ok_and(|position| pending.contains(&position));
    let mut awaited = awaited.iter().copied();
    awaited.find(|token| token.write != own || !is_pending(token))
}

/// Whether another document holds a key of the candidate.
fn is_duplicate(candidate: &Candidate<'_>) -> bool {
    matches!(candidate.attempt.ended(), Some(Ended::NotHeld(NotHeld::Duplicate(_))))
}

/// Ends the waits of candidates that may go on. Documents of one command that want the same key get it in their order, as the
/// server would write them one after the other. A candidate that holds no keys stays behind while one before it is undecided.
/// No attempt waits for that candidate, so there are no deadlocks.
fn end_waits(pending: &mut [Candidate<'_>]) {
    let mut wanted_before: HashSet<ConstrainedKey> = HashSet::new();
    for candidate in pending {
        let is_behind =
            candidate.attempt.waits_with_nothing() && candidate.keys.iter().any(|key| wanted_before.contains(key));
        wanted_before.extend(candidate.keys.iter().cloned());
        if candidate.attempt.is_waiting() && !is_behind {
            candidate.step(&Event::WaitOver);
        }
    }
}

/// Removes the candidates behind the first that `is_it`: an ordered command may not attempt or report them before that one.
fn split_off_after_first<'a>(
    pending: &mut Vec<Candidate<'a>>,
    is_it: impl Fn(&Candidate<'a>) -> bool,
) -> Vec<Candidate<'a>> {
    match pending.iter().position(is_it) {
        Some(first) => pending.split_off(first + 1),
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_documents_of_the_same_round_are_not_waited_for() {
        let own = WriteId([1; 16]);
        let token = |write: WriteId, position: u32| Token {
            position,
            ..Token::of(write)
        };
        let first = |awaited: &[Token]| first_conflicting(awaited, own, [0, 2].into_iter());
        assert_eq!(first(&[]), None);
        assert_eq!(first(&[token(own, 0), token(own, 2)]), None);
        let done = token(own, 1);
        assert_eq!(
            first(&[token(own, 0), done]),
            Some(done),
            "its keys couldn't be released"
        );
        let other = token(WriteId([2; 16]), 0);
        assert_eq!(first(&[token(own, 0), other, done]), Some(other));
    }
}
