//! What a retryable `insert` has done in Keyward's own transactions: one record for each slice of the command, in
//! `keyward.results` beside those of other statements, written by the very transactions that inserted.
//!
//! The server forgets nothing of a retryable write that it ran itself; one that ran as a transaction it doesn't know again.

use std::collections::BTreeSet;

use bson::{RawDocumentBuf, spec::ElementType};

use crate::catalog::Protected;
use crate::raw::{Builder, Doc, Malformed};
use crate::reservation::Operation;
use crate::server::cursor;
use crate::write::record;
use crate::write::txn::pipeline::Step;

/// What is noted of the documents that a transaction inserts for one slice.
#[derive(Debug, Clone)]
pub struct Note {
    /// The record's `_id`.
    id: RawDocumentBuf,
    statements: Vec<i32>,
}

impl Note {
    /// That `statements` of the slice that begins with the statement `first` took effect. The operation's first statement
    /// of the slice stands for all of them.
    pub fn new(first: Operation, statements: Vec<i32>) -> Note {
        Note {
            id: record::id_of(first),
            statements,
        }
    }

    /// Whether one of its statements is among these.
    pub fn has_any_of(&self, statements: &BTreeSet<i32>) -> bool {
        self.statements.iter().any(|own| statements.contains(own))
    }

    fn update(&self) -> Vec<u8> {
        let mut update = Builder::new();
        update
            .open(ElementType::EmbeddedDocument, b"q")
            .append(ElementType::EmbeddedDocument, b"_id", self.id.as_bytes())
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

/// Reads the records that `notes` go into.
pub fn find<'p>(protected: &'p Protected, notes: &[Note]) -> Step<'p> {
    let mut command = Builder::new();
    command.string("find", record::COLLECTION.as_bytes());
    command.open(ElementType::EmbeddedDocument, b"filter");
    match notes {
        [note] => command.append(ElementType::EmbeddedDocument, b"_id", note.id.as_bytes()),
        notes => command
            .open(ElementType::EmbeddedDocument, b"_id")
            .documents("$in", notes.iter().map(|note| note.id.as_bytes()))
            .close(),
    };
    command.close();
    let most = i32::try_from(notes.len()).unwrap_or(i32::MAX);
    command
        .int32("limit", most)
        .int32("batchSize", most)
        .boolean("singleBatch", true);
    step(protected, command)
}

/// Adds `notes` to their records.
pub fn add<'p>(protected: &'p Protected, notes: &[Note]) -> Step<'p> {
    let mut command = Builder::new();
    command.string("update", record::COLLECTION.as_bytes());
    command.documents("updates", notes.iter().map(Note::update));
    step(protected, command)
}

/// The statements that took effect, from the reply to [`find`]; of several records those of all.
///
/// # Errors
/// [`Malformed`] if it isn't BSON.
pub fn statements(found: Doc<'_>) -> Result<BTreeSet<i32>, Malformed> {
    let mut statements = BTreeSet::new();
    for record in cursor::batch(found)? {
        for statement in record.nested("statements")?.into_iter().flat_map(Doc::elements) {
            let number = statement?.as_whole_number();
            statements.extend(number.and_then(|number| i32::try_from(number).ok()));
        }
    }
    Ok(statements)
}

fn step(protected: &Protected, command: Builder) -> Step<'_> {
    Step {
        database: &protected.namespace.database,
        command,
        sequence: None,
    }
}
