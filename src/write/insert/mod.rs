//! `insert` into a protected collection: reserve, forward, and give back what the server refused.
//!
//! The documents go in slices, so that a command of 100,000 doesn't outlive its lease. Within a slice whatever has its
//! keys is forwarded; whoever waits for a rival waits after that, so that nobody waits for a document that waits. Killed
//! at any point, this leaves reservations whose owners either are there or never come: whoever meets one finds out.

mod in_clients_transaction;
pub mod transactional;

use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

use tokio::time::Instant;

use super::forward::{ForwardError, Outcome, Part, forward, within};
use super::insert::transactional::Strict;
use super::lease_left::LeaseLeft;
use super::retried::{done_before, give_back_what_has_moved, positions_done_before};
use super::txn::Failure;
use super::txn::gossip;
use super::{BackOff, Context};
use crate::catalog::Protected;
use crate::claims::{Candidate, ConstrainedKey, UnderWay, anticipate, give_back, settle};
use crate::command::batch::BatchCommand;
use crate::constraint::KeyError;
use crate::proxy_collection::Fitting;
use crate::raw::{Doc, Malformed};
use crate::reply::{Refusal, WriteError, WriteReply};
use crate::reservation::{Ended, Event, NotHeld, Token};
use crate::upstream::Connection;

pub use in_clients_transaction::insert_within;

/// So many documents, and so many bytes of them, are reserved and forwarded together.
const SLICE: Fitting = Fitting {
    items: 2_000,
    bytes: 16 << 20,
};
/// A command whose keys take so many starts before half a lease has passed is given up.
const RESTARTS_MAX: u32 = 3;

/// One `insert` on its way.
struct Insert<'a, 'c> {
    context: &'c Context,
    protected: &'c Protected,
    command: &'c BatchCommand<'a>,
    attempt: UnderWay,
    deadline: Option<Instant>,
    restarts: u32,
    reply: WriteReply,
    stopped: Option<Stopped>,
}

/// Why nothing more of the command is attempted.
enum Stopped {
    /// An ordered command met its first error; what was gathered is the reply.
    AtFirstError,
    /// The command failed as a whole with this reply.
    Whole(Vec<u8>),
}

/// Carries out the insert; gives the reply's body.
///
/// # Errors
/// [`ForwardError`] if the upstream connection is gone or garbled: the client's has to go, too.
pub async fn insert(
    context: &Context,
    protected: &Protected,
    command: &BatchCommand<'_>,
    upstream: &mut Connection,
) -> Result<Vec<u8>, ForwardError> {
    let mut insert = Insert {
        context,
        protected,
        command,
        attempt: context.in_flight.begin(),
        deadline: command.max_time.map(|limit| Instant::now() + limit),
        restarts: 0,
        reply: WriteReply::default(),
        stopped: None,
    };
    let mut next = 0;
    while next < command.documents.len() && insert.stopped.is_none() {
        let end = end_of_slice(&command.documents, next);
        insert.slice(next..end, upstream).await?;
        next = end;
    }
    Ok(insert.into_body()?)
}

impl<'a> Insert<'a, '_> {
    async fn slice(&mut self, positions: Range<usize>, upstream: &mut Connection) -> Result<(), ForwardError> {
        let first = positions.start;
        let (mut pending, unfit) = self.candidates(positions);
        anticipate(self.protected, &mut pending);
        // A slice without keys is the server's alone, whatever the strategy: so is it for a retry, then.
        let has_keys = pending.iter().any(|candidate| !candidate.keys.is_empty());
        let strict = (has_keys && self.protected.is_strict())
            .then(|| Strict::new(self.context, self.protected, self.command, first, self.deadline));
        if let Some(strict) = &strict {
            self.insert_at_once(strict, &mut pending, upstream).await?;
        }
        let mut back_off = BackOff::default();
        while !pending.is_empty() && self.stopped.is_none() {
            let awaited = settle(self.protected, self.context.lease, &mut pending).await;
            let taken_out = self.take_out_what_was_done_before(&mut pending, strict.as_ref(), upstream);
            if let Err(error) = taken_out.await {
                pending.iter_mut().for_each(Candidate::withdraw);
                give_back(self.protected, self.context.lease, &mut pending).await;
                return Err(error);
            }
            if strict.is_none() {
                self.restart_what_is_late(&mut pending);
            }
            let mut rest = match self.command.ordered {
                true => after_first_unready(&mut pending),
                false => Vec::new(),
            };
            let forwarded = self.forward_ready(&mut pending, strict.as_ref(), upstream).await;
            if self.command.ordered {
                // In strict mode one may have lost its keys again: what comes after it isn't refused before it is there.
                rest.splice(0..0, after_first_undecided(&mut pending));
            }
            // An ordered command that has just failed attempts nothing after that.
            if self.stopped.is_none() {
                self.note_what_is_not_held(&mut pending).await;
            }
            if forwarded.is_err() || self.stopped.is_some() {
                pending.append(&mut rest);
                pending.iter_mut().for_each(Candidate::withdraw);
            } else {
                rest.iter_mut().for_each(Candidate::restart);
            }
            // What only ends because it couldn't give back what it held isn't noted yet: its turn comes.
            let mut noted: Vec<_> = pending
                .extract_if(.., |candidate| candidate.attempt.ended().is_some())
                .collect();
            for some in [&mut noted, &mut pending, &mut rest] {
                give_back(self.protected, self.context.lease, some).await;
            }
            self.attempt.announce();
            forwarded?;
            if self.stopped.is_some() {
                return Ok(());
            }
            self.wait(&awaited, &mut back_off, &mut pending).await;
            pending.append(&mut rest);
        }
        if self.stopped.is_some() {
            // The client's time passed during a wait.
            pending.iter_mut().for_each(Candidate::withdraw);
            give_back(self.protected, self.context.lease, &mut pending).await;
        }
        if let Some((position, error)) = unfit
            && self.stopped.is_none()
        {
            self.error(position, error);
        }
        Ok(())
    }

    /// Strict mode on one replica set: all goes in at once if nothing is in the way. Otherwise it claims its keys as ever.
    async fn insert_at_once(
        &mut self,
        strict: &Strict<'_, '_>,
        pending: &mut Vec<Candidate<'a>>,
        upstream: &mut Connection,
    ) -> Result<(), ForwardError> {
        if !self.protected.is_on_one_replica_set || self.stopped.is_some() {
            return Ok(());
        }
        let all: Vec<&Candidate<'_>> = pending.iter().collect();
        let Some(part) = strict.insert_at_once(&all, upstream).await? else {
            return Ok(());
        };
        for (candidate, outcome) in pending.drain(..).zip(&part.outcomes) {
            // With its reservations it is there as a whole, or not at all.
            if let Outcome::InDoubt(_) = outcome {
                self.context.note_lost();
                continue;
            }
            for key in &candidate.keys {
                self.protected.constraints[key.constraint].metrics.reservations.inc();
            }
        }
        self.take_part(part, std::iter::empty())
    }

    /// Begins the attempts of a slice. A document that can't be indexed, say, is an error of its own, which ends an ordered
    /// slice once what stands before it is done.
    fn candidates(&mut self, positions: Range<usize>) -> (Vec<Candidate<'a>>, Option<(usize, WriteError)>) {
        let mut candidates = Vec::with_capacity(positions.len());
        for position in positions {
            let token = Token {
                attempt: self.attempt.attempt(),
                position: u32::try_from(position).unwrap_or(u32::MAX),
                operation: self.command.operation(position),
            };
            let error = match Candidate::new(self.protected, token, self.command.documents[position].bytes()) {
                Ok(candidate) => {
                    candidates.push(candidate);
                    continue;
                }
                Err(KeyError::Malformed(error)) => {
                    self.refuse(&Refusal::Malformed(error));
                    continue;
                }
                Err(error) => WriteError::unindexable(&error),
            };
            match self.command.ordered {
                true => return (candidates, Some((position, error))),
                false => self.error(position, error),
            }
        }
        (candidates, None)
    }

    /// What seems to be a duplicate may be a statement that was done long ago.
    async fn take_out_what_was_done_before(
        &mut self,
        pending: &mut Vec<Candidate<'_>>,
        strict: Option<&Strict<'_, '_>>,
        upstream: &mut Connection,
    ) -> Result<(), ForwardError> {
        let Some(retry) = &self.command.retry else {
            return Ok(());
        };
        let is_duplicate = |candidate: &&Candidate<'_>| {
            matches!(candidate.attempt.ended(), Some(Ended::NotHeld(NotHeld::Duplicate(_))))
        };
        let duplicates: Vec<&Candidate<'_>> = pending.iter().filter(is_duplicate).collect();
        if duplicates.is_empty() {
            return Ok(());
        }
        let done = match strict {
            Some(strict) => strict.inserted_before(&duplicates, upstream).await,
            None => Ok(done_before(self.protected, self.command, &duplicates, upstream).await?),
        };
        let done = match done {
            Ok(done) => done,
            Err(Failure::Forward(error)) => return Err(error),
            Err(Failure::Refused(refused) | Failure::InDoubt(refused)) => {
                self.stopped.get_or_insert(Stopped::Whole(refused.body));
                return Ok(());
            }
        };
        // What they reserved before they met the duplicate.
        give_back(self.protected, self.context.lease, pending).await;
        for candidate in pending.extract_if(.., |candidate| done.contains(&candidate.position)) {
            self.reply.retried(retry.operation(candidate.position).statement);
        }
        Ok(())
    }

    /// A write must end before the lease of its keys: without time left for it they are claimed anew.
    fn restart_what_is_late(&mut self, pending: &mut [Candidate<'_>]) {
        let lease = self.context.lease;
        let is_late = |candidate: &&mut Candidate<'_>| {
            candidate.attempt.may_forward() && LeaseLeft::new(lease, candidate.since).is_too_little()
        };
        let mut late = pending.iter_mut().filter(is_late).peekable();
        let Some(first) = late.peek() else { return };
        self.restarts += 1;
        if self.restarts > RESTARTS_MAX {
            let refusal = self.unsure(first.keys.first().map_or(0, |key| key.constraint));
            return self.refuse(&refusal);
        }
        late.for_each(Candidate::restart);
    }

    /// Forwards every candidate that has its keys, and notes what became of it.
    async fn forward_ready(
        &mut self,
        pending: &mut [Candidate<'_>],
        strict: Option<&Strict<'_, '_>>,
        upstream: &mut Connection,
    ) -> Result<(), ForwardError> {
        let ready: Vec<&Candidate<'_>> = pending
            .iter()
            .filter(|candidate| candidate.attempt.may_forward())
            .collect();
        if ready.is_empty() || self.stopped.is_some() {
            return Ok(());
        }
        let part = match (strict, self.time_to_forward(&ready)) {
            (Some(strict), _) => strict.insert(&ready, upstream).await,
            (None, Some(time)) => {
                let told = gossip::told(self.protected, upstream);
                let forwarded = forward(self.command, &ready, time, &told, upstream);
                within(self.context.lease, forwarded).await
            }
            (None, None) => {
                self.refuse(&Refusal::TimeLimit);
                return Ok(());
            }
        };
        let ready = pending.iter_mut().filter(|candidate| candidate.attempt.may_forward());
        match part {
            Ok(part) => {
                let body = part.body.clone();
                self.take_part(part, ready)?;
                self.settle_what_was_done_before(pending, &body).await
            }
            Err(error) => {
                let (context, protected) = (self.context, self.protected);
                ready.for_each(|candidate| {
                    candidate.step(&Event::InDoubt);
                    context.note_in_doubt(protected, candidate);
                });
                Err(error)
            }
        }
    }

    /// What the server had done before may have changed its keys since.
    async fn settle_what_was_done_before(&self, forwarded: &[Candidate<'_>], body: &[u8]) -> Result<(), ForwardError> {
        let done = positions_done_before(self.command, forwarded.iter(), Doc::new(body)?)?;
        if !done.is_empty() {
            let done = forwarded.iter().filter(|candidate| done.contains(&candidate.position));
            let done: Vec<&Candidate<'_>> = done.collect();
            give_back_what_has_moved(self.protected, &done).await;
        }
        Ok(())
    }

    /// How long a write of these may take; `None` if the client's own limit has passed.
    fn time_to_forward(&self, ready: &[&Candidate<'_>]) -> Option<Duration> {
        let oldest = ready.iter().filter_map(|candidate| candidate.since).min();
        LeaseLeft::new(self.context.lease, oldest).time_to_write(self.deadline)
    }

    fn take_part<'p, 'd: 'p>(
        &mut self,
        part: Part,
        forwarded: impl Iterator<Item = &'p mut Candidate<'d>>,
    ) -> Result<(), ForwardError> {
        for (candidate, outcome) in forwarded.zip(part.outcomes) {
            let (event, error) = match outcome {
                Outcome::Applied => (Event::Applied, None),
                Outcome::NotApplied(error) => (Event::NotApplied, error),
                Outcome::InDoubt(error) => (Event::InDoubt, error),
                Outcome::Lost => (Event::Lost, None),
                Outcome::NotTried => continue,
            };
            candidate.step(&event);
            match event {
                Event::InDoubt => self.context.note_in_doubt(self.protected, candidate),
                Event::Lost => candidate.since = None,
                _ => {}
            }
            if let Some(error) = error {
                self.error(candidate.position, error);
            }
        }
        if part.failed {
            self.stopped = Some(Stopped::Whole(part.body));
            return Ok(());
        }
        Ok(self.reply.add_part(Doc::new(&part.body)?)?)
    }

    /// Notes the candidates that won't be forwarded: duplicates, and keys nobody is sure of.
    async fn note_what_is_not_held(&mut self, pending: &mut [Candidate<'_>]) {
        for candidate in pending {
            match candidate.attempt.ended() {
                Some(Ended::NotHeld(NotHeld::Duplicate(key))) => {
                    let is_there = candidate.conflicts_with_itself(key);
                    let ConstrainedKey { constraint, key } = &candidate.keys[key];
                    let proxy = &self.protected.constraints[*constraint];
                    // The very document is there: the server checks `_id` first.
                    let error = match is_there {
                        true => {
                            proxy.metrics.duplicates.inc();
                            WriteError::duplicate_id(&self.protected.namespace, &candidate.owner.id)
                        }
                        false => WriteError::duplicate(&proxy.refuse(key).await),
                    };
                    self.error(candidate.position, error);
                }
                Some(Ended::NotHeld(NotHeld::Unsure(key))) => {
                    let refusal = self.unsure(candidate.keys[key].constraint);
                    self.refuse(&refusal);
                }
                _ => {}
            }
        }
    }

    /// Waits until what rivals are at may be decided; rivals in the same command are, by now.
    async fn wait(&mut self, awaited: &[Token], back_off: &mut BackOff, pending: &mut [Candidate<'_>]) {
        let own = self.attempt.attempt();
        if let Some(conflicting) = awaited.iter().find(|conflicting| conflicting.attempt != own) {
            let left = self
                .deadline
                .map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                self.refuse(&Refusal::TimeLimit);
            }
            let at_most = back_off.next();
            self.context
                .in_flight
                .wait_for(conflicting.attempt, left.map_or(at_most, |left| at_most.min(left)))
                .await;
        }
        go_on(pending);
    }

    fn error(&mut self, position: usize, error: WriteError) {
        if self.command.ordered {
            if self.stopped.is_some() {
                return;
            }
            self.stopped = Some(Stopped::AtFirstError);
        }
        self.reply.error(position, error);
    }

    /// Fails the command as a whole, unless an ordered one has met its first error already.
    fn refuse(&mut self, refusal: &Refusal) {
        if self.stopped.is_none() {
            self.stopped = Some(Stopped::Whole(refusal.body(&self.protected.times())));
        }
    }

    fn unsure(&self, constraint: usize) -> Refusal {
        self.protected.unsure(constraint, self.command.retry.is_some())
    }

    fn into_body(mut self) -> Result<Vec<u8>, Malformed> {
        if let Some(Stopped::Whole(body)) = self.stopped {
            return Ok(body);
        }
        let times = self.protected.times();
        self.reply.advance(times);
        match self.command.unacknowledged {
            true => WriteReply::default().body(),
            false => self.reply.body(),
        }
    }
}

/// Ends the waits of those whose turn has come. Documents of one command that want the same key get it in their order, as
/// the server would write them one after the other: who holds nothing stays behind while one before it is undecided.
/// Nobody waits for it meanwhile, so nobody waits in a circle.
fn go_on(pending: &mut [Candidate<'_>]) {
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

/// Where the slice that begins at `start` ends; it holds one document at least.
fn end_of_slice(documents: &[Doc<'_>], start: usize) -> usize {
    start + SLICE.count(&documents[start..], |document| document.bytes().len())
}

/// Takes away what an ordered command may not attempt before the first candidate that isn't ready.
fn after_first_unready<'a>(pending: &mut Vec<Candidate<'a>>) -> Vec<Candidate<'a>> {
    after_first(pending, |candidate| !candidate.attempt.may_forward())
}

/// Takes away what an ordered command may say nothing of before the first candidate that nothing has become of yet.
fn after_first_undecided<'a>(pending: &mut Vec<Candidate<'a>>) -> Vec<Candidate<'a>> {
    after_first(pending, |candidate| candidate.attempt.ended().is_none())
}

fn after_first<'a>(pending: &mut Vec<Candidate<'a>>, is_it: impl Fn(&Candidate<'a>) -> bool) -> Vec<Candidate<'a>> {
    match pending.iter().position(is_it) {
        Some(first) => pending.split_off(first + 1),
        None => Vec::new(),
    }
}
