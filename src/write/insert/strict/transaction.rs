//! Runs one transaction that inserts documents, of one client or of a group.
//!
//! It writes the record of a retryable command, inserts the documents, and commits. On one replica set it checks or writes the
//! reservations, too. Keyward sends every command but the commit without waiting, in up to three rounds if there are many keys
//! (`CHECKED_AT_ONCE`). The commit waits for the replies. If the
//! server refuses a command before it reads the session (for its shape, or a missing privilege), the transaction stays open. A
//! commit sent behind that command would commit the others without it.
//!
//! On shards, a check outside of the transaction follows the insert, before the commit. So the shards of the reservations take
//! no part in the commit. The check shows the reservations at a moment that isn't before the reply to the insert, and that
//! suffices. If a takeover came before the insert's snapshot, the shard of the document knew its time when it replied, and the check
//! shows it. A later takeover wrote to the document's place after the snapshot: the two conflict, and only one of them can commit.

use std::collections::{BTreeSet, VecDeque};

use tokio::time::Instant;

use super::reservations;
use crate::claims::Candidate;
use crate::raw::{Doc, Malformed};
use crate::reply::{Times, WriteError, WriteRefusal};
use crate::reservation::RetryId;
use crate::server::reply::write_errors;
use crate::wire::OutSequence;
use crate::write::forward_error::ForwardError;
use crate::write::operation::WriteOp;
use crate::write::retry::inserted::inserted_by_majority;
use crate::write::retry::results::as_committed;
use crate::write::retry::slice_record::{self, Added, SliceRecord};
use crate::write::txn::pipeline::{self, PipelinedCommand};
use crate::write::txn::{ErrorReply, Failure, Transaction};

/// The most keys that are checked in one batch with their documents: the replies must fit between two sockets.
const CHECKED_AT_ONCE: usize = 500;

/// The transactions that insert the documents of one slice of an `insert`.
#[derive(Debug)]
pub struct StrictInsert {
    /// The first statement of a retryable command's slice. The record of the slice's effects is stored under it.
    pub(super) first: Option<RetryId>,
    /// The moment when Keyward gives up; each slice has its own time, unless the client set a limit.
    pub(super) deadline: Instant,
}

/// How the reservations get into the transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReservationMode {
    /// They exist, and are checked before the commit.
    Checked,
    /// The transaction writes them.
    Written,
}

/// The documents of one transaction.
pub(super) struct Load<'s> {
    pub(super) candidates: Vec<&'s Candidate<'s>>,
    /// The records of the inserted documents, one for each slice of a retryable command.
    pub(super) records: Vec<SliceRecord>,
    /// The latest cluster time that the clients know: the transaction is not before it.
    pub(super) time: Times,
}

/// The outcome of one transaction.
pub(super) enum TransactionOutcome {
    /// The server's reply to the insert, with those parts of the commit's reply that a client sees.
    Committed(Vec<u8>),
    /// These statements took effect in an earlier try of the command; this transaction has no effect. None as long as they
    /// weren't read.
    DoneBefore(BTreeSet<i32>),
    /// Not every key was found, or could be written, under its document's token; the transaction has no effect.
    NotReserved,
    /// These documents have lost a key; the transaction has no effect.
    Superseded(Vec<usize>),
    /// The server refused one of the documents; the transaction has no effect.
    Refused(usize, WriteError),
    /// Another try would fail, too; the transaction has no effect.
    Failed(Vec<u8>),
    /// The outcome is unknown.
    InDoubt(Vec<u8>),
    /// The transaction conflicted with another one; it has no effect.
    Conflict,
}

impl StrictInsert {
    /// For the slice of the command that begins at `first`.
    pub fn new(op: &WriteOp<'_>, first: usize) -> Self {
        StrictInsert {
            first: op.command.retry_id(first),
            deadline: op.end_from_now(),
        }
    }

    /// The statements that an earlier try of the command carried out.
    pub(super) async fn inserted_by_majority(&self, op: &mut WriteOp<'_>) -> Result<BTreeSet<i32>, Failure> {
        match self.first {
            Some(first) => inserted_by_majority(op, first, self.deadline).await,
            None => Ok(BTreeSet::new()),
        }
    }

    pub(super) fn statement(op: &WriteOp<'_>, position: usize) -> Option<i32> {
        Some(op.command.retry_id(position)?.statement)
    }

    pub(super) fn unsure(op: &WriteOp<'_>, these: &[&Candidate<'_>]) -> WriteRefusal {
        let key = these.iter().find_map(|candidate| candidate.keys.first());
        let constraint = key.map_or(0, |key| key.constraint);
        op.unsure(constraint)
    }

    pub(super) fn load<'s>(&self, op: &WriteOp<'_>, these: &[&'s Candidate<'s>]) -> Result<Load<'s>, Malformed> {
        let statements = these
            .iter()
            .filter_map(|candidate| Self::statement(op, candidate.position));
        let record = self.first.map(|first| SliceRecord::new(first, statements.collect()));
        let mut time = Times::default();
        if let Some(known) = op.command.body.get("$clusterTime")? {
            time.take(&known);
        }
        Ok(Load {
            candidates: these.to_vec(),
            records: record.into_iter().collect(),
            time,
        })
    }

    /// Runs one transaction. If Keyward is killed before the commit, it has no effect; after the commit, all effects exist,
    /// with the record.
    pub(super) async fn try_alone(
        &self,
        op: &mut WriteOp<'_>,
        these: &[&Candidate<'_>],
        reservations: ReservationMode,
    ) -> Result<TransactionOutcome, ForwardError> {
        let mut transaction = own_transaction(op, reservations)?;
        let load = self.load(op, these)?;
        let tried = self.try_to_insert(op, &load, reservations, &mut transaction).await;
        match tried {
            Ok(TransactionOutcome::Committed(reply)) => Ok(TransactionOutcome::Committed(reply)),
            Ok(TransactionOutcome::NotReserved) => {
                transaction.abort(op.upstream).await?;
                Ok(Self::superseded(op, these).await)
            }
            Ok(TransactionOutcome::DoneBefore(_)) => {
                transaction.abort(op.upstream).await?;
                match self.inserted_by_majority(op).await {
                    Ok(statements) => Ok(TransactionOutcome::DoneBefore(statements)),
                    // Some of these documents exist, or did; only a retry can find out whether they stay.
                    Err(failure) => Ok(TransactionOutcome::InDoubt(failure.into_reply()?.in_doubt(true).body)),
                }
            }
            Ok(tried) => {
                transaction.abort(op.upstream).await?;
                Ok(tried)
            }
            Err(Failure::Forward(error)) => Err(error),
            Err(Failure::ErrorReply(refused)) if refused.is_transient() && !refused.is_of_another_primary() => {
                Ok(TransactionOutcome::Conflict)
            }
            Err(Failure::ErrorReply(refused)) if refused.is_transient() => {
                Ok(TransactionOutcome::Failed(refused.in_doubt(op.is_retryable()).body))
            }
            Err(Failure::ErrorReply(refused)) => {
                transaction.abort(op.upstream).await?;
                Ok(match refused.may_run_again() {
                    true => TransactionOutcome::Conflict,
                    false => TransactionOutcome::Failed(refused.body),
                })
            }
            Err(Failure::InDoubt(refused)) => Ok(TransactionOutcome::InDoubt(refused.in_doubt(op.is_retryable()).body)),
            Err(failure @ Failure::Refused(_)) => Ok(TransactionOutcome::Failed(failure.into_reply()?.body)),
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
        reservations: ReservationMode,
        transaction: &mut Transaction,
    ) -> Result<TransactionOutcome, Failure> {
        let is_recorded = !load.records.is_empty();
        let (reservation_commands, rounds) = self.commands(op, load, reservations)?;
        let mut replies = UnreadReplies::default();
        for (steps, outside) in rounds {
            let of_round = pipeline::run(steps, outside, transaction, op.upstream).await?;
            let is_over = of_round.iter().any(Result::is_err);
            replies.0.extend(of_round);
            if is_over {
                break;
            }
        }
        // The replies come in the order of the commands.
        if is_recorded {
            match slice_record::added(Doc::new(&replies.next()?)?)? {
                Added::Now => {}
                Added::Before => return Ok(TransactionOutcome::DoneBefore(BTreeSet::new())),
                Added::No => return Ok(TransactionOutcome::Conflict),
            }
        }
        let reserved_replies = (0..reservation_commands)
            .map(|_| replies.next())
            .collect::<Result<Vec<_>, _>>()?;
        let reply = replies.next()?;
        let are_reserved = match reservations {
            ReservationMode::Written => reservations::are_written(&reserved_replies)?,
            ReservationMode::Checked => {
                let outside = match replies.0.drain(..).collect::<Result<Vec<_>, _>>() {
                    Ok(outside) => outside,
                    Err(refused) => return Ok(of_failed_check(refused, op.is_retryable())),
                };
                let keys: usize = load.candidates.iter().map(|candidate| candidate.keys.len()).sum();
                reservations::count(&reserved_replies)? + reservations::count(&outside)? == keys
                    && reservations::are_later(&outside, Doc::new(&reply)?)?
            }
        };
        if !are_reserved {
            return Ok(TransactionOutcome::NotReserved);
        }
        if let Some((index, error)) = first_error(Doc::new(&reply)?)? {
            return Ok(TransactionOutcome::Refused(index, error));
        }
        transaction.note_all_reservations();
        let committed = transaction.commit_until_known(op.upstream).await?;
        Ok(TransactionOutcome::Committed(as_committed(&reply, &committed)?))
    }

    /// The commands of one transaction before its commit, in portions that are sent without waiting: those in the transaction, and
    /// the checks outside of it behind them. Also how many of them check or write reservations inside the transaction.
    fn commands<'s>(
        &self,
        op: &WriteOp<'s>,
        load: &'s Load<'_>,
        reservations: ReservationMode,
    ) -> Result<(usize, Vec<Portion<'s>>), Malformed> {
        let these = &load.candidates;
        let are_checked_outside = are_checked_outside(op, reservations);
        let of_reservations = match reservations {
            ReservationMode::Written => {
                reservations::inserts(op.protected, these, op.command.body.is_set("apiStrict")?)
            }
            ReservationMode::Checked if are_checked_outside => Vec::new(),
            ReservationMode::Checked => reservations::checks(op.protected, these),
        };
        let outside = match are_checked_outside {
            true => reservations::outside_checks(op.protected, these, op.command.body)?,
            false => Vec::new(),
        };
        let count = of_reservations.len();
        let mut first = Vec::new();
        if !load.records.is_empty() {
            first.push(slice_record::add(op.protected, &load.records));
        }
        first.extend(of_reservations);
        // The documents are the transaction's last command, so that the server's error for a document isn't mistaken for the
        // consequence of an earlier command.
        let documents = Self::documents(op, load)?;
        let keys: usize = these.iter().map(|candidate| candidate.keys.len()).sum();
        let rounds = match keys > CHECKED_AT_ONCE {
            true => vec![
                (first, Vec::new()),
                (vec![documents], Vec::new()),
                (Vec::new(), outside),
            ],
            false => {
                first.push(documents);
                vec![(first, outside)]
            }
        };
        Ok((count, rounds))
    }

    /// The candidates in `these` whose keys were taken over, by the current reservations. If there are none, the check was made too early.
    async fn superseded(op: &WriteOp<'_>, these: &[&Candidate<'_>]) -> TransactionOutcome {
        match reservations::superseded(op.protected, these).await {
            Ok(superseded) if superseded.is_empty() => TransactionOutcome::NotReserved,
            Ok(superseded) => TransactionOutcome::Superseded(superseded),
            Err(error) => {
                tracing::warn!(%error, collection = %op.protected.namespace, "the cluster gave no sure answer");
                TransactionOutcome::Failed(Self::unsure(op, these).body(&op.protected.times()))
            }
        }
    }

    /// The client's command with these documents.
    fn documents<'s>(op: &WriteOp<'s>, load: &'s Load<'_>) -> Result<PipelinedCommand<'s>, Malformed> {
        let command = op.command.insert_body()?;
        let documents = load.candidates.iter().map(|candidate| &*candidate.document);
        Ok(PipelinedCommand {
            sequence: Some(OutSequence::of("documents", documents)),
            ..PipelinedCommand::of(op.protected, command)
        })
    }
}

/// Whether the reservations are checked outside of the transaction. One server reads there what a majority has, which may be
/// older than the transaction's snapshot.
fn are_checked_outside(op: &WriteOp<'_>, reservations: ReservationMode) -> bool {
    reservations == ReservationMode::Checked && !op.protected.is_on_one_replica_set
}

/// The transaction of an insert. If a check outside of it follows, each shard may have a snapshot of its own. A common one would make each
/// shard write an entry to its oplog first.
pub(super) fn own_transaction(op: &mut WriteOp<'_>, reservations: ReservationMode) -> Result<Transaction, Malformed> {
    let transaction = op.own_transaction()?;
    Ok(match are_checked_outside(op, reservations) {
        true => transaction,
        false => transaction.at_one_moment(),
    })
}

/// Commands that are sent without waiting: in the transaction, and outside of it.
type Portion<'s> = (Vec<PipelinedCommand<'s>>, Vec<PipelinedCommand<'s>>);

/// The replies that are yet to be read, in the order of the commands.
#[derive(Default)]
struct UnreadReplies(VecDeque<Result<Vec<u8>, ErrorReply>>);

impl UnreadReplies {
    /// The next reply. The first refusal, if any, is the failure: the later ones only report that the transaction is over.
    fn next(&mut self) -> Result<Vec<u8>, Failure> {
        let next = self.0.pop_front();
        next.expect("each command has a reply here, or one before it was refused")
            .map_err(Failure::ErrorReply)
    }
}

/// The outcome of a transaction whose reservations couldn't be read.
fn of_failed_check(refused: ErrorReply, is_retryable: bool) -> TransactionOutcome {
    if refused.is_of_another_primary() {
        return TransactionOutcome::Failed(refused.in_doubt(is_retryable).body);
    }
    match refused.is_before_execution() {
        true => TransactionOutcome::Failed(refused.body),
        // The moment may be too old by now, or a chunk has moved.
        false => TransactionOutcome::Conflict,
    }
}

/// The first document that the server refused, and why.
fn first_error(reply: Doc<'_>) -> Result<Option<(usize, WriteError)>, Malformed> {
    let errors = write_errors(reply)?;
    let first = errors.iter().min_by_key(|error| error.index.unwrap_or(0));
    let read = first.map(|error| Ok((error.index.unwrap_or(0), WriteError::from_server(error.body)?)));
    read.transpose()
}
