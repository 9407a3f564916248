//! Carries out a `findAndModify`: one statement, whose reply is the command's.

use super::result::StatementResult;
use super::statement_run::StatementRun;
use super::way::carry_out_statement;
use crate::catalog::Protected;
use crate::claims::ConstrainedKey;
use crate::constraint::KeyError;
use crate::raw::Builder;
use crate::server::reply::command_error;
use crate::write::forward_error::ForwardError;
use crate::write::operation::WriteOp;
use crate::write::plan::StatementPlan;
use crate::write::txn::Transaction;

/// The server's prefix of the reason when the command fails because of a document.
const PREFIX: &str = "Plan executor error during findAndModify :: caused by :: ";

/// Carries out the command by `plan`.
pub async fn find_and_modify<'a>(op: &mut WriteOp<'a>, plan: &StatementPlan<'a>) -> Result<Vec<u8>, ForwardError> {
    let protected = op.protected;
    let transaction = Transaction::of_client(protected, op.command.body, op.upstream)?;
    let mut run = StatementRun::new(op, 0, plan.statement);
    let result = match transaction {
        Some(mut transaction) => run.run_in_clients_transaction(&mut transaction).await?,
        None => carry_out_statement(&mut run, &plan.way).await?,
    };
    Ok(match result {
        StatementResult::Reply(reply) | StatementResult::Partial(reply) | StatementResult::ErrorReply(reply) => reply,
        StatementResult::Duplicate(key) => duplicate(protected, &key).await,
        StatementResult::Unindexable(error) => unindexable(protected, &error),
        StatementResult::Refused(refusal) => refusal.body(&protected.times()),
    })
}

async fn duplicate(protected: &Protected, key: &ConstrainedKey) -> Vec<u8> {
    let duplicate = protected.refuse(key).await;
    let mut reply = Builder::new();
    duplicate.append_to_command_error(PREFIX, &mut reply);
    protected.times().append_to(&mut reply);
    reply.finish()
}

fn unindexable(protected: &Protected, error: &KeyError) -> Vec<u8> {
    let errmsg = [PREFIX.as_bytes(), &error.errmsg()].concat();
    let mut reply = command_error(&errmsg, error.code());
    protected.times().append_to(&mut reply);
    reply.finish()
}
