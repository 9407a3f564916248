//! Sends several commands of one transaction without waiting for each other's replies.
//!
//! If the server refuses one of them during its execution, it aborts the transaction and refuses the later commands. If the
//! server refuses it before it reads the session (for its shape, or a missing privilege), the transaction stays open. So a
//! commit must never be among the commands, but must wait for their replies.

use super::{Failure, Refused, Transaction};
use crate::raw::Builder;
use crate::upstream::Connection;
use crate::wire::OutSequence;
use crate::write::forward::ForwardError;

/// A command to send.
#[derive(Debug)]
pub struct Step<'a> {
    /// Its database.
    pub database: &'a str,
    /// Its body, as [`Transaction::run`] takes it.
    pub command: Builder,
    /// Its batch.
    pub sequence: Option<OutSequence<'a>>,
}

/// Runs `steps`; returns the reply or refusal to each. Replies must be small: none is read before all commands are sent.
///
/// # Errors
/// [`ForwardError`] if the connection is gone.
pub async fn run(
    steps: Vec<Step<'_>>,
    transaction: &mut Transaction,
    upstream: &mut Connection,
) -> Result<Vec<Result<Vec<u8>, Refused>>, ForwardError> {
    let count = steps.len();
    for Step {
        database,
        command,
        sequence,
    } in steps
    {
        transaction.send(upstream, database, command, sequence).await?;
    }
    let mut replies = Vec::with_capacity(count);
    for _ in 0..count {
        match transaction.receive(upstream).await {
            Ok(reply) => replies.push(Ok(reply)),
            Err(Failure::Refused(refused) | Failure::InDoubt(refused)) => replies.push(Err(refused)),
            Err(Failure::Forward(error)) => return Err(error),
        }
    }
    Ok(replies)
}
