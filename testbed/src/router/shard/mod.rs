//! The shards and the config server: connections to their members, pooled, and where each one's primary is.

mod connection;
mod replica_set;

pub use connection::{CallError, Pools};
pub use replica_set::{Preference, ReplicaSet};

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Every shard by its name.
#[derive(Debug, Default)]
pub struct Shards(RwLock<HashMap<String, Arc<ReplicaSet>>>);

impl Shards {
    /// The shard of that name.
    pub fn find(&self, name: &str) -> Option<Arc<ReplicaSet>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// All of them, by name.
    pub fn all(&self) -> Vec<Arc<ReplicaSet>> {
        let mut all: Vec<_> = self
            .0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect();
        all.sort_by(|left, right| left.name.cmp(&right.name));
        all
    }

    /// Takes over what `config.shards` says: pairs of a name and a connection string `set/host:port,…`.
    pub fn replace(&self, listed: &[(String, String)]) {
        let mut shards = self.0.write().unwrap_or_else(PoisonError::into_inner);
        shards.retain(|name, _| listed.iter().any(|(listed, _)| listed == name));
        for (name, connection_string) in listed {
            let fresh = || Arc::new(ReplicaSet::new(name, connection_string));
            shards
                .entry(name.clone())
                .and_modify(|shard| shard.learn_members(connection_string))
                .or_insert_with(fresh);
        }
    }
}
