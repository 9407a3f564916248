//! Remembers the collections to which this Keyward's writes may go on.

use std::collections::BTreeSet;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::namespace::{Namespace, OF_MONGODB};
use crate::namespace_map::NamespaceMap;

/// The most collections that are remembered. An application may make new ones all day, and drop them.
const DECLARED_MAX: usize = 50_000;

/// The declared collections: they are in the entry, and constraints there that this Keyward lacks aren't called enforced.
#[derive(Debug, Default)]
pub(super) struct DeclaredCollections(ArcSwap<NamespaceMap<()>>);

impl DeclaredCollections {
    /// Whether the collection is one of them, or MongoDB's own.
    pub(super) fn has(&self, database: &[u8], collection: &[u8]) -> bool {
        self.0.load().get(database, collection).is_some() || OF_MONGODB.iter().any(|own| own.as_bytes() == database)
    }

    /// Adds these collections.
    pub(super) fn extend(&self, new: &BTreeSet<Namespace>) {
        self.0.rcu(|declared| with(declared, new));
    }

    /// Forgets all of them.
    pub(super) fn clear(&self) {
        self.0.store(Arc::default());
    }
}

/// `declared` with `new` ones. Past [`DECLARED_MAX`] it lacks half of the others: the next write to each declares it again.
fn with(declared: &NamespaceMap<()>, new: &BTreeSet<Namespace>) -> NamespaceMap<()> {
    let mut declared = declared.clone();
    if declared.len() + new.len() > DECLARED_MAX {
        declared.halve();
    }
    for Namespace { database, collection } in new {
        declared.insert(database, collection, ());
    }
    declared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_every_collection_is_remembered_that_was_ever_declared() {
        let declared = DeclaredCollections::default();
        let name = |n: usize| Namespace::new("many", format!("c{n}"));
        let declare = |range: std::ops::Range<usize>| declared.extend(&range.map(name).collect());
        declare(0..1);
        declare(1..DECLARED_MAX);
        assert_eq!(declared.0.load().len(), DECLARED_MAX);
        declare(DECLARED_MAX..DECLARED_MAX + 2);
        assert_eq!(declared.0.load().len(), DECLARED_MAX / 2 + 2);
        assert!(declared.has(b"many", format!("c{DECLARED_MAX}").as_bytes()));
    }
}
