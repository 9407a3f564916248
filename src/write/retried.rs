//! An insert that a driver sends again may have been done long ago, and its document may hold other keys by now: it was
//! updated since, by anybody, or by a later operation of the same `bulkWrite`.
//!
//! The server answers such a statement from its memory, by the statement's number alone. So before a duplicate is reported
//! it is asked whether it did the statement; and what was reserved for one that turns out to have been done before is given
//! back where the document doesn't hold it any more.

use std::collections::HashSet;

use bson::spec::ElementType;

use super::ForwardError;
use super::operation::WriteOp;
use crate::catalog::Protected;
use crate::claims::Candidate;
use crate::command::batch::BatchCommand;
use crate::command::filter_rewriting::{append_equal, nothing};
use crate::command::running::append_fields;
use crate::raw::{Builder, Doc, Malformed};
use crate::reservation::Scope;
use crate::server::reply::retried_statements;

/// Which of `candidates`, statements of a retryable insert, the server did before; by position.
///
/// It is asked by deletes under the statements' numbers that match nothing: where the number is known, the server says so,
/// and does nothing; where it isn't, they do nothing and leave no trace. Of who may insert but not delete nothing is known.
/// What was done counts once a majority has it: until then a step-down may undo it, and the client would have been told
/// otherwise.
///
/// # Errors
/// [`ForwardError`] if the connection is gone.
pub async fn done_before(op: &mut WriteOp<'_>, candidates: &[&Candidate<'_>]) -> Result<HashSet<usize>, ForwardError> {
    let done = ask(op, candidates, WriteConcern::Primary).await?;
    match done.is_empty() {
        true => Ok(done),
        false => ask(op, candidates, WriteConcern::Majority).await,
    }
}

/// Who has to have what the server tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteConcern {
    /// Nothing was done: there is nothing to wait for.
    Primary,
    Majority,
}

async fn ask(
    op: &mut WriteOp<'_>,
    candidates: &[&Candidate<'_>],
    concern: WriteConcern,
) -> Result<HashSet<usize>, ForwardError> {
    let body = question(op.protected, op.command, candidates, concern)?;
    let reply = op.upstream.run(&body).await?;
    positions_done_before(op.command, candidates.iter().copied(), Doc::new(&reply)?).map_err(Into::into)
}

/// The positions of those of `candidates` that a reply says were done before.
///
/// # Errors
/// [`Malformed`] if the reply isn't BSON.
pub fn positions_done_before<'c, 'd: 'c>(
    command: &BatchCommand<'_>,
    candidates: impl Iterator<Item = &'c Candidate<'d>>,
    reply: Doc<'_>,
) -> Result<HashSet<usize>, Malformed> {
    let retried: HashSet<i32> = retried_statements(reply)?.into_iter().collect();
    let was_done = |candidate: &&Candidate<'_>| match &command.retry {
        Some(retry) => retried.contains(&retry.operation(candidate.position).statement),
        None => false,
    };
    Ok(candidates
        .filter(was_done)
        .map(|candidate| candidate.position)
        .collect())
}

/// Gives back what `candidates` hold that their documents, which were inserted before, don't hold any more.
pub async fn give_back_what_has_moved(protected: &Protected, candidates: &[&Candidate<'_>]) {
    for (constraint, proxy) in protected.constraints.iter().enumerate() {
        let of_candidate = |candidate: &'_ &Candidate<'_>| {
            let keys = candidate.keys.iter().filter(|key| key.constraint == constraint);
            keys.map(|key| key.key.clone()).collect::<Vec<_>>()
        };
        let keys: Vec<_> = candidates.iter().map(of_candidate).collect();
        let reserved: Vec<_> = candidates
            .iter()
            .zip(&keys)
            .flat_map(|(candidate, keys)| keys.iter().map(move |key| (key, *candidate)))
            .collect();
        let claims: Vec<_> = reserved
            .iter()
            .map(|(key, candidate)| (*key, &candidate.owner))
            .collect();
        let released = async {
            // By a read that a deposed primary can't answer: it may not know the document yet.
            let held = proxy.look_up(&claims, Scope::Linearizable).await?;
            let moved = reserved.iter().zip(held).filter(|(_, held)| !held);
            let moved: Vec<_> = moved
                .map(|((key, candidate), _)| (*key, candidate.attempt.token()))
                .collect();
            proxy.release(&moved).await
        };
        if let Err(error) = released.await {
            tracing::warn!(%error, constraint = proxy.constraint.name(), "could not release");
        }
    }
}

fn question(
    protected: &Protected,
    command: &BatchCommand<'_>,
    candidates: &[&Candidate<'_>],
    concern: WriteConcern,
) -> Result<Vec<u8>, Malformed> {
    let mut question = Builder::new();
    question.string("delete", protected.namespace.collection.as_bytes());
    question.open(ElementType::Array, b"deletes");
    for (place, candidate) in candidates.iter().enumerate() {
        question.open(ElementType::EmbeddedDocument, place.to_string().as_bytes());
        // Where the document was inserted, a shard knows of it.
        let mut place = Builder::new();
        if let Some(id) = Doc::new(&candidate.document)?.get("_id")? {
            append_equal(&mut place, b"_id", &id);
        }
        if let Some(route) = &candidate.owner.route {
            for value in Doc::new(route.as_bytes())?.elements() {
                let value = value?;
                if value.name != b"_id" {
                    append_equal(&mut place, value.name, &value);
                }
            }
        }
        let never = nothing(Doc::new(&place.finish())?)?;
        question.document("q", Doc::new(&never)?).int32("limit", 1).close();
    }
    question.close().boolean("ordered", false);
    question.open(ElementType::EmbeddedDocument, b"writeConcern");
    match concern {
        WriteConcern::Primary => question.int32("w", 1),
        WriteConcern::Majority => question.string("w", b"majority"),
    };
    question.close();
    append_fields(&mut question, command.body, &["lsid", "txnNumber", "apiVersion", "$db"])?;
    if let Some(retry) = &command.retry {
        let statement = |candidate: &&Candidate<'_>| retry.operation(candidate.position).statement;
        question.int32s("stmtIds", candidates.iter().map(statement));
    }
    Ok(question.finish())
}
