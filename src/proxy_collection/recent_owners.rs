//! Remembers the owners of the keys that were refused last.
//!
//! A refused key is often tried again: a form is sent twice, or a message is delivered twice. Keyward then looks up the
//! remembered owner, and refuses the key again without reading its reservation first. The guess affects speed only, as in
//! [`super::conflict_predictor`]: if the document doesn't hold the key any more, the look-up shows it.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use lru::LruCache;

use super::Reservation;
use crate::constraint::Key;

/// The number of remembered keys.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(1_024).unwrap();
/// Keys and owners of more bytes than this aren't remembered.
const BYTES_MAX: usize = 512;

/// The reservations of keys that their owners were found to hold.
#[derive(Debug)]
pub struct RecentOwners(Mutex<LruCache<Key, Reservation>>);

impl Default for RecentOwners {
    fn default() -> Self {
        RecentOwners(Mutex::new(LruCache::new(REMEMBERED)))
    }
}

impl RecentOwners {
    /// Notes that the owner of this reservation holds the key.
    pub fn note(&self, key: &Key, held: &Reservation) {
        let owner = held.owner.bytes();
        if key.values().is_none_or(|values| values.bytes().len() > BYTES_MAX) || owner > BYTES_MAX {
            return;
        }
        let mut reservations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reservations.put(key.clone(), held.clone());
    }

    /// Returns the key's last known reservation, if one is remembered, and forgets it.
    pub fn take(&self, key: &Key) -> Option<Reservation> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop(key)
    }
}
