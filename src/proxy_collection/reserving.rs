//! Reservations written, many in one insert: what the server says of each.
//!
//! Where a transaction that is open has written in the place of one of them, the server lets the insert wait until that
//! transaction ends, which may take a minute if nobody goes on with it. The others aren't to wait for that: an insert that
//! takes long is not waited for, each of its reservations is tried alone, and those that still wait are let be. What the
//! server writes of it later it writes under the same tokens, so it is known as what it is.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bson::RawDocumentBuf;
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{self, StreamExt};
use mongodb::{Collection, error::ErrorKind};
use tokio::time::{Instant, timeout};

use super::queue::Work;

/// So long an insert of many is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// So long an insert of one is waited for that has waited before.
const PATIENCE_ALONE: Duration = Duration::from_millis(500);
/// So many are tried alone at a time.
const ALONE_AT_ONCE: usize = 32;
/// How long a key is known to be in an open transaction's hands after it was met last.
const REMEMBERED: Duration = Duration::from_secs(5);

/// What became of one reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserved {
    /// It is written, majority.
    Written,
    /// Another reservation has the key.
    Taken,
    /// No sure answer: it may or may not be there.
    Unsure,
    /// A transaction that is still open has written in its place.
    Busy,
}

/// The server's code for a duplicate key.
const DUPLICATE_KEY: i32 = 11_000;

/// Writes reservations.
#[derive(Debug, Clone)]
pub struct Reserving {
    reservations: Collection<RawDocumentBuf>,
    /// Keys that an open transaction was met at, and when.
    busy: Arc<Mutex<HashMap<Vec<u8>, Instant>>>,
}

impl Work for Reserving {
    type Item = RawDocumentBuf;
    type Answer = Reserved;

    /// While one waits for its majority the server has time for another. What one client asks for at once is never split:
    /// of two of its reservations of one key the first one wins.
    const AT_ONCE: usize = 2;

    fn bytes(item: &RawDocumentBuf) -> usize {
        item.as_bytes().len()
    }

    async fn run(&self, reservations: Vec<RawDocumentBuf>) -> Vec<Reserved> {
        let insert = async {
            let result = self.reservations.insert_many(&reservations).ordered(false).await;
            outcomes(reservations.len(), result.err())
        };
        tokio::pin!(insert);
        if let Ok(outcomes) = timeout(PATIENCE, insert.as_mut()).await {
            return outcomes;
        }
        tokio::select! {
            outcomes = insert => outcomes,
            outcomes = self.each_alone(&reservations) => outcomes,
        }
    }
}

impl Reserving {
    pub fn new(reservations: Collection<RawDocumentBuf>) -> Reserving {
        Reserving {
            reservations,
            busy: Arc::default(),
        }
    }

    /// Whether an open transaction was met lately at one of them: who travels with it would wait for it.
    pub fn is_busy(&self, reservations: &[RawDocumentBuf]) -> bool {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        busy.retain(|_, met| met.elapsed() < REMEMBERED);
        !busy.is_empty()
            && reservations
                .iter()
                .any(|reservation| busy.contains_key(key(reservation)))
    }

    /// Writes each by a command of its own. Of two of one key the first one is tried.
    pub async fn each_alone(&self, reservations: &[RawDocumentBuf]) -> Vec<Reserved> {
        let mut firsts = HashMap::new();
        let mut tried = Vec::new();
        for reservation in reservations {
            firsts.entry(key(reservation)).or_insert_with(|| {
                tried.push(reservation);
                tried.len() - 1
            });
        }
        let tries: Vec<BoxFuture<'_, Reserved>> = tried.into_iter().map(|one| self.alone(one).boxed()).collect();
        let outcomes: Vec<Reserved> = stream::iter(tries).buffered(ALONE_AT_ONCE).collect().await;
        let mut seen = HashSet::new();
        let outcome = |reservation: &RawDocumentBuf| match (outcomes[firsts[key(reservation)]], key(reservation)) {
            (Reserved::Written, key) if !seen.insert(key.to_vec()) => Reserved::Taken,
            (outcome, _) => outcome,
        };
        reservations.iter().map(outcome).collect()
    }

    async fn alone(&self, reservation: &RawDocumentBuf) -> Reserved {
        let insert = self.reservations.insert_many([reservation]).ordered(false);
        let outcome = match timeout(PATIENCE_ALONE, insert.into_future()).await {
            Ok(result) => outcomes(1, result.err())[0],
            Err(_) => Reserved::Busy,
        };
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Reserved::Busy => busy.insert(key(reservation).to_vec(), Instant::now()),
            _ => busy.remove(key(reservation)),
        };
        outcome
    }
}

/// The bytes of a reservation's `_id`.
fn key(reservation: &RawDocumentBuf) -> &[u8] {
    reservation
        .get_document("_id")
        .map(|id| id.as_bytes())
        .unwrap_or_default()
}

fn outcomes(count: usize, error: Option<mongodb::error::Error>) -> Vec<Reserved> {
    let Some(error) = error else {
        return vec![Reserved::Written; count];
    };
    let ErrorKind::InsertMany(partial) = error.kind.as_ref() else {
        tracing::warn!(%error, count, "reservations were not answered for");
        return vec![Reserved::Unsure; count];
    };
    let written = match &partial.write_concern_error {
        Some(error) => {
            tracing::warn!(
                code = error.code,
                count,
                "reservations were not acknowledged by a majority"
            );
            Reserved::Unsure
        }
        None => Reserved::Written,
    };
    let mut outcomes = vec![written; count];
    for error in partial.write_errors.iter().flatten() {
        outcomes[error.index] = match error.code {
            DUPLICATE_KEY => Reserved::Taken,
            code => {
                tracing::warn!(code, "a reservation was refused");
                Reserved::Unsure
            }
        };
    }
    outcomes
}
