//! Finds out what `keyward shard` has to do, without changing anything.

use std::sync::Arc;

use bson::oid::ObjectId;

use super::refusal::index_error;
use super::{Indexes, ShardRefusal, ShardTask, UniqueIndex};
use crate::client_constraints::{ClientConstraintStore, ClientConstraints, FoundList, SharedList};
use crate::constraint::{Constraint, Strategy};
use crate::fleet::RegisterEntry;
use crate::indexes::{WantedConstraints, is_same_key};
use crate::prepare::{self, Existing, KnownDefinition, privileges};
use crate::upstream::sharded_collection;

/// The actions on the collection for which the user in the configuration file needs privileges.
const ACTIONS: [&str; 3] = ["createIndex", "dropIndex", "enableSharding"];

/// The plan for the collection.
pub struct ShardPlan {
    /// Whether it is sharded by that key already.
    pub is_sharded: bool,
    /// The unique indexes that become constraints.
    pub taken_over: Vec<UniqueIndex>,
    /// The list of clients' constraints.
    pub(super) list: SharedList,
    /// The constraints that the indexes become.
    pub(super) wanted: WantedConstraints,
    /// The other constraints on the collection.
    pub(super) others: Vec<Arc<Constraint>>,
}

impl ShardPlan {
    /// All constraints on the collection, once the indexes are taken over.
    pub(super) fn constraints(&self) -> Vec<Arc<Constraint>> {
        self.wanted.constraints().chain(&self.others).cloned().collect()
    }

    /// Whether the collection has a default collation.
    pub(super) fn is_collated(&self) -> bool {
        self.wanted.existing.collation.is_some()
    }
}

impl ShardTask<'_> {
    /// Looks what is to be done, and whether it can be. Changes nothing.
    ///
    /// # Errors
    /// [`ShardRefusal`] if it can't be done, or the cluster doesn't answer.
    pub async fn plan(&self) -> Result<ShardPlan, ShardRefusal> {
        let (store, known) = match ClientConstraintStore::of_deployment(self.client).await? {
            FoundList::There(store, list) => (store, list),
            FoundList::Unreadable => return Err(ShardRefusal::MayNotRead),
            FoundList::None => return Err(ShardRefusal::ReplicaSet),
        };
        let existing = Existing::read(self.client, self.namespace).await?;
        if existing.uuid.is_none() {
            return Err(ShardRefusal::NoCollection(self.namespace.clone()));
        }
        if existing.is_capped {
            return Err(ShardRefusal::Capped(self.namespace.clone()));
        }
        let is_sharded = self.is_sharded().await?;
        let definitions = prepare::known_definitions(self.client, &self.namespace.database).await?;
        let is_here = |definition: &KnownDefinition| definition.namespace == *self.namespace;
        let definitions: Vec<_> = definitions.into_iter().filter(is_here).collect();
        self.check_strategy(&definitions)?;
        for action in ACTIONS {
            if !privileges::may(self.client, self.namespace, action).await? {
                let namespace = self.namespace.clone();
                return Err(ShardRefusal::MayNot { action, namespace });
            }
        }
        let shard_key: Vec<String> = self.key.keys().cloned().collect();
        let indexes = self.indexes(existing.collation.is_some()).await?;
        let taken_over = indexes.to_take_over(&shard_key)?;
        let mut plan = ShardPlan {
            is_sharded,
            taken_over,
            list: SharedList::new(store, known.version),
            wanted: WantedConstraints::on(self.namespace, existing),
            others: Vec::new(),
        };
        self.add_constraints(&mut plan, &indexes, &known, &definitions).await?;
        Ok(plan)
    }

    /// Whether the collection is sharded by this key already; an error if it is by another one.
    async fn is_sharded(&self) -> Result<bool, ShardRefusal> {
        let entry = sharded_collection(self.client, self.namespace).await?;
        let Some(there) = entry.as_ref().and_then(|entry| entry.get_document("key").ok()) else {
            return Ok(false);
        };
        match is_same_key(there, self.key) {
            true => Ok(true),
            false => Err(ShardRefusal::OtherKey {
                namespace: self.namespace.clone(),
                key: there.to_string(),
            }),
        }
    }

    /// Refuses a collection with strict constraints, in the cluster or in the file.
    fn check_strategy(&self, definitions: &[KnownDefinition]) -> Result<(), ShardRefusal> {
        let strict = Strategy::Strict;
        let mut of_file = self.of_file.iter().filter(|one| one.namespace() == self.namespace);
        if let Some(constraint) = of_file.find(|one| one.spec().strategy == Some(strict)) {
            return Err(ShardRefusal::Strict(constraint.full_name()));
        }
        let is_strict = |stored: &String| Strategy::of_stored_name(stored) == Some(strict);
        let mut definitions = definitions.iter();
        match definitions.find(|one| one.strategy.as_ref().is_some_and(is_strict)) {
            Some(one) => Err(ShardRefusal::Strict(one.full_name())),
            None => Ok(()),
        }
    }

    /// Adds all constraints on the collection to the plan. Checks that Keywards are there to enforce them, and that each can enforce those
    /// that are new.
    async fn add_constraints(
        &self,
        plan: &mut ShardPlan,
        indexes: &Indexes<'_>,
        known: &ClientConstraints,
        definitions: &[KnownDefinition],
    ) -> Result<(), ShardRefusal> {
        let wanted = &mut plan.wanted;
        let mut of_file = Vec::new();
        for constraint in self.of_file.iter().filter(|one| one.namespace() == self.namespace) {
            // No Keyward starts with one that can't have the collection's collation.
            let effective = wanted.effective(constraint);
            let effective = effective.map_err(|_| ShardRefusal::OnlyInFile(constraint.full_name()))?;
            of_file.push(Arc::new(effective));
        }
        let listed = indexes.for_list();
        let mut of_collection = known.clone();
        of_collection.constraints.retain(|entry| {
            entry.constraint.namespace() == self.namespace && wanted.is_of_collection(entry, Some(&listed))
        });
        let there = of_collection.with(&of_file);
        let context = self.context(&plan.list);
        if plan.taken_over.is_empty() && there.is_empty() {
            return Ok(());
        }
        let builder = self.living_keyward().await?.id;
        let registered = context.check_fleet(&[]).await?;
        self.check_file(&of_file, known, definitions, &registered)?;
        let command = ObjectId::new();
        for unique in &plan.taken_over {
            let added = wanted.add(unique.constraint.spec().clone(), &of_file, (command, builder));
            added.map_err(|refusal| index_error(unique.name(), refusal))?;
        }
        for effective in &wanted.effective {
            let same = wanted.same_in(&of_collection, effective);
            same.map_err(|refusal| index_error(effective.name(), refusal))?;
        }
        context.check_fleet(&wanted.new_in(known)).await?;
        let is_wanted = |one: &Arc<Constraint>| wanted.constraints().any(|wanted| wanted.name() == one.name());
        plan.others = there.into_iter().filter(|one| !is_wanted(one)).collect();
        Ok(())
    }

    /// Checks that the configuration file has the constraints that Keywards reserve for, and no others.
    fn check_file(
        &self,
        of_file: &[Arc<Constraint>],
        known: &ClientConstraints,
        definitions: &[KnownDefinition],
        registered: &[RegisterEntry],
    ) -> Result<(), ShardRefusal> {
        let reserves = |definition: &&KnownDefinition| {
            let reserves =
                |entry: &RegisterEntry| definition.identity.is_some_and(|id| entry.constraints.contains(&id));
            registered.iter().any(|entry| !entry.has_left && reserves(entry))
        };
        let reserved: Vec<_> = definitions.iter().filter(reserves).collect();
        let is_known = |name: &str| {
            let mut of_clients = known.on(self.namespace).map(|entry| &entry.constraint);
            of_clients.any(|one| one.name() == name) || of_file.iter().any(|one| one.name() == name)
        };
        let of_other = reserved.iter().find(|one| !is_known(&one.name));
        if let Some(definition) = of_other {
            return Err(ShardRefusal::NotInFile(definition.full_name()));
        }
        let is_reserved = |constraint: &Constraint| reserved.iter().any(|one| one.name == constraint.name());
        match of_file.iter().find(|constraint| !is_reserved(constraint)) {
            Some(constraint) => Err(ShardRefusal::OnlyInFile(constraint.full_name())),
            None => Ok(()),
        }
    }
}
