//! Runs one transaction that inserts documents.
//!
//! It checks or writes their reservations, writes the record of a retryable command, inserts the documents, and commits.
//! Keyward sends every command but the commit without waiting. The commit waits for the replies. If the server refuses a
//! command before it reads the session (for its shape, or a missing privilege), the transaction stays open. A commit sent
//! behind that command would commit the others without it.

use std::collections::BTreeSet;

use tokio::time::Instant;

use super::reservations as in_transaction;
use crate::claims::Candidate;
use crate::raw::{Doc, Malformed};
use crate::reply::{Refusal, Times, WriteError};
use crate::reservation::Operation;
use crate::server::reply::write_errors;
use crate::upstream::Connection;
use crate::wire::OutSequence;
use crate::write::context::TIME_MAX;
use crate::write::forward::ForwardError;
use crate::write::insert::in_clients_transaction::insert_body;
use crate::write::operation::WriteOp;
use crate::write::retry::results::with_times_of;
use crate::write::txn::{Failure, Transaction};

use crate::write::retry::inserted::{self, Note, inserted_by_majority};
use crate::write::txn::pipeline::{self, Step};

/// The most keys that are checked in one batch with their documents: the replies must fit between two sockets.
const CHECKED_AT_ONCE: usize = 500;
/// How Keyward inserts the documents of one slice of an `insert`.
#[derive(Debug)]
pub struct Transactional {
    /// The first statement of a retryable command's slice. The record of the slice's effects is stored under it.
    pub(super) first: Option<Operation>,
    /// The moment when Keyward gives up; each slice has its own time, unless the client set a limit.
    pub(super) give_up: Instant,
}

/// How the reservations get into the transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reservations {
    /// They exist; the transaction checks them.
    Checked,
    /// The transaction writes them.
    Written,
}

/// The documents of one transaction.
pub(super) struct Load<'s> {
    pub(super) candidates: Vec<&'s Candidate<'s>>,
    /// The notes about the documents, one for each slice of a retryable command.
    pub(super) notes: Vec<Note>,
    /// The latest cluster time that the clients know: the transaction is not before it.
    pub(super) time: Times,
}

/// The outcome of one transaction.
pub(super) enum Tried {
    /// The server's reply to the insert, with the times of the commit's reply.
    Committed(Vec<u8>),
    /// These statements took effect in an earlier try of the command; this transaction has no effect.
    Before(BTreeSet<i32>),
    /// These documents have lost a key; the transaction has no effect.
    Lost(Vec<usize>),
    /// The server refused one of the documents; the transaction has no effect.
    Refused(usize, WriteError),
    /// Another try would fail, too; the transaction has no effect.
    Failed(Vec<u8>),
    /// The outcome is unknown.
    InDoubt(Vec<u8>),
    /// The transaction conflicted with another one; it has no effect.
    Conflict,
}

impl Transactional {
    /// For the slice of the command that begins at `first`.
    pub fn new(op: &WriteOp<'_>, first: usize) -> Self {
        Transactional {
            first: op.command.operation(first),
            give_up: op.deadline.unwrap_or_else(|| Instant::now() + TIME_MAX),
        }
    }

    /// The statements that an earlier try of the command carried out.
    pub(super) async fn inserted_by_majority(&self, op: &mut WriteOp<'_>) -> Result<BTreeSet<i32>, Failure> {
        match self.first {
            Some(first) => inserted_by_majority(op, first, self.give_up).await,
            None => Ok(BTreeSet::new()),
        }
    }

    pub(super) fn statement(op: &WriteOp<'_>, position: usize) -> Option<i32> {
        Some(op.command.operation(position)?.statement)
    }

    pub(super) fn unsure(op: &WriteOp<'_>, these: &[&Candidate<'_>]) -> Refusal {
        let key = these.iter().find_map(|candidate| candidate.keys.first());
        let constraint = key.map_or(0, |key| key.constraint);
        op.unsure(constraint)
    }

    pub(super) fn load<'s>(&self, op: &WriteOp<'_>, these: &[&'s Candidate<'s>]) -> Result<Load<'s>, Malformed> {
        let statements = these
            .iter()
            .filter_map(|candidate| Self::statement(op, candidate.position));
        let note = self.first.map(|first| Note::new(first, statements.collect()));
        let mut time = Times::default();
        if let Some(known) = op.command.body.get("$clusterTime")? {
            time.take(&known);
        }
        Ok(Load {
            candidates: these.to_vec(),
            notes: note.into_iter().collect(),
            time,
        })
    }

    /// Runs one transaction. If Keyward is killed before the commit, it has no effect; after the commit, all effects exist,
    /// with the record.
    pub(super) async fn attempt_alone(
        &self,
        op: &mut WriteOp<'_>,
        these: &[&Candidate<'_>],
        reservations: Reservations,
    ) -> Result<Tried, ForwardError> {
        let mut transaction = op.own_transaction()?.at_one_moment();
        let load = self.load(op, these)?;
        let tried = self.try_to_insert(op, &load, reservations, &mut transaction).await;
        match tried {
            Ok(Tried::Committed(reply)) => Ok(Tried::Committed(reply)),
            Ok(Tried::Lost(_)) => {
                transaction.abort(op.upstream).await?;
                Ok(Self::lost(op, these).await)
            }
            Ok(Tried::Before(_)) => {
                transaction.abort(op.upstream).await?;
                match self.inserted_by_majority(op).await {
                    Ok(statements) => Ok(Tried::Before(statements)),
                    Err(Failure::Forward(error)) => Err(error),
                    // Some of these documents exist, or did; only a retry can find out whether they stay.
                    Err(Failure::Refused(refused) | Failure::InDoubt(refused)) => {
                        Ok(Tried::InDoubt(refused.in_doubt(true).body))
                    }
                }
            }
            Ok(tried) => {
                transaction.abort(op.upstream).await?;
                Ok(tried)
            }
            Err(Failure::Forward(error)) => Err(error),
            Err(Failure::Refused(refused)) if refused.is_transient() && !refused.is_of_another_primary() => {
                Ok(Tried::Conflict)
            }
            Err(Failure::Refused(refused)) if refused.is_transient() => {
                Ok(Tried::Failed(refused.in_doubt(op.is_retryable()).body))
            }
            Err(Failure::Refused(refused)) => {
                transaction.abort(op.upstream).await?;
                Ok(Tried::Failed(refused.body))
            }
            Err(Failure::InDoubt(refused)) => Ok(Tried::InDoubt(refused.in_doubt(op.is_retryable()).body)),
        }
    }

    /// Runs the transaction, except for the end of one without effect.
    ///
    /// # Errors
    /// [`Failure`]; in doubt only for the commit.
    pub(super) async fn try_to_insert(
        &self,
        op: &mut WriteOp<'_>,
        load: &Load<'_>,
        reservations: Reservations,
        transaction: &mut Transaction,
    ) -> Result<Tried, Failure> {
        let (these, notes) = (&load.candidates, &load.notes);
        let own = match reservations {
            Reservations::Checked => in_transaction::checks(op.protected, these),
            Reservations::Written => in_transaction::inserts(op.protected, these),
        };
        let keys: usize = these.iter().map(|candidate| candidate.keys.len()).sum();
        let checks = own.len();
        let mut steps = Vec::new();
        if !notes.is_empty() {
            steps.push(inserted::find(op.protected, notes));
        }
        steps.extend(own);
        let mut replies = Vec::new();
        if keys > CHECKED_AT_ONCE {
            replies = run(std::mem::take(&mut steps), transaction, op.upstream).await?;
        }
        if !notes.is_empty() {
            steps.push(inserted::add(op.protected, notes));
        }
        // The documents go last, so that the server's error for a document isn't mistaken for the consequence of an earlier
        // command.
        steps.push(Self::documents(op, load)?);
        replies.extend(run(steps, transaction, op.upstream).await?);
        // In the order of the steps.
        let mut replies = replies.into_iter();
        if !notes.is_empty() {
            let found = replies.next().unwrap_or_default();
            let before = inserted::statements(Doc::new(&found)?)?;
            if notes.iter().any(|note| note.has_any_of(&before)) {
                return Ok(Tried::Before(before));
            }
        }
        let own: Vec<Vec<u8>> = replies.by_ref().take(checks).collect();
        let are_reserved = match reservations {
            Reservations::Checked => in_transaction::count(&own)? == keys,
            Reservations::Written => in_transaction::are_written(&own)?,
        };
        if !are_reserved {
            return Ok(Tried::Lost(Vec::new()));
        }
        if !notes.is_empty() && !in_transaction::are_written(&[replies.next().unwrap_or_default()])? {
            return Ok(Tried::Conflict);
        }
        let reply = replies.next().unwrap_or_default();
        if let Some((index, error)) = first_error(Doc::new(&reply)?)? {
            return Ok(Tried::Refused(index, error));
        }
        let committed = transaction.commit_until_known(op.upstream).await?;
        Ok(Tried::Committed(with_times_of(&reply, &committed)?))
    }

    /// Those of `these` that have lost a key, from the current reservations; none if the current reservations can't be read
    /// yet.
    async fn lost(op: &WriteOp<'_>, these: &[&Candidate<'_>]) -> Tried {
        match in_transaction::lost(op.protected, these).await {
            Ok(lost) => Tried::Lost(lost),
            Err(error) => {
                tracing::warn!(%error, collection = %op.protected.namespace, "the cluster gave no sure answer");
                Tried::Failed(Self::unsure(op, these).body(&op.protected.times()))
            }
        }
    }

    /// The client's command with these documents.
    fn documents<'s>(op: &WriteOp<'s>, load: &'s Load<'_>) -> Result<Step<'s>, Malformed> {
        let mut command = insert_body(op.command)?;
        if let Some(deadline) = op.deadline {
            let left = deadline.saturating_duration_since(Instant::now()).as_millis();
            command.int32("maxTimeMS", i32::try_from(left).unwrap_or(i32::MAX).max(1));
        }
        let documents = load.candidates.iter().map(|candidate| &*candidate.document).collect();
        Ok(Step {
            database: &op.protected.namespace.database,
            command,
            sequence: Some(OutSequence {
                name: b"documents",
                documents,
            }),
        })
    }
}

/// Runs all `steps`. The first refusal, if any, is the failure: the later ones only report that the transaction is over.
async fn run(
    steps: Vec<Step<'_>>,
    transaction: &mut Transaction,
    upstream: &mut Connection,
) -> Result<Vec<Vec<u8>>, Failure> {
    let replies = pipeline::run(steps, transaction, upstream).await?;
    replies
        .into_iter()
        .map(|reply| reply.map_err(Failure::Refused))
        .collect()
}

/// The first document that the server refused, and why.
fn first_error(reply: Doc<'_>) -> Result<Option<(usize, WriteError)>, Malformed> {
    let errors = write_errors(reply)?;
    let first = errors.iter().min_by_key(|error| error.index.unwrap_or(0));
    let read = first.map(|error| Ok((error.index.unwrap_or(0), WriteError::from_server(error.body)?)));
    read.transpose()
}
