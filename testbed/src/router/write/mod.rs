//! insert, update and delete: each statement goes to the shards that its documents are on, and one reply comes back as if
//! there were one server.

mod group;
mod outcome;
mod plan;
mod shard_key_change;
mod target;

pub use shard_key_change::{Change, Changed, move_document};
pub use target::is_simple;

use std::collections::VecDeque;

use bson::spec::ElementType;
use bytes::Bytes;

use super::attempts::Attempts;
use super::error::{Failure, code, refuse};
use super::operation::Operation;
use super::raw::{Builder, Doc};
use outcome::Outcome;

/// The most statements in one command.
const STATEMENTS_MAX: usize = 100_000;

/// Which of the three commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `insert`
    Insert,
    /// `update`
    Update,
    /// `delete`
    Delete,
}

impl Kind {
    /// The field that holds the statements.
    pub fn field(self) -> &'static str {
        match self {
            Kind::Insert => "documents",
            Kind::Update => "updates",
            Kind::Delete => "deletes",
        }
    }
}

/// One write command, its statements taken apart.
#[derive(Debug)]
pub struct Batch<'a> {
    /// The command under way.
    pub operation: &'a Operation,
    /// Which one.
    pub kind: Kind,
    /// `db.collection`.
    pub namespace: &'a str,
    /// The statements, by their index in the client's command.
    pub statements: Vec<Bytes>,
    /// The number that the shard remembers each statement by.
    pub statement_ids: Vec<i32>,
    /// Stop at the first error.
    pub ordered: bool,
}

/// Runs a write command.
///
/// # Errors
/// What is reported for the command as a whole; errors of single statements are in the reply.
pub async fn run(operation: &Operation, kind: Kind) -> Result<Vec<u8>, Failure> {
    let command = &operation.command;
    let namespace = command.namespace()?;
    let statements = command.documents(kind.field())?;
    if statements.is_empty() || statements.len() > STATEMENTS_MAX {
        let message = format!(
            "Write batch sizes must be between 1 and {STATEMENTS_MAX}. Got {} operations.",
            statements.len()
        );
        return refuse(code::INVALID_LENGTH, message);
    }
    let mut batch = Batch {
        operation,
        kind,
        namespace: &namespace,
        statement_ids: statement_ids(operation, statements.len()),
        statements,
        ordered: command.flag("ordered", true),
    };
    match batch.run_to_the_end().await {
        Ok(outcome) if is_unacknowledged(operation) => Ok(outcome.acknowledge()),
        Ok(outcome) => outcome.reply(kind),
        Err(Failure::Shard(reply)) if reply.code() == code::WOULD_CHANGE_OWNING_SHARD => {
            shard_key_change::update(&batch, &reply).await
        }
        Err(failure) => Err(failure),
    }
}

fn is_unacknowledged(operation: &Operation) -> bool {
    let concern = operation
        .command
        .write_concern
        .as_ref()
        .and_then(|concern| Doc::new(concern).ok());
    let w = concern.and_then(|concern| concern.get("w").ok().flatten());
    w.is_some_and(|w| w.as_whole_number() == Some(0))
}

fn statement_ids(operation: &Operation, count: usize) -> Vec<i32> {
    let given = operation.command.nested("stmtIds");
    if let Some(given) = given {
        let numbers = given.elements().flatten().filter_map(|id| id.as_whole_number());
        return numbers.filter_map(|id| i32::try_from(id).ok()).collect();
    }
    let first = operation.command.number("stmtId").unwrap_or(0) as i32;
    (0..count as i32).map(|index| first + index).collect()
}

impl Batch<'_> {
    async fn run_to_the_end(&mut self) -> Result<Outcome, Failure> {
        let mut attempts = Attempts::new(self.operation, self.namespace);
        'statement: loop {
            let mut outcome = Outcome::default();
            let mut pending: VecDeque<usize> = (0..self.statements.len()).collect();
            while !pending.is_empty() && !self.is_stopped(&outcome) {
                let routing = attempts.routing_for_write().await?;
                let round = self.plan(&routing, &pending, &mut outcome);
                let stale = self.execute(round, &mut outcome, &mut pending).await?;
                if let Some(why) = stale {
                    attempts.stale(&routing, why).await?;
                    if self.operation.transaction.is_some() {
                        // What this statement did so far has been aborted with its participants.
                        continue 'statement;
                    }
                }
            }
            return Ok(outcome);
        }
    }

    fn is_stopped(&self, outcome: &Outcome) -> bool {
        self.stops_at_errors() && outcome.has_errors()
    }

    /// Ordered batches end at the first error, and so does everything inside a transaction.
    fn stops_at_errors(&self) -> bool {
        self.ordered || self.operation.transaction.is_some()
    }

    /// The command for some of the statements, without them.
    fn command_for(&self, members: &[usize]) -> Builder {
        let command = &self.operation.command;
        let whole = members.len() == self.statements.len();
        if command.txn_number.is_none() || whole {
            return command.forward(&[self.kind.field()]);
        }
        // A part of a retryable command: each statement keeps the number it had.
        let mut body = command.forward(&[self.kind.field(), "stmtIds", "stmtId"]);
        body.open(ElementType::Array, b"stmtIds");
        for (position, member) in members.iter().enumerate() {
            let id = self.statement_ids.get(*member).copied().unwrap_or(*member as i32);
            body.int32(&position.to_string(), id);
        }
        body.close();
        body
    }
}
