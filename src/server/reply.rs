//! Reads the fields of replies that were received as bytes, and composes replies of errors.

use bson::spec::ElementType;
pub use mongodb::error::{RETRYABLE_WRITE_ERROR, TRANSIENT_TRANSACTION_ERROR};

use crate::raw::{Builder, Doc, Element, Malformed};
use crate::server::code;
use crate::server::definite::may_leave_transaction_open;

/// An entry of `writeErrors`: the error of one statement of a batch.
#[derive(Debug, Clone, Copy)]
pub struct StatementError<'a> {
    /// The statement's position in the batch, if the entry names one.
    pub index: Option<usize>,
    /// The server's code; 0 if there is none.
    pub code: i32,
    /// The whole entry.
    pub body: Doc<'a>,
}

/// Whether the command succeeded; single statements of a batch may still have failed.
pub fn is_ok(reply: Doc<'_>) -> Result<bool, Malformed> {
    reply.is_set("ok")
}

/// The code of a reply that isn't `ok`, or of a document that describes an error.
pub fn code(reply: Doc<'_>) -> Result<Option<i32>, Malformed> {
    Ok(reply.whole_number("code")?.and_then(|code| i32::try_from(code).ok()))
}

/// The text of a reply that isn't `ok`.
pub fn errmsg(reply: Doc<'_>) -> Result<Option<&[u8]>, Malformed> {
    Ok(reply.get("errmsg")?.and_then(|text| text.as_string_bytes()))
}

/// The failures of a batch, in the order of the reply.
pub fn write_errors(reply: Doc<'_>) -> Result<Vec<StatementError<'_>>, Malformed> {
    let mut all = Vec::new();
    for entry in reply.nested("writeErrors")?.into_iter().flat_map(Doc::elements) {
        let Some(body) = entry?.as_document_or_array()? else {
            continue;
        };
        let index = body.whole_number("index")?;
        all.push(StatementError {
            index: index.and_then(|index| usize::try_from(index).ok()),
            code: code(body)?.unwrap_or(0),
            body,
        });
    }
    Ok(all)
}

/// Whether a statement of a batch failed.
pub fn has_write_errors(reply: Doc<'_>) -> Result<bool, Malformed> {
    Ok(reply.get("writeErrors")?.is_some())
}

/// Whether the reply to a statement of a transaction shows that the server has aborted the transaction. A server does that at any error of a
/// statement. A `bulkWrite` counts its errors.
pub fn ends_transaction(reply: Doc<'_>) -> Result<bool, Malformed> {
    Ok(match is_ok(reply)? {
        true => has_write_errors(reply)? || reply.whole_number("nErrors")?.is_some_and(|errors| errors > 0),
        false => code(reply)?.is_some_and(|code| !may_leave_transaction_open(code)),
    })
}

/// An entry of `upserted`: the document that one statement of a batch inserted.
#[derive(Debug, Clone, Copy)]
pub struct Upserted<'a> {
    /// The statement's position in the batch; 0 if the entry names none.
    pub index: usize,
    /// The document's `_id`.
    pub id: Option<Element<'a>>,
}

/// The documents that the upserts of a batch inserted, in the order of the reply.
pub fn upserted(reply: Doc<'_>) -> Result<Vec<Upserted<'_>>, Malformed> {
    let mut all = Vec::new();
    for entry in reply.nested("upserted")?.into_iter().flat_map(Doc::elements) {
        let Some(entry) = entry?.as_document_or_array()? else {
            continue;
        };
        let index = entry.whole_number("index")?;
        all.push(Upserted {
            index: index.and_then(|index| usize::try_from(index).ok()).unwrap_or(0),
            id: entry.get("_id")?,
        });
    }
    Ok(all)
}

/// The `_id` of the document that an upsert inserted; the upsert is the only statement of an `update`, or a `findAndModify`.
pub fn upserted_id(reply: Doc<'_>) -> Result<Option<Element<'_>>, Malformed> {
    match reply.nested("lastErrorObject")? {
        Some(result) => result.get("upserted"),
        None => Ok(upserted(reply)?.first().and_then(|first| first.id)),
    }
}

/// The number of documents that a write inserted, matched or deleted; for a `findAndModify`, too.
pub fn documents_affected(reply: Doc<'_>) -> Result<i32, Malformed> {
    count(reply.nested("lastErrorObject")?.unwrap_or(reply), "n")
}

/// The number of documents that an `update` changed.
pub fn documents_modified(reply: Doc<'_>) -> Result<i32, Malformed> {
    count(reply, "nModified")
}

fn count(reply: Doc<'_>, name: &str) -> Result<i32, Malformed> {
    let count = reply.whole_number(name)?;
    Ok(count.and_then(|count| i32::try_from(count).ok()).unwrap_or(0))
}

/// Whether a field of a reply to a write counts documents.
pub fn is_count(name: &[u8]) -> bool {
    matches!(name, b"n" | b"nModified")
}

/// The write concern's error, if fewer servers than required have the write.
pub fn write_concern_error(reply: Doc<'_>) -> Result<Option<Doc<'_>>, Malformed> {
    reply.nested("writeConcernError")
}

/// Whether a write concern's error says only that too few servers have the write so far: the time for it is over.
pub fn is_acknowledged_late(error: Doc<'_>) -> Result<bool, Malformed> {
    Ok(match code(error)? {
        Some(code::MAX_TIME_MS_EXPIRED) => true,
        Some(code::WRITE_CONCERN_FAILED) => error.value_at("errInfo.wtimeout")?.is_some_and(|late| late.is_truthy()),
        _ => false,
    })
}

/// Whether the server answered from its memory: a first try had carried out the statement, or some of the batch.
pub fn is_from_memory(reply: Doc<'_>) -> Result<bool, Malformed> {
    Ok(reply.get("retriedStmtIds")?.is_some() || reply.get("retriedStmtId")?.is_some())
}

/// The numbers of those statements of a batch that a first try had carried out.
pub fn retried_statements(reply: Doc<'_>) -> Result<Vec<i32>, Malformed> {
    let mut statements = Vec::new();
    for number in reply.nested("retriedStmtIds")?.into_iter().flat_map(Doc::elements) {
        let number = number?.as_whole_number();
        statements.extend(number.and_then(|number| i32::try_from(number).ok()));
    }
    Ok(statements)
}

/// Adds the numbers of `statements` that a first try had carried out, if there are any.
pub fn append_retried(reply: &mut Builder, statements: &[i32]) {
    if !statements.is_empty() {
        reply.int32s("retriedStmtIds", statements.iter().copied());
    }
}

/// Whether the server gave its error this label; never if the reply isn't BSON.
pub fn has_label(reply: Doc<'_>, label: &str) -> bool {
    let labels = reply.nested("errorLabels").ok().flatten();
    let mut labels = labels.into_iter().flat_map(Doc::elements).flatten();
    labels.any(|element| element.as_str() == Some(label))
}

/// The fields of `error` that can be read, without its labels.
pub fn without_labels(error: &[u8]) -> Builder {
    let mut unlabelled = Builder::new();
    let fields = Doc::new(error).into_iter().flat_map(Doc::elements).flatten();
    for field in fields.filter(|field| field.name != b"errorLabels") {
        unlabelled.element(&field);
    }
    unlabelled
}

/// The reply to a command that failed with this text and code. Further fields of the error may follow.
pub fn command_error(errmsg: &[u8], code: i32) -> Builder {
    let mut reply = Builder::new();
    append_command_error(&mut reply, errmsg, code);
    reply
}

/// Adds the fields of [`command_error`] to `reply`, in the server's order.
pub fn append_command_error(reply: &mut Builder, errmsg: &[u8], code: i32) {
    reply
        .double("ok", 0.0)
        .string("errmsg", errmsg)
        .int32("code", code)
        .string("codeName", code::name(code).as_bytes());
}

/// Adds this label to the error in `reply`.
pub fn append_label(reply: &mut Builder, label: &str) {
    reply
        .open(ElementType::Array, b"errorLabels")
        .string("0", label.as_bytes())
        .close();
}

#[cfg(test)]
mod tests {
    use bson::{Document, RawDocumentBuf, doc};

    use super::*;

    #[test]
    fn an_upserted_id_is_found_in_either_reply() {
        let id = |reply: Document| {
            let reply = reply.to_vec().unwrap();
            upserted_id(Doc::new(&reply).unwrap())
                .unwrap()
                .and_then(|id| id.as_whole_number())
        };
        assert_eq!(id(doc! { "n": 1, "upserted": [{ "index": 0, "_id": 7 }] }), Some(7));
        assert_eq!(
            id(doc! { "lastErrorObject": { "n": 1, "upserted": 7 }, "value": null }),
            Some(7)
        );
        assert_eq!(id(doc! { "lastErrorObject": { "n": 1 }, "value": {} }), None);
        assert_eq!(id(doc! { "n": 1 }), None);
    }

    #[test]
    fn documents_are_counted_in_either_reply() {
        let affected = |reply: RawDocumentBuf| documents_affected(Doc::new(reply.as_bytes()).unwrap()).unwrap();
        assert_eq!(affected(bson::rawdoc! { "n": 3, "ok": 1.0 }), 3);
        assert_eq!(affected(bson::rawdoc! { "lastErrorObject": { "n": 1 }, "ok": 1.0 }), 1);
        assert_eq!(affected(bson::rawdoc! { "ok": 1.0 }), 0);
    }
}
