//! Natural batching: the reservations that arrive while one `insert` is under way travel together in the next.
//!
//! One task a proxy collection owns the queue, so nothing waits for a timer, and at one client an insert leaves at once.
//! Order is kept: of two reservations of one key in the queue the first one wins.

use bson::RawDocumentBuf;
use mongodb::{Collection, error::ErrorKind};
use tokio::sync::{mpsc, oneshot};

use super::StoreError;

/// What became of one reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserved {
    /// It is written, majority.
    Written,
    /// Another reservation has the key.
    Taken,
    /// No sure answer: it may or may not be there.
    Unsure,
}

/// At most so many reservations in one insert: keeps the server's work per command, and so the wait of the next, short.
const BATCH: usize = 1_000;
/// At most so many bytes in one insert, far below the 48 MB of a message.
const BATCH_BYTES: usize = 16 << 20;
/// The server's code for a duplicate key.
const DUPLICATE_KEY: i32 = 11_000;

struct Request {
    reservations: Vec<RawDocumentBuf>,
    answer: oneshot::Sender<Vec<Reserved>>,
}

impl Request {
    fn bytes(&self) -> usize {
        self.reservations
            .iter()
            .map(|reservation| reservation.as_bytes().len())
            .sum()
    }
}

/// The way into one proxy collection's queue.
#[derive(Debug, Clone)]
pub struct Queue {
    sender: mpsc::UnboundedSender<Request>,
}

impl Queue {
    /// Starts the task that empties the queue into `collection`; it ends when the last `Queue` is dropped.
    pub fn start(collection: Collection<RawDocumentBuf>) -> Queue {
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(run(collection, receiver));
        Queue { sender }
    }

    /// Inserts `reservations`; gives each one's outcome, in order.
    ///
    /// # Errors
    /// [`StoreError::Closed`] if the process is shutting down; nothing is known about the reservations then.
    pub async fn reserve(&self, reservations: Vec<RawDocumentBuf>) -> Result<Vec<Reserved>, StoreError> {
        let (answer, outcome) = oneshot::channel();
        self.sender
            .send(Request { reservations, answer })
            .map_err(|_| StoreError::Closed)?;
        outcome.await.map_err(|_| StoreError::Closed)
    }
}

async fn run(collection: Collection<RawDocumentBuf>, mut receiver: mpsc::UnboundedReceiver<Request>) {
    while let Some(first) = receiver.recv().await {
        let mut bytes = first.bytes();
        let mut count = first.reservations.len();
        let mut requests = vec![first];
        while count < BATCH && bytes < BATCH_BYTES {
            let Ok(next) = receiver.try_recv() else { break };
            bytes += next.bytes();
            count += next.reservations.len();
            requests.push(next);
        }
        serve(&collection, requests).await;
    }
}

/// Writes one batch and tells each request its part of the outcome.
async fn serve(collection: &Collection<RawDocumentBuf>, requests: Vec<Request>) {
    let mut batch = Vec::new();
    let mut waiting = Vec::with_capacity(requests.len());
    for request in requests {
        waiting.push((request.reservations.len(), request.answer));
        batch.extend(request.reservations);
    }
    let result = collection.insert_many(&batch).ordered(false).await;
    let mut outcomes = outcomes(batch.len(), result.err()).into_iter();
    for (count, answer) in waiting {
        // Whoever asked may have gone; its reservations then wait for their lease.
        let _ = answer.send(outcomes.by_ref().take(count).collect());
    }
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
