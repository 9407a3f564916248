//! Which constraints hold: an immutable snapshot, swapped as a whole and taken once per command.
//!
//! For every command that passes it answers by namespace: is the collection protected, and is it one of Keyward's own?
//! The answers allocate nothing. Filled from the configuration; a reload replaces it.

use std::collections::HashMap;
use std::sync::Arc;

use crate::classify::Protection;
use crate::constraint::PROXY_PREFIX;
use crate::namespace::Namespace;
use crate::proxy_collection::ProxyCollection;
use crate::reply::Times;

/// A protected collection with what its writes need.
#[derive(Debug)]
pub struct Protected {
    /// The collection.
    pub namespace: Namespace,
    /// Its constraints, that on `_id` first, then in the order of the configuration: the order in which violations are
    /// reported.
    pub constraints: Vec<ProxyCollection>,
    /// The paths of its shard key; empty where it isn't sharded.
    pub shard_key: Vec<String>,
    /// Whether it has a default collation: the server then compares values, `_id`s among them, under that in every
    /// statement that states no other.
    pub is_collated: bool,
}

impl Protected {
    /// Every path whose change can change a key, or where a reservation's owner is looked for.
    pub fn paths(&self) -> Vec<&str> {
        let of_constraints = self.constraints.iter().flat_map(|proxy| proxy.constraint.paths());
        of_constraints
            .chain(self.shard_key.iter().map(String::as_str))
            .collect()
    }

    /// The latest cluster times that Keyward's own reads for this collection told.
    pub fn times(&self) -> Times {
        let mut times = Times::default();
        for proxy in &self.constraints {
            times.advance(proxy.times());
        }
        times
    }
}

/// The snapshot.
#[derive(Debug, Default)]
pub struct Catalog {
    databases: HashMap<Vec<u8>, HashMap<Vec<u8>, Arc<Protected>>>,
}

impl Catalog {
    /// A snapshot of `protected`.
    pub fn new(protected: Vec<Protected>) -> Catalog {
        let mut catalog = Catalog::default();
        for protected in protected {
            let Namespace { database, collection } = protected.namespace.clone();
            let collections = catalog.databases.entry(database.into_bytes()).or_default();
            collections.insert(collection.into_bytes(), Arc::new(protected));
        }
        catalog
    }

    /// Every protected collection.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Protected>> {
        self.databases.values().flat_map(HashMap::values)
    }

    /// The protected collection of that name, byte for byte.
    pub fn protected(&self, database: &[u8], collection: &[u8]) -> Option<&Arc<Protected>> {
        self.databases.get(database)?.get(collection)
    }
}

impl Protection for Catalog {
    fn protects(&self, database: &[u8], collection: &[u8]) -> bool {
        self.protected(database, collection).is_some()
    }

    fn protects_any_in(&self, database: &[u8]) -> bool {
        self.databases.contains_key(database)
    }

    fn is_proxy_collection(&self, database: &[u8], collection: &[u8]) -> bool {
        collection.starts_with(PROXY_PREFIX.as_bytes()) && self.protects_any_in(database)
    }
}
