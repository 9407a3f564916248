//! Asks the server whether it carried out a statement before.
//!
//! The server remembers the retryable writes that it carried out itself, by the numbers of their statements. Keyward asks by a form of
//! the statement that matches no document.

use bson::spec::ElementType;

use super::result::StatementResult;
use super::statement_run::StatementRun;
use crate::command::filter_rewriting::{self, names_shard};
use crate::command::statement::{Statement, StatementKind};
use crate::raw::{Builder, Doc, Malformed};
use crate::server::code;
use crate::server::reply;
use crate::write::acknowledged::Acknowledged;
use crate::write::forward::{self, Outcome, UnappliedReason};
use crate::write::forward_error::ForwardError;
use crate::write::operation::WriteOp;
use crate::write::txn::ErrorReply;

/// The server's answer to the first try of a retryable statement, if there was a first try.
pub async fn first_try(run: &mut StatementRun<'_, '_>) -> Result<Option<StatementResult>, ForwardError> {
    if run.retry_id.is_none() {
        return Ok(None);
    }
    let said = without_match(run).await?;
    Ok(match said.outcome {
        Outcome::NotApplied(UnappliedReason::NoMatch) => None,
        // It is unknown what the first try did: the driver is to ask once more.
        Outcome::InDoubt(_) => Some(in_doubt(&said.body)?),
        _ => Some(said.into()),
    })
}

/// The result of a retryable statement whose first try may have taken effect, by the server's error.
fn in_doubt(said: &[u8]) -> Result<StatementResult, Malformed> {
    let reply = Doc::new(said)?;
    let error = match reply::write_errors(reply)?.first() {
        Some(error) => ErrorReply::of_part(error.body)?,
        None => ErrorReply { body: said.to_vec() },
    };
    Ok(StatementResult::ErrorReply(error.in_doubt(true).body))
}

/// A shard's answer to the first try of a retryable statement that doesn't name its shard.
///
/// The document that Keyward read may have moved to its shard since the first try, or may be another one with the same `_id`. A
/// shard remembers the statements that it carried out. That memory moves with a chunk, but not with a document. Keyward asks
/// after it has read the document. If the first try runs later than that, it updates the document that Keyward read, or finds
/// that the document has gone.
pub async fn done_elsewhere(run: &mut StatementRun<'_, '_>) -> Result<Option<StatementResult>, ForwardError> {
    let query = run.statement.query()?.unwrap_or(Doc::empty());
    if run.retry_id.is_none() || names_shard(query, &run.op.protected.shard_key)? {
        return Ok(None);
    }
    match ask_about_statement(run, Acknowledged::ByPrimary).await?.outcome {
        Outcome::NotApplied(UnappliedReason::NoMatch) => Ok(None),
        // The answer counts after a majority has the effect.
        _ => first_try(run).await,
    }
}

/// Whether a shard may have carried out one of these statements of a retryable command before ([`done_elsewhere`]). Keyward asks about
/// all of them at once, after it has read their documents.
pub async fn may_be_done_elsewhere(
    op: &mut WriteOp<'_>,
    statements: &[(usize, Statement<'_>)],
) -> Result<bool, ForwardError> {
    let mut questions = Vec::new();
    for (index, statement) in statements.iter().filter(|_| op.is_retryable()) {
        let query = statement.query()?.unwrap_or(Doc::empty());
        if !names_shard(query, &op.protected.shard_key)? {
            let rewritten = statement.without_upsert(&filter_rewriting::nothing(query)?)?;
            questions.push((*index, rewritten));
        }
    }
    let Some((_, Statement { kind, .. })) = statements.first().filter(|_| !questions.is_empty()) else {
        return Ok(false);
    };
    let Some(said) = forward::questions(op, *kind, &questions).await? else {
        return Ok(true);
    };
    let said = Doc::new(&said)?;
    let is_no = reply::is_ok(said)? && !reply::has_write_errors(said)? && reply::documents_affected(said)? == 0;
    Ok(!is_no || reply::is_from_memory(said)?)
}

/// The server's answer to an upsert that Keyward `sent` as a `findAndModify` without `upsert`. If its first try inserted a document,
/// the server answers only a `findAndModify` with `upsert` from its memory. Keyward then asks again with one that can't insert: it
/// sets another `_id` than it asks for.
pub async fn as_upsert(run: &mut StatementRun<'_, '_>, sent: forward::Sent) -> Result<forward::Sent, ForwardError> {
    let is_inserted = run.retry_id.is_some()
        && run.statement.is_upsert
        && run.statement.kind == StatementKind::FindAndModify
        && reply::code(Doc::new(&sent.body)?)? == Some(code::FIRST_TRY_INSERTED);
    if !is_inserted {
        return Ok(sent);
    }
    let query = run.statement.query()?.unwrap_or(Doc::empty());
    let (mut asked_for, mut other) = (Builder::new(), Builder::new());
    asked_for.int32("_id", 0);
    other
        .open(ElementType::EmbeddedDocument, b"$set")
        .open(ElementType::EmbeddedDocument, b"_id")
        .int32("other", 1)
        .close()
        .close();
    let query = filter_rewriting::only_inserts(query, Doc::new(&asked_for.finish())?)?;
    let rewritten = run.statement.with_update(&query, &other.finish())?;
    let which = (run.statement.kind, run.index);
    forward::statement(run.op, which, &rewritten, Acknowledged::ByMajority, None).await
}

/// The server's answer to the statement in a form that matches no document.
pub async fn without_match(run: &mut StatementRun<'_, '_>) -> Result<forward::Sent, ForwardError> {
    ask_about_statement(run, Acknowledged::ByMajority).await
}

async fn ask_about_statement(
    run: &mut StatementRun<'_, '_>,
    acknowledged: Acknowledged,
) -> Result<forward::Sent, ForwardError> {
    let query = run.statement.query()?.unwrap_or(Doc::empty());
    let rewritten = run.statement.without_upsert(&filter_rewriting::nothing(query)?)?;
    let which = (run.statement.kind, run.index);
    let said = forward::statement(run.op, which, &rewritten, acknowledged, None).await?;
    let said = as_upsert(run, said).await?;
    Ok(forward::Sent {
        body: counted_once(&said.body)?,
        ..said
    })
}

/// Corrects the reply to a statement about one document. If the document's chunk has moved, two shards remember the statement,
/// and a router adds up their counts.
fn counted_once(reply: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut once = Builder::new();
    for element in Doc::new(reply)?.elements() {
        let element = element?;
        match reply::is_count(element.name) && element.as_whole_number() > Some(1) {
            true => once.append(ElementType::Int32, element.name, &1_i32.to_le_bytes()),
            false => once.element(&element),
        };
    }
    Ok(once.finish())
}
