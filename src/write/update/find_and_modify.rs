//! `findAndModify` on a protected collection: one statement, whose reply is the command's.

use tokio::time::Instant;

use super::statement_run::{StatementResult, StatementRun};
use crate::catalog::Protected;
use crate::claims::ConstrainedKey;
use crate::command::batch::BatchCommand;
use crate::command::statement::{Statement, StatementKind};
use crate::constraint::KeyError;
use crate::raw::Builder;
use crate::upstream::Connection;
use crate::write::plan::affects_keys;
use crate::write::txn::Transaction;
use crate::write::{Context, ForwardError, Served, TIME_MAX};

/// What the server puts before the reason when the command fails over a document.
const PREFIX: &str = "Plan executor error during findAndModify :: caused by :: ";

/// Carries out the command.
///
/// # Errors
/// [`ForwardError`] if the upstream connection is gone or garbled: the client's has to go, too.
pub async fn find_and_modify(
    context: &Context,
    protected: &Protected,
    command: &BatchCommand<'_>,
    upstream: &mut Connection,
) -> Result<Served, ForwardError> {
    let body = command.body;
    if !affects_keys(StatementKind::FindAndModify, body, &protected.paths())? {
        return Ok(Served::Untouched);
    }
    let statement = Statement {
        kind: StatementKind::FindAndModify,
        body,
        own: body,
        is_single: true,
        is_upsert: body.is_set("upsert")?,
    };
    let run = StatementRun {
        context,
        protected,
        command,
        index: 0,
        statement,
        operation: command.operation(0),
        deadline: Instant::now() + command.max_time.unwrap_or(TIME_MAX),
    };
    let result = match Transaction::of_client(protected, body, upstream)? {
        Some(mut transaction) => run.run_in_clients_transaction(&mut transaction, upstream).await?,
        None => run.run_by_itself(upstream).await?,
    };
    Ok(Served::Reply(match result {
        StatementResult::Reply(reply) | StatementResult::Part(reply) | StatementResult::Failed(reply) => reply,
        StatementResult::Duplicate(key) => duplicate(protected, &key).await,
        StatementResult::Unindexable(error) => unindexable(protected, &error),
        StatementResult::Refused(refusal) => refusal.body(&protected.times()),
    }))
}

async fn duplicate(protected: &Protected, key: &ConstrainedKey) -> Vec<u8> {
    let duplicate = protected.constraints[key.constraint].refuse(&key.key).await;
    let mut reply = Builder::new();
    duplicate.append_to_command_error(PREFIX, &mut reply);
    protected.times().append_to(&mut reply);
    reply.finish()
}

fn unindexable(protected: &Protected, error: &KeyError) -> Vec<u8> {
    let mut reply = Builder::new();
    reply
        .double("ok", 0.0)
        .string("errmsg", &[PREFIX.as_bytes(), &error.errmsg()].concat());
    if let (Some(code), Some(name)) = (error.code(), error.code_name()) {
        reply.int32("code", code).string("codeName", name.as_bytes());
    }
    protected.times().append_to(&mut reply);
    reply.finish()
}
