//! Keeps records of the documents that strict inserts have inserted, so that a retry learns the outcome of its first try.
//!
//! This file also ends transactions that a first try left open. There is one record for each slice of the command, in
//! `keyward.results` beside those of other statements. The inserting transactions write it themselves. The server remembers the retryable writes that it ran itself, but doesn't recognise one
//! that ran as a transaction.

use std::collections::BTreeSet;

use bson::{RawDocumentBuf, spec::ElementType};
use tokio::time::Instant;

use super::results;
use crate::catalog::Protected;
use crate::claims::Candidate;
use crate::raw::{Builder, Doc, Malformed};
use crate::reservation::RetryId;
use crate::server::code::DUPLICATE_KEY;
use crate::server::cursor;
use crate::server::reply::{write_concern_error, write_errors};
use crate::write::back_off::BackOff;
use crate::write::forward_error::ForwardError;
use crate::write::operation::WriteOp;
use crate::write::txn::pipeline::{self, PipelinedCommand};
use crate::write::txn::{ErrorReply, Failure, Transaction};

/// How often Keyward tries to end the transactions that an earlier try left open: its transaction number may be far too low at first.
const ENDS_MAX: u32 = 8;

/// The record of one slice, and the statements that a transaction adds to it.
#[derive(Debug, Clone)]
pub struct SliceRecord {
    /// The record's `_id`.
    id: RawDocumentBuf,
    statements: Vec<i32>,
}

impl SliceRecord {
    /// Records that `statements` of the slice that begins with the statement `first` took effect. The retry id of the slice's
    /// first statement stands for all of them.
    pub fn new(first: RetryId, statements: Vec<i32>) -> SliceRecord {
        SliceRecord {
            id: results::id_of(first),
            statements,
        }
    }

    /// Adds the statements to the record. If the record has one of them, the filter doesn't match it. The server then tries to
    /// insert a second record, and reports the duplicate `_id`.
    fn update(&self) -> Vec<u8> {
        let mut update = Builder::new();
        update
            .open(ElementType::EmbeddedDocument, b"q")
            .append(ElementType::EmbeddedDocument, b"_id", self.id.as_bytes())
            .open(ElementType::EmbeddedDocument, b"statements")
            .int32s("$nin", self.statements.iter().copied())
            .close()
            .close();
        update
            .open(ElementType::EmbeddedDocument, b"u")
            .open(ElementType::EmbeddedDocument, b"$push")
            .open(ElementType::EmbeddedDocument, b"statements")
            .int32s("$each", self.statements.iter().copied())
            .close()
            .close();
        update
            .open(ElementType::EmbeddedDocument, b"$currentDate")
            .boolean("at", true)
            .close();
        update.close().boolean("upsert", true);
        update.finish()
    }
}

/// The outcome for statements that a transaction was to add to their records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// The transaction has added them.
    Now,
    /// A record has one of the statements already: an earlier try committed. The transaction has no effect.
    Before,
    /// The server refused to add them. The transaction has no effect.
    No,
}

/// Reads `record`.
fn find_command<'p>(protected: &'p Protected, record: &SliceRecord) -> PipelinedCommand<'p> {
    let mut command = Builder::new();
    command.string("find", results::COLLECTION.as_bytes());
    command
        .open(ElementType::EmbeddedDocument, b"filter")
        .append(ElementType::EmbeddedDocument, b"_id", record.id.as_bytes())
        .close();
    cursor::in_one_batch(&mut command, 1);
    step(protected, command)
}

/// Adds the statements of `records` to them.
pub fn add<'p>(protected: &'p Protected, records: &[SliceRecord]) -> PipelinedCommand<'p> {
    let mut command = Builder::new();
    command.string("update", results::COLLECTION.as_bytes());
    command.documents("updates", records.iter().map(SliceRecord::update));
    step(protected, command)
}

/// Whether the statements were added, from the reply to [`add`].
pub fn added(reply: Doc<'_>) -> Result<Added, Malformed> {
    let errors = write_errors(reply)?;
    Ok(match &errors[..] {
        [] => Added::Now,
        errors if errors.iter().any(|error| error.code == DUPLICATE_KEY) => Added::Before,
        _ => Added::No,
    })
}

/// The statements that took effect, from the reply to [`find_command`].
fn statements(found: Doc<'_>) -> Result<BTreeSet<i32>, Malformed> {
    let mut statements = BTreeSet::new();
    for record in cursor::batch(found)? {
        for statement in record.nested("statements")?.into_iter().flat_map(Doc::elements) {
            let number = statement?.as_whole_number();
            statements.extend(number.and_then(|number| i32::try_from(number).ok()));
        }
    }
    Ok(statements)
}

fn step(protected: &Protected, command: Builder) -> PipelinedCommand<'_> {
    PipelinedCommand {
        database: &protected.namespace.database,
        command,
        sequence: None,
    }
}

/// The statements that an earlier try of the command carried out, after a majority has them: until then a step-down may undo
/// them. Waits until `give_up` at most.
///
/// # Errors
/// [`Failure`] if Keyward can't find that out.
pub async fn inserted_by_majority(
    op: &mut WriteOp<'_>,
    first: RetryId,
    give_up: Instant,
) -> Result<BTreeSet<i32>, Failure> {
    let record = SliceRecord::new(first, Vec::new());
    let mut back_off = BackOff::default();
    loop {
        let mut transaction = op.own_transaction()?;
        match read(op, &record, &mut transaction).await {
            Ok(statements) => return Ok(statements),
            // The command's first try uses the same session, and may still be running.
            Err(Failure::ErrorReply(refused))
                if refused.is_transient() && !refused.is_of_another_primary() && Instant::now() < give_up =>
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
    let PipelinedCommand { database, command, .. } = find_command(op.protected, record);
    let found = transaction.run(op.upstream, database, command, None).await?;
    let done = statements(Doc::new(&found)?)?;
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
        let records = find_command(op.protected, &SliceRecord::new(first, Vec::new()));
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
    step(protected, command)
}

/// Whether the candidate met a key that an earlier try of the same statement had reserved.
pub fn is_retry(candidate: &Candidate<'_>) -> bool {
    let own = candidate.attempt.token();
    candidate
        .conflicting
        .values()
        .any(|conflicting| own.is_retry_of(conflicting.token))
}
