//! `update` and `delete` on a protected collection: statement by statement, in the order of the command.
//!
//! Statements that can't change a key go to the server as they came, neighbours together. Every other one is brought to
//! its end in a transaction ([`super::statement_run`]), the client's own if the command is part of one.

use std::ops::Range;

use tokio::time::Instant;

use super::statement_run::{StatementResult, StatementRun};
use crate::catalog::Protected;
use crate::command::batch::BatchCommand;
use crate::command::statement::{Statement, StatementKind};
use crate::raw::{Doc, Malformed};
use crate::reply::{Times, WriteError, WriteReply};
use crate::upstream::Connection;
use crate::write::plan::affects_keys;
use crate::write::txn::gossip;
use crate::write::txn::{Failure, Transaction};
use crate::write::{Context, ForwardError, Served, TIME_MAX, forward};

/// An `update` or `delete` on its way.
struct Modify<'a, 'c> {
    context: &'c Context,
    protected: &'c Protected,
    command: &'c BatchCommand<'a>,
    kind: StatementKind,
    deadline: Instant,
    reply: WriteReply,
    /// The client's reply, once the command has failed as a whole.
    failed: Option<Vec<u8>>,
}

/// Carries out the command.
///
/// # Errors
/// [`ForwardError`] if the upstream connection is gone or garbled: the client's has to go, too.
pub async fn modify(
    context: &Context,
    protected: &Protected,
    command: &BatchCommand<'_>,
    kind: StatementKind,
    upstream: &mut Connection,
) -> Result<Served, ForwardError> {
    let paths = protected.paths();
    let touching = command.documents.iter().map(|own| affects_keys(kind, *own, &paths));
    let touching: Vec<bool> = touching.collect::<Result<_, _>>()?;
    if !touching.contains(&true) {
        return Ok(Served::Untouched);
    }
    let transaction = Transaction::of_client(protected, command.body, upstream)?;
    let reply = match transaction {
        Some(_) => WriteReply::in_transaction(),
        None => WriteReply::default(),
    };
    let mut modify = Modify {
        context,
        protected,
        command,
        kind,
        deadline: Instant::now() + command.max_time.unwrap_or(TIME_MAX),
        reply,
        failed: None,
    };
    match transaction {
        Some(transaction) => modify.within(transaction, &touching, upstream).await?,
        None => modify.alone(&touching, upstream).await?,
    }
    modify.into_body().map(Served::Reply)
}

impl<'a: 'c, 'c> Modify<'a, 'c> {
    /// Outside any transaction of the client's.
    async fn alone(&mut self, touching: &[bool], upstream: &mut Connection) -> Result<(), ForwardError> {
        let mut next = 0;
        while next < touching.len() && !self.is_over() {
            let same = touching[next..]
                .iter()
                .take_while(|affects_keys| **affects_keys == touching[next])
                .count();
            match touching[next] && !self.is_refused_by_the_server(next)? {
                false => {
                    let end = if touching[next] { next + 1 } else { next + same };
                    self.forward(next..end, upstream).await?;
                    next = end;
                }
                true => {
                    let run = self.run(next)?;
                    while self.take(next, run.run_by_itself(upstream).await?).await? {}
                    next += 1;
                }
            }
        }
        Ok(())
    }

    /// Inside the client's transaction: one statement at a time, all of them in it.
    async fn within(
        &mut self,
        mut transaction: Transaction,
        touching: &[bool],
        upstream: &mut Connection,
    ) -> Result<(), ForwardError> {
        for (index, affects_keys) in touching.iter().enumerate() {
            let run = self.run(index)?;
            // The first error ends a transaction, and so the command, ordered or not.
            while self.failed.is_none() && !self.reply.has_errors() {
                let result = match affects_keys {
                    true => run.run_in_clients_transaction(&mut transaction, upstream).await?,
                    false => {
                        let command = run.statement.command(None)?;
                        let database = &self.protected.namespace.database;
                        match transaction.run(upstream, database, command, None).await {
                            Ok(reply) => StatementResult::Reply(reply),
                            Err(Failure::Refused(refused) | Failure::InDoubt(refused)) => {
                                run.leave_or_abort(&mut transaction, &refused, upstream).await?;
                                StatementResult::Failed(refused.body)
                            }
                            Err(Failure::Forward(error)) => return Err(error),
                        }
                    }
                };
                if !self.take(index, result).await? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// A statement about many documents can't be retryable: the server says so.
    fn is_refused_by_the_server(&self, index: usize) -> Result<bool, Malformed> {
        Ok(self.command.retry.is_some() && !is_single(self.kind, self.command.documents[index])?)
    }

    fn run(&self, index: usize) -> Result<StatementRun<'c>, Malformed> {
        let own = self.command.documents[index];
        Ok(StatementRun {
            context: self.context,
            protected: self.protected,
            command: self.command,
            index,
            statement: Statement {
                kind: self.kind,
                body: self.command.body,
                own,
                is_single: is_single(self.kind, own)?,
                is_upsert: own.is_set("upsert")?,
            },
            operation: self.command.operation(index),
            deadline: self.deadline,
        })
    }

    /// Notes what became of the statement at `index`; whether it is to be run again.
    async fn take(&mut self, index: usize, result: StatementResult) -> Result<bool, Malformed> {
        match result {
            StatementResult::Reply(reply) => self.reply.add_statements(Doc::new(&reply)?, index)?,
            StatementResult::Part(reply) => {
                self.reply.add_statements(Doc::new(&reply)?, index)?;
                return Ok(true);
            }
            StatementResult::Failed(body) => self.failed = Some(body),
            StatementResult::Duplicate(key) => {
                let duplicate = self.protected.constraints[key.constraint].refuse(&key.key).await;
                self.reply.error(index, WriteError::duplicate(&duplicate));
            }
            StatementResult::Unindexable(error) => self.reply.error(index, WriteError::unindexable(&error)),
            StatementResult::Refused(refusal) => self.failed = Some(refusal.body(&self.protected.times())),
        }
        Ok(false)
    }

    /// Sends statements on that need no care.
    async fn forward(&mut self, positions: Range<usize>, upstream: &mut Connection) -> Result<(), ForwardError> {
        let list = if self.kind == StatementKind::Update {
            "updates"
        } else {
            "deletes"
        };
        let first = positions.start;
        let told = gossip::told(self.protected, upstream);
        let (reply, is_ok) = forward::statements(self.command, list, positions, &told, upstream).await?;
        match is_ok {
            true => self.reply.add_statements(Doc::new(&reply)?, first)?,
            false => self.failed = Some(reply),
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.failed.is_some() || (self.command.ordered && self.reply.has_errors())
    }

    fn into_body(mut self) -> Result<Vec<u8>, ForwardError> {
        if let Some(body) = self.failed {
            return Ok(body);
        }
        let times: Times = self.protected.times();
        self.reply.advance(times);
        Ok(match self.command.unacknowledged {
            true => WriteReply::default().body()?,
            false if self.kind == StatementKind::Update => self.reply.update_body()?,
            false => self.reply.body()?,
        })
    }
}

fn is_single(kind: StatementKind, own: Doc<'_>) -> Result<bool, Malformed> {
    Ok(match kind {
        StatementKind::Update => !own.is_set("multi")?,
        StatementKind::Delete => own.is_set("limit")?,
        StatementKind::FindAndModify => true,
    })
}
