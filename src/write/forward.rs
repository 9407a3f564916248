//! Sends statements to the server in the client's command, and reads their outcome.
//!
//! An outcome that the reply leaves open is [`Outcome::InDoubt`]. A failure is definite only if its code says
//! that nothing was, or will be, done.

use std::time::Duration;

use super::acknowledged::Acknowledged;
use super::client_body::{self, NewFields};
use super::forward_error::ForwardError;
use super::lease_left::WriteTime;
use super::operation::WriteOp;
use crate::command::statement::StatementKind;
use crate::raw::{Doc, Malformed};
use crate::reply::{Times, WriteRefusal};
use crate::server::definite::{refused_before_execution, refused_document};
use crate::server::reply;
use crate::upstream;
use crate::wire::Draft;

/// Waits for the reply no longer than `limit`. The server ends the command by then, so a later reply isn't worth waiting for.
/// After a timeout the connection can't be used any more.
///
/// # Errors
/// [`ForwardError`]: the reply's own, or the timeout.
pub async fn reply_within<T>(
    limit: Duration,
    reply: impl Future<Output = Result<T, ForwardError>>,
) -> Result<T, ForwardError> {
    let late = |_| ForwardError::ConnectionLost(upstream::ConnectionError::TimedOut(limit));
    tokio::time::timeout(limit, reply).await.map_err(late)?
}

/// Forwards the statements at `positions` of an `update` or `delete` (`list` is its batch) unchanged. Returns the reply's body,
/// and whether it is `ok`. The inner error is the refusal of a part that Keyward no longer sends.
///
/// # Errors
/// [`ForwardError`]: the outcome is unknown then.
pub async fn statements(
    op: &mut WriteOp<'_>,
    list: &'static str,
    positions: std::ops::Range<usize>,
) -> Result<Result<(Vec<u8>, bool), WriteRefusal>, ForwardError> {
    if !op.upstream.is_permitted_to_write() {
        return Ok(Err(WriteRefusal::outlasted(op.is_retryable())));
    }
    let times = op.reservation_times();
    let body = client_body::of_part(op.command, list, positions.clone(), &NewFields::times(&times))?;
    let statements = op.command.documents[positions]
        .iter()
        .map(|statement| statement.bytes());
    let draft = Draft::with_documents(&body, list, statements);
    let reply = op.upstream.request(&draft).await?;
    let body = reply.body();
    let is_ok = reply::is_ok(body)?;
    Ok(Ok((body.bytes().to_vec(), is_ok)))
}

/// The outcome of a statement that was sent to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It took effect.
    Applied,
    /// It took no effect, and never will.
    NotApplied(UnappliedReason),
    /// It may have taken effect, or may yet take effect.
    InDoubt(UnappliedReason),
}

/// Why a statement about one document isn't known to have taken effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnappliedReason {
    /// No document matches.
    NoMatch,
    /// The server's error concerns the statement, in a reply to its batch.
    Statement,
    /// The server's error concerns the whole command.
    Command,
    /// Keyward didn't send it: other Keywards may presume this one gone by now.
    Withheld {
        /// Whether the driver may send the command again.
        is_retryable: bool,
    },
}

/// A statement that was sent and answered.
#[derive(Debug)]
pub struct Sent {
    /// Its outcome.
    pub outcome: Outcome,
    /// Whether a majority has the statement's effect, so that no step-down can undo it.
    pub by_majority: bool,
    /// The reply's body.
    pub body: Vec<u8>,
}

/// Forwards the statement at `index`, `rewritten` by Keyward, under the client's own number. The limit in `time` replaces the client's.
///
/// # Errors
/// [`ForwardError`]: the outcome is unknown then.
pub async fn statement(
    op: &mut WriteOp<'_>,
    (kind, index): (StatementKind, usize),
    rewritten: &[u8],
    acknowledged: Acknowledged,
    time: Option<WriteTime>,
) -> Result<Sent, ForwardError> {
    if !op.upstream.is_permitted_to_write() {
        let is_retryable = op.is_retryable();
        return Ok(Sent {
            outcome: Outcome::NotApplied(UnappliedReason::Withheld { is_retryable }),
            by_majority: false,
            body: WriteRefusal::outlasted(is_retryable).body(&Times::default()),
        });
    }
    let new = NewFields {
        acknowledged: Some(acknowledged),
        time: time.map(|time| time.limit),
        times: &op.reservation_times(),
    };
    let list = kind.list();
    let body = match list {
        Some(list) => client_body::of_part(op.command, list, std::iter::once(index), &new)?,
        None => client_body::of_statement(Doc::new(rewritten)?, &new)?,
    };
    let draft = match list {
        Some(list) => Draft::with_documents(&body, list, [rewritten]),
        None => Draft::of_body(&body),
    };
    let reply = match time {
        Some(time) => op.upstream.request_within(&draft, time.sending).await?,
        None => op.upstream.request(&draft).await?,
    };
    Ok(Sent {
        outcome: outcome(reply.body())?,
        by_majority: reply::write_concern_error(reply.body())?.is_none(),
        body: reply.body().bytes().to_vec(),
    })
}

/// Sends the statements `rewritten`, which match no document, under the numbers of those at their positions. Returns the reply's body;
/// `None` if Keyward no longer sends them.
pub async fn questions(
    op: &mut WriteOp<'_>,
    kind: StatementKind,
    rewritten: &[(usize, Vec<u8>)],
) -> Result<Option<Vec<u8>>, ForwardError> {
    let Some(list) = kind.list().filter(|_| op.upstream.is_permitted_to_write()) else {
        return Ok(None);
    };
    let new = NewFields {
        acknowledged: Some(Acknowledged::ByPrimary),
        time: None,
        times: &op.reservation_times(),
    };
    let positions = rewritten.iter().map(|(position, _)| *position);
    let body = client_body::of_part(op.command, list, positions, &new)?;
    let statements = rewritten.iter().map(|(_, statement)| statement.as_slice());
    let draft = Draft::with_documents(&body, list, statements);
    let reply = op.upstream.request(&draft).await?;
    Ok(Some(reply.body().bytes().to_vec()))
}

fn outcome(answer: Doc<'_>) -> Result<Outcome, Malformed> {
    if !reply::is_ok(answer)? {
        let code = reply::code(answer)?.unwrap_or(0);
        return Ok(match refused_before_execution(code) || refused_document(code) {
            true => Outcome::NotApplied(UnappliedReason::Command),
            false => Outcome::InDoubt(UnappliedReason::Command),
        });
    }
    if let Some(error) = reply::write_errors(answer)?.first() {
        return Ok(match refused_document(error.code) {
            true => Outcome::NotApplied(UnappliedReason::Statement),
            false => Outcome::InDoubt(UnappliedReason::Statement),
        });
    }
    Ok(match reply::documents_affected(answer)? {
        0 => Outcome::NotApplied(UnappliedReason::NoMatch),
        _ => Outcome::Applied,
    })
}
