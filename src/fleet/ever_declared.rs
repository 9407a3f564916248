//! Remembers to which collections this Keyward may have written, under any of its entries.

use std::collections::{BTreeMap, BTreeSet};

use super::COLLECTIONS_MAX;
use crate::namespace::Namespace;
use crate::prepare::Collections;

/// All collections that were ever declared. A write that was decided under a former entry may go on there under the next one.
#[derive(Debug, Default)]
pub(super) struct EverDeclared {
    /// The collections of each database; all of them if there are more in all than an entry names.
    databases: BTreeMap<String, BTreeSet<String>>,
    is_everywhere: bool,
}

impl EverDeclared {
    /// Only these collections.
    pub(super) fn of(namespaces: &BTreeSet<Namespace>) -> EverDeclared {
        let mut declared = EverDeclared::default();
        declared.extend(namespaces);
        declared
    }

    /// Adds these collections.
    pub(super) fn extend(&mut self, namespaces: &BTreeSet<Namespace>) {
        for Namespace { database, collection } in namespaces {
            let collections = self.databases.entry(database.clone()).or_default();
            if !self.is_everywhere {
                collections.insert(collection.clone());
            }
        }
        if self.databases.values().map(BTreeSet::len).sum::<usize>() > COLLECTIONS_MAX {
            self.is_everywhere = true;
            self.databases.values_mut().for_each(BTreeSet::clear);
        }
    }

    /// Whether the collection may be one of them.
    pub(super) fn may_have(&self, namespace: &Namespace) -> bool {
        let collections = self.databases.get(&namespace.database);
        collections.is_some_and(|names| self.is_everywhere || names.contains(&namespace.collection))
    }

    /// All that may be among them, by database.
    pub(super) fn by_database(&self) -> Vec<(String, Collections)> {
        let collections = |names: &BTreeSet<String>| match self.is_everywhere {
            true => Collections::All,
            false => Collections::These(names.clone()),
        };
        let databases = self.databases.iter();
        databases
            .map(|(database, names)| (database.clone(), collections(names)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_the_limit_it_stands_for_all_collections_of_its_databases() {
        let name = |n: usize| Namespace::new("many", format!("c{n}"));
        let mut ever_declared = EverDeclared::of(&(1..COLLECTIONS_MAX).map(name).collect());
        ever_declared.extend(&BTreeSet::from([Namespace::new("one", "users")]));
        assert!(ever_declared.may_have(&name(1)) && !ever_declared.may_have(&name(COLLECTIONS_MAX)));
        let users = Collections::These(BTreeSet::from(["users".to_owned()]));
        assert_eq!(ever_declared.by_database()[1], ("one".to_owned(), users));
        ever_declared.extend(&BTreeSet::from([name(COLLECTIONS_MAX)]));
        ever_declared.extend(&BTreeSet::from([Namespace::new("late", "users")]));
        for namespace in [
            name(1),
            name(COLLECTIONS_MAX),
            name(COLLECTIONS_MAX + 1),
            Namespace::new("late", "any"),
        ] {
            assert!(ever_declared.may_have(&namespace), "{namespace}");
        }
        assert!(!ever_declared.may_have(&Namespace::new("other", "users")));
        let all = ["late", "many", "one"].map(|database| (database.to_owned(), Collections::All));
        assert_eq!(ever_declared.by_database(), all);
    }
}
