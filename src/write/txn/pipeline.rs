//! Several commands of one transaction, sent without waiting for each other's replies.
//!
//! If one is refused over what it does, the server has aborted the transaction and refuses those after it. If it is refused
//! before the server looks at the session (for its shape, or without the privilege), the transaction stays open: so a commit
//! must never be among them, but wait for their replies.

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

/// Runs `steps`; gives the reply to each, be it a refusal. Replies must be small: none is read before all is sent.
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
