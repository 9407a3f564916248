//! The fields of a reply that the driver has decoded, and of its errors.

use bson::{Bson, Document};
use mongodb::error::{Error, ErrorKind};

use super::code;

/// The code with which the server refused the whole command; `None` for an error of another kind.
pub fn code_of(error: &Error) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Command(refused) => Some(refused.code),
        _ => None,
    }
}

/// What failed of a batch; `None` if nothing did.
pub fn write_errors(reply: &Document) -> Option<&[Bson]> {
    Some(reply.get_array("writeErrors").ok()?)
}

/// The first failure of a batch.
pub fn first_write_error(reply: &Document) -> Option<&Document> {
    write_errors(reply)?.first()?.as_document()
}

/// What is wrong with the write concern, if fewer servers have the write than were to.
pub fn write_concern_error(reply: &Document) -> Option<&Document> {
    reply.get_document("writeConcernError").ok()
}

/// The code of a write error, or of one about the write concern.
pub fn error_code(error: &Document) -> Option<i32> {
    error.get_i32("code").ok()
}

/// Whether a command failed as a whole because its `maxTimeMS` have passed.
pub fn is_time_up(error: &Error) -> bool {
    code_of(error) == Some(code::MAX_TIME_MS_EXPIRED)
}

/// Whether a write error, or one about the write concern, says that the command's `maxTimeMS` have passed.
pub fn says_time_up(error: &Document) -> bool {
    error_code(error) == Some(code::MAX_TIME_MS_EXPIRED)
}

/// The first documents of a cursor that a command opened; `None` if it opened none.
pub fn first_batch(reply: &Document) -> Option<&[Bson]> {
    let cursor = reply.get_document("cursor").ok()?;
    Some(cursor.get_array("firstBatch").ok()?)
}
