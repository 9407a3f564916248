//! Reads the fields of replies, and of their errors, that the driver has decoded.

mod in_words;

use bson::{Bson, Document, Utf8Lossy};
use mongodb::error::{Error, ErrorKind};

pub use in_words::{in_words, write_error_in_words};

use super::{code, reply};
use crate::raw::Doc;

/// The reply to a command, also if some of its text isn't UTF-8: that text gets replacement characters.
///
/// A server names the value of a duplicate, and cuts a long one in the middle of a character. The driver refuses such a reply.
/// Its error has the bytes.
pub fn decode_lossily(answer: Result<Document, Error>) -> Result<Document, Error> {
    answer.or_else(|error| lossy_reply(&error).ok_or(error))
}

/// The reply that the driver couldn't decode, if it reports no error of the whole command.
fn lossy_reply(error: &Error) -> Option<Document> {
    let bytes = error.server_response()?.as_bytes();
    let is_ok = reply::is_ok(Doc::new(bytes).ok()?).ok()?;
    let decoded: Utf8Lossy<Document> = bson::deserialize_from_slice(bytes).ok()?;
    is_ok.then_some(decoded.0)
}

/// Whether the `hello` is a router's.
pub fn is_of_router(hello: &Document) -> bool {
    hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid")
}

/// The code with which the server refused the whole command; `None` for an error of another kind.
pub fn code_of(error: &Error) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Command(refused) => Some(refused.code),
        _ => None,
    }
}

/// Whether the server refused because of the user's name, password or privileges.
pub fn is_about_rights(error: &Error) -> bool {
    matches!(*error.kind, ErrorKind::Authentication { .. }) || code_of(error) == Some(code::UNAUTHORIZED)
}

/// The failures of a batch; `None` if there are none.
pub fn write_errors(reply: &Document) -> Option<&[Bson]> {
    Some(reply.get_array("writeErrors").ok()?)
}

/// The first failure of a batch.
pub fn first_write_error(reply: &Document) -> Option<&Document> {
    write_errors(reply)?.first()?.as_document()
}

/// The write concern's error, if fewer servers than required have the write.
pub fn write_concern_error(reply: &Document) -> Option<&Document> {
    reply.get_document("writeConcernError").ok()
}

/// Whether the reply to a single statement names it as carried out before.
pub fn names_its_statement(reply: &Document) -> bool {
    let is_first = |statement: &Bson| statement.as_i32() == Some(0);
    reply
        .get_array("retriedStmtIds")
        .is_ok_and(|statements| statements.iter().any(is_first))
}

/// The code of a write error, or of one about the write concern.
pub fn error_code(error: &Document) -> Option<i32> {
    error.get_i32("code").ok()
}

/// Whether a command failed as a whole because its `maxTimeMS` had passed.
pub fn is_time_up(error: &Error) -> bool {
    code_of(error) == Some(code::MAX_TIME_MS_EXPIRED)
}

/// Whether a write error, or a write concern's error, reports that the command's `maxTimeMS` had passed.
pub fn says_time_up(error: &Document) -> bool {
    error_code(error) == Some(code::MAX_TIME_MS_EXPIRED)
}

/// The first documents of a cursor that a command opened; `None` if it opened none.
pub fn first_batch(reply: &Document) -> Option<&[Bson]> {
    let cursor = reply.get_document("cursor").ok()?;
    Some(cursor.get_array("firstBatch").ok()?)
}
