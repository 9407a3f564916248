//! Inserts documents on the client's connection within the lease of their keys, if they have any.
//!
//! Keyward forwards them in the client's command ([`crate::write::forward`]), with a time limit below the rest of the lease
//! ([`crate::write::lease_left`]). The reply gives the outcome of each.

use std::time::Duration;

use super::sent_documents::{DocumentOutcome, SentDocuments};
use crate::claims::Candidate;
use crate::raw::Doc;
use crate::reply::{Times, WriteError, WriteRefusal};
use crate::server::definite::{refused_before_execution, refused_document};
use crate::server::reply::{self, StatementError};
use crate::wire::Draft;
use crate::write::client_body::{self, NewFields};
use crate::write::forward::reply_within;
use crate::write::forward_error::ForwardError;
use crate::write::operation::WriteOp;

/// Inserts `ready`, whose keys are held. It must end within their `lease`, which counts from when the first of them was reserved.
///
/// # Errors
/// [`ForwardError`]: the outcome of every candidate is unknown then.
pub async fn insert(
    op: &mut WriteOp<'_>,
    ready: &[&Candidate<'_>],
    lease: Duration,
) -> Result<SentDocuments, ForwardError> {
    WriteOp::assert_held(ready.iter().copied());
    let oldest = ready.iter().filter_map(|candidate| candidate.since).min();
    let left = op.lease_left(lease, oldest);
    let bytes = ready.iter().map(|candidate| candidate.document.len()).sum();
    let Some(time) = left.time_to_write(bytes, op.client_deadline) else {
        return Ok(SentDocuments::refused(
            WriteRefusal::TimeLimit,
            &op.protected.times(),
            ready.len(),
        ));
    };
    if !op.upstream.is_permitted_to_write() {
        let refusal = WriteRefusal::outlasted(op.is_retryable());
        return Ok(SentDocuments::refused(refusal, &Times::default(), ready.len()));
    }
    let positions = ready.iter().map(|candidate| candidate.position);
    let new = NewFields {
        acknowledged: None,
        time: Some(time.limit),
        times: &op.reservation_times(),
    };
    let body = client_body::of_part(op.command, "documents", positions, &new)?;
    let documents = ready.iter().map(|candidate| &*candidate.document);
    let draft = Draft::with_documents(&body, "documents", documents);
    reply_within(lease, async {
        let reply = op.upstream.request_within(&draft, time.sending).await?;
        read(reply.body(), ready.len(), op.command.ordered)
    })
    .await
}

/// Reads the outcomes of `count` documents from a reply.
fn read(answer: Doc<'_>, count: usize, ordered: bool) -> Result<SentDocuments, ForwardError> {
    let body = answer.bytes().to_vec();
    if !reply::is_ok(answer)? {
        let outcome = match refused_before_execution(reply::code(answer)?.unwrap_or(0)) {
            true => DocumentOutcome::NotApplied(None),
            false => DocumentOutcome::InDoubt(None),
        };
        return Ok(SentDocuments {
            outcomes: vec![outcome; count],
            reply: None,
            failed: Some(body),
            refusal: None,
        });
    }
    let mut outcomes: Vec<DocumentOutcome> = vec![DocumentOutcome::Applied; count];
    for StatementError { index, code, body } in reply::write_errors(answer)? {
        let Some((index, outcome)) = index.and_then(|index| Some((index, outcomes.get_mut(index)?))) else {
            continue;
        };
        let error = Some(WriteError::from_server(body)?);
        let (is, of_the_rest) = match refused_document(code) {
            true => (DocumentOutcome::NotApplied(error), DocumentOutcome::NotApplied(None)),
            // The router names the first document only. But it may have sent later documents to that shard with the first, and
            // they may have taken effect.
            false => (DocumentOutcome::InDoubt(error), DocumentOutcome::InDoubt(None)),
        };
        *outcome = is;
        if ordered {
            outcomes[index + 1..].fill(of_the_rest);
        }
    }
    Ok(SentDocuments {
        outcomes,
        reply: Some(body),
        failed: None,
        refusal: None,
    })
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    fn outcomes(reply: Document, count: usize, ordered: bool) -> String {
        let bytes = reply.to_vec().unwrap();
        let sent = read(Doc::new(&bytes).unwrap(), count, ordered).unwrap();
        let letter = |outcome: &DocumentOutcome| match outcome {
            DocumentOutcome::Applied => 'a',
            DocumentOutcome::NotApplied(Some(_)) => 'e',
            DocumentOutcome::NotApplied(None) => 'n',
            DocumentOutcome::InDoubt(_) => '?',
            other => panic!("{other:?}"),
        };
        sent.outcomes.iter().map(letter).collect()
    }

    #[test]
    fn every_document_gets_its_outcome() {
        let failed =
            |code: i32| doc! { "n": 1, "writeErrors": [{ "index": 1, "code": code, "errmsg": "" }], "ok": 1.0 };
        assert_eq!(outcomes(doc! { "n": 2, "ok": 1.0 }, 2, true), "aa");
        assert_eq!(outcomes(failed(121), 3, true), "aen");
        assert_eq!(outcomes(failed(121), 3, false), "aea");
        // A router that lost a shard midway may have sent the later documents along.
        assert_eq!(outcomes(failed(91), 3, true), "a??");
        assert_eq!(outcomes(failed(202), 3, false), "a?a");
        // An unknown code proves nothing.
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
