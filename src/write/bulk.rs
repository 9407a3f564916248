//! Carries out a `bulkWrite` as a series of inserts, updates and deletes, also if upstream doesn't know `bulkWrite`.
//!
//! Keyward carries out each part as if the client had sent it. Adjacent operations of one kind on one collection form one
//! command. Each operation of a retryable command keeps its number, and a driver's retry starts again at the first operation.
//! So the retry recognises the operations that took effect. If Keyward is killed midway, some operations took effect and the
//! others didn't, as when a server is killed.
//!
//! If a part fails as a whole, the command ends with that part's reply. But if the client would lose the results of other operations,
//! the part's operations get the error.

use std::sync::Arc;

use tokio::time::Instant;

use super::client_body;
use super::command;
use super::context::Context;
use super::forward_error::ForwardError;
use super::plan::{Plan, key_change};
use super::txn::client_transactions::ask_to_end;
use crate::catalog::Catalog;
use crate::classify::{Verdict, classify};
use crate::command::bulk::{BulkOperation, BulkWrite};
use crate::command::running::milliseconds;
use crate::raw::Doc;
use crate::reply::{BulkReply, CommandTerms, Times, WriteRefusal, loses_results};
use crate::server::reply::{ends_transaction, is_ok};
use crate::upstream::{self, Connection};
use crate::wire::{Draft, Message, OpMsg};

/// Carries out the command; returns the reply's body.
pub async fn bulk_write(
    context: &Context,
    bulk: &BulkWrite<'_>,
    catalog: &Arc<Catalog>,
    upstream: &mut Connection,
) -> Result<Vec<u8>, ForwardError> {
    let deadline = bulk.max_time.map(|limit| Instant::now() + limit);
    let mut reply = BulkReply::new(bulk.errors_only);
    let terms = CommandTerms {
        is_retryable: bulk.numbers.is_some() && !bulk.in_transaction,
        has_limit: deadline.is_some(),
    };
    let mut next = 0;
    while next < bulk.operations.len() {
        let time_ms = deadline.map(|deadline| milliseconds(deadline.saturating_duration_since(Instant::now())));
        if time_ms == Some(0) {
            let refused = WriteRefusal::TimeLimit.body(&Times::default());
            return end(bulk, next, refused, upstream).await;
        }
        let run = next..bulk.end_of_run(next);
        let form = bulk.operations[next].form;
        let others_have_results = reply.has_results() && !bulk.in_transaction;
        // In a client's transaction only the commit counts. With the reply comes the number of operations whose outcome it may leave open.
        let (part, unknown) = match bulk.in_transaction || upstream.is_permitted_to_write() {
            true => {
                let body = client_body::of_operations(bulk, run.clone(), time_ms)?;
                let operations = &bulk.operations[run.clone()];
                let part = part(context, operations, others_have_results, catalog, &body, upstream).await?;
                (part, run.len())
            }
            false => (
                WriteRefusal::outlasted(bulk.numbers.is_some()).body(&Times::default()),
                0,
            ),
        };
        let answer = Doc::new(&part)?;
        // The first error ends a transaction, and so the command, whether ordered or unordered.
        let stops = bulk.ordered || bulk.in_transaction;
        match is_ok(answer)? {
            true => reply.add(form, next, run.len(), stops, answer)?,
            false if !others_have_results || !loses_results(answer, unknown, terms)? => {
                return end(bulk, next, part, upstream).await;
            }
            false => reply.fail(form, next, run.len(), stops, answer)?,
        }
        if stops && reply.has_errors() {
            break;
        }
        next = run.end;
    }
    Ok(reply.body()?)
}

/// Ends the command with `refused` as its reply, after the operations before `next` were carried out. In a client's transaction they must
/// not be committed: a server ends a transaction whose command fails, but Keyward may have refused this part itself.
async fn end(
    bulk: &BulkWrite<'_>,
    next: usize,
    refused: Vec<u8>,
    upstream: &mut Connection,
) -> Result<Vec<u8>, ForwardError> {
    if bulk.in_transaction && next > 0 {
        upstream.note_broken_off();
        ask_to_end(bulk.body, upstream).await?;
    }
    Ok(refused)
}

/// Carries out the command for these operations, on any collection; returns the reply's body.
async fn part(
    context: &Context,
    operations: &[BulkOperation<'_>],
    others_have_results: bool,
    catalog: &Arc<Catalog>,
    body: &[u8],
    upstream: &mut Connection,
) -> Result<Vec<u8>, ForwardError> {
    let list = operations[0].form.list().expect("a bulkWrite has no findAndModify");
    let statements = operations.iter().map(|operation| &*operation.statement);
    let draft = Draft::with_documents(body, list, statements);
    let bytes = draft.frame(0, 0).map_err(upstream::ConnectionError::from)?.to_vec();
    let message = OpMsg::parse(&bytes).map_err(upstream::ConnectionError::from)?;
    // A part is classified like any client's command: no part gets through that would be refused alone.
    let plan = match classify(&Message::Msg(message), &**catalog)? {
        Verdict::Refuse(refusal) => return Ok(refusal.error().body()),
        Verdict::Write(write) => Plan::of(&write, &message, key_change(&write, &message, catalog), catalog),
        Verdict::Forward
        | Verdict::Hello(_)
        | Verdict::List(_)
        | Verdict::Index(_)
        | Verdict::Operation(_)
        | Verdict::Merge(_) => Plan::Forward,
    };
    match plan {
        Plan::Command(plan) => {
            command::carry_out_command(&plan, &message, others_have_results, context, upstream).await
        }
        // An insert, an update or a delete has no other plan.
        _ => {
            let reply = upstream.request(&draft).await?.body().bytes().to_vec();
            let is_in_transaction = Doc::new(body)?.get("autocommit")?.is_some();
            if is_in_transaction && ends_transaction(Doc::new(&reply)?)? {
                upstream.note_ended();
            }
            Ok(reply)
        }
    }
}
