//! Asks the server whether it carried out a statement before.
//!
//! The server remembers the retryable writes that it carried out itself, by the numbers of their statements.
//!
//! A document that an insert's first try inserted may hold other keys since. Any client may have updated it, or a later
//! operation of the same `bulkWrite`. So before Keyward reports a duplicate, it asks whether the server carried out the
//! statement before. If such a document no longer holds a key, Keyward releases the key's reservation.

use std::collections::HashSet;

use bson::spec::ElementType;

use crate::catalog::Protected;
use crate::claims::Candidate;
use crate::command::batch::BatchCommand;
use crate::command::filter_rewriting::{self, names_shard, nothing, pin};
use crate::command::running::append_fields;
use crate::command::statement::{Statement, StatementKind};
use crate::raw::{Builder, Doc, Malformed};
use crate::server::code;
use crate::server::definite::refused_before_execution;
use crate::server::reply::{self, retried_statements};
use crate::write::forward::{self, Acknowledged, Outcome, UnappliedReason};
use crate::write::forward_error::ForwardError;
use crate::write::operation::WriteOp;
use crate::write::txn::{ErrorReply, Failure};
use crate::write::update::result::StatementResult;
use crate::write::update::statement_run::StatementRun;

/// The positions of the `candidates`, statements of a retryable insert, that the server carried out before.
///
/// Keyward asks by deletes that match nothing, under the statements' numbers. If the server knows a number, it reports that;
/// otherwise the delete leaves no trace. A client that may insert but not delete gets no answer, and its retry may be refused
/// as a duplicate. A document counts after a majority has it: until then a step-down may undo it.
///
/// # Errors
/// [`Failure`] if the server gave no sure answer about one of them, for example because there was no primary.
pub async fn done_before(op: &mut WriteOp<'_>, candidates: &[&Candidate<'_>]) -> Result<HashSet<usize>, Failure> {
    let done = ask(op, candidates, Acknowledged::ByPrimary).await?;
    match done.is_empty() {
        true => Ok(done),
        false => ask(op, candidates, Acknowledged::ByMajority).await,
    }
}

async fn ask(
    op: &mut WriteOp<'_>,
    candidates: &[&Candidate<'_>],
    acknowledged: Acknowledged,
) -> Result<HashSet<usize>, Failure> {
    let body = question(op.protected, op.command, candidates, acknowledged)?;
    let reply = op.upstream.run(&body).await?;
    if let Some(unsure) = unanswered(Doc::new(&reply)?)? {
        return Err(Failure::InDoubt(unsure.in_doubt(true)));
    }
    positions_done_before(op.command, candidates.iter().copied(), Doc::new(&reply)?).map_err(Into::into)
}

/// The error that leaves open whether the server carried a statement out before, or whether a majority has it. `None` if the server
/// answered. If it refused the question as such, for a missing privilege for example, it will never answer.
fn unanswered(reply: Doc<'_>) -> Result<Option<ErrorReply>, Malformed> {
    if !reply::is_ok(reply)? {
        let is_refused = reply::code(reply)?.is_some_and(refused_before_execution);
        let body = reply.bytes().to_vec();
        return Ok((!is_refused).then_some(ErrorReply { body }));
    }
    let errors = reply::write_errors(reply)?;
    let of_statement = errors.iter().find(|error| !refused_before_execution(error.code));
    let unsure = of_statement.map(|error| error.body);
    let unsure = unsure.or(reply::write_concern_error(reply)?);
    unsure.map(ErrorReply::of_part).transpose()
}

/// The positions of those of `candidates` that the server did before, according to a reply.
pub fn positions_done_before<'c, 'd: 'c>(
    command: &BatchCommand<'_>,
    candidates: impl Iterator<Item = &'c Candidate<'d>>,
    reply: Doc<'_>,
) -> Result<HashSet<usize>, Malformed> {
    let retried: HashSet<i32> = retried_statements(reply)?.into_iter().collect();
    let was_done = |candidate: &&Candidate<'_>| match &command.retry {
        Some(retry) => retried.contains(&retry.retry_id(candidate.position).statement),
        None => false,
    };
    Ok(candidates
        .filter(was_done)
        .map(|candidate| candidate.position)
        .collect())
}

fn question(
    protected: &Protected,
    command: &BatchCommand<'_>,
    candidates: &[&Candidate<'_>],
    acknowledged: Acknowledged,
) -> Result<Vec<u8>, Malformed> {
    let mut question = Builder::new();
    question.string("delete", protected.namespace.collection.as_bytes());
    question.open(ElementType::Array, b"deletes");
    for (index, candidate) in candidates.iter().enumerate() {
        question.open(ElementType::EmbeddedDocument, index.to_string().as_bytes());
        // The query names the place of the document: the shard that inserted it remembers it.
        let query = pin(Doc::empty(), &candidate.document, &candidate.owner)?;
        let never = nothing(Doc::new(&query)?)?;
        question.document("q", Doc::new(&never)?).int32("limit", 1).close();
    }
    question.close().boolean("ordered", false);
    match acknowledged {
        Acknowledged::ByPrimary => acknowledged.append_concern(&mut question),
        Acknowledged::ByMajority => acknowledged.append_concern_of(command.body, &mut question)?,
    }
    append_fields(&mut question, command.body, &["lsid", "txnNumber", "apiVersion", "$db"])?;
    if let Some(retry) = &command.retry {
        let statement = |candidate: &&Candidate<'_>| retry.retry_id(candidate.position).statement;
        question.int32s("stmtIds", candidates.iter().map(statement));
    }
    Ok(question.finish())
}

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

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    #[test]
    fn only_an_answer_about_each_statement_is_a_no() {
        let unsure = |reply: Document| {
            let reply = reply.to_vec().unwrap();
            let unsure = unanswered(Doc::new(&reply).unwrap()).unwrap();
            unsure.map(|unsure| reply::code(Doc::new(&unsure.body).unwrap()).unwrap().unwrap())
        };
        assert_eq!(unsure(doc! { "n": 0, "ok": 1.0 }), None);
        assert_eq!(unsure(doc! { "n": 1, "retriedStmtIds": [0], "ok": 1.0 }), None);
        // Without the privilege to delete there is no answer at any time.
        assert_eq!(unsure(doc! { "ok": 0.0, "code": 13 }), None);
        assert_eq!(unsure(doc! { "ok": 0.0, "code": 133 }), Some(133));
        let of_one = |code: i32| doc! { "n": 0, "writeErrors": [{ "index": 0, "code": code }], "ok": 1.0 };
        assert_eq!(unsure(of_one(6)), Some(6));
        assert_eq!(unsure(of_one(13)), None);
        let no_majority = doc! { "n": 1, "retriedStmtIds": [0], "writeConcernError": { "code": 64 }, "ok": 1.0 };
        assert_eq!(unsure(no_majority), Some(64));
    }
}
