//! Writes reservations, many in one insert, and reads the server's answer for each.
//!
//! Keyward doesn't wait for reservations that an open transaction holds up. If the server writes them later, they have the
//! same tokens, so their attempts recognise them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bson::spec::{BinarySubtype, ElementType};
use bson::{Document, RawDocument, RawDocumentBuf, Uuid};
use futures_util::future::FutureExt;
use mongodb::Database;
use tokio::time::{Instant, timeout};

use super::StoreError;
use super::expected::{ExpectedCollection, Refused, UUID_FIELD};
use super::fitting::Fitting;
use super::queue::BatchWork;
use super::sessions::Sessions;
use super::time_out::within;
use super::writing::{PATIENCE_ALONE_MS, PATIENCE_MS, each_alone};
use crate::raw::Builder;
use crate::server::code::{COLLECTION_UUID_MISMATCH, DUPLICATE_KEY};
use crate::server::driver::{
    code_of, error_code, is_time_up, says_time_up, write_concern_error, write_error_in_words, write_errors,
};

/// How long Keyward remembers that an open transaction holds up a key, since it last met that.
const REMEMBERED: Duration = Duration::from_secs(5);

/// The outcome of one reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserved {
    /// It is written, and a majority has it.
    Written,
    /// Another reservation has the key.
    Taken,
    /// No sure answer: it may or may not exist.
    Unsure,
    /// An open transaction has written under its `_id`.
    Busy,
    /// It isn't written, because the proxy collection was dropped or replaced.
    Gone,
}

/// The limits of one command: reservations and their bytes ([`bytes_replied`]). The server takes 100,000 and 48 MB.
const COMMAND_MAX: Fitting = Fitting {
    items: 20_000,
    bytes: 4 << 20,
};
/// The limits of a command that carries them once more. A reply may name a key in seven times its bytes: `undefined` takes two.
const REPEATED_MAX: Fitting = Fitting {
    bytes: 1 << 20,
    ..COMMAND_MAX
};

/// Writes reservations.
///
/// It doesn't use retryable writes. The server keeps a session busy for the number of such a write. If Keyward gave up
/// waiting for it, the next command in that session would wait instead.
#[derive(Debug, Clone)]
pub struct Reserving {
    sessions: Sessions,
    database: Database,
    collection: String,
    /// How long to wait for the answer to a command.
    limit: Duration,
    expected: ExpectedCollection,
    /// Keys that an open transaction held up, and when Keyward met that.
    busy: Arc<Mutex<HashMap<Vec<u8>, Instant>>>,
}

impl BatchWork for Reserving {
    type Item = RawDocumentBuf;
    type Answer = Reserved;

    /// While one command waits for its majority, the server has time for another. The reservations of one request are never
    /// split: if two have the same key, the first one wins.
    const AT_ONCE: usize = 2;

    fn bytes(item: &RawDocumentBuf) -> usize {
        item.as_bytes().len()
    }

    async fn run(&self, reservations: Vec<RawDocumentBuf>) -> Vec<Reserved> {
        let together = self.insert_twice(&reservations);
        tokio::pin!(together);
        // Thousands of reservations take longer even if nothing holds them up.
        let patience = Duration::from_millis(u64::from(PATIENCE_MS.unsigned_abs()).max(reservations.len() as u64));
        if let Ok(outcomes) = timeout(patience, together.as_mut()).await {
            return outcomes;
        }
        tokio::select! {
            outcomes = together => outcomes,
            outcomes = self.each_alone(&reservations) => outcomes,
        }
    }
}

impl Reserving {
    /// Writes them to the `expected` collection of this name, and waits for an answer for `limit`.
    pub fn new(
        sessions: Sessions,
        (database, collection): (Database, String),
        expected: ExpectedCollection,
        limit: Duration,
    ) -> Reserving {
        Reserving {
            sessions,
            database,
            collection,
            limit,
            expected,
            busy: Arc::default(),
        }
    }

    /// Whether an open transaction recently held up one of them: other reservations in the same command would wait for it.
    pub fn is_busy(&self, reservations: &[RawDocumentBuf]) -> bool {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        busy.retain(|_, met| met.elapsed() < REMEMBERED);
        !busy.is_empty()
            && reservations
                .iter()
                .any(|reservation| busy.contains_key(key(reservation)))
    }

    /// Writes each with a command of its own. If two have the same key, only the first one is tried.
    pub async fn each_alone(&self, reservations: &[RawDocumentBuf]) -> Vec<Reserved> {
        let mut firsts = HashMap::new();
        let mut tried = Vec::new();
        for reservation in reservations {
            firsts.entry(key(reservation)).or_insert_with(|| {
                tried.push(reservation);
                tried.len() - 1
            });
        }
        let alone = tried.into_iter().map(|one| self.alone(one).boxed()).collect();
        let outcomes = each_alone(alone, self.limit, Reserved::Unsure).await;
        let mut seen = HashSet::new();
        let outcome = |reservation: &RawDocumentBuf| match (outcomes[firsts[key(reservation)]], key(reservation)) {
            (Reserved::Written, key) if !seen.insert(key.to_vec()) => Reserved::Taken,
            (outcome, _) => outcome,
        };
        reservations.iter().map(outcome).collect()
    }

    async fn alone(&self, reservation: &RawDocumentBuf) -> Reserved {
        let outcome = self.insert(&[reservation], COMMAND_MAX, Some(PATIENCE_ALONE_MS)).await[0];
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Reserved::Busy => busy.insert(key(reservation).to_vec(), Instant::now()),
            _ => busy.remove(key(reservation)),
        };
        outcome
    }

    /// Inserts them, and once more those of unknown outcome, as when a primary steps down. A server also closes the connection if its reply
    /// would be too large.
    ///
    /// Reservations that exist by then have the same token, so their attempts recognise them.
    async fn insert_twice(&self, reservations: &[RawDocumentBuf]) -> Vec<Reserved> {
        let all: Vec<&RawDocumentBuf> = reservations.iter().collect();
        let mut outcomes = self.insert(&all, COMMAND_MAX, None).await;
        let unsure: Vec<usize> = (0..outcomes.len())
            .filter(|index| outcomes[*index] == Reserved::Unsure)
            .collect();
        if !unsure.is_empty() {
            let again: Vec<&RawDocumentBuf> = unsure.iter().map(|index| all[*index]).collect();
            for (index, outcome) in unsure.into_iter().zip(self.insert(&again, REPEATED_MAX, None).await) {
                outcomes[index] = outcome;
            }
        }
        outcomes
    }

    /// Inserts them in order, with as many commands as they need, each of which has the limits of `most` and may take `max_ms`.
    async fn insert(&self, reservations: &[&RawDocumentBuf], most: Fitting, max_ms: Option<i32>) -> Vec<Reserved> {
        let mut outcomes = Vec::with_capacity(reservations.len());
        for part in most.parts(reservations, |reservation| bytes_replied(reservation)) {
            let count = part.len();
            let name = self.expected.name();
            let mut reply = self.run_command(self.command(part, name.as_deref(), max_ms)).await;
            if name.is_some() && self.expected.note_reply(&reply) == Refused::Unnameable {
                reply = self.run_command(self.command(part, None, max_ms)).await;
            }
            let outcomes_of_command = reply
                .map_err(|error| unanswered(&error, count))
                .and_then(|reply| outcomes_of(&reply, count).ok_or(Reserved::Unsure));
            outcomes.extend(outcomes_of_command.unwrap_or_else(|all| vec![all; count]));
        }
        outcomes
    }

    async fn run_command(&self, command: RawDocumentBuf) -> Result<Document, StoreError> {
        within(self.limit, self.sessions.run(&self.database, command)).await
    }

    /// The command that inserts them into the collection with this uuid, which may take `max_ms`.
    fn command(&self, reservations: &[&RawDocumentBuf], uuid: Option<&Uuid>, max_ms: Option<i32>) -> RawDocumentBuf {
        let mut command = Builder::new();
        command
            .string("insert", self.collection.as_bytes())
            .documents(
                "documents",
                reservations.iter().map(|reservation| reservation.as_bytes()),
            )
            .boolean("ordered", false)
            .open(ElementType::EmbeddedDocument, b"writeConcern")
            .string("w", b"majority")
            .close();
        if let Some(uuid) = uuid {
            command.binary(UUID_FIELD.as_bytes(), BinarySubtype::Uuid, &uuid.bytes());
        }
        if let Some(max_ms) = max_ms {
            command.int32("maxTimeMS", max_ms);
        }
        RawDocumentBuf::from_bytes(command.finish()).expect("the builder made a document")
    }
}

/// About how many bytes the server's reply takes that another reservation has the key. It has the key's values whole.
fn bytes_replied(reservation: &RawDocument) -> usize {
    reservation.as_bytes().len() + 512
}

/// The bytes of a reservation's `_id`.
fn key(reservation: &RawDocument) -> &[u8] {
    reservation
        .get_document("_id")
        .map(RawDocument::as_bytes)
        .unwrap_or_default()
}

/// The outcome of each reservation if its command failed as a whole.
fn unanswered(error: &StoreError, count: usize) -> Reserved {
    if let StoreError::Driver(error) = error {
        match code_of(error) {
            _ if is_time_up(error) => return Reserved::Busy,
            Some(COLLECTION_UUID_MISMATCH) => return Reserved::Gone,
            _ => {}
        }
    }
    tracing::warn!(%error, count, "reservations were not answered for");
    Reserved::Unsure
}

/// The outcome of each reservation by a reply; `None` if the reply doesn't have the expected form.
fn outcomes_of(reply: &Document, count: usize) -> Option<Vec<Reserved>> {
    let written = match write_concern_error(reply) {
        // The transaction ended just before the time did.
        Some(error) if says_time_up(error) => Reserved::Busy,
        Some(error) => {
            let error = write_error_in_words(error);
            tracing::warn!(error, count, "reservations were not acknowledged by a majority");
            Reserved::Unsure
        }
        None => Reserved::Written,
    };
    let mut outcomes = vec![written; count];
    let Some(errors) = write_errors(reply) else {
        return Some(outcomes);
    };
    for error in errors {
        let error = error.as_document()?;
        let index = usize::try_from(error.get_i32("index").ok()?).ok()?;
        *outcomes.get_mut(index)? = match error_code(error)? {
            DUPLICATE_KEY => Reserved::Taken,
            COLLECTION_UUID_MISMATCH => Reserved::Gone,
            _ if says_time_up(error) => Reserved::Busy,
            _ => {
                let error = write_error_in_words(error);
                tracing::warn!(error, "a reservation was refused");
                Reserved::Unsure
            }
        };
    }
    Some(outcomes)
}
