//! What a retryable `insert` has done in Keyward's own transactions: one record for each slice of the command, in
//! `keyward.results` beside those of other statements, written by the very transactions that inserted.
//!
//! The server forgets nothing of a retryable write that it ran itself; one that ran as a transaction it doesn't know again.

use std::collections::BTreeSet;

use bson::{RawDocumentBuf, spec::ElementType};

use super::super::{cursor, record};
use super::pipeline::Step;
use crate::catalog::Protected;
use crate::raw::{Builder, Doc, Malformed};
use crate::reservation::Operation;

/// The record of one slice.
#[derive(Debug)]
pub struct InsertRecord<'a> {
    database: &'a str,
    /// The operation's first statement of the slice stands for all of them.
    id: RawDocumentBuf,
}

impl<'a> InsertRecord<'a> {
    /// For the slice that begins with the statement `first`.
    pub fn new(protected: &'a Protected, first: Operation) -> Self {
        InsertRecord {
            database: &protected.namespace.database,
            id: record::id_of(first),
        }
    }

    /// Reads it.
    pub fn find(&self) -> Step<'a> {
        let mut command = Builder::new();
        command.string("find", record::COLLECTION.as_bytes());
        command.open(ElementType::EmbeddedDocument, b"filter");
        command
            .append(ElementType::EmbeddedDocument, b"_id", self.id.as_bytes())
            .close();
        command.int32("limit", 1).boolean("singleBatch", true);
        self.step(command)
    }

    /// The statements that took effect, from the reply to [`InsertRecord::find`].
    ///
    /// # Errors
    /// [`Malformed`] if it isn't BSON.
    pub fn statements(found: Doc<'_>) -> Result<BTreeSet<i32>, Malformed> {
        let record = cursor::batch(found)?.into_iter().next();
        let noted = record.map(|record| record.nested("statements")).transpose()?.flatten();
        let mut statements = BTreeSet::new();
        for statement in noted.into_iter().flat_map(Doc::elements) {
            let number = statement?.as_whole_number();
            statements.extend(number.and_then(|number| i32::try_from(number).ok()));
        }
        Ok(statements)
    }

    /// Adds `statements`.
    pub fn note(&self, statements: impl Iterator<Item = i32>) -> Step<'a> {
        let mut command = Builder::new();
        command.string("update", record::COLLECTION.as_bytes());
        command
            .open(ElementType::Array, b"updates")
            .open(ElementType::EmbeddedDocument, b"0")
            .open(ElementType::EmbeddedDocument, b"q")
            .append(ElementType::EmbeddedDocument, b"_id", self.id.as_bytes())
            .close();
        command
            .open(ElementType::EmbeddedDocument, b"u")
            .open(ElementType::EmbeddedDocument, b"$push")
            .open(ElementType::EmbeddedDocument, b"statements")
            .int32s("$each", statements)
            .close()
            .close();
        command
            .open(ElementType::EmbeddedDocument, b"$currentDate")
            .boolean("at", true)
            .close();
        command.close().boolean("upsert", true).close().close();
        self.step(command)
    }

    fn step(&self, command: Builder) -> Step<'a> {
        Step {
            database: self.database,
            command,
            sequence: None,
        }
    }
}
