//! Composes the reply to a `bulkWrite` that was carried out as a series of other commands.
//!
//! It has the counts, and in one batch an entry for each operation, or for each failed one.

use bson::spec::ElementType;

use super::write_reply::append_error;
use super::{ConcernError, Times, WriteError};
use crate::command::shape::Form;
use crate::command::statement::StatementKind;
use crate::raw::{Builder, Doc, Element, Malformed};
use crate::server::reply as server;

/// The most bytes of errors; later ones lose their text: a reply of more than 16 MB can't be sent.
const ERRORS_BYTES_MAX: usize = 5 << 20;

/// The outcome of a `bulkWrite` so far.
#[derive(Debug, Default)]
pub struct BulkReply {
    errors_only: bool,
    entries: Vec<Vec<u8>>,
    error_bytes: usize,
    errors: i32,
    inserted: i32,
    matched: i32,
    modified: i32,
    upserted: i32,
    deleted: i32,
    retried: Vec<i32>,
    /// The elements of the latest part's reply that Keyward copies unchanged.
    passed_on: Vec<u8>,
    concern_error: ConcernError,
    times: Times,
}

impl BulkReply {
    /// Starts an empty reply; with `errors_only` it omits successful operations.
    pub fn new(errors_only: bool) -> BulkReply {
        BulkReply {
            errors_only,
            ..BulkReply::default()
        }
    }

    /// Whether any operation failed.
    pub fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// Adds the reply to the command that carried out `count` operations of one form, the first of them at position `first`. If
    /// the reply lists successes, an update or delete must be alone in its command.
    pub fn add(
        &mut self,
        form: Form,
        first: usize,
        count: usize,
        ordered: bool,
        reply: Doc<'_>,
    ) -> Result<(), Malformed> {
        let n = server::documents_affected(reply)?;
        let modified = server::documents_modified(reply)?;
        let upserted = server::upserted(reply)?;
        let upserts = i32::try_from(upserted.len()).unwrap_or(i32::MAX);
        match form {
            Form::Insert => self.inserted += n,
            Form::Changes(StatementKind::Update) => {
                self.matched += n - upserts;
                self.modified += modified;
                self.upserted += upserts;
            }
            Form::Changes(_) => self.deleted += n,
        }
        let mut errors = server::write_errors(reply)?.into_iter().peekable();
        for index in 0..count {
            match errors.next_if(|error| error.index == Some(index)) {
                Some(error) => {
                    self.error(form, first + index, error.body)?;
                    if ordered {
                        break;
                    }
                }
                None if !self.errors_only => {
                    let n = if form == Form::Insert { 1 } else { n };
                    self.success(
                        form,
                        first + index,
                        n,
                        modified,
                        upserted.first().and_then(|first| first.id),
                    )?;
                }
                None => {}
            }
        }
        self.note_the_rest(reply)
    }

    /// Whether an operation took effect or failed.
    pub fn has_results(&self) -> bool {
        self.has_errors() || self.inserted + self.matched + self.upserted + self.deleted > 0
    }

    /// Adds `count` operations of one form whose command failed as a whole, the first of them at position `first`.
    pub fn fail(
        &mut self,
        form: Form,
        first: usize,
        count: usize,
        ordered: bool,
        failed: Doc<'_>,
    ) -> Result<(), Malformed> {
        let error = WriteError::of_reply(failed)?;
        for position in first..first + if ordered { 1 } else { count } {
            self.error(form, position, error.fields()?)?;
        }
        Ok(())
    }

    fn success(
        &mut self,
        form: Form,
        position: usize,
        n: i32,
        modified: i32,
        upserted: Option<Element<'_>>,
    ) -> Result<(), Malformed> {
        let mut entry = Builder::new();
        entry.double("ok", 1.0).int32("idx", index(position)).int32("n", n);
        if form == Form::Changes(StatementKind::Update) {
            entry.int32("nModified", modified);
        }
        if let Some(id) = upserted {
            entry
                .open(ElementType::EmbeddedDocument, b"upserted")
                .element(&id)
                .close();
        }
        self.entries.push(entry.finish());
        Ok(())
    }

    fn error(&mut self, form: Form, position: usize, error: Doc<'_>) -> Result<(), Malformed> {
        self.errors += 1;
        self.error_bytes += error.bytes().len();
        let is_terse = self.error_bytes > ERRORS_BYTES_MAX;
        let mut entry = Builder::new();
        entry.double("ok", 0.0).int32("idx", index(position));
        append_error(&mut entry, error, is_terse)?;
        entry.int32("n", 0);
        if form == Form::Changes(StatementKind::Update) {
            entry.int32("nModified", 0);
        }
        self.entries.push(entry.finish());
        Ok(())
    }

    fn note_the_rest(&mut self, reply: Doc<'_>) -> Result<(), Malformed> {
        let mut passed_on = Builder::new();
        for element in reply.elements() {
            let element = element?;
            match element.name {
                // A part has a `recoveryToken` only in the client's own transaction.
                b"electionId" | b"opTime" | b"recoveryToken" => {
                    passed_on.element(&element);
                }
                _ => {
                    self.concern_error.take(&element);
                }
            }
        }
        self.retried.extend(server::retried_statements(reply)?);
        self.passed_on = passed_on.finish();
        self.times.advance(Times::of_reply(reply.bytes()));
        Ok(())
    }

    /// The reply's body, fields in the server's order.
    pub fn body(&self) -> Result<Vec<u8>, Malformed> {
        let mut reply = Builder::new();
        reply.open(ElementType::EmbeddedDocument, b"cursor").int64("id", 0);
        reply.documents("firstBatch", &self.entries);
        reply.string("ns", b"admin.$cmd.bulkWrite").close();
        reply
            .int32("nErrors", self.errors)
            .int32("nInserted", self.inserted)
            .int32("nMatched", self.matched)
            .int32("nModified", self.modified)
            .int32("nUpserted", self.upserted)
            .int32("nDeleted", self.deleted);
        if !self.passed_on.is_empty() {
            reply.elements(Doc::new(&self.passed_on)?)?;
        }
        server::append_retried(&mut reply, &self.retried);
        self.concern_error.append_to(&mut reply)?;
        reply.double("ok", 1.0);
        self.times.append_to(&mut reply);
        Ok(reply.finish())
    }
}

fn index(position: usize) -> i32 {
    i32::try_from(position).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    const UPDATE: Form = Form::Changes(StatementKind::Update);
    const DELETE: Form = Form::Changes(StatementKind::Delete);

    fn add(reply: &mut BulkReply, form: Form, first: usize, count: usize, part: &Document) {
        let part = part.to_vec().unwrap();
        reply.add(form, first, count, false, Doc::new(&part).unwrap()).unwrap();
    }

    fn body(reply: &BulkReply) -> Document {
        Document::from_reader(reply.body().unwrap().as_slice()).unwrap()
    }

    #[test]
    fn parts_become_entries_and_counts() {
        let duplicate =
            doc! { "index": 1, "code": 11000, "errmsg": "E11000", "keyPattern": { "a": 1 }, "keyValue": { "a": 2 } };
        let mut reply = BulkReply::new(false);
        let inserts = doc! { "n": 2, "writeErrors": [duplicate], "ok": 1.0 };
        add(&mut reply, Form::Insert, 0, 3, &inserts);
        let upsert = doc! { "n": 1, "upserted": [{ "index": 0, "_id": 7 }], "nModified": 0, "ok": 1.0 };
        add(&mut reply, UPDATE, 3, 1, &upsert);
        add(&mut reply, UPDATE, 4, 1, &doc! { "n": 2, "nModified": 1, "ok": 1.0 });
        add(
            &mut reply,
            DELETE,
            5,
            1,
            &doc! { "n": 4, "retriedStmtIds": [5], "ok": 1.0 },
        );
        let entries = vec![
            doc! { "ok": 1.0, "idx": 0, "n": 1 },
            doc! { "ok": 0.0, "idx": 1, "code": 11000, "errmsg": "E11000", "keyPattern": { "a": 1 }, "keyValue": { "a": 2 }, "n": 0 },
            doc! { "ok": 1.0, "idx": 2, "n": 1 },
            doc! { "ok": 1.0, "idx": 3, "n": 1, "nModified": 0, "upserted": { "_id": 7 } },
            doc! { "ok": 1.0, "idx": 4, "n": 2, "nModified": 1 },
            doc! { "ok": 1.0, "idx": 5, "n": 4 },
        ];
        let expected = doc! {
            "cursor": { "id": 0_i64, "firstBatch": entries, "ns": "admin.$cmd.bulkWrite" },
            "nErrors": 1, "nInserted": 2, "nMatched": 2, "nModified": 1, "nUpserted": 1, "nDeleted": 4,
            "retriedStmtIds": [5], "ok": 1.0,
        };
        assert_eq!(body(&reply).to_string(), expected.to_string());
    }

    #[test]
    fn errors_past_the_limit_keep_their_place_and_code_only() {
        let mut reply = BulkReply::new(true);
        for position in 0..40 {
            let error = doc! { "index": 0, "code": 11000, "errmsg": "x".repeat(1 << 19), "keyValue": { "a": 1 } };
            let part = doc! { "n": 0, "writeErrors": [error], "ok": 1.0 };
            add(&mut reply, UPDATE, position, 1, &part);
        }
        assert!(reply.body().unwrap().len() < 6 << 20);
        let reply = body(&reply);
        let entries = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        let last = doc! { "ok": 0.0, "idx": 39, "code": 11000, "errmsg": "", "n": 0, "nModified": 0 };
        assert_eq!((entries.len(), entries[39].clone()), (40, last.into()));
    }
}
