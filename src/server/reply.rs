//! The fields of a reply that came as bytes.

use bson::spec::ElementType;

use crate::raw::{Builder, Doc, Malformed};

/// An entry of `writeErrors`: what is wrong with one statement of a batch.
#[derive(Debug, Clone, Copy)]
pub struct StatementError<'a> {
    /// The statement's position in the batch, if the entry names one.
    pub index: Option<usize>,
    /// The server's code; 0 if there is none.
    pub code: i32,
    /// The whole entry.
    pub body: Doc<'a>,
}

/// Whether the command succeeded; single statements of a batch may have failed even so.
///
/// # Errors
/// [`Malformed`] if the reply isn't BSON.
pub fn is_ok(reply: Doc<'_>) -> Result<bool, Malformed> {
    reply.is_set("ok")
}

/// The code of a reply that isn't `ok`, or of a document that describes an error.
///
/// # Errors
/// [`Malformed`] if the reply isn't BSON.
pub fn code(reply: Doc<'_>) -> Result<Option<i32>, Malformed> {
    Ok(reply.whole_number("code")?.and_then(|code| i32::try_from(code).ok()))
}

/// The text of a reply that isn't `ok`.
///
/// # Errors
/// [`Malformed`] if the reply isn't BSON.
pub fn errmsg(reply: Doc<'_>) -> Result<Option<&[u8]>, Malformed> {
    Ok(reply.get("errmsg")?.and_then(|text| text.as_string_bytes()))
}

/// What failed of a batch, in the order of the reply.
///
/// # Errors
/// [`Malformed`] if the reply isn't BSON.
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
///
/// # Errors
/// [`Malformed`] if the reply isn't BSON.
pub fn has_write_errors(reply: Doc<'_>) -> Result<bool, Malformed> {
    Ok(reply.get("writeErrors")?.is_some())
}

/// What is wrong with the write concern, if fewer servers have the write than were to.
///
/// # Errors
/// [`Malformed`] if the reply isn't BSON.
pub fn write_concern_error(reply: Doc<'_>) -> Result<Option<Doc<'_>>, Malformed> {
    reply.nested("writeConcernError")
}

/// Whether the server answered from its memory: a first try had carried the statement, or some of the batch, out.
///
/// # Errors
/// [`Malformed`] if the reply isn't BSON.
pub fn is_from_memory(reply: Doc<'_>) -> Result<bool, Malformed> {
    Ok(reply.get("retriedStmtIds")?.is_some() || reply.get("retriedStmtId")?.is_some())
}

/// The numbers of those statements of a batch that a first try had carried out.
///
/// # Errors
/// [`Malformed`] if the reply isn't BSON.
pub fn retried_statements(reply: Doc<'_>) -> Result<Vec<i32>, Malformed> {
    let mut statements = Vec::new();
    for number in reply.nested("retriedStmtIds")?.into_iter().flat_map(Doc::elements) {
        let number = number?.as_whole_number();
        statements.extend(number.and_then(|number| i32::try_from(number).ok()));
    }
    Ok(statements)
}

/// Whether the server gave its error this label; never if the reply isn't BSON.
pub fn has_label(reply: Doc<'_>, label: &str) -> bool {
    let labels = reply.nested("errorLabels").ok().flatten();
    let mut labels = labels.into_iter().flat_map(Doc::elements).flatten();
    labels.any(|element| element.as_str() == Some(label))
}

/// Gives the error in `reply` this label.
pub fn append_label(reply: &mut Builder, label: &str) {
    reply
        .open(ElementType::Array, b"errorLabels")
        .string("0", label.as_bytes())
        .close();
}
