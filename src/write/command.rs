//! Carries out a command on one protected collection by its plan.

use super::context::Context;
use super::forward_error::ForwardError;
use super::operation::WriteOp;
use super::plan::{CommandPlan, CommandWork};
use super::txn::Transaction;
use super::{insert, server_probe, update};
use crate::command::statement::StatementKind;
use crate::reply::Times;
use crate::upstream::Connection;
use crate::wire::OpMsg;

/// Carries out the command, which may be a part of the client's: then other parts may have results. Returns the reply's body.
///
/// # Errors
/// [`ForwardError`] if the upstream connection is gone or garbled: Keyward must then close the client's connection.
pub async fn carry_out_command(
    plan: &CommandPlan<'_>,
    message: &OpMsg<'_>,
    others_have_results: bool,
    context: &Context,
    upstream: &mut Connection,
) -> Result<Vec<u8>, ForwardError> {
    if !plan.has_driver_shape
        && let Some(reply) = server_probe::probe_server(message, plan.form, upstream).await?
    {
        return Ok(reply);
    }
    match &plan.work {
        CommandWork::Refused(refusal) => Ok(refusal.body(&Times::default())),
        CommandWork::Insert(command) => {
            let op = WriteOp::new(context, &plan.protected, command, others_have_results, upstream);
            match Transaction::of_client(op.protected, command.body, op.upstream)? {
                Some(transaction) => insert::insert_in_clients_transaction(op, transaction).await,
                None => insert::insert(op).await,
            }
        }
        CommandWork::Statements(command, kind, statements) => {
            let mut op = WriteOp::new(context, &plan.protected, command, others_have_results, upstream);
            match (kind, statements.as_slice()) {
                // Boxed, so that an insert doesn't allocate what only these need.
                (StatementKind::FindAndModify, [statement]) => {
                    Box::pin(update::find_and_modify(&mut op, statement)).await
                }
                _ => Box::pin(update::modify(&mut op, *kind, statements)).await,
            }
        }
    }
}
