//! Notices that a proxy collection was dropped or replaced past Keyward. Each insert of reservations names the uuid of the collection that
//! it is meant for, and the server refuses it for any other: it would find no key taken there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use bson::{Bson, Document, Uuid};

use super::StoreError;
use crate::server::code::{COLLECTION_UUID_MISMATCH, INVALID_OPTIONS};
use crate::server::driver::{code_of, error_code, first_write_error};

/// How long no command names a uuid after the server has refused to take one.
const AFTER_REFUSAL: Duration = Duration::from_secs(60);

/// The collection in the cluster that reservations are meant for, and whether it is still there. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct ExpectedCollection(Arc<Expected>);

#[derive(Debug, Default)]
struct Expected {
    uuid: ArcSwapOption<Uuid>,
    is_gone: AtomicBool,
    /// When the server last refused to take a uuid: its feature compatibility version is older than 6.0.
    unnameable_at: ArcSwapOption<Instant>,
}

impl ExpectedCollection {
    /// Expects the collection with this uuid; any if that isn't known.
    pub(super) fn note(&self, uuid: Option<&Bson>) {
        self.0.uuid.store(uuid.and_then(uuid_of).map(Arc::new));
    }

    /// Expects what `before` expects, whose constraint this one goes on with. Returns whether it is the same collection.
    pub(super) fn go_on_from(&self, before: &ExpectedCollection) -> bool {
        let (here, there) = (self.0.uuid.load_full(), before.0.uuid.load_full());
        if there.is_none() {
            return false;
        }
        let is_same = here == there;
        if !is_same || before.is_gone() {
            self.note_gone();
        }
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

    /// Notes that it is dropped or replaced; returns whether that is new.
    pub(super) fn note_gone(&self) -> bool {
        !self.0.is_gone.swap(true, Ordering::AcqRel)
    }

    /// The uuid for a command; none if it isn't known, or the server has refused to take it lately.
    pub(super) fn name(&self) -> Option<Arc<Uuid>> {
        let unnameable_at = self.0.unnameable_at.load();
        match unnameable_at.as_ref().is_some_and(|at| at.elapsed() < AFTER_REFUSAL) {
            true => None,
            false => self.0.uuid.load_full(),
        }
    }

    /// Notes what the reply to a command says that has named the uuid. Returns whether the command must be sent again, without the name.
    pub(super) fn note_reply(&self, reply: &Result<Document, StoreError>) -> bool {
        let code = match reply {
            Ok(reply) => first_write_error(reply).and_then(error_code),
            Err(StoreError::Driver(error)) => code_of(error),
            Err(_) => None,
        };
        match code {
            Some(COLLECTION_UUID_MISMATCH) => {
                self.note_gone();
                false
            }
            Some(INVALID_OPTIONS) => {
                tracing::warn!(
                    "the servers don't check to which collection reservations are written, because their feature compatibility version is \
                     older than 6.0: a dropped proxy collection is noticed at the next start only"
                );
                self.0.unnameable_at.store(Some(Arc::new(Instant::now())));
                true
            }
            _ => false,
        }
    }
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
        Ok(doc! { "ok": 1, "n": 0, "writeErrors": [{ "index": 0, "code": code }] })
    }

    #[test]
    fn a_refusal_for_another_collection_is_noticed() {
        let expected = expecting(1);
        assert!(expected.name().is_some() && expected.may_be(uuid(1)) && !expected.may_be(uuid(2)));
        assert!(!expected.note_reply(&Ok(doc! { "ok": 1, "n": 1 })) && !expected.is_gone());
        assert!(!expected.note_reply(&refused(COLLECTION_UUID_MISMATCH)) && expected.is_gone());
        assert!(!ExpectedCollection::default().is_gone());
    }

    /// Otherwise nothing could be written while a cluster is upgraded to 6.0.
    #[test]
    fn a_server_that_takes_no_uuid_gets_none_for_a_while() {
        let expected = expecting(1);
        assert!(expected.note_reply(&refused(INVALID_OPTIONS)));
        assert!(expected.name().is_none() && !expected.is_gone());
        let long_ago = Instant::now().checked_sub(AFTER_REFUSAL).map(Arc::new);
        expected.0.unnameable_at.store(long_ago);
        assert!(expected.name().is_some());
    }

    /// A change of the constraints must not take a replaced collection for a complete one.
    #[test]
    fn a_later_one_expects_the_same_collection() {
        let next = expecting(2);
        assert!(!next.go_on_from(&expecting(1)));
        assert!(next.is_gone() && next.may_be(uuid(1)));
        let (unknown, same) = (ExpectedCollection::default(), expecting(1));
        assert!(!same.go_on_from(&unknown));
        assert!(!same.is_gone() && same.may_be(uuid(1)));
    }
}
