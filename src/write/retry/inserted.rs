//! Finds out what an earlier try of a strict insert did: reads which documents it inserted, and ends the transactions that it left
//! open.

use std::collections::BTreeSet;

use bson::spec::ElementType;
use tokio::time::Instant;

use super::results;
use super::slice_record::{SliceRecord, recorded_statements};
use crate::catalog::Protected;
use crate::claims::Candidate;
use crate::raw::{Builder, Doc};
use crate::reservation::RetryId;
use crate::server::reply::write_concern_error;
use crate::write::back_off::BackOff;
use crate::write::forward_error::ForwardError;
use crate::write::operation::WriteOp;
use crate::write::txn::pipeline::{self, PipelinedCommand};
use crate::write::txn::{ErrorReply, Failure, Transaction};

/// How often Keyward tries to end the transactions that an earlier try left open: its transaction number may be far too low at first.
const ENDS_MAX: u32 = 8;

/// The statements that an earlier try of the command carried out, after a majority has them: until then a step-down may undo
/// them. Waits until `deadline` at most.
///
/// # Errors
/// [`Failure`] if Keyward can't find that out.
pub async fn inserted_by_majority(
    op: &mut WriteOp<'_>,
    first: RetryId,
    deadline: Instant,
) -> Result<BTreeSet<i32>, Failure> {
    let record = SliceRecord::new(first, Vec::new());
    let mut back_off = BackOff::default();
    loop {
        let mut transaction = op.own_transaction()?;
        match read(op, &record, &mut transaction).await {
            Ok(statements) => return Ok(statements),
            // The command's first try uses the same session, and may still be running.
            Err(Failure::ErrorReply(refused))
                if refused.may_run_again() && !refused.is_of_another_primary() && Instant::now() < deadline =>
            {
                tokio::time::sleep(back_off.next()).await;
            }
            // Another failure than a missing privilege proves nothing about the first try.
            Err(Failure::ErrorReply(refused)) if !refused.is_before_execution() => {
                return Err(Failure::InDoubt(refused.in_doubt(true)));
            }
            Err(Failure::InDoubt(refused)) => return Err(Failure::InDoubt(refused.in_doubt(true))),
            Err(failure) => return Err(failure),
        }
    }
}

async fn read(
    op: &mut WriteOp<'_>,
    record: &SliceRecord,
    transaction: &mut Transaction,
) -> Result<BTreeSet<i32>, Failure> {
    let PipelinedCommand { database, command, .. } = record.find(op.protected);
    let found = transaction.run(op.upstream, database, command, None).await?;
    let done = recorded_statements(Doc::new(&found)?)?;
    if done.is_empty() {
        // A deposed primary may lack the record.
        transaction.confirm_reads(op.upstream).await?;
        return Ok(done);
    }
    // The server waits here until a majority has the records that were read.
    let committed = transaction.commit_until_known(op.upstream).await?;
    if let Some(error) = write_concern_error(Doc::new(&committed)?)? {
        return Err(Failure::InDoubt(ErrorReply::of_part(error)?));
    }
    Ok(done)
}

/// Ends the transactions that an earlier try left open, on all shards. The earlier try may have run in a group, whose other
/// documents are on other shards than this command's. Their clients wait for their keys there.
pub async fn end_first_try(op: &mut WriteOp<'_>, first: RetryId) -> Result<(), ForwardError> {
    for _ in 0..ENDS_MAX {
        let documents = on_all_shards(op.protected, &op.protected.namespace.collection);
        // The records of a group's members are on other shards than this one's.
        let all_records = on_all_shards(op.protected, results::COLLECTION);
        let records = SliceRecord::new(first, Vec::new()).find(op.protected);
        let mut transaction = op.own_transaction()?;
        let replies = pipeline::run(
            vec![records, documents, all_records],
            Vec::new(),
            &mut transaction,
            op.upstream,
        )
        .await?;
        transaction.abort(op.upstream).await?;
        // A transaction number that is too low, for example, ends nothing.
        if !replies
            .iter()
            .any(|reply| reply.as_ref().is_err_and(ErrorReply::is_transient))
        {
            break;
        }
    }
    Ok(())
}

/// A read that reaches every shard with documents of `collection`.
fn on_all_shards<'p>(protected: &'p Protected, collection: &str) -> PipelinedCommand<'p> {
    let mut command = Builder::new();
    command
        .string("find", collection.as_bytes())
        .open(ElementType::EmbeddedDocument, b"projection")
        .int32("_id", 1)
        .close()
        .int32("limit", 1)
        .boolean("singleBatch", true);
    PipelinedCommand::of(protected, command)
}

/// Whether the candidate met a key that an earlier try of the same statement had reserved.
pub fn is_retry(candidate: &Candidate<'_>) -> bool {
    let own = candidate.attempt.token();
    candidate
        .conflicting
        .values()
        .any(|conflicting| own.is_retry_of(conflicting.token))
}
