//! Keeps the record of a slice: those of its documents that strict inserts have inserted.
//!
//! There is one record for each slice of the command, in `keyward.results` beside those of other statements. The inserting
//! transactions write it themselves. The server remembers the retryable writes that it ran itself, but doesn't recognise one
//! that ran as a transaction.

use std::collections::BTreeSet;

use bson::{RawDocumentBuf, spec::ElementType};

use super::results;
use crate::catalog::Protected;
use crate::raw::{Builder, Doc, Malformed};
use crate::reservation::RetryId;
use crate::server::code::DUPLICATE_KEY;
use crate::server::cursor;
use crate::server::reply::write_errors;
use crate::write::txn::pipeline::PipelinedCommand;

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

    /// Reads the record.
    pub(super) fn find<'p>(&self, protected: &'p Protected) -> PipelinedCommand<'p> {
        let mut command = Builder::new();
        command.string("find", results::COLLECTION.as_bytes());
        command
            .open(ElementType::EmbeddedDocument, b"filter")
            .append(ElementType::EmbeddedDocument, b"_id", self.id.as_bytes())
            .close();
        cursor::in_one_batch(&mut command, 1);
        PipelinedCommand::of(protected, command)
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

/// Adds the statements of `records` to them.
pub fn add<'p>(protected: &'p Protected, records: &[SliceRecord]) -> PipelinedCommand<'p> {
    let mut command = Builder::new();
    command.string("update", results::COLLECTION.as_bytes());
    command.documents("updates", records.iter().map(SliceRecord::update));
    PipelinedCommand::of(protected, command)
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

/// The statements that took effect, from the reply to [`SliceRecord::find`].
pub(super) fn recorded_statements(found: Doc<'_>) -> Result<BTreeSet<i32>, Malformed> {
    let mut statements = BTreeSet::new();
    for record in cursor::batch(found)? {
        for statement in record.nested("statements")?.into_iter().flat_map(Doc::elements) {
            let number = statement?.as_whole_number();
            statements.extend(number.and_then(|number| i32::try_from(number).ok()));
        }
    }
    Ok(statements)
}
