//! Composes the reply to a write that was carried out in parts.
//!
//! Counts are sums, errors have the client's positions, and times are the latest. Fields have the server's order.

use std::collections::BTreeMap;

use bson::spec::ElementType;

use super::{ConcernError, Times, WriteRefusal};
use crate::command::running::append_fields;
use crate::constraint::{DuplicateKey, KeyError};
use crate::raw::{Builder, Doc, Malformed};
use crate::server::reply as server;

/// The most bytes of a reply's errors; later errors lose their text, as with mongos. If a reply exceeded 16 MB, the server
/// would close the connection without it.
const ERRORS_BYTES_MAX: usize = 8 << 20;

/// One entry of `writeErrors`, without its index.
#[derive(Debug, Clone)]
pub struct WriteError {
    /// A document whose elements follow `index`.
    fields: Vec<u8>,
}

impl WriteError {
    /// A violated constraint.
    pub fn duplicate(duplicate: &DuplicateKey) -> WriteError {
        let mut fields = Builder::new();
        duplicate.append_to_write_error(&mut fields);
        WriteError {
            fields: fields.finish(),
        }
    }

    /// A document that can't be indexed.
    pub fn unindexable(error: &KeyError) -> WriteError {
        let mut fields = Builder::new();
        fields.int32("code", error.code()).string("errmsg", &error.errmsg());
        WriteError {
            fields: fields.finish(),
        }
    }

    /// A statement that Keyward refuses.
    pub fn refused(refusal: &WriteRefusal) -> WriteError {
        let mut fields = Builder::new();
        fields
            .int32("code", refusal.code())
            .string("errmsg", refusal.to_string().as_bytes());
        WriteError {
            fields: fields.finish(),
        }
    }

    /// An error that the server gave.
    pub fn from_server(error: Doc<'_>) -> Result<WriteError, Malformed> {
        let mut fields = Builder::new();
        fields.elements_where(error, |element| element.name != b"index")?;
        Ok(WriteError {
            fields: fields.finish(),
        })
    }

    /// The error of a reply that isn't `ok`, as that of one statement.
    pub fn of_reply(reply: Doc<'_>) -> Result<WriteError, Malformed> {
        let mut fields = Builder::new();
        append_fields(&mut fields, reply, &["code", "errmsg"])?;
        Ok(WriteError {
            fields: fields.finish(),
        })
    }

    /// Its code.
    pub fn code(&self) -> Option<i32> {
        Doc::new(&self.fields).and_then(server::code).ok().flatten()
    }

    /// Its fields.
    pub(super) fn fields(&self) -> Result<Doc<'_>, Malformed> {
        Doc::new(&self.fields)
    }

    fn append_to(&self, reply: &mut Builder, index: usize, terse: bool) -> Result<(), Malformed> {
        reply.int32("index", i32::try_from(index).unwrap_or(i32::MAX));
        append_error(reply, self.fields()?, terse)
    }
}

/// Appends the fields of a write error, without its index. A terse one has only its code and an empty text.
pub(super) fn append_error(entry: &mut Builder, error: Doc<'_>, is_terse: bool) -> Result<(), Malformed> {
    for element in error.elements() {
        let element = element?;
        match (is_terse, element.name) {
            (_, b"index") => &mut *entry,
            (true, b"errmsg") => entry.string("errmsg", b""),
            (true, name) if name != b"code" => &mut *entry,
            _ => entry.element(&element),
        };
    }
    Ok(())
}

/// The outcome of a write so far.
#[derive(Debug, Default)]
pub struct WriteReply {
    n: i32,
    n_modified: i32,
    /// `{_id}` of each statement that inserted a document, by position.
    upserted: BTreeMap<usize, Vec<u8>>,
    errors: BTreeMap<usize, WriteError>,
    retried: Vec<i32>,
    /// The elements of the latest part's reply that Keyward copies unchanged.
    passed_on: Vec<u8>,
    concern_error: ConcernError,
    times: Times,
    /// Whether the parts belong to the client's own transaction.
    is_in_transaction: bool,
}

impl WriteReply {
    /// Starts the reply to a write in the client's own transaction. The router's recovery data is copied: with it, the client
    /// may commit the transaction through another router. The recovery data of Keyward's own transactions isn't for clients.
    pub fn in_transaction() -> WriteReply {
        WriteReply {
            is_in_transaction: true,
            ..WriteReply::default()
        }
    }

    /// Notes an error at the client's position `index`.
    pub fn error(&mut self, index: usize, error: WriteError) {
        self.errors.insert(index, error);
    }

    /// Whether it is to a write in the client's own transaction.
    pub fn is_in_transaction(&self) -> bool {
        self.is_in_transaction
    }

    /// Whether anything failed.
    pub fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    /// Whether a statement took effect or failed.
    pub fn has_results(&self) -> bool {
        self.n > 0 || self.has_errors()
    }

    /// Advances the reply's times by those of Keyward's own reads.
    pub fn advance(&mut self, times: Times) {
        self.times.advance(times);
    }

    /// Adds the server's reply to one part of the write, without its write errors.
    pub fn add_part(&mut self, reply: Doc<'_>) -> Result<(), Malformed> {
        let mut passed_on = Builder::new();
        let mut times = Times::default();
        for element in reply.elements() {
            let element = element?;
            match element.name {
                b"n" | b"writeErrors" | b"ok" | b"nModified" | b"upserted" | b"retriedStmtIds" => {}
                b"recoveryToken" if !self.is_in_transaction => {}
                _ if self.concern_error.take(&element) || times.take(&element) => {}
                _ => {
                    passed_on.element(&element);
                }
            }
        }
        self.n += server::documents_affected(reply)?;
        self.retried.extend(server::retried_statements(reply)?);
        self.passed_on = passed_on.finish();
        self.times.advance(times);
        Ok(())
    }

    /// Counts a document that was inserted before, by the statement with this number.
    pub fn retried(&mut self, statement: i32) {
        self.n += 1;
        self.retried.push(statement);
    }

    /// Counts documents that no server reply will count.
    pub fn count(&mut self, documents: usize) {
        self.n += i32::try_from(documents).unwrap_or(i32::MAX);
    }

    /// Adds the server's reply to a run of statements; the first of them is at the client's position `first`.
    pub fn add_statements(&mut self, reply: Doc<'_>, first: usize) -> Result<(), Malformed> {
        for error in server::write_errors(reply)? {
            self.error(first + error.index.unwrap_or(0), WriteError::from_server(error.body)?);
        }
        for upserted in server::upserted(reply)? {
            let mut id = Builder::new();
            if let Some(element) = upserted.id {
                id.element(&element);
            }
            self.upserted.insert(first + upserted.index, id.finish());
        }
        self.n_modified += server::documents_modified(reply)?;
        self.add_part(reply)
    }

    /// The body of the reply to an `update`.
    pub fn update_body(&self) -> Result<Vec<u8>, Malformed> {
        let mut reply = Builder::new();
        reply.int32("n", self.n);
        if !self.upserted.is_empty() {
            reply.open(ElementType::Array, b"upserted");
            for (position, (index, id)) in self.upserted.iter().enumerate() {
                reply.open(ElementType::EmbeddedDocument, position.to_string().as_bytes());
                reply.int32("index", i32::try_from(*index).unwrap_or(i32::MAX));
                reply.elements(Doc::new(id)?)?;
                reply.close();
            }
            reply.close();
        }
        reply.int32("nModified", self.n_modified);
        self.append_rest(reply)
    }

    /// The reply's body.
    pub fn body(&self) -> Result<Vec<u8>, Malformed> {
        let mut reply = Builder::new();
        reply.int32("n", self.n);
        self.append_rest(reply)
    }

    fn append_rest(&self, mut reply: Builder) -> Result<Vec<u8>, Malformed> {
        if !self.passed_on.is_empty() {
            reply.elements(Doc::new(&self.passed_on)?)?;
        }
        self.append_errors(&mut reply)?;
        self.concern_error.append_to(&mut reply)?;
        server::append_retried(&mut reply, &self.retried);
        reply.double("ok", 1.0);
        self.times.append_to(&mut reply);
        Ok(reply.finish())
    }

    fn append_errors(&self, reply: &mut Builder) -> Result<(), Malformed> {
        if self.errors.is_empty() {
            return Ok(());
        }
        let mut bytes = 0;
        reply.open(ElementType::Array, b"writeErrors");
        for (position, (index, error)) in self.errors.iter().enumerate() {
            bytes += error.fields.len();
            reply.open(ElementType::EmbeddedDocument, position.to_string().as_bytes());
            error.append_to(reply, *index, bytes > ERRORS_BYTES_MAX && position > 0)?;
            reply.close();
        }
        reply.close();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    fn part(document: Document) -> Vec<u8> {
        document.to_vec().unwrap()
    }

    #[test]
    fn parts_add_up_and_errors_keep_the_clients_positions() {
        let mut reply = WriteReply::default();
        let first = part(doc! { "n": 2, "electionId": "e", "retriedStmtIds": [0, 1], "ok": 1.0 });
        let second = part(doc! { "n": 1, "electionId": "f", "writeErrors": [], "ok": 1.0 });
        reply.add_part(Doc::new(&first).unwrap()).unwrap();
        reply.add_part(Doc::new(&second).unwrap()).unwrap();
        let error = part(doc! { "index": 0, "code": 121, "errmsg": "Document failed validation" });
        reply.error(7, WriteError::from_server(Doc::new(&error).unwrap()).unwrap());
        let expected = doc! {
            "n": 3, "electionId": "f",
            "writeErrors": [{ "index": 7, "code": 121, "errmsg": "Document failed validation" }],
            "retriedStmtIds": [0, 1], "ok": 1.0,
        };
        assert_eq!(
            Document::from_reader(reply.body().unwrap().as_slice()).unwrap(),
            expected
        );
    }

    #[test]
    fn an_error_of_the_write_concern_keeps_its_label() {
        let mut reply = WriteReply::default();
        let error = doc! { "code": 11602, "errmsg": "stepped down" };
        let first = part(
            doc! { "n": 1, "writeConcernError": error.clone(), "errorLabels": ["RetryableWriteError"], "ok": 1.0 },
        );
        let second = part(doc! { "n": 1, "ok": 1.0 });
        for one in [&first, &second] {
            reply.add_part(Doc::new(one).unwrap()).unwrap();
        }
        let expected = doc! { "n": 2, "writeConcernError": error, "errorLabels": ["RetryableWriteError"], "ok": 1.0 };
        let body = reply.body().unwrap();
        assert_eq!(Document::from_reader(body.as_slice()).unwrap(), expected);
    }

    #[test]
    fn only_the_clients_own_transaction_is_told_where_to_recover_it() {
        let answer = part(doc! { "n": 1, "nModified": 1, "recoveryToken": { "recoveryShardId": "a" }, "ok": 1.0 });
        for (mut reply, is_in_transaction) in [(WriteReply::default(), false), (WriteReply::in_transaction(), true)] {
            reply.add_statements(Doc::new(&answer).unwrap(), 0).unwrap();
            let body = Document::from_reader(reply.update_body().unwrap().as_slice()).unwrap();
            assert_eq!(body.contains_key("recoveryToken"), is_in_transaction);
        }
    }

    #[test]
    fn errors_past_the_limit_keep_their_place_and_code_only() {
        let mut reply = WriteReply::default();
        for index in 0..20 {
            let error = part(doc! { "code": 11000, "errmsg": "x".repeat(1 << 20), "keyValue": { "a": 1 } });
            reply.error(index, WriteError::from_server(Doc::new(&error).unwrap()).unwrap());
        }
        let body = reply.body().unwrap();
        assert!(body.len() < 16 << 20);
        let reply = Document::from_reader(body.as_slice()).unwrap();
        let errors = reply.get_array("writeErrors").unwrap();
        assert_eq!(errors.len(), 20);
        assert_eq!(errors[19], doc! { "index": 19, "code": 11000, "errmsg": "" }.into());
    }
}
