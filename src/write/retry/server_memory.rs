//! Asks the server whether it inserted documents before.
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
use crate::command::filter_rewriting::{nothing, pin};
use crate::command::running::append_fields;
use crate::raw::{Builder, Doc, Malformed};
use crate::server::code::TRANSACTION_TOO_OLD;
use crate::server::definite::refused_before_execution;
use crate::server::reply::{self, retried_statements};
use crate::write::acknowledged::Acknowledged;
use crate::write::operation::WriteOp;
use crate::write::txn::{ErrorReply, Failure};

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
        // Sent again, it would be refused again.
        let is_late = reply::code(Doc::new(&unsure.body)?)? == Some(TRANSACTION_TOO_OLD);
        return Err(Failure::InDoubt(unsure.in_doubt(!is_late)));
    }
    positions_done_before(op.command, candidates.iter().copied(), Doc::new(&reply)?).map_err(Into::into)
}

/// The error that leaves open whether the server carried a statement out before, or whether a majority has it. `None` if the server
/// answered. If it refused the question as such, for a missing privilege for example, it will never answer. If the session has gone on,
/// it has forgotten the statement.
fn unanswered(reply: Doc<'_>) -> Result<Option<ErrorReply>, Malformed> {
    if !reply::is_ok(reply)? {
        let is_refused = reply::code(reply)?.is_some_and(is_no_answer);
        let body = reply.bytes().to_vec();
        return Ok((!is_refused).then_some(ErrorReply { body }));
    }
    let errors = reply::write_errors(reply)?;
    let of_statement = errors.iter().find(|error| !is_no_answer(error.code));
    let unsure = of_statement.map(|error| error.body);
    let unsure = unsure.or(reply::write_concern_error(reply)?);
    unsure.map(ErrorReply::of_part).transpose()
}

/// Whether the server refuses the question as such.
fn is_no_answer(code: i32) -> bool {
    refused_before_execution(code) && code != TRANSACTION_TOO_OLD
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
