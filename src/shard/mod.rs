//! Carries out `keyward shard`: shards a collection whose unique indexes the server couldn't keep. Keyward takes them over first.
//!
//! 1. The indexes become constraints, as with a client's `createIndexes`. From then on the server and every Keyward keep them unique.
//! 2. Documents and reservations are compared. They differ if something writes past Keyward.
//! 3. Each index is made anew without `unique`. Another index serves its queries meanwhile.
//! 4. The server shards the collection.
//! 5. Documents and reservations are compared again.
//!
//! If it is killed, the same command goes on from there. At every step, the server or Keyward keeps the fields unique.

mod plan;
mod refusal;

pub use plan::{IndexStep, UniqueIndex};
pub use refusal::ShardRefusal;

use std::sync::Arc;
use std::time::Duration;

use bson::oid::ObjectId;
use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::Client;

use crate::client_constraints::{BuildState, ClientConstraintStore, ClientConstraints, FoundList, SharedList};
use crate::constraint::{Constraint, ConstraintName, Strategy};
use crate::indexes::{BuildContext, IndexRefusal, WantedConstraints, build, same_in};
use crate::metrics::Metrics;
use crate::namespace::Namespace;
use crate::prepare::{self, ConstraintState, Existing, privileges};
use crate::server::{code, driver};
use crate::upstream::sharded_collection;
use crate::verify::{Finding, Tally, VerifySettings, verify};

/// What the command needs the user of the configuration file to be allowed, on the collection.
const ACTIONS: [&str; 3] = ["createIndex", "dropIndex", "enableSharding"];

/// One collection that is to be sharded.
pub struct ShardTask<'a> {
    /// Keyward's own client at the deployment.
    pub client: &'a Client,
    /// The collection.
    pub namespace: &'a Namespace,
    /// The shard key.
    pub key: &'a Document,
    /// The constraints of the configuration file.
    pub of_file: &'a [Arc<Constraint>],
    /// How documents and reservations are compared.
    pub verification: VerifySettings,
    /// How long to wait before that for writes past Keyward.
    pub watch: Duration,
    /// Counts what the comparison asks.
    pub metrics: &'a Metrics,
}

/// What becomes of the collection.
pub struct ShardPlan {
    /// Whether it is sharded by that key already.
    pub is_sharded: bool,
    /// The unique indexes that become constraints.
    pub taken_over: Vec<UniqueIndex>,
    list: SharedList,
    wanted: WantedConstraints,
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
        self.check_strategy().await?;
        for action in ACTIONS {
            if !privileges::may(self.client, self.namespace, action).await? {
                let namespace = self.namespace.clone();
                return Err(ShardRefusal::MayNot { action, namespace });
            }
        }
        let shard_key: Vec<String> = self.key.keys().cloned().collect();
        let indexes = self.indexes().await?;
        let taken_over = plan::to_take_over(&indexes, existing.collation.is_some(), &shard_key)?;
        let list = SharedList::new(store, known.version);
        let wanted = self.wanted(&taken_over, &existing, &list, &known).await?;
        Ok(ShardPlan {
            is_sharded,
            taken_over,
            list,
            wanted,
        })
    }

    /// Carries the plan out. Each thing that is done goes to `say`, and each contradiction between documents and reservations to `report`.
    ///
    /// - Cancel: at any time; the next one goes on.
    /// # Errors
    /// [`ShardRefusal`] with what is done and what isn't.
    pub async fn carry_out(
        &self,
        plan: &ShardPlan,
        say: &mut (dyn FnMut(String) + Send + Sync),
        report: &mut (dyn FnMut(&Finding) + Send + Sync),
    ) -> Result<(), ShardRefusal> {
        let (namespace, key) = (self.namespace, self.key);
        let constraints = self.take_over(plan, say).await?;
        let findings = self.compare(&constraints, report).await?;
        if findings > 0 {
            return Err(ShardRefusal::WrittenPast(findings));
        }
        for unique in &plan.taken_over {
            self.make_anew(unique, plan).await?;
            say(format!("{}: the index is made anew, not unique", unique.name));
        }
        if plan.is_sharded {
            say(format!("{namespace} was sharded by {key} before"));
        } else {
            self.index_shard_key().await?;
            let command = doc! { "shardCollection": namespace.to_string(), "key": key.clone() };
            self.client.database("admin").run_command(command).await?;
            say(format!("{namespace} is sharded by {key}"));
        }
        match self.compare(&constraints, report).await? {
            0 => Ok(()),
            findings => Err(ShardRefusal::WrittenPastSince {
                namespace: namespace.clone(),
                findings,
            }),
        }
    }

    /// Whether the collection is sharded by this key already; an error if it is by another one.
    async fn is_sharded(&self) -> Result<bool, ShardRefusal> {
        let entry = sharded_collection(self.client, self.namespace).await?;
        let Some(there) = entry.as_ref().and_then(|entry| entry.get_document("key").ok()) else {
            return Ok(false);
        };
        let parts = |key: &Document| -> Vec<(String, Option<String>)> {
            let part = |(path, kind): (&String, &Bson)| (path.clone(), kind.as_str().map(str::to_owned));
            key.iter().map(part).collect()
        };
        match parts(there) == parts(self.key) {
            true => Ok(true),
            false => Err(ShardRefusal::OtherKey {
                namespace: self.namespace.clone(),
                key: there.to_string(),
            }),
        }
    }

    /// Refuses a collection with strict constraints, in the cluster or in the file.
    async fn check_strategy(&self) -> Result<(), ShardRefusal> {
        let strict = Strategy::Transaction;
        let mut of_file = self.of_file.iter().filter(|one| one.namespace() == self.namespace);
        if let Some(constraint) = of_file.find(|one| one.spec().strategy == Some(strict)) {
            return Err(ShardRefusal::Strict(constraint.full_name()));
        }
        let known = prepare::known_definitions(self.client, &self.namespace.database).await?;
        let is_strict = |stored: &String| Strategy::of_stored_name(stored) == Some(strict);
        let mut here = known.into_iter().filter(|one| one.namespace == *self.namespace);
        match here.find(|one| one.strategy.as_ref().is_some_and(is_strict)) {
            Some(one) => Err(ShardRefusal::Strict(ConstraintName {
                namespace: one.namespace,
                name: one.name,
            })),
            None => Ok(()),
        }
    }

    /// The constraints that the indexes become, and a check that every Keyward can enforce those that are new.
    async fn wanted(
        &self,
        taken_over: &[UniqueIndex],
        existing: &Existing,
        list: &SharedList,
        known: &ClientConstraints,
    ) -> Result<WantedConstraints, ShardRefusal> {
        let mut wanted = WantedConstraints::default();
        let mut of_file = Vec::new();
        for constraint in self.of_file.iter().filter(|one| one.namespace() == self.namespace) {
            let inherited = constraint.inheriting(existing.collation.as_ref());
            let inherited = inherited.map_err(|error| ShardRefusal::Specification {
                name: constraint.name().to_owned(),
                error,
            })?;
            of_file.push(inherited.map_or_else(|| constraint.clone(), Arc::new));
        }
        let context = self.context(list);
        let registered = context.check_fleet(&[]).await?;
        let follows = registered
            .iter()
            .find(|entry| entry.clients_version.is_some() && !entry.has_left);
        let builder = match follows {
            Some(entry) => entry.id,
            None if taken_over.is_empty() => return Ok(wanted),
            None => return Err(ShardRefusal::NoKeyward),
        };
        let command = ObjectId::new();
        for unique in taken_over {
            let specification = unique.specification.clone();
            let added = wanted.add(self.namespace, specification, existing, &of_file, (command, builder));
            added.map_err(|refusal| match refusal {
                IndexRefusal::Specification(error) => ShardRefusal::Specification {
                    name: unique.name.clone(),
                    error,
                },
                other => other.into(),
            })?;
        }
        let mut new = Vec::new();
        for entry in &wanted.entries {
            if same_in(known, entry)?.is_none() {
                new.push(entry);
            }
        }
        context.check_fleet(&new).await?;
        Ok(wanted)
    }

    fn context<'c>(&'c self, list: &'c SharedList) -> BuildContext<'c> {
        BuildContext {
            client: self.client,
            list,
            serving: None,
        }
    }

    /// Has the constraints built, and returns them once they hold on every Keyward.
    async fn take_over(
        &self,
        plan: &ShardPlan,
        say: &mut (dyn FnMut(String) + Send + Sync),
    ) -> Result<Vec<Arc<Constraint>>, ShardRefusal> {
        let wanted = &plan.wanted;
        if plan.taken_over.is_empty() {
            return Ok(Vec::new());
        }
        if let Err(failed) = build(&self.context(&plan.list), wanted, None, None).await {
            let reply = Document::from_reader(failed.reply.as_slice()).unwrap_or_default();
            return Err(ShardRefusal::NotBuilt(
                reply.get_str("errmsg").unwrap_or_default().to_owned(),
            ));
        }
        let constraints: Vec<_> = wanted.constraints().cloned().collect();
        for constraint in &constraints {
            say(format!("{}: the constraint holds everywhere", constraint.name()));
        }
        Ok(constraints)
    }

    /// Waits for writes past Keyward, and compares documents with reservations. Returns how many contradict each other.
    async fn compare(
        &self,
        constraints: &[Arc<Constraint>],
        report: &mut (dyn FnMut(&Finding) + Send + Sync),
    ) -> Result<u64, ShardRefusal> {
        if constraints.is_empty() {
            return Ok(0);
        }
        tracing::info!(namespace = %self.namespace, watch = ?self.watch, "waiting before documents and reservations are compared");
        tokio::time::sleep(self.watch).await;
        let lease = self.verification.lease;
        let mut tally = Tally::default();
        for protected in prepare::prepared(self.client, constraints, lease, self.metrics).await? {
            for position in 0..protected.constraints.len() {
                prepare::check_enforced(self.client, &protected, position).await?;
                verify(&protected, position, self.verification, &mut tally, report).await?;
            }
        }
        Ok(tally.left())
    }

    /// Makes a unique index anew, without `unique`, while another index serves its queries.
    async fn make_anew(&self, unique: &UniqueIndex, plan: &ShardPlan) -> Result<(), ShardRefusal> {
        let database = self.client.database(&self.namespace.database);
        let collection = self.namespace.collection.as_str();
        let make = |index: Document| doc! { "createIndexes": collection, "indexes": [index] };
        let drop = |name: &str| doc! { "dropIndexes": collection, "index": name };
        loop {
            let command = match unique.next_step(&self.indexes().await?) {
                IndexStep::MakeMeanwhile => make(unique.meanwhile()),
                IndexStep::DropUnique => {
                    self.check_held(plan).await?;
                    drop(&unique.name)
                }
                IndexStep::MakePlain => make(unique.plain.clone()),
                IndexStep::DropMeanwhile => drop(&unique.meanwhile_name()),
                IndexStep::Done => return Ok(()),
                IndexStep::Gone => return Err(ShardRefusal::Gone(unique.name.clone())),
            };
            match database.run_command(command).await {
                // A client has made the unique index again, or dropped it: the next step begins with what is there.
                Err(error) if is_overtaken(&error) => {}
                done => drop_reply(done)?,
            }
        }
    }

    /// Checks that the constraints that take the place of the indexes still hold: a client may have dropped one, and a Keyward that doesn't
    /// know them may have begun to write to the collection.
    async fn check_held(&self, plan: &ShardPlan) -> Result<(), ShardRefusal> {
        let wanted = &plan.wanted;
        let list = plan.list.store.read().await?;
        for entry in &wanted.entries {
            if same_in(&list, entry)?.is_none_or(|same| same.state != BuildState::Built) {
                return Err(ShardRefusal::Ended(entry.constraint.full_name()));
            }
        }
        let constraints: Vec<_> = wanted.constraints().cloned().collect();
        let standings = prepare::standings(self.client, &constraints).await?;
        for (constraint, standing) in constraints.iter().zip(standings) {
            if standing.is_none_or(|standing| standing.state != ConstraintState::Enforced) {
                return Err(ShardRefusal::Ended(constraint.full_name()));
            }
        }
        Ok(())
    }

    /// Makes the index that `shardCollection` requires, unless there is one.
    async fn index_shard_key(&self) -> Result<(), ShardRefusal> {
        let name = |(path, kind): (&String, &Bson)| match kind.as_str() {
            Some(kind) => format!("{path}_{kind}"),
            None => format!("{path}_1"),
        };
        let name = self.key.iter().map(name).collect::<Vec<_>>().join("_");
        let index = doc! { "key": self.key.clone(), "name": name };
        let command = doc! { "createIndexes": &self.namespace.collection, "indexes": [index] };
        match self
            .client
            .database(&self.namespace.database)
            .run_command(command)
            .await
        {
            // There is one with other options or another name; the server says whether it will do.
            Err(error) if is_overtaken(&error) => Ok(()),
            done => drop_reply(done),
        }
    }

    /// The collection's indexes.
    async fn indexes(&self) -> Result<Vec<Document>, ShardRefusal> {
        let database = self.client.database(&self.namespace.database);
        let collection = database.collection::<Document>(&self.namespace.collection);
        let list = database.run_cursor_command(doc! { "listIndexes": collection.name() });
        Ok(list.await?.try_collect().await?)
    }
}

/// Whether a command about an index failed because another client has changed it at the same moment.
fn is_overtaken(error: &mongodb::error::Error) -> bool {
    matches!(
        driver::code_of(error),
        Some(code::INDEX_NOT_FOUND | code::INDEX_OPTIONS_CONFLICT | code::INDEX_KEY_SPECS_CONFLICT)
    )
}

fn drop_reply(done: Result<Document, mongodb::error::Error>) -> Result<(), ShardRefusal> {
    Ok(done.map(drop)?)
}
