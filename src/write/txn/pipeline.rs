//! Sends several commands of one transaction without waiting for each other's replies.
//!
//! If the server refuses one of them during its execution, it aborts the transaction and refuses the later commands. If the
//! server refuses it before it reads the session (for its shape, or a missing privilege), the transaction stays open. So a
//! commit must never be among the commands, but must wait for their replies.
//!
//! Reads outside of the transaction may follow. The other end of the connection runs them after the transaction's commands.

use super::{ErrorReply, Transaction};
use crate::catalog::Protected;
use crate::raw::Builder;
use crate::server::reply;
use crate::upstream::Connection;
use crate::wire::{Draft, OutSequence};
use crate::write::forward_error::ForwardError;

/// A command to send.
#[derive(Debug)]
pub struct PipelinedCommand<'a> {
    /// Its database.
    pub database: &'a str,
    /// Its body, as [`Transaction::run`] takes it.
    pub command: Builder,
    /// Its batch.
    pub sequence: Option<OutSequence<'a>>,
}

impl<'a> PipelinedCommand<'a> {
    /// A command without a batch, in the protected collection's database.
    pub fn of(protected: &'a Protected, command: Builder) -> Self {
        PipelinedCommand {
            database: &protected.namespace.database,
            command,
            sequence: None,
        }
    }
}

/// Runs `steps` in the transaction, and then the reads `outside` of it; returns the reply or refusal to each. Replies must be
/// small: none is read before all commands are sent.
pub async fn run(
    steps: Vec<PipelinedCommand<'_>>,
    outside: Vec<PipelinedCommand<'_>>,
    transaction: &mut Transaction,
    upstream: &mut Connection,
) -> Result<Vec<Result<Vec<u8>, ErrorReply>>, ForwardError> {
    let (in_transaction, reads) = (steps.len(), outside.len());
    for step in steps {
        transaction
            .send(upstream, step.database, step.command, step.sequence)
            .await?;
    }
    for mut read in outside {
        read.command.string("$db", read.database.as_bytes());
        upstream.send(&Draft::of_body(&read.command.finish())).await?;
    }
    let mut replies = Vec::with_capacity(in_transaction + reads);
    for _ in 0..in_transaction {
        match transaction.receive(upstream).await {
            Ok(reply) => replies.push(Ok(reply)),
            Err(failure) => replies.push(Err(failure.into_reply()?)),
        }
    }
    for _ in 0..reads {
        let reply = upstream.receive().await?;
        let body = reply.body().bytes().to_vec();
        replies.push(match reply::is_ok(reply.body())? {
            true => Ok(body),
            false => Err(ErrorReply { body }),
        });
    }
    Ok(replies)
}
