//! What the clients did: every operation, when it began and ended, and what its outcome says of each of its statements.
//!
//! A statement that writes a document sets the document's `writer` to a number of its own, so that what it did can be found.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::nemesis::keys::Held;

/// Milliseconds since 1970, by the clock that the servers have, too: all run on one machine.
pub type Millis = i64;

pub fn now() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// What the client was told of one statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It changed its document.
    Applied,
    /// It didn't, and won't.
    Nothing,
    /// Nobody knows.
    Unknown,
}

/// What a statement does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Leaves the document with this number as its `writer`.
    Write(i64),
    /// Removes the document; with the `writer` that the removed one had, if the client was shown it.
    Delete(Option<i64>),
}

/// One statement about the document `id`.
#[derive(Debug, Clone)]
pub struct Statement {
    pub id: i32,
    pub kind: Kind,
    pub verdict: Verdict,
}

/// A key that was refused to the document `id` because another one holds it.
#[derive(Debug, Clone)]
pub struct Duplicate {
    pub id: i32,
    pub key: Held,
}

/// How an operation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Ok,
    Duplicate,
    /// Refused for another reason, for certain.
    Failed(String),
    Unknown(String),
}

/// One call of a client's.
#[derive(Debug, Clone)]
pub struct Operation {
    #[expect(dead_code, reason = "the dump shows it")]
    pub client: usize,
    pub name: &'static str,
    pub began: Millis,
    pub ended: Millis,
    pub outcome: Outcome,
    pub statements: Vec<Statement>,
    pub duplicates: Vec<Duplicate>,
}

/// All operations of one run, as they end.
#[derive(Default)]
pub struct History {
    operations: Mutex<Vec<Operation>>,
    writers: AtomicI64,
}

impl History {
    /// A number that no other statement has.
    pub fn writer(&self) -> i64 {
        self.writers.fetch_add(1, Ordering::Relaxed)
    }

    pub fn record(&self, operation: Operation) {
        self.operations.lock().unwrap().push(operation);
    }

    pub fn operations(&self) -> Vec<Operation> {
        self.operations.lock().unwrap().clone()
    }
}
