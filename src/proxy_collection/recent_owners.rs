//! Who held the keys that were refused last.
//!
//! What is refused is often tried again: a form that is sent twice, a message that is delivered twice. One look at the document
//! that was in the way then refuses it once more, without reading its reservation first. It is a guess about speed, as
//! [`super::conflict_predictor`] is: a document that doesn't hold the key any more is found not to.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use lru::LruCache;

use super::Reservation;
use crate::constraint::Key;

/// So many keys are remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(1_024).unwrap();
/// Longer ones aren't, nor those of longer owners: in bytes.
const BYTES_MAX: usize = 512;

/// The reservations of keys that were found to be held.
#[derive(Debug)]
pub struct RecentOwners(Mutex<LruCache<Key, Reservation>>);

impl Default for RecentOwners {
    fn default() -> Self {
        RecentOwners(Mutex::new(LruCache::new(REMEMBERED)))
    }
}

impl RecentOwners {
    /// The owner of this reservation holds the key.
    pub fn note(&self, key: &Key, held: &Reservation) {
        let owner = held.owner.bytes();
        if key.values().is_none_or(|values| values.bytes().len() > BYTES_MAX) || owner > BYTES_MAX {
            return;
        }
        let mut holders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        holders.put(key.clone(), held.clone());
    }

    /// Who held the key last, if that is remembered; it is forgotten with that, until it is noted again.
    pub fn take(&self, key: &Key) -> Option<Reservation> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop(key)
    }
}
