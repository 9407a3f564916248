//! Records the span of a client's command, which lasts from the command's arrival until its reply begins.
//!
//! As names it records only those of known commands, of the database and of the collection. Any other value could be a user's data.

use bson::spec::ElementType;
use tracing::field::Empty;
use tracing::instrument::Instrumented;
use tracing::{Instrument, Span, info_span};

use super::TARGET;
use crate::classify::is_known_command;
use crate::raw::Doc;
use crate::server::reply::{code, is_ok, write_concern_error, write_errors};
use crate::wire::{Header, Message, OpCode, OpMsg, decompress};

/// The longest reply that is read for an error: a longer one carries documents, and so no error.
pub const REPLY_BYTES_MAX: usize = 16 * 1024;

/// The commands whose first value is the name of a collection.
const ON_COLLECTION: [&[u8]; 16] = [
    b"insert",
    b"update",
    b"delete",
    b"findAndModify",
    b"findandmodify",
    b"find",
    b"aggregate",
    b"count",
    b"distinct",
    b"drop",
    b"create",
    b"createIndexes",
    b"dropIndexes",
    b"listIndexes",
    b"collMod",
    b"mapReduce",
];
/// Longer ones are no names of the server's.
const NAME_BYTES_MAX: usize = 255;

/// The span of one command; it ends when this is dropped. None while traces are off.
#[derive(Debug, Default)]
pub struct CommandSpan(Option<Box<Span>>);

impl CommandSpan {
    /// Begins the span of `message`.
    pub fn of(message: &Message<'_>) -> CommandSpan {
        let span = empty();
        if span.is_disabled() {
            return CommandSpan(None);
        }
        name(
            &span,
            match message {
                Message::Msg(message) => message.body,
                Message::Query(query) => query.command,
            },
        );
        CommandSpan(Some(Box::new(span)))
    }

    /// Whether there is one.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Runs `future` as what this command needs.
    pub fn around<F: Future>(&self, future: F) -> Instrumented<F> {
        future.instrument(self.0.as_deref().cloned().unwrap_or_else(Span::none))
    }

    /// Notes what the server's reply, a whole message, says became of it.
    pub fn note_reply(&self, message: &[u8]) {
        let Some(span) = &self.0 else { return };
        let mut unpacked = Vec::new();
        let message = match Header::read(message) {
            Ok(Some(header)) if header.op_code == OpCode::COMPRESSED => match decompress(message, &mut unpacked) {
                Ok(_) => &unpacked[..],
                Err(_) => return,
            },
            _ => message,
        };
        if let Ok(reply) = OpMsg::parse(message) {
            note(span, reply.body);
        }
    }
}

/// Notes on the span that this runs in what the reply with this `body` says.
pub fn note_outcome(body: &[u8]) {
    let span = Span::current();
    if is_traced(&span)
        && let Ok(body) = Doc::new(body)
    {
        note(&span, body);
    }
}

/// Whether `span` is a trace's, and not one of the log's.
pub(super) fn is_traced(span: &Span) -> bool {
    span.metadata().is_some_and(|metadata| metadata.target() == TARGET)
}

/// A span without names; while traces are off, one look at what was found out when this was first called.
fn empty() -> Span {
    info_span!(
        target: TARGET,
        parent: None,
        "command",
        otel.name = Empty,
        otel.kind = "server",
        otel.status_code = Empty,
        // The attribute's name until 2025, and since then.
        db.system = "mongodb",
        db.system.name = "mongodb",
        db.operation.name = Empty,
        db.namespace = Empty,
        db.collection.name = Empty,
        db.response.status_code = Empty,
    )
}

fn name(span: &Span, body: Doc<'_>) {
    let first = body.elements().map_while(Result::ok).next();
    let known = first.filter(|first| is_known_command(first.name));
    let operation = known.and_then(|first| std::str::from_utf8(first.name).ok());
    let operation = operation.unwrap_or("unknown");
    let database = name_in(body, "$db");
    let collection = known.and_then(|first| match first.name {
        b"getMore" => name_in(body, "collection"),
        name if ON_COLLECTION.contains(&name) => first.as_str().filter(|name| name.len() <= NAME_BYTES_MAX),
        _ => None,
    });
    span.record("db.operation.name", operation);
    span.record("db.namespace", database);
    span.record("db.collection.name", collection);
    match database.zip(collection) {
        Some((database, collection)) => span.record("otel.name", format!("{operation} {database}.{collection}")),
        None => span.record("otel.name", operation),
    };
}

fn name_in<'a>(body: Doc<'a>, field: &str) -> Option<&'a str> {
    let field = body.get(field).ok().flatten()?;
    let is_name = field.kind == ElementType::String;
    field.as_str().filter(|name| is_name && name.len() <= NAME_BYTES_MAX)
}

/// Notes only the code of an error: its text quotes values.
pub(super) fn note(span: &Span, reply: Doc<'_>) {
    if let Some(code) = error_code(reply) {
        span.record("otel.status_code", "ERROR");
        span.record("db.response.status_code", code.to_string());
    }
}

/// The code of the command's error, or of the first statement's that failed.
fn error_code(reply: Doc<'_>) -> Option<i32> {
    let code = |error: Doc<'_>| code(error).ok().flatten();
    if !is_ok(reply).unwrap_or(false) {
        return Some(code(reply).unwrap_or(0));
    }
    let first = write_errors(reply).ok().and_then(|errors| Some(errors.first()?.body));
    let concern = || write_concern_error(reply).ok().flatten();
    first.or_else(concern).and_then(code)
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    fn code_of(reply: &Document) -> Option<i32> {
        error_code(Doc::new(&reply.to_vec().unwrap()).unwrap())
    }

    #[test]
    fn an_outcome_is_a_code() {
        assert_eq!(code_of(&doc! { "ok": 1, "n": 1 }), None);
        assert_eq!(code_of(&doc! { "ok": 0, "code": 13 }), Some(13));
        let errors = vec![doc! { "index": 0, "code": 11_000, "errmsg": "dup key" }];
        assert_eq!(
            code_of(&doc! { "n": 0, "writeErrors": errors, "ok": 1.0 }),
            Some(11_000)
        );
        assert_eq!(
            code_of(&doc! { "writeConcernError": { "code": 64 }, "ok": 1.0 }),
            Some(64)
        );
    }
}
