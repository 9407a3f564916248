//! Carries out an `update` or `delete`: statement by statement, in the order of the command.
//!
//! Keyward forwards statements that can't change a key unchanged, and adjacent ones in one command. If the command is part of a
//! client's transaction, every other statement runs in it. Otherwise it runs in its planned way. Adjacent statements in place are prepared
//! together ([`super::slice`]).

use std::ops::Range;

use super::result::StatementResult;
use super::slice::{STATEMENTS_MAX, Slice, count_together};
use super::statement_run::StatementRun;
use super::way::carry_out_statement;
use crate::command::batch::BATCH_MAX;
use crate::command::statement::StatementKind;
use crate::proxy_collection::Fitting;
use crate::raw::{Doc, Malformed};
use crate::reply::{Times, WriteError, WriteRefusal, WriteReply, loses_results};
use crate::write::forward;
use crate::write::forward_error::ForwardError;
use crate::write::operation::WriteOp;
use crate::write::plan::{StatementPlan, Way};
use crate::write::txn::Transaction;

/// The most statements, and bytes of them, that one command forwards. A message has 48 MB. Beside them it must hold a body of
/// 16 MB, and the statements' numbers: up to 1.2 MB, which the client's message lacks.
const FORWARDED: Fitting = Fitting {
    items: BATCH_MAX,
    bytes: 24 << 20,
};

/// An `update` or `delete` in progress.
struct Modify<'r, 'a> {
    op: &'r mut WriteOp<'a>,
    plans: &'r [StatementPlan<'a>],
    kind: StatementKind,
    reply: WriteReply,
    /// The client's reply, after the command has failed as a whole.
    failed: Option<Vec<u8>>,
    /// Whether the statement before ran out of time. Then the next ones don't wait, either, until one succeeds: the command could take
    /// minutes for each.
    is_out_of_time: bool,
    /// The most statements that are prepared together next. If one must run alone, the work for those behind it was in vain. So then there
    /// are fewer, and more again while all goes well.
    together_max: usize,
}

/// Carries out the command by `plans`.
pub async fn modify<'a>(
    op: &mut WriteOp<'a>,
    kind: StatementKind,
    plans: &[StatementPlan<'a>],
) -> Result<Vec<u8>, ForwardError> {
    let transaction = Transaction::of_client(op.protected, op.command.body, op.upstream)?;
    let reply = match transaction {
        Some(_) => WriteReply::in_transaction(),
        None => WriteReply::default(),
    };
    let mut modify = Modify {
        op,
        plans,
        kind,
        reply,
        failed: None,
        is_out_of_time: false,
        together_max: STATEMENTS_MAX,
    };
    match transaction {
        Some(transaction) => modify.in_clients_transaction(transaction).await?,
        None => modify.by_themselves().await?,
    }
    modify.into_body()
}

impl<'a> Modify<'_, 'a> {
    /// Runs the statements outside any client transaction.
    async fn by_themselves(&mut self) -> Result<(), ForwardError> {
        let is_forwarded = |plan: &&StatementPlan<'_>| matches!(plan.way, Way::Forward);
        let plans = self.plans;
        let mut next = 0;
        while next < plans.len() && !self.is_over() {
            let forwarded = plans[next..].iter().take_while(is_forwarded).count();
            let statements = &self.op.command.documents[next..next + forwarded];
            let forwarded = FORWARDED.count(statements, |statement| statement.bytes().len());
            if forwarded > 0 {
                self.forward(next..next + forwarded).await?;
                next += forwarded;
                continue;
            }
            let together = self.count_together(next)?;
            if together > 1 {
                // Boxed, because a single statement doesn't need it.
                let carried_out = Box::pin(self.together(next..next + together)).await?;
                self.together_max = (2 * carried_out).min(STATEMENTS_MAX);
                next += carried_out;
                if carried_out > 0 {
                    continue;
                }
            }
            self.alone(next).await?;
            self.together_max = (2 * self.together_max).clamp(1, STATEMENTS_MAX);
            next += 1;
        }
        Ok(())
    }

    /// How many statements from the one at `next` on can be prepared together.
    fn count_together(&self, next: usize) -> Result<usize, Malformed> {
        match self.plans.len() - next {
            1 => Ok(1),
            _ => count_together(self.op.protected, &self.plans[next..], self.together_max),
        }
    }

    /// Carries out the statements at `positions`, which can be prepared together, up to the first that must run alone. Returns how many it
    /// carried out.
    async fn together(&mut self, positions: Range<usize>) -> Result<usize, ForwardError> {
        let first = positions.start;
        self.begin_statement();
        let mut slice = Slice::prepare(self.op, &self.plans[positions], first).await?;
        let carried_out = self.forward_slice(&mut slice).await;
        slice.end(self.op).await;
        carried_out
    }

    async fn forward_slice(&mut self, slice: &mut Slice) -> Result<usize, ForwardError> {
        let mut carried_out = 0;
        while let Some(index) = slice.next()
            && !self.is_over()
        {
            self.begin_statement();
            let Some(result) = slice.forward(&mut self.run(index)).await? else {
                break;
            };
            self.take(index, result).await?;
            carried_out += 1;
        }
        Ok(carried_out)
    }

    /// Carries out the statement at `position`.
    async fn alone(&mut self, position: usize) -> Result<(), ForwardError> {
        loop {
            let way = &self.plans[position].way;
            self.begin_statement();
            let result = carry_out_statement(&mut self.run(position), way).await?;
            if !self.take(position, result).await? {
                return Ok(());
            }
        }
    }

    /// Runs all statements inside the client's transaction, one at a time.
    async fn in_clients_transaction(&mut self, mut transaction: Transaction) -> Result<(), ForwardError> {
        for (index, plan) in self.plans.iter().enumerate() {
            // The first error ends a transaction, and so the command, whether ordered or unordered.
            while self.failed.is_none() && !self.reply.has_errors() {
                self.begin_statement();
                let mut run = self.run(index);
                let result = match plan.way {
                    Way::Forward => run.forward_in_clients_transaction(&mut transaction).await?,
                    Way::InPlace(_) | Way::Upsert(_) | Way::InTransaction => {
                        run.run_in_clients_transaction(&mut transaction).await?
                    }
                };
                if !self.take(index, result).await? {
                    break;
                }
            }
        }
        Ok(())
    }

    fn begin_statement(&mut self) {
        if !self.is_out_of_time {
            self.op.begin_statement();
        }
    }

    fn run(&mut self, index: usize) -> StatementRun<'_, 'a> {
        StatementRun::new(&mut *self.op, index, self.plans[index].statement)
    }

    /// Notes the result of the statement at `index`; returns whether to run it again.
    async fn take(&mut self, index: usize, result: StatementResult) -> Result<bool, Malformed> {
        self.is_out_of_time = matches!(result, StatementResult::Refused(WriteRefusal::TimeLimit));
        match result {
            StatementResult::Reply(reply) => self.reply.add_statements(Doc::new(&reply)?, index)?,
            StatementResult::Partial(reply) => {
                self.reply.add_statements(Doc::new(&reply)?, index)?;
                return Ok(true);
            }
            StatementResult::ErrorReply(body) => self.fail(index..index + 1, body)?,
            StatementResult::Duplicate(key) => {
                let duplicate = self.op.protected.refuse(&key).await;
                self.reply.error(index, WriteError::duplicate(&duplicate));
            }
            StatementResult::Unindexable(error) => self.reply.error(index, WriteError::unindexable(&error)),
            StatementResult::Refused(refusal) if self.is_of_one_statement(&refusal) => {
                self.reply.error(index, WriteError::refused(&refusal));
            }
            StatementResult::Refused(refusal) => self.failed = Some(refusal.body(&self.op.protected.times())),
        }
        Ok(false)
    }

    /// Forwards statements that can't change a key.
    async fn forward(&mut self, positions: Range<usize>) -> Result<(), ForwardError> {
        let list = self.kind.list().expect("a `findAndModify` is no batch");
        let first = positions.start;
        match forward::statements(self.op, list, positions.clone()).await? {
            Ok((reply, true)) => {
                self.is_out_of_time = false;
                self.reply.add_statements(Doc::new(&reply)?, first)?;
            }
            Ok((reply, false)) => self.fail(positions, reply)?,
            Err(refusal) if self.is_of_one_statement(&refusal) => {
                let refused = if self.op.command.ordered { 1 } else { positions.len() };
                for position in positions.take(refused) {
                    self.reply.error(position, WriteError::refused(&refusal));
                }
            }
            Err(refusal) => self.failed = Some(refusal.body(&Times::default())),
        }
        Ok(())
    }

    /// Notes that the command for these statements failed with this reply. It is the client's reply, unless the results of the other
    /// statements would be lost.
    fn fail(&mut self, positions: Range<usize>, body: Vec<u8>) -> Result<(), Malformed> {
        let failed = Doc::new(&body)?;
        let has_others = self.has_results() && !self.reply.is_in_transaction();
        if !has_others || !loses_results(failed, positions.len(), self.op.terms())? {
            self.failed = Some(body);
            return Ok(());
        }
        let count = if self.op.command.ordered { 1 } else { positions.len() };
        for position in positions.take(count) {
            self.reply.error(position, WriteError::of_reply(failed)?);
        }
        Ok(())
    }

    /// Whether statements of the client's command have results.
    fn has_results(&self) -> bool {
        self.reply.has_results() || self.op.others_have_results
    }

    /// Whether the refusal is an error of its statement, so that the results of the others reach the client.
    fn is_of_one_statement(&self, refusal: &WriteRefusal) -> bool {
        let has_results = self.has_results();
        // No driver sends a command again after this error. At the client's own limit, the whole command fails, as on a server.
        let is_own_limit = *refusal == WriteRefusal::TimeLimit && self.op.client_deadline.is_none();
        refusal.is_of_one_statement(has_results) || is_own_limit && has_results
    }

    fn is_over(&self) -> bool {
        self.failed.is_some() || (self.op.command.ordered && self.reply.has_errors())
    }

    fn into_body(mut self) -> Result<Vec<u8>, ForwardError> {
        if let Some(body) = self.failed {
            return Ok(body);
        }
        self.reply.advance(self.op.protected.times());
        Ok(match self.op.command.unacknowledged {
            true => WriteReply::default().body()?,
            false if self.kind == StatementKind::Update => self.reply.update_body()?,
            false => self.reply.body()?,
        })
    }
}
