//! Determines which constraints an index command builds, and where.
//!
//! A client's command and `keyward shard` both use it.

use std::sync::Arc;

use bson::oid::ObjectId;
use mongodb::Client;
use tokio::time::Instant;

use super::create::is_same_index;
use super::list::ListedIndex;
use super::specification::is_index_of;
use super::{IndexRefusal, PATIENCE, POLL};
use crate::client_constraints::{BuildState, ClientConstraint, ClientConstraints, SharedList};
use crate::constraint::{Constraint, IndexSpec, SpecError};
use crate::fleet::{Register, RegisterEntry};
use crate::metrics::constraint_labels;
use crate::namespace::Namespace;
use crate::prepare::{self, Existing, PrepareError};
use crate::proxy_collection::StoreError;
use crate::session::Service;
use crate::stream::Incoming;

/// The constraints that are to be built on a collection.
pub struct WantedConstraints {
    /// The collection.
    pub namespace: Namespace,
    /// Its options.
    pub existing: Existing,
    /// The entries that the list gets, unless it has the constraint.
    pub entries: Vec<ClientConstraint>,
    /// Their constraints with the collection's collation, where they state none.
    pub effective: Vec<Constraint>,
    /// The constraints that the configuration file states already.
    pub of_file: Vec<Arc<Constraint>>,
}

impl WantedConstraints {
    /// All of them.
    pub fn constraints(&self) -> impl Iterator<Item = &Arc<Constraint>> {
        self.entries.iter().map(|entry| &entry.constraint).chain(&self.of_file)
    }

    /// The names of those that the list gets.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.constraint.name())
    }

    /// An empty set of constraints on this collection.
    pub fn on(namespace: &Namespace, existing: Existing) -> WantedConstraints {
        WantedConstraints {
            namespace: namespace.clone(),
            existing,
            entries: Vec::new(),
            effective: Vec::new(),
            of_file: Vec::new(),
        }
    }

    /// Adds the constraint with this specification. Its entry in the list belongs to the `command`, and the Keyward with the entry `builder`
    /// in the register builds it. `of_file` has the constraints of the configuration file on the collection, with its collation.
    ///
    /// # Errors
    /// [`IndexRefusal`] if it or the collection can't have a constraint, or it contradicts one of the configuration file.
    pub fn add(
        &mut self,
        specification: IndexSpec,
        of_file: &[Arc<Constraint>],
        (command, builder): (ObjectId, ObjectId),
    ) -> Result<(), IndexRefusal> {
        if self.existing.is_clustered_by_sort_keys() {
            return Err(PrepareError::Clustered(self.namespace.clone()).into());
        }
        let id = ObjectId::new();
        let specification = IndexSpec {
            client_entry: Some(id),
            ..specification
        };
        specification.check_new_name().map_err(IndexRefusal::Specification)?;
        let constraint = Constraint::new(self.namespace.clone(), specification).map_err(IndexRefusal::Specification)?;
        constraint.check_new().map_err(IndexRefusal::Specification)?;
        let effective = self.effective(&constraint).map_err(IndexRefusal::Specification)?;
        for stated in of_file {
            if is_same_index(&effective, stated)? {
                self.of_file.push(stated.clone());
                return Ok(());
            }
        }
        self.effective.push(effective);
        self.entries.push(ClientConstraint {
            id,
            command,
            constraint: constraint.into(),
            collection_uuid: self.existing.uuid.clone(),
            state: BuildState::Building(builder),
        });
        Ok(())
    }

    /// The constraint with the collection's collation, if it states none.
    ///
    /// # Errors
    /// [`SpecError`] if it can't have that collation.
    pub fn effective(&self, constraint: &Constraint) -> Result<Constraint, SpecError> {
        let collated = constraint.inheriting(self.existing.collation.as_ref())?;
        Ok(collated.unwrap_or_else(|| constraint.clone()))
    }

    /// The constraint in `list` that is the same index as `effective`, one of these constraints. One of the two indexes may state the
    /// collection's collation, and the other one inherit it.
    ///
    /// # Errors
    /// [`IndexRefusal`] if a server couldn't have both indexes.
    pub fn same_in<'l>(
        &self,
        list: &'l ClientConstraints,
        effective: &Constraint,
    ) -> Result<Option<&'l ClientConstraint>, IndexRefusal> {
        for listed in list.on(&self.namespace) {
            // One that can't have the collection's collation is of a former collection.
            if let Ok(other) = self.effective(&listed.constraint)
                && is_same_index(effective, &other)?
            {
                return Ok(Some(listed));
            }
        }
        Ok(None)
    }

    /// The entries that `list` doesn't have for this collection.
    pub fn new_in(&self, list: &ClientConstraints) -> Vec<&ClientConstraint> {
        let is_made = |effective| match self.same_in(list, effective) {
            Ok(Some(same)) => same.collection_uuid == self.existing.uuid,
            Ok(None) | Err(_) => false,
        };
        let with_effective = self.entries.iter().zip(&self.effective);
        let new = with_effective.filter(|(_, effective)| !is_made(effective));
        new.map(|(entry, _)| entry).collect()
    }

    /// Whether `list` has an index of this collection with this specification.
    ///
    /// # Errors
    /// [`IndexRefusal`] if it has one that a server couldn't have beside it.
    pub fn is_listed(
        &self,
        specification: &IndexSpec,
        list: &ClientConstraints,
        indexes: Option<&[ListedIndex]>,
    ) -> Result<bool, IndexRefusal> {
        let constraint = Constraint::new(self.namespace.clone(), specification.clone());
        // An index that no constraint can represent isn't listed.
        let Ok(wanted) = constraint.and_then(|constraint| self.effective(&constraint)) else {
            return Ok(false);
        };
        let mut of_collection = list
            .on(&self.namespace)
            .filter(|listed| self.is_of_collection(listed, indexes));
        of_collection.try_fold(false, |is_listed, listed| match self.effective(&listed.constraint) {
            Ok(other) => Ok(is_same_index(&wanted, &other)? || is_listed),
            Err(_) => Ok(is_listed),
        })
    }

    /// Whether `listed` is of this collection: it was made for it, or the collection has its index without `unique`, as after a
    /// `reshardCollection`. If the indexes aren't known, it may have.
    pub fn is_of_collection(&self, listed: &ClientConstraint, indexes: Option<&[ListedIndex]>) -> bool {
        if self.existing.uuid.is_none() || listed.collection_uuid == self.existing.uuid {
            return self.existing.uuid.is_some();
        }
        let Ok(constraint) = self.effective(&listed.constraint) else {
            return false;
        };
        let is_it = |index: &ListedIndex| {
            let specification = index.specification.as_ref().filter(|_| !index.is_unique);
            index.name == constraint.name() && specification.is_some_and(|one| is_index_of(one, &constraint))
        };
        indexes.is_none_or(|indexes| indexes.iter().any(is_it))
    }
}

/// The place where constraints are built.
#[derive(Clone, Copy)]
pub struct BuildContext<'a> {
    /// Keyward's own client at the deployment.
    pub client: &'a Client,
    /// The list of clients' constraints.
    pub list: &'a SharedList,
    /// The service of this process, if it serves clients.
    pub serving: Option<&'a Service>,
    /// The connection of the client that waits, if one does.
    pub waiting: Option<&'a Incoming>,
}

impl BuildContext<'_> {
    /// Checks that every Keyward can enforce these constraints, which are new. Returns the register of Keywards.
    ///
    /// # Errors
    /// [`IndexRefusal`] if one can't, or the cluster doesn't answer.
    pub async fn check_fleet(&self, wanted: &[&ClientConstraint]) -> Result<Vec<RegisterEntry>, IndexRefusal> {
        if let Some(first) = wanted.first() {
            let constraints: Vec<_> = wanted.iter().map(|entry| entry.constraint.clone()).collect();
            let missing = prepare::privileges::missing(self.client, &constraints).await?;
            if !missing.is_empty() {
                return Err(IndexRefusal::Privileges {
                    namespace: first.constraint.namespace().clone(),
                    missing: missing.join("; "),
                });
            }
            // Once it is in the list, a Keyward that can't apply it can't apply any later list either.
            for constraint in &constraints {
                prepare::check_place(self.client, constraint).await?;
            }
        }
        let registered = self.registered().await?;
        let others: Vec<String> = registered
            .iter()
            .filter(|entry| entry.clients_version.is_none())
            .map(ToString::to_string)
            .collect();
        match wanted.is_empty() || others.is_empty() {
            true => Ok(registered),
            false => Err(IndexRefusal::NotFollowed(others.join("; "))),
        }
    }

    /// Waits until no Keyward enforces constraints that were taken out of the list, but no longer than [`PATIENCE`].
    pub(super) async fn await_ended(&self, constraints: &[Arc<Constraint>]) -> Result<(), StoreError> {
        let version = self.list.store.read().await?.version;
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let registered = self.registered().await?;
            let refuses = |entry: &RegisterEntry| {
                let mut namespaces = constraints.iter().map(|constraint| constraint.namespace());
                !entry.has_left && namespaces.any(|namespace| entry.may_write_to(namespace))
            };
            let is_behind = registered
                .iter()
                .any(|entry| entry.is_behind(version) && refuses(entry));
            if !is_behind && !constraints.iter().any(|constraint| self.reserves_for_entry(constraint)) {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
        let names = constraint_labels(constraints).join(", ");
        tracing::warn!(
            names,
            "another Keyward still enforces constraints that were ended; it ends them once it reads the list"
        );
        Ok(())
    }

    /// Whether the client that waited has closed its connection.
    pub(super) fn has_client_left(&self) -> bool {
        self.waiting.is_some_and(Incoming::is_closed_by_peer)
    }

    async fn registered(&self) -> Result<Vec<RegisterEntry>, StoreError> {
        Register::of(self.client).recent().await
    }

    /// Whether this process reserves for a constraint of this name now; none if it serves no clients.
    pub(super) fn enforces(&self, constraint: &Constraint) -> Option<bool> {
        Some(self.reserving(constraint)?.is_some())
    }

    /// Whether this process reserves for a client's constraint by the same entry of the list. One that was made again since has another
    /// entry.
    fn reserves_for_entry(&self, constraint: &Constraint) -> bool {
        let reserving = self.reserving(constraint).flatten();
        reserving.is_some_and(|one| one.client_entry() == constraint.client_entry())
    }

    /// The constraint of this name for which this process reserves now, if there is one; none if the process serves no clients.
    fn reserving(&self, constraint: &Constraint) -> Option<Option<Arc<Constraint>>> {
        let catalog = self.serving?.writes.catalog();
        let protected = catalog.on(constraint.namespace());
        let mut constraints = protected.iter().flat_map(|protected| &protected.constraints);
        let named = constraints.find(|proxy| proxy.constraint.name() == constraint.name());
        Some(named.map(|proxy| proxy.constraint.clone()))
    }
}
