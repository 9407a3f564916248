//! Holds the constraints as an immutable value, which is replaced as a whole and read once per command.
//!
//! For every command, it answers whether a namespace is a protected collection, and whether it is one of Keyward's own.
//! The answers allocate nothing. It is filled from the configuration, and replaced when constraints or shard keys have
//! changed.

use std::collections::HashMap;
use std::sync::Arc;

use crate::classify::{ConstraintRemoval, EncryptedField, OtherCollation, Protection};
use crate::client_constraints;
use crate::constraint::{Constraint, PROXY_PREFIX, Strategy};
use crate::default_collations::DefaultCollations;
use crate::encrypted_fields::EncryptedFields;
use crate::fleet;
use crate::namespace::Namespace;
use crate::namespace_map::NamespaceMap;
use crate::proxy_collection::ProxyCollection;
use crate::raw::Element;
use crate::reply::{Times, WriteRefusal};

/// A protected collection with what its writes need.
#[derive(Debug, Clone)]
pub struct Protected {
    /// The collection.
    pub namespace: Namespace,
    /// Its constraints, in the order in which violations are reported: the one on `_id` first, then the order of the
    /// configuration.
    pub constraints: Vec<ProxyCollection>,
    /// The paths of its shard key; empty if it isn't sharded.
    pub shard_key: Vec<String>,
    /// Whether the whole deployment is one replica set. A transaction of a document and its reservations then costs one
    /// round trip.
    pub is_on_one_replica_set: bool,
    /// Whether it has a default collation, or may be given one when it is created. The server then compares values,
    /// including `_id`s, under that collation, unless a statement states another one.
    pub is_collated: bool,
    /// Whether it is clustered and has a default collation, so that look-ups can miss documents. Only clients' constraints remain on such
    /// a collection, if it was made anew past Keyward.
    pub is_clustered_by_sort_keys: bool,
    /// The default collations that it may be created with.
    pub creatable_with: DefaultCollations,
}

impl Protected {
    /// Every path whose change can change a key, or the place where a reservation's owner is looked up.
    pub fn paths(&self) -> impl Iterator<Item = &str> + Clone {
        let of_constraints = self.constraints.iter().flat_map(|proxy| proxy.constraint.paths());
        of_constraints.chain(self.shard_key.iter().map(String::as_str))
    }

    /// The paths of all constraints.
    pub fn key_paths(&self) -> Vec<&str> {
        let paths = self.constraints.iter().flat_map(|proxy| proxy.constraint.paths());
        paths.collect()
    }

    /// The paths that say which document it is: those of the shard key, and `_id`.
    pub fn place_paths(&self) -> Vec<&str> {
        self.shard_key.iter().map(String::as_str).chain(["_id"]).collect()
    }

    /// How documents and their reservations are kept consistent: as the operator chose, or as it suits the deployment.
    /// If one constraint asks for a transaction, all use one, since a document is inserted once for all of them.
    pub fn strategy(&self) -> Strategy {
        let suits = match self.is_on_one_replica_set {
            true => Strategy::Strict,
            false => Strategy::Compensating,
        };
        let mut chosen = self
            .constraints
            .iter()
            .map(|proxy| proxy.constraint.strategy().unwrap_or(suits));
        match chosen.any(|strategy| strategy == Strategy::Strict) {
            true => Strategy::Strict,
            false => Strategy::Compensating,
        }
    }

    /// Whether statements by a key of any constraint go to the key's shard. Without shards there is nothing to choose.
    pub fn routes(&self) -> bool {
        !self.shard_key.is_empty() && self.constraints.iter().any(|proxy| proxy.constraint.routes())
    }

    /// Why `route` has no effect on queries by a key of this constraint, if that is so.
    pub fn unroutable(&self, constraint: &Constraint) -> Option<&'static str> {
        if self.is_collated {
            return Some("the collection has a default collation, under which no router finds the shard of a query");
        }
        match self.shard_key.first() {
            None => Some("the collection isn't sharded"),
            Some(first) if constraint.paths().any(|path| path == first) => {
                Some("the key contains the first field of the shard key, so the router finds the shard without Keyward")
            }
            Some(_) => None,
        }
    }

    /// Whether one of its constraints has another definition than in `before`, which is the same collection.
    pub fn redefines(&self, before: &Protected) -> bool {
        let is_redefined = |one: &Constraint| {
            let mut before = before.constraints.iter().map(|proxy| &proxy.constraint);
            before.any(|before| before.has_name_of(one) && !before.is_defined_as(one))
        };
        self.constraints.iter().any(|proxy| is_redefined(&proxy.constraint))
    }

    /// The refusal of a command, `retryable` or not, if a key of the constraint at this position has an unknown state. Counts it.
    pub fn unsure(&self, constraint: usize, retryable: bool) -> WriteRefusal {
        let proxy = &self.constraints[constraint];
        proxy.metrics.unsure.inc();
        WriteRefusal::Unsure {
            namespace: self.namespace.clone(),
            constraint: proxy.constraint.name().to_owned(),
            retryable,
        }
    }

    /// The latest cluster times that the server reported to Keyward itself, when it read and wrote this collection's
    /// reservations.
    pub fn times(&self) -> Times {
        let mut times = Times::default();
        for proxy in &self.constraints {
            times.advance(proxy.times());
        }
        times
    }
}

/// All protected collections.
#[derive(Debug, Default)]
pub struct Catalog {
    /// Whether any constraint routes reads.
    routes: bool,
    collections: NamespaceMap<Arc<Protected>>,
}

impl Catalog {
    /// The catalog of `protected`.
    pub fn new(protected: Vec<Protected>) -> Catalog {
        Catalog::of(protected.into_iter().map(Arc::new))
    }

    /// The same constraints with these shard keys, listed by `database.collection`. A collection of `asked` without a
    /// listed shard key isn't sharded.
    pub fn with_shard_keys(&self, asked: &Catalog, shard_keys: &HashMap<String, Vec<String>>) -> Catalog {
        let renewed = self.all().map(|protected| {
            let was_asked_for = asked.on(&protected.namespace).is_some();
            let shard_key = shard_keys
                .get(&protected.namespace.to_string())
                .map_or(&[][..], Vec::as_slice);
            match protected.shard_key == shard_key || !was_asked_for {
                true => protected.clone(),
                false => Arc::new(Protected {
                    shard_key: shard_key.to_vec(),
                    ..(**protected).clone()
                }),
            }
        });
        Catalog::of(renewed)
    }

    /// The same catalog without the constraints for which `is_gone` is true.
    pub fn without(&self, is_gone: impl Fn(&Constraint) -> bool) -> Catalog {
        let left = self.all().filter_map(|protected| {
            let mut left = Protected::clone(protected);
            left.constraints.retain(|proxy| !is_gone(&proxy.constraint));
            (!left.constraints.is_empty()).then(|| Arc::new(left))
        });
        Catalog::of(left)
    }

    /// Whether it has this constraint, with this definition.
    pub fn has(&self, constraint: &Constraint) -> bool {
        let protected = self.on(constraint.namespace()).into_iter();
        let mut constraints = protected.flat_map(|protected| &protected.constraints);
        constraints.any(|proxy| proxy.constraint.has_name_of(constraint) && proxy.constraint.is_defined_as(constraint))
    }

    /// Whether a constraint has another definition here than in the catalog `before`.
    pub fn redefines(&self, before: &Catalog) -> bool {
        self.all().any(|protected| {
            let before = before.on(&protected.namespace);
            before.is_some_and(|before| protected.redefines(before))
        })
    }

    fn of(protected: impl Iterator<Item = Arc<Protected>>) -> Catalog {
        let mut catalog = Catalog::default();
        for protected in protected {
            catalog.routes |= protected.routes();
            let Namespace { database, collection } = &protected.namespace;
            catalog.collections.insert(database, collection, protected.clone());
        }
        catalog
    }

    /// Every protected collection.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Protected>> {
        self.collections.values()
    }

    /// The databases with protected collections.
    pub fn databases(&self) -> impl Iterator<Item = &[u8]> {
        self.collections.databases()
    }

    /// Whether reads by a key of any collection go to the key's shard.
    pub fn routes(&self) -> bool {
        self.routes
    }

    /// Whether the protected collections are on one replica set.
    pub fn is_on_one_replica_set(&self) -> bool {
        self.all().any(|protected| protected.is_on_one_replica_set)
    }

    /// The protected collection `namespace`.
    pub fn on(&self, namespace: &Namespace) -> Option<&Arc<Protected>> {
        self.protected(namespace.database.as_bytes(), namespace.collection.as_bytes())
    }

    /// The protected collection of that name, byte for byte.
    pub fn protected(&self, database: &[u8], collection: &[u8]) -> Option<&Arc<Protected>> {
        self.collections.get(database, collection)
    }
}

impl Catalog {
    /// Whether a collection of this database is protected.
    pub fn protects_any_in(&self, database: &[u8]) -> bool {
        self.databases().any(|one| one == database)
    }
}

impl Protection for Catalog {
    fn protects(&self, database: &[u8], collection: &[u8]) -> bool {
        self.protected(database, collection).is_some()
    }

    fn has_constraints(&self, database: &[u8], collection: &[u8]) -> bool {
        self.protects(database, collection)
    }

    fn removal(&self, database: &[u8], collection: &[u8]) -> ConstraintRemoval {
        let proxies = self.protected(database, collection).into_iter();
        ConstraintRemoval::of(
            proxies.flat_map(|protected| protected.constraints.iter().map(|proxy| &*proxy.constraint)),
        )
    }

    fn strict_constraint(&self, database: &[u8], collection: &[u8]) -> Option<String> {
        let protected = self.protected(database, collection)?;
        if protected.strategy() != Strategy::Strict {
            return None;
        }
        let mut constraints = protected.constraints.iter().map(|proxy| &proxy.constraint);
        // Beside it, a client's constraint is strict, too, but changing that one wouldn't help.
        let stated = constraints.find(|constraint| constraint.strategy() == Some(Strategy::Strict));
        let constraint = stated.or(protected.constraints.first().map(|proxy| &proxy.constraint))?;
        Some(constraint.name().to_owned())
    }

    fn is_keywards_own(&self, database: &[u8], collection: &[u8]) -> bool {
        let of_fleet = [fleet::COLLECTION, client_constraints::COLLECTION];
        let is_of_fleet =
            database == fleet::DATABASE.as_bytes() && of_fleet.iter().any(|one| one.as_bytes() == collection);
        // In every database: another Keyward may have constraints where this one has none.
        collection.starts_with(PROXY_PREFIX.as_bytes()) || is_of_fleet
    }

    fn other_collation(
        &self,
        database: &[u8],
        collection: &[u8],
        collation: Option<&Element<'_>>,
    ) -> Option<OtherCollation> {
        let protected = self.protected(database, collection)?;
        let constraints = protected.constraints.iter().map(|proxy| &*proxy.constraint);
        protected.creatable_with.mismatch(collation, constraints)
    }

    fn encrypted(&self, database: &[u8], collection: &[u8], fields: &EncryptedFields) -> Option<EncryptedField> {
        let protected = self.protected(database, collection)?;
        fields.read_by(protected.constraints.iter().map(|proxy| &*proxy.constraint))
    }
}
