//! Tracks documents that are inserted by transactions: the inserted ones, the refused ones, and the ones to try next.

use crate::raw::{Builder, Doc, Malformed};
use crate::reply::{ConcernError, WriteError};
use crate::server::reply::append_retried;
use crate::write::insert::sent_documents::{DocumentOutcome, SentDocuments};

/// A try after a commit has at most this many times more documents. After a refusal it has at most this many times fewer, or twice as many as
/// came before the refused one. Otherwise a command whose documents are all refused would send each of them again for each one before it.
const STEP: usize = 4;

/// The progress of a call's documents, transaction by transaction. If the server refuses a document, the whole transaction has
/// no effect. Then one transaction inserts the documents before it, and the next one those after it.
pub struct InsertProgress {
    outcomes: Vec<DocumentOutcome>,
    /// The documents that are left, in order.
    left: Vec<usize>,
    /// How many of them to try next.
    most: usize,
    /// How many to try at most after this try.
    most_after: usize,
    /// The error of the first document that isn't tried next.
    behind: Option<WriteError>,
    n: usize,
    retried: Vec<i32>,
    last: Option<Vec<u8>>,
    /// Of all commits.
    concern_error: ConcernError,
    failed: Option<Vec<u8>>,
    has_ended: bool,
    has_moved: bool,
}

impl InsertProgress {
    /// Starts with `count` documents, none of which has been tried.
    pub fn new(count: usize) -> Self {
        InsertProgress {
            outcomes: vec![DocumentOutcome::Untried; count],
            left: (0..count).collect(),
            most: count,
            most_after: count,
            behind: None,
            n: 0,
            retried: Vec::new(),
            last: None,
            concern_error: ConcernError::default(),
            failed: None,
            has_ended: false,
            has_moved: false,
        }
    }

    /// The positions of the documents to try next; `None` once all have been tried.
    pub fn next(&mut self) -> Option<&[usize]> {
        self.has_moved = false;
        (!self.left.is_empty()).then(|| &self.left[..self.most])
    }

    /// Whether no further try follows.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether the last try changed the progress.
    pub fn has_moved(&self) -> bool {
        self.has_moved
    }

    fn moved(&mut self) {
        self.most = self.left.len().min(self.most_after);
        self.has_moved = true;
    }

    /// Notes that the tried documents are inserted, according to the server's `reply`.
    pub fn committed(&mut self, reply: Vec<u8>, ordered: bool) -> Result<(), Malformed> {
        self.n += self.most;
        for index in self.left.drain(..self.most) {
            self.outcomes[index] = DocumentOutcome::Applied;
        }
        self.concern_error.take_from(Doc::new(&reply)?)?;
        self.last = Some(reply);
        match self.behind.take() {
            Some(error) => self.refuse_first(error, ordered),
            None => {
                self.most_after = self.most.saturating_mul(STEP);
                self.moved();
            }
        }
        Ok(())
    }

    /// Notes the documents whose statements took effect in an earlier try of the command.
    pub fn done_before(&mut self, statement: impl Fn(&usize) -> Option<i32>) {
        let (outcomes, retried, n) = (&mut self.outcomes, &mut self.retried, &mut self.n);
        self.left.retain(|index| match statement(index) {
            Some(statement) => {
                outcomes[*index] = DocumentOutcome::Applied;
                retried.push(statement);
                *n += 1;
                false
            }
            None => true,
        });
        self.behind = None;
        self.moved();
    }

    /// Notes that the server refused the tried document at `index`, and that the try had no effect.
    pub fn refused(&mut self, index: usize, error: WriteError, ordered: bool) {
        // As many as came before this one may come before the next one, too.
        self.most_after = (self.most / STEP).max(2 * index).max(1);
        if index == 0 {
            return self.refuse_first(error, ordered);
        }
        self.most = index.min(self.left.len());
        self.behind = Some(error);
        self.has_moved = true;
    }

    fn refuse_first(&mut self, error: WriteError, ordered: bool) {
        let first = self.left.remove(0);
        self.outcomes[first] = DocumentOutcome::NotApplied(Some(error));
        // The error was found before this refusal, and may no longer hold: another client can have removed its cause.
        self.behind = None;
        self.moved();
        if ordered {
            self.end();
        }
    }

    /// Notes that these tried documents have lost a key, and that the try had no effect.
    pub fn superseded(&mut self, superseded: &[usize]) {
        for index in superseded {
            self.outcomes[self.left[*index]] = DocumentOutcome::Superseded;
        }
        self.has_ended = true;
    }

    /// Ends the tries; `body` is the client's reply.
    pub fn fail(&mut self, body: Vec<u8>) {
        self.end();
        self.failed = Some(body);
    }

    /// Notes that the outcome of the tried documents is unknown.
    pub fn in_doubt(&mut self, body: Vec<u8>) {
        for index in self.left.drain(..self.most) {
            self.outcomes[index] = DocumentOutcome::InDoubt(None);
        }
        self.fail(body);
    }

    fn end(&mut self) {
        for index in self.left.drain(..) {
            self.outcomes[index] = DocumentOutcome::NotApplied(None);
        }
        self.has_ended = true;
    }

    /// All outcomes, with the reply that the server would have given to the transactions that took effect.
    pub fn into_sent(self) -> Result<SentDocuments, Malformed> {
        let reply = match self.failed.is_some() && self.n == 0 {
            true => None,
            false => Some(self.reply()?),
        };
        Ok(SentDocuments {
            outcomes: self.outcomes,
            reply,
            failed: self.failed,
            refusal: None,
        })
    }

    fn reply(&self) -> Result<Vec<u8>, Malformed> {
        let mut body = Builder::new();
        body.int32("n", i32::try_from(self.n).unwrap_or(i32::MAX));
        let last = Doc::new(self.last.as_deref().unwrap_or(Doc::empty().bytes()))?;
        let is_composed = |name: &[u8]| matches!(name, b"n" | b"writeConcernError" | b"errorLabels");
        body.elements_where(last, |element| !is_composed(element.name))?;
        self.concern_error.append_to(&mut body)?;
        append_retried(&mut body, &self.retried);
        Ok(body.finish())
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;
    use proptest::prelude::*;

    use super::*;

    const DOCUMENTS: usize = 6;

    fn error() -> WriteError {
        let error = rawdoc! { "index": 0, "code": 11_000, "errmsg": "E11000" };
        WriteError::from_server(Doc::new(error.as_bytes()).unwrap()).unwrap()
    }

    /// Tries the documents until each has its outcome. In each try the server refuses the first document that is in `refused`.
    fn run(refused: &[[bool; DOCUMENTS]], ordered: bool) -> SentDocuments {
        let mut progress = InsertProgress::new(DOCUMENTS);
        let mut tries = refused.iter();
        while let Some(these) = progress.next() {
            let now = tries.next().copied().unwrap_or_default();
            match these.iter().position(|document| now[*document]) {
                Some(index) => progress.refused(index, error(), ordered),
                None => progress
                    .committed(rawdoc! { "n": 1, "ok": 1.0 }.into_bytes(), ordered)
                    .unwrap(),
            }
            assert!(progress.has_moved() || progress.has_ended());
        }
        progress.into_sent().unwrap()
    }

    #[test]
    fn an_error_counts_no_longer_once_a_document_before_it_is_refused() {
        let (mut second, mut first) = ([false; DOCUMENTS], [false; DOCUMENTS]);
        (second[1], first[0]) = (true, true);
        let sent = run(&[second, first], false);
        assert!(matches!(sent.outcomes[0], DocumentOutcome::NotApplied(Some(_))));
        assert!(
            sent.outcomes[1..]
                .iter()
                .all(|outcome| matches!(outcome, DocumentOutcome::Applied))
        );
    }

    #[test]
    fn a_late_commit_is_reported_though_another_one_follows() {
        let mut progress = InsertProgress::new(3);
        progress.refused(1, error(), false);
        let late = rawdoc! { "code": 64, "errmsg": "waiting for replication timed out" };
        let committed = rawdoc! { "n": 1, "writeConcernError": late.clone(), "ok": 1.0 };
        progress.committed(committed.into_bytes(), false).unwrap();
        let committed = rawdoc! { "n": 1, "ok": 1.0 };
        progress.committed(committed.into_bytes(), false).unwrap();
        let sent = progress.into_sent().unwrap();
        let reply = sent.reply.unwrap();
        let reply = Doc::new(&reply).unwrap();
        assert_eq!(reply.whole_number("n").unwrap(), Some(2));
        let error = reply.nested("writeConcernError").unwrap().unwrap();
        assert_eq!(error.bytes(), late.as_bytes());
    }

    #[test]
    fn what_was_inserted_before_a_failure_has_a_reply() {
        let failed = rawdoc! { "ok": 0.0, "code": 8 }.into_bytes();
        for refused_first in [0, 1] {
            let mut progress = InsertProgress::new(3);
            progress.refused(refused_first, error(), false);
            if refused_first > 0 {
                let committed = rawdoc! { "n": 1, "ok": 1.0 };
                progress.committed(committed.into_bytes(), false).unwrap();
            }
            progress.fail(failed.clone());
            let sent = progress.into_sent().unwrap();
            let n = sent
                .reply
                .map(|reply| Doc::new(&reply).unwrap().whole_number("n").unwrap());
            assert_eq!(n, (refused_first > 0).then_some(Some(1)));
            assert_eq!(sent.failed, Some(failed.clone()));
        }
    }

    proptest! {
        #[test]
        fn no_document_is_tried_again_for_each_one_that_is_refused(refused in prop::collection::vec(any::<bool>(), 1..400)) {
            let mut progress = InsertProgress::new(refused.len());
            let mut tried = 0;
            while let Some(these) = progress.next() {
                tried += these.len();
                match these.iter().position(|document| refused[*document]) {
                    Some(index) => progress.refused(index, error(), false),
                    None => progress.committed(rawdoc! { "n": 1, "ok": 1.0 }.into_bytes(), false).unwrap(),
                }
            }
            prop_assert!(tried <= 10 * refused.len(), "{tried} of {}", refused.len());
        }

        #[test]
        fn every_document_has_one_outcome_whatever_changes_between_tries(
            refused in prop::collection::vec(any::<[bool; DOCUMENTS]>(), 0..12),
            ordered: bool,
        ) {
            let sent = run(&refused, ordered);
            let applied = sent.outcomes.iter().filter(|outcome| matches!(outcome, DocumentOutcome::Applied)).count();
            prop_assert_eq!(Doc::new(sent.reply.as_ref().unwrap()).unwrap().whole_number("n").unwrap(), Some(applied as i64));
            for (document, outcome) in sent.outcomes.iter().enumerate() {
                let was_refused = refused.iter().any(|now| now[document]);
                match outcome {
                    DocumentOutcome::Applied => {}
                    DocumentOutcome::NotApplied(Some(_)) => prop_assert!(was_refused),
                    // Only an ordered command stops at its first error.
                    DocumentOutcome::NotApplied(None) => prop_assert!(ordered),
                    _ => prop_assert!(false, "{document} has no outcome"),
                }
            }
        }
    }
}
