//! States which keys a stored document holds, as far as a search of limited length shows it.

use std::collections::HashSet;

use super::Key;

/// The keys of a document that is stored already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredKeys {
    /// It holds exactly these. There are none if the constraint can't index it (parallel arrays, for example): then it was written past the
    /// constraint.
    These(HashSet<Key>),
    /// Its arrays lead to very many places, so the search for its keys could take hours. It is older than the constraint, or was written past
    /// it. It counts as holding any key: if it didn't count as the holder of its reservation, a second document could get that key.
    Unknown,
}

impl StoredKeys {
    /// Whether the document holds `key`, as far as is known.
    pub fn may_have(&self, key: &Key) -> bool {
        match self {
            StoredKeys::These(keys) => keys.contains(key),
            StoredKeys::Unknown => true,
        }
    }
}
