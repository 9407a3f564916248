//! Says where constraints are built and which, for a client of this Keyward and for `keyward shard` alike.

use std::sync::Arc;

use bson::oid::ObjectId;
use mongodb::Client;
use tokio::time::Instant;

use super::create::is_same_index;
use super::{IndexRefusal, PATIENCE, POLL};
use crate::client_constraints::{BuildState, ClientConstraint, SharedList};
use crate::constraint::{Constraint, IndexSpec};
use crate::fleet::{Register, RegisterEntry};
use crate::metrics::constraint_labels;
use crate::namespace::Namespace;
use crate::prepare::{self, Existing};
use crate::proxy_collection::StoreError;
use crate::session::Service;

/// The constraints that are to be built.
#[derive(Default)]
pub struct WantedConstraints {
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

    /// Adds the constraint with this specification on an `existing` collection. Its entry in the list belongs to the `command`, and the
    /// Keyward with the entry `builder` in the register builds it.
    ///
    /// # Errors
    /// [`IndexRefusal`] if it can't be a constraint, or contradicts one of the configuration file.
    pub fn add(
        &mut self,
        namespace: &Namespace,
        specification: IndexSpec,
        existing: &Existing,
        of_file: &[Arc<Constraint>],
        (command, builder): (ObjectId, ObjectId),
    ) -> Result<(), IndexRefusal> {
        let id = ObjectId::new();
        let specification = IndexSpec {
            client_entry: Some(id),
            ..specification
        };
        let constraint = Constraint::new(namespace.clone(), specification).map_err(IndexRefusal::Specification)?;
        let effective = constraint.inheriting(existing.collation.as_ref());
        let effective = effective.map_err(IndexRefusal::Specification)?;
        let effective = effective.unwrap_or_else(|| constraint.clone());
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
            collection_uuid: existing.uuid.clone(),
            state: BuildState::Building(builder),
        });
        Ok(())
    }
}

/// Where constraints are built.
#[derive(Clone, Copy)]
pub struct BuildContext<'a> {
    /// Keyward's own client at the deployment.
    pub client: &'a Client,
    /// The list of clients' constraints.
    pub list: &'a SharedList,
    /// What this process serves clients with, if it does.
    pub serving: Option<&'a Service>,
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
            let is_behind = |entry: &&RegisterEntry| entry.clients_version.is_some_and(|applied| applied < version);
            let refuses = |entry: &RegisterEntry| {
                let mut namespaces = constraints.iter().map(|constraint| constraint.namespace());
                !entry.has_left && namespaces.any(|namespace| entry.may_write_to(namespace))
            };
            let is_behind = registered.iter().filter(is_behind).any(refuses);
            if !is_behind
                && !constraints
                    .iter()
                    .any(|constraint| self.enforces(constraint) == Some(true))
            {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
        let names = constraint_labels(constraints);
        tracing::warn!(
            ?names,
            "another Keyward still enforces constraints that were ended; it ends them once it reads the list"
        );
        Ok(())
    }

    async fn registered(&self) -> Result<Vec<RegisterEntry>, StoreError> {
        Register::of(self.client).recent().await
    }

    /// Whether this process reserves for a constraint of this name now; none if it serves no clients.
    pub(super) fn enforces(&self, constraint: &Constraint) -> Option<bool> {
        let catalog = self.serving?.writes.catalog();
        let protected = catalog.on(constraint.namespace());
        let mut constraints = protected.iter().flat_map(|protected| &protected.constraints);
        Some(constraints.any(|proxy| proxy.constraint.name() == constraint.name()))
    }
}
