//! Reservations written, many in one insert: what the server says of each.

use bson::RawDocumentBuf;
use mongodb::{Collection, error::ErrorKind};

use super::queue::Work;

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

/// The server's code for a duplicate key.
const DUPLICATE_KEY: i32 = 11_000;

/// Writes reservations.
#[derive(Debug)]
pub struct Reserving(pub Collection<RawDocumentBuf>);

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
        let result = self.0.insert_many(&reservations).ordered(false).await;
        outcomes(reservations.len(), result.err())
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
