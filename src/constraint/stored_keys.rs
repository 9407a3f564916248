//! States which keys a stored document holds, as far as a search of limited length shows it.

use std::collections::HashSet;

use super::Key;

/// The keys of a document that is stored already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredKeys {
    /// It holds exactly these. There are none if the constraint can't index it (parallel arrays, for example): then it was written past the
    /// constraint.
    These(HashSet<Key>),
    /// Its arrays lead to very many places, or its keys are very large: the search for them could take hours, or all memory. It is older than
    /// the constraint or its limits, or was written past it. It counts as holding any key: if it didn't count as the holder of its
    /// reservation, a second document could get that key.
    Unknown,
}

impl StoredKeys {
    /// The same as far as the keys are among those `asked` for. Others could fill the memory: a look-up reads many documents, and each may have
    /// hundreds of megabytes of keys.
    pub fn among(self, asked: &HashSet<&Key>) -> StoredKeys {
        match self {
            StoredKeys::These(keys) => StoredKeys::These(keys.into_iter().filter(|key| asked.contains(key)).collect()),
            StoredKeys::Unknown => StoredKeys::Unknown,
        }
    }

    /// Whether the document holds `key`, as far as is known.
    pub fn may_have(&self, key: &Key) -> bool {
        match self {
            StoredKeys::These(keys) => keys.contains(key),
            StoredKeys::Unknown => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::super::{Constraint, IndexSpec};
    use super::*;
    use crate::namespace::Namespace;
    use crate::raw::Doc;

    #[test]
    fn only_keys_that_were_asked_for_stay() {
        let spec = IndexSpec {
            key: doc! { "t": 1 },
            ..IndexSpec::default()
        };
        let constraint = Constraint::new(Namespace::new("db", "c"), spec).unwrap();
        let stored = |tags: Vec<i32>| {
            let document = doc! { "t": tags }.to_vec().unwrap();
            constraint.keys_of_stored(Doc::new(&document).unwrap())
        };
        let StoredKeys::These(asked) = stored(vec![2, 4]) else {
            panic!("they are unknown");
        };
        let asked = asked.iter().collect();
        assert_eq!(stored(vec![1, 2, 3]).among(&asked), stored(vec![2]));
        assert_eq!(StoredKeys::Unknown.among(&asked), StoredKeys::Unknown);
    }
}
