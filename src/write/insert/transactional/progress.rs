//! The bookkeeping of documents that go in by transactions: which are there, which were refused, which to try next.

use crate::raw::{Builder, Doc, Malformed};
use crate::reply::WriteError;
use crate::write::insert::part::{DocumentOutcome, Part};
use crate::write::outcome::Outcome;

/// How far the documents of a call have come, transaction by transaction. A document that is refused takes the whole
/// transaction with it: what stands before it goes in by one of its own then, and what stands behind it by the next.
pub struct Progress {
    outcomes: Vec<Option<DocumentOutcome>>,
    /// Those that are left, in order.
    left: Vec<usize>,
    /// How many of them to try next.
    most: usize,
    /// The error of the first one that isn't tried next.
    behind: Option<WriteError>,
    n: usize,
    retried: Vec<i32>,
    last: Option<Vec<u8>>,
    failed: Option<Vec<u8>>,
    has_ended: bool,
    has_moved: bool,
}

impl Progress {
    /// Of `count` documents, none of which has been tried.
    pub fn new(count: usize) -> Self {
        Progress {
            outcomes: vec![None; count],
            left: (0..count).collect(),
            most: count,
            behind: None,
            n: 0,
            retried: Vec::new(),
            last: None,
            failed: None,
            has_ended: false,
            has_moved: false,
        }
    }

    /// Those to try next, by their positions; `None` once all have been.
    pub fn next(&mut self) -> Option<&[usize]> {
        self.has_moved = false;
        (!self.left.is_empty()).then(|| &self.left[..self.most])
    }

    /// Whether nothing more is to be tried.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether the last try brought anything about.
    pub fn has_moved(&self) -> bool {
        self.has_moved
    }

    fn moved(&mut self) {
        self.most = self.left.len();
        self.has_moved = true;
    }

    /// Those tried are there, says the server's `reply`.
    pub fn committed(&mut self, reply: Vec<u8>, ordered: bool) {
        self.n += self.most;
        for index in self.left.drain(..self.most) {
            self.outcomes[index] = Some(Outcome::Applied);
        }
        self.last = Some(reply);
        self.moved();
        if let Some(error) = self.behind.take() {
            self.refused(0, error, ordered);
        }
    }

    /// Those are there for which there is a statement that took effect in an earlier try of the command.
    pub fn done_before(&mut self, statement: impl Fn(&usize) -> Option<i32>) {
        let (outcomes, retried, n) = (&mut self.outcomes, &mut self.retried, &mut self.n);
        self.left.retain(|index| match statement(index) {
            Some(statement) => {
                outcomes[*index] = Some(Outcome::Applied);
                retried.push(statement);
                *n += 1;
                false
            }
            None => true,
        });
        self.behind = None;
        self.moved();
    }

    /// The one at `index` of those tried was refused, and nothing done.
    pub fn refused(&mut self, index: usize, error: WriteError, ordered: bool) {
        if index > 0 {
            self.most = index.min(self.left.len());
            self.behind = Some(error);
            self.has_moved = true;
            return;
        }
        let first = self.left.remove(0);
        self.outcomes[first] = Some(Outcome::NotApplied(Some(error)));
        self.moved();
        if ordered {
            self.end();
        }
    }

    /// These of those tried have lost a key, and nothing was done.
    pub fn lost(&mut self, lost: &[usize]) {
        for index in lost {
            self.outcomes[self.left[*index]] = Some(Outcome::Superseded);
        }
        self.has_ended = true;
    }

    /// Nothing more will be done; `body` is the client's reply.
    pub fn fail(&mut self, body: Vec<u8>) {
        self.end();
        self.failed = Some(body);
    }

    /// Nobody knows whether those tried are there.
    pub fn in_doubt(&mut self, body: Vec<u8>) {
        for index in self.left.drain(..self.most) {
            self.outcomes[index] = Some(Outcome::InDoubt(None));
        }
        self.fail(body);
    }

    fn end(&mut self) {
        for index in self.left.drain(..) {
            self.outcomes[index] = Some(Outcome::NotApplied(None));
        }
        self.has_ended = true;
    }

    /// All outcomes, with the reply that the server would have given.
    ///
    /// # Errors
    /// [`Malformed`] if a reply isn't BSON.
    pub fn into_part(self) -> Result<Part, Malformed> {
        if let Some(body) = self.failed {
            return Ok(Part {
                outcomes: self.outcomes,
                body,
                failed: true,
            });
        }
        let mut body = Builder::new();
        body.int32("n", i32::try_from(self.n).unwrap_or(i32::MAX));
        for element in Doc::new(self.last.as_deref().unwrap_or(Doc::empty().bytes()))?.elements() {
            let element = element?;
            if element.name != b"n" {
                body.element(&element);
            }
        }
        if !self.retried.is_empty() {
            body.int32s("retriedStmtIds", self.retried);
        }
        Ok(Part {
            outcomes: self.outcomes,
            body: body.finish(),
            failed: false,
        })
    }
}
