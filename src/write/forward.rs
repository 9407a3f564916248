//! Forwards documents whose keys are held, on the client's own connection, and reads from the reply what became of each.
//!
//! The command goes on as the client sent it but for its documents, a time limit inside the lease, and the statements'
//! numbers where a part of a retryable write would otherwise be renumbered. What the reply doesn't say for sure is
//! [`Outcome::InDoubt`]: a failure is definite only if its code says that nothing was, or will be, done.

use std::time::Duration;

use bson::spec::ElementType;

use super::txn::gossip;
use crate::claims::Candidate;
use crate::command::batch::BatchCommand;
use crate::command::statement::StatementKind;
use crate::raw::{Builder, Doc, Malformed};
use crate::reply::{Refusal, Times, WriteError};
use crate::server::certain::{refused_before_execution, refused_document};
use crate::server::reply::{self, StatementError};
use crate::upstream::{self, Connection};
use crate::wire::{Draft, OutSequence};

/// What became of one forwarded document.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// It is there.
    Applied,
    /// It isn't, and won't be; with the server's error unless an earlier one stopped the batch.
    NotApplied(Option<WriteError>),
    /// Nobody knows; with the server's error if it gave one.
    InDoubt(Option<WriteError>),
    /// It isn't, and won't be, because a key isn't its any more.
    Lost,
    /// It isn't yet: it was in company that had to wait.
    NotTried,
}

/// The reply to one part.
#[derive(Debug)]
pub struct Part {
    /// One for each document forwarded.
    pub outcomes: Vec<Outcome>,
    /// The reply's body.
    pub body: Vec<u8>,
    /// Whether the command as a whole failed, so that the body is the client's reply and nothing may follow.
    pub failed: bool,
}

/// Why there is no reply to make something of.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The connection is gone: everything forwarded is in doubt, and the client's connection has to go, too.
    #[error(transparent)]
    Lost(#[from] upstream::Error),
    /// Another client's connection is gone that inserted for this one, too: in doubt, as if it had been this one's.
    #[error("the connection that inserted for several clients is gone")]
    LostTogether,
    /// The reply isn't BSON.
    #[error("the server's reply: {0}")]
    Malformed(#[from] Malformed),
}

/// The reply, if it comes within a lease: the server ends what it was given less time for, so whatever is later than that
/// isn't worth waiting for. The connection is done for then.
///
/// # Errors
/// [`ForwardError`]: that of the reply, or that it is late.
pub async fn within<T>(
    lease: Duration,
    reply: impl Future<Output = Result<T, ForwardError>>,
) -> Result<T, ForwardError> {
    let late = |_| ForwardError::Lost(upstream::Error::Late(lease));
    tokio::time::timeout(lease, reply).await.map_err(late)?
}

/// Sends `candidates` on, allowing `time` for it, not before what was `told` of the deployment's time.
///
/// # Errors
/// [`ForwardError`]: the outcome of every candidate is unknown then.
pub async fn forward(
    command: &BatchCommand<'_>,
    candidates: &[&Candidate<'_>],
    time: Duration,
    told: &Times,
    upstream: &mut Connection,
) -> Result<Part, ForwardError> {
    if !upstream.may_write() {
        return Ok(Part {
            outcomes: vec![Outcome::NotApplied(None); candidates.len()],
            body: withheld(command),
            failed: true,
        });
    }
    let body = body(command, candidates, time, told)?;
    let documents = candidates.iter().map(|candidate| &*candidate.document).collect();
    let sequence = OutSequence {
        name: b"documents",
        documents,
    };
    let draft = Draft {
        sequences: vec![sequence],
        ..Draft::of_body(&body)
    };
    let reply = upstream.request(&draft).await?;
    read(reply.body(), candidates.len(), command.ordered)
}

/// Sends the statements at `positions` of an `update` or `delete` (`list` is its batch) on as they came; gives the reply's
/// body, and whether it is `ok`.
///
/// # Errors
/// [`ForwardError`]: the outcome is unknown then.
pub async fn statements(
    command: &BatchCommand<'_>,
    list: &'static str,
    positions: std::ops::Range<usize>,
    told: &Times,
    upstream: &mut Connection,
) -> Result<(Vec<u8>, bool), ForwardError> {
    if !upstream.may_write() {
        return Ok((withheld(command), false));
    }
    let body = part_of_body(command, list, positions.clone(), told)?.finish();
    let documents = command.documents[positions]
        .iter()
        .map(|statement| statement.bytes())
        .collect();
    let sequence = OutSequence {
        name: list.as_bytes(),
        documents,
    };
    let draft = Draft {
        sequences: vec![sequence],
        ..Draft::of_body(&body)
    };
    let reply = upstream.request(&draft).await?;
    let body = reply.body();
    let is_ok = reply::is_ok(body)?;
    Ok((body.bytes().to_vec(), is_ok))
}

/// What became of one statement about one document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The document was changed, or was so already; `by_majority` if that can't be undone any more.
    Applied { by_majority: bool },
    /// No document matches.
    Missed,
    /// It wasn't changed, and won't be; `whole` if the reply is no reply to a batch.
    NotApplied { whole: bool },
    /// Nobody knows.
    InDoubt { whole: bool },
}

/// A statement that was sent, and answered.
#[derive(Debug)]
pub struct Sent {
    /// What became of it.
    pub fate: Fate,
    /// The reply's body.
    pub body: Vec<u8>,
}

/// Who is to have what a statement does before it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledged {
    /// Enough where nothing is to be done: a majority would be waited for even so.
    ByPrimary,
    /// Whatever less the client asked for.
    ByMajority,
}

/// Sends the statement at `index` on as `own` has it, under the client's own number. `time` limits it instead of the client.
///
/// # Errors
/// [`ForwardError`]: the outcome is unknown then.
pub async fn statement(
    command: &BatchCommand<'_>,
    (kind, index): (StatementKind, usize),
    own: &[u8],
    acknowledged: Acknowledged,
    time: Option<Duration>,
    told: &Times,
    upstream: &mut Connection,
) -> Result<Sent, ForwardError> {
    if !upstream.may_write() {
        return Ok(Sent {
            fate: Fate::NotApplied { whole: true },
            body: withheld(command),
        });
    }
    let (body, sequences) = match kind.list() {
        Some(list) => {
            let sequence = OutSequence {
                name: list.as_bytes(),
                documents: vec![own],
            };
            let part = part_of_body(command, list, std::iter::once(index), told)?.finish();
            (concerned(Doc::new(&part)?, acknowledged, time, told)?, vec![sequence])
        }
        None => (concerned(Doc::new(own)?, acknowledged, time, told)?, Vec::new()),
    };
    let draft = Draft {
        sequences,
        ..Draft::of_body(&body)
    };
    let reply = upstream.request(&draft).await?;
    let fate = fate(reply.body())?;
    Ok(Sent {
        fate,
        body: reply.body().bytes().to_vec(),
    })
}

/// The reply in place of the server's to what is no longer sent: others may take this Keyward for gone by now.
fn withheld(command: &BatchCommand<'_>) -> Vec<u8> {
    Refusal::outlasted(command.retry.is_some()).body(&Times::default())
}

fn fate(answer: Doc<'_>) -> Result<Fate, Malformed> {
    if !reply::is_ok(answer)? {
        let code = reply::code(answer)?.unwrap_or(0);
        return Ok(match refused_before_execution(code) || refused_document(code) {
            true => Fate::NotApplied { whole: true },
            false => Fate::InDoubt { whole: true },
        });
    }
    if let Some(error) = reply::write_errors(answer)?.first() {
        return Ok(match refused_document(error.code) {
            true => Fate::NotApplied { whole: false },
            false => Fate::InDoubt { whole: false },
        });
    }
    let counts = answer.nested("lastErrorObject")?.unwrap_or(answer);
    let matched = counts.whole_number("n")?.unwrap_or(0);
    Ok(match matched {
        0 => Fate::Missed,
        _ => Fate::Applied {
            by_majority: reply::write_concern_error(answer)?.is_none(),
        },
    })
}

/// The client's body without its documents, fit for this part.
fn body(
    command: &BatchCommand<'_>,
    candidates: &[&Candidate<'_>],
    time: Duration,
    told: &Times,
) -> Result<Vec<u8>, Malformed> {
    let positions = candidates.iter().map(|candidate| candidate.position);
    let mut body = part_of_body(command, "documents", positions, told)?;
    body.int32("maxTimeMS", milliseconds(time));
    Ok(body.finish())
}

/// The client's body without its batch `list`, of which the part at `positions` is sent beside it.
fn part_of_body(
    command: &BatchCommand<'_>,
    list: &str,
    positions: impl Iterator<Item = usize>,
    told: &Times,
) -> Result<Builder, Malformed> {
    let retry = command.retry.as_ref();
    let numbers = retry.map(|retry| {
        positions
            .map(|position| retry.operation(position).statement)
            .collect::<Vec<_>>()
    });
    // By itself the server numbers the statements of a command from zero.
    let numbers = numbers.filter(|numbers| !numbers.iter().copied().eq(0..i32::try_from(numbers.len()).unwrap_or(0)));
    let mut part = Builder::new();
    for element in command.body.elements() {
        let element = element?;
        match element.name {
            b"stmtId" | b"stmtIds" | b"$clusterTime" => {}
            name if name == list.as_bytes() => {}
            // The limit of an insert is set anew, within its lease.
            b"maxTimeMS" if list == "documents" => {}
            // The stable API doesn't know statement numbers; what it forbids otherwise is refused with other parts.
            b"apiStrict" if numbers.is_some() => {}
            // Whether a document was refused must be known, to give its keys back.
            b"writeConcern" if command.unacknowledged => {
                part.open(ElementType::EmbeddedDocument, b"writeConcern")
                    .int32("w", 1)
                    .close();
            }
            _ => {
                part.element(&element);
            }
        }
    }
    if let Some(numbers) = numbers {
        part.int32s("stmtIds", numbers);
    }
    gossip::append(told, command.body, &mut part)?;
    Ok(part)
}

/// The command, to be acknowledged so, and with `time` for its limit if there is one.
fn concerned(
    command: Doc<'_>,
    acknowledged: Acknowledged,
    time: Option<Duration>,
    told: &Times,
) -> Result<Vec<u8>, Malformed> {
    let mut with = Builder::new();
    for element in command.elements() {
        let element = element?;
        let is_replaced =
            matches!(element.name, b"writeConcern" | b"$clusterTime") || element.name == b"maxTimeMS" && time.is_some();
        if !is_replaced {
            with.element(&element);
        }
    }
    with.open(ElementType::EmbeddedDocument, b"writeConcern");
    match acknowledged {
        Acknowledged::ByPrimary => with.int32("w", 1),
        Acknowledged::ByMajority => with.string("w", b"majority"),
    };
    let own = command.nested("writeConcern")?.unwrap_or(Doc::empty());
    // A limit is the client's for what it asked for itself.
    let is_raised = own.get("w")?.is_some_and(|w| w.as_str() != Some("majority"));
    for element in own.elements() {
        let element = element?;
        if element.name != b"w" && !(is_raised && element.name == b"wtimeout") {
            with.element(&element);
        }
    }
    with.close();
    if let Some(time) = time {
        with.int32("maxTimeMS", milliseconds(time));
    }
    gossip::append(told, command, &mut with)?;
    Ok(with.finish())
}

fn milliseconds(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}

/// Reads what a reply says about each of `count` documents.
fn read(answer: Doc<'_>, count: usize, ordered: bool) -> Result<Part, ForwardError> {
    let body = answer.bytes().to_vec();
    if !reply::is_ok(answer)? {
        let outcome = match refused_before_execution(reply::code(answer)?.unwrap_or(0)) {
            true => Outcome::NotApplied(None),
            false => Outcome::InDoubt(None),
        };
        return Ok(Part {
            outcomes: vec![outcome; count],
            body,
            failed: true,
        });
    }
    let mut outcomes = vec![Outcome::Applied; count];
    for StatementError { index, code, body } in reply::write_errors(answer)? {
        let Some((index, outcome)) = index.and_then(|index| Some((index, outcomes.get_mut(index)?))) else {
            continue;
        };
        let error = Some(WriteError::from_server(body)?);
        let (is, of_the_rest) = match refused_document(code) {
            true => (Outcome::NotApplied(error), Outcome::NotApplied(None)),
            // The router names the first document only, but what it sent to that shard with it may have gone through.
            false => (Outcome::InDoubt(error), Outcome::InDoubt(None)),
        };
        *outcome = is;
        if ordered {
            outcomes[index + 1..].fill(of_the_rest);
        }
    }
    Ok(Part {
        outcomes,
        body,
        failed: false,
    })
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    fn outcomes(reply: Document, count: usize, ordered: bool) -> String {
        let bytes = reply.to_vec().unwrap();
        let part = read(Doc::new(&bytes).unwrap(), count, ordered).unwrap();
        let letter = |outcome: &Outcome| match outcome {
            Outcome::Applied => 'a',
            Outcome::NotApplied(Some(_)) => 'e',
            Outcome::NotApplied(None) => 'n',
            Outcome::InDoubt(_) | Outcome::Lost | Outcome::NotTried => '?',
        };
        part.outcomes.iter().map(letter).collect()
    }

    #[test]
    fn every_document_gets_its_outcome() {
        let failed =
            |code: i32| doc! { "n": 1, "writeErrors": [{ "index": 1, "code": code, "errmsg": "" }], "ok": 1.0 };
        assert_eq!(outcomes(doc! { "n": 2, "ok": 1.0 }, 2, true), "aa");
        assert_eq!(outcomes(failed(121), 3, true), "aen");
        assert_eq!(outcomes(failed(121), 3, false), "aea");
        // A router that lost a shard midway: what follows may have been sent along.
        assert_eq!(outcomes(failed(91), 3, true), "a??");
        assert_eq!(outcomes(failed(202), 3, false), "a?a");
        // A code that nobody has heard of proves nothing.
        assert_eq!(outcomes(failed(9_999), 1 + 1, true), "a?");
        assert_eq!(outcomes(failed(10_107), 2, true), "a?");
        assert_eq!(outcomes(failed(16_755), 2, true), "ae");
        assert_eq!(outcomes(doc! { "ok": 0.0, "code": 13 }, 2, true), "nn");
        assert_eq!(outcomes(doc! { "ok": 0.0, "code": 50 }, 2, true), "??");
        assert_eq!(outcomes(doc! { "ok": 0.0 }, 1, true), "?");
        let unacknowledged = doc! { "n": 1, "writeConcernError": { "code": 64 }, "ok": 1.0 };
        assert_eq!(outcomes(unacknowledged, 1, true), "a");
    }
}
