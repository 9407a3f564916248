//! Notices that a proxy collection was dropped or replaced past Keyward. Each insert of reservations names the uuid of the collection that
//! it is meant for, and the server refuses it for any other: it would find no key taken there.
//!
//! A transaction of a client with `apiStrict`, or of Keyward's for its statement, is an exception: the field isn't part of the stable API.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use bson::{Bson, Document, Uuid};

use super::StoreError;
use crate::server::code::{COLLECTION_UUID_MISMATCH, INVALID_OPTIONS};
use crate::server::driver::{code_of, error_code, write_errors};

/// The field of a command that names the uuid.
pub(super) const UUID_FIELD: &str = "collectionUUID";
/// How long no command names a uuid after the server has refused to take one.
const AFTER_REFUSAL: Duration = Duration::from_secs(60);

/// The collection in the cluster that reservations are meant for, and whether it is still there. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct ExpectedCollection(Arc<Expected>);

#[derive(Debug, Default)]
struct Expected {
    uuid: ArcSwapOption<Uuid>,
    is_gone: AtomicBool,
    is_reported: AtomicBool,
    /// When the server last refused to take a uuid: its feature compatibility version is older than 6.0.
    unnameable_at: ArcSwapOption<Instant>,
}

impl ExpectedCollection {
    /// Expects the collection with this uuid; any if that isn't known.
    pub(super) fn note(&self, uuid: Option<&Bson>) {
        self.0.uuid.store(uuid.and_then(uuid_of).map(Arc::new));
    }

    /// Expects what `before` expects, whose constraint this one goes on with. Returns whether it is the same collection; if not, both
    /// are known to be gone.
    pub(super) fn go_on_from(&self, before: &ExpectedCollection) -> bool {
        let (here, there) = (self.0.uuid.load_full(), before.0.uuid.load_full());
        if there.is_none() {
            return false;
        }
        let is_same = here == there;
        if !is_same {
            before.note_gone();
        }
        self.0.is_gone.store(before.is_gone(), Ordering::Release);
        self.0
            .is_reported
            .store(before.0.is_reported.load(Ordering::Acquire), Ordering::Release);
        self.0.unnameable_at.store(before.0.unnameable_at.load_full());
        self.0.uuid.store(there);
        is_same
    }

    /// Whether it is the collection with this uuid; true also if that isn't known.
    pub(super) fn may_be(&self, uuid: Uuid) -> bool {
        self.0.uuid.load().as_ref().is_none_or(|expected| **expected == uuid)
    }

    /// Whether the collection is known to be dropped or replaced.
    pub(super) fn is_gone(&self) -> bool {
        self.0.is_gone.load(Ordering::Acquire)
    }

    /// Notes that it is dropped or replaced.
    pub(super) fn note_gone(&self) {
        self.0.is_gone.store(true, Ordering::Release);
    }

    /// Returns true once, for the log line that the collection is gone.
    pub(super) fn report(&self) -> bool {
        !self.0.is_reported.swap(true, Ordering::AcqRel)
    }

    /// The uuid of the collection, if it is known.
    pub(super) fn uuid(&self) -> Option<Uuid> {
        self.0.uuid.load().as_deref().copied()
    }

    /// The uuid for a command; none if it isn't known, or the server has refused to take it lately.
    pub(super) fn name(&self) -> Option<Arc<Uuid>> {
        let unnameable_at = self.0.unnameable_at.load();
        match unnameable_at.as_ref().is_some_and(|at| at.elapsed() < AFTER_REFUSAL) {
            true => None,
            false => self.0.uuid.load_full(),
        }
    }

    /// Notes what the reply to a command says that has named the uuid.
    pub(super) fn note_reply(&self, reply: &Result<Document, StoreError>) -> Refused {
        match reply {
            Ok(reply) => {
                let errors = write_errors(reply)
                    .unwrap_or_default()
                    .iter()
                    .filter_map(Bson::as_document);
                let said = |error: &Document| {
                    Some((
                        error_code(error)?,
                        error.get_str("errmsg").unwrap_or_default().to_owned(),
                    ))
                };
                self.note_errors(errors.filter_map(said))
            }
            Err(StoreError::Driver(error)) => {
                self.note_errors(code_of(error).map(|code| (code, error.to_string())).into_iter())
            }
            Err(_) => Refused::No,
        }
    }

    /// The same for errors with these codes and messages.
    pub(super) fn note_errors(&self, errors: impl Iterator<Item = (i32, String)>) -> Refused {
        let mut refused = Refused::No;
        for (code, message) in errors {
            match code {
                COLLECTION_UUID_MISMATCH => {
                    self.note_gone();
                    return Refused::Gone;
                }
                INVALID_OPTIONS if message.contains(UUID_FIELD) => {
                    tracing::warn!(
                        "the servers don't check to which collection reservations are written, because their feature compatibility \
                         version is older than 6.0: a dropped proxy collection is noticed at the next start only"
                    );
                    self.0.unnameable_at.store(Some(Arc::new(Instant::now())));
                    refused = Refused::Unnameable;
                }
                _ => {}
            }
        }
        refused
    }
}

/// Why a server refused a command that names the uuid of its collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// It didn't, or for another reason.
    No,
    /// The collection isn't there any more.
    Gone,
    /// It takes no uuid; the same command without the name may go.
    Unnameable,
}

/// The uuid in a document of the server.
pub fn uuid_of(value: &Bson) -> Option<Uuid> {
    match value {
        Bson::Binary(binary) => binary.to_uuid().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    fn uuid(byte: u8) -> Uuid {
        Uuid::from_bytes([byte; 16])
    }

    fn expecting(byte: u8) -> ExpectedCollection {
        let expected = ExpectedCollection::default();
        expected.note(Some(&uuid(byte).into()));
        expected
    }

    fn refused(code: i32) -> Result<Document, StoreError> {
        let before = doc! { "index": 0, "code": 11_000, "errmsg": "a duplicate" };
        let error = doc! { "index": 1, "code": code, "errmsg": "The collectionUUID parameter is not enabled" };
        Ok(doc! { "ok": 1, "n": 0, "writeErrors": [before, error] })
    }

    #[test]
    fn a_refusal_for_another_collection_is_noticed() {
        let expected = expecting(1);
        assert!(expected.name().is_some() && expected.may_be(uuid(1)) && !expected.may_be(uuid(2)));
        assert_eq!(expected.note_reply(&Ok(doc! { "ok": 1, "n": 1 })), Refused::No);
        assert!(!expected.is_gone());
        assert_eq!(expected.note_reply(&refused(COLLECTION_UUID_MISMATCH)), Refused::Gone);
        assert!(expected.is_gone() && expected.report() && !expected.report());
    }

    /// Otherwise nothing could be written while a cluster is upgraded to 6.0.
    #[test]
    fn a_server_that_takes_no_uuid_gets_none_for_a_while() {
        let expected = expecting(1);
        assert_eq!(expected.note_reply(&refused(INVALID_OPTIONS)), Refused::Unnameable);
        assert!(expected.name().is_none() && !expected.is_gone());
        let long_ago = Instant::now().checked_sub(AFTER_REFUSAL).map(Arc::new);
        expected.0.unnameable_at.store(long_ago);
        assert!(expected.name().is_some());
    }

    /// A change of the constraints must not take a replaced collection for a complete one.
    #[test]
    fn a_later_one_expects_the_same_collection() {
        let (before, next) = (expecting(1), expecting(2));
        assert!(!next.go_on_from(&before));
        assert!(next.is_gone() && before.is_gone() && next.may_be(uuid(1)));
        let (unknown, same) = (ExpectedCollection::default(), expecting(1));
        assert!(!same.go_on_from(&unknown));
        assert!(!same.is_gone() && same.may_be(uuid(1)));
    }
}
