//! Holds one statement in progress, with everything needed to run it.

use super::selected::Places;
use crate::claims::WriteGuard;
use crate::command::statement::Statement;
use crate::reservation::{RetryId, Token};
use crate::write::operation::WriteOp;

/// A statement with everything needed to run it.
pub struct StatementRun<'r, 'a> {
    /// The command.
    pub op: &'r mut WriteOp<'a>,
    /// The statement's position in the command.
    pub index: usize,
    /// The statement.
    pub statement: Statement<'a>,
    /// Its retry id, if the driver may retry it.
    pub retry_id: Option<RetryId>,
    /// Whether documents are where Keyward expects them.
    pub places: Places,
    /// The tries of an upsert that should have found the document in its way.
    pub upserts: usize,
}

impl<'r, 'a> StatementRun<'r, 'a> {
    /// Starts the `statement` at `index` of the command.
    pub fn new(op: &'r mut WriteOp<'a>, index: usize, statement: Statement<'a>) -> StatementRun<'r, 'a> {
        StatementRun {
            retry_id: op.command.retry_id(index),
            op,
            index,
            statement,
            places: Places::Believed,
            upserts: 0,
        }
    }

    /// The token of the statement's attempt in the write of `guard`.
    pub fn token(&self, guard: &WriteGuard) -> Token {
        Token {
            write: guard.id(),
            position: u32::try_from(self.index).unwrap_or(u32::MAX),
            retry_id: self.retry_id,
        }
    }
}
