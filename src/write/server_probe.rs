//! Probes whether the server refuses a command that no driver sends ([`crate::command::shape`]), before Keyward acts on it.
//!
//! Keyward sends two commands without effect. The first has the same fields, so that the server finds the same fault, and one
//! unknown field that the server always refuses. The second has the same session, concerns and other circumstances, and changes
//! nothing. If the server doesn't refuse it, Keyward carries the command out like any other.

use bson::spec::ElementType;

use super::forward_error::ForwardError;
use crate::command::filter_rewriting::nothing;
use crate::command::running::session_of;
use crate::command::shape::{Form, is_of_documents, is_transaction_number};
use crate::command::statement::StatementKind;
use crate::raw::{Builder, Doc, Malformed};
use crate::reply::{Times, WriteRefusal};
use crate::server::reply::{errmsg, is_ok};
use crate::upstream::Connection;
use crate::wire::{BODY_BYTES_MAX, Batch, OpMsg};

/// The fields of a transaction in progress. The probe omits them: an error would end the transaction.
const OF_TRANSACTIONS: [&[u8]; 5] = [
    b"lsid",
    b"txnNumber",
    b"autocommit",
    b"startTransaction",
    b"readConcern",
];

/// A field that no command has: every server refuses it in these commands before it executes them.
const UNKNOWN: &str = "keywardAsks";

/// The server's reply to a command that no driver sends, if the server refuses it.
pub async fn probe_server(
    message: &OpMsg<'_>,
    form: Form,
    upstream: &mut Connection,
) -> Result<Option<Vec<u8>>, ForwardError> {
    let command = never_accepted(form, message)?;
    if command.len() > BODY_BYTES_MAX {
        return Ok(Some(WriteRefusal::Unasked.body(&Times::default())));
    }
    let reply = upstream.run(&command).await?;
    let text = errmsg(Doc::new(&reply)?)?;
    let is_about_ours = text.is_some_and(|text| text.windows(UNKNOWN.len()).any(|part| part == UNKNOWN.as_bytes()));
    if !is_about_ours {
        return Ok(Some(reply));
    }
    if is_in_transaction(message.body)? {
        return Ok(None);
    }
    let reply = upstream.run(&without_effect(form, message.body)?).await?;
    let is_ok = is_ok(Doc::new(&reply)?)?;
    Ok((!is_ok).then_some(reply))
}

/// Whether the command is in a transaction of the client's as far as its fields show. If they contradict each other, it is in none, and
/// the server refuses it.
fn is_in_transaction(body: Doc<'_>) -> Result<bool, Malformed> {
    let (autocommit, start) = (body.get("autocommit")?, body.get("startTransaction")?);
    let number = body.get("txnNumber")?;
    Ok(
        autocommit.is_some_and(|autocommit| autocommit.kind == ElementType::Boolean && !autocommit.is_truthy())
            && start.is_none_or(|start| start.kind == ElementType::Boolean && start.is_truthy())
            && number.is_some_and(|number| is_transaction_number(&number))
            && session_of(body)?.is_some(),
    )
}

/// The command's own fields, and one that no command has; the latter is omitted if the command has no batch. The documents of
/// an `insert` are replaced by one that can't be inserted.
fn never_accepted(form: Form, message: &OpMsg<'_>) -> Result<Vec<u8>, Malformed> {
    let mut command = Builder::new();
    for field in message.body.elements() {
        let field = field?;
        if OF_TRANSACTIONS.contains(&field.name) {
            continue;
        }
        match matches!(form, Form::Insert) && field.name == b"documents" && is_of_documents(&field)? {
            true => append_impossible_document(&mut command),
            false => {
                command.element(&field);
            }
        }
    }
    for sequence in message.sequences() {
        if matches!(form, Form::Insert) && sequence.name == b"documents" {
            append_impossible_document(&mut command);
            continue;
        }
        command.open(ElementType::Array, sequence.name);
        let documents = Batch::Sequence(sequence.documents).iter()?;
        for (position, document) in documents.flatten().enumerate() {
            command.document(&position.to_string(), document);
        }
        command.close();
    }
    if !form.lacks_its_batch(message)? {
        command.int32(UNKNOWN, 1);
    }
    Ok(command.finish())
}

/// A command of the same name in the same circumstances that changes nothing.
fn without_effect(form: Form, body: Doc<'_>) -> Result<Vec<u8>, Malformed> {
    let mut command = Builder::new();
    let numbers = body.elements().flatten().filter(|field| field.name == b"txnNumber");
    let has_one_number = numbers.count() == 1;
    for (position, field) in body.elements().enumerate() {
        let field = field?;
        let is_own = form.has_field(field.name);
        let is_list = form.list().is_some_and(|list| field.name == list.as_bytes());
        // A usual `txnNumber` is omitted: the server would repeat the reply of an earlier command, or refuse the probe as a
        // different one.
        let is_number_of_retry = field.name == b"txnNumber"
            && has_one_number
            && is_transaction_number(&field)
            && body.get("lsid")?.is_some();
        if position == 0 || !is_own && !is_list && !is_number_of_retry {
            command.element(&field);
        }
    }
    // A router requires the shard key of a `findAndModify`.
    let query = match body.get("query")? {
        Some(query) if matches!(form, Form::Changes(StatementKind::FindAndModify)) => {
            query.as_document()?.unwrap_or(Doc::empty())
        }
        _ => Doc::empty(),
    };
    let never = nothing(query)?;
    match form {
        Form::Insert => append_impossible_document(&mut command),
        Form::Changes(StatementKind::Update) => {
            command.open(ElementType::Array, b"updates");
            command.open(ElementType::EmbeddedDocument, b"0");
            command.append(ElementType::EmbeddedDocument, b"q", &never);
            command.open(ElementType::EmbeddedDocument, b"u");
            command
                .open(ElementType::EmbeddedDocument, b"$unset")
                .int32("keyward", 1);
            command.close().close().close().close();
        }
        Form::Changes(StatementKind::Delete) => {
            command.open(ElementType::Array, b"deletes");
            command.open(ElementType::EmbeddedDocument, b"0");
            command
                .append(ElementType::EmbeddedDocument, b"q", &never)
                .int32("limit", 1);
            command.close().close();
        }
        Form::Changes(StatementKind::FindAndModify) => {
            command
                .append(ElementType::EmbeddedDocument, b"query", &never)
                .boolean("remove", true);
        }
    }
    Ok(command.finish())
}

/// Appends a batch of an `insert` that inserts nothing: the server refuses an array as `_id`.
fn append_impossible_document(command: &mut Builder) {
    command.open(ElementType::Array, b"documents");
    command.open(ElementType::EmbeddedDocument, b"0");
    command.open(ElementType::Array, b"_id").close();
    command.close().close();
}
