//! Carries out the plan of `keyward shard`.

use std::sync::Arc;

use bson::{Document, doc};

use super::{IndexStep, ShardPlan, ShardRefusal, ShardTask, UniqueIndex};
use crate::client_constraints::{BuildState, ClientConstraint};
use crate::constraint::Constraint;
use crate::indexes::{FoundIndexes, build};
use crate::prepare::{self, ConstraintState, Existing};
use crate::proxy_collection::StoreError;
use crate::server::{code, driver};
use crate::verify::{Finding, Tally, verify};

impl ShardTask<'_> {
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
        if !plan.taken_over.is_empty() {
            self.take_over(plan, say).await?;
        }
        let noted = self.noted_by_audits(plan).await?;
        if !(plan.is_sharded && plan.taken_over.is_empty()) {
            let findings = self.compare(plan, noted, report).await?;
            if findings > 0 {
                return Err(ShardRefusal::WrittenPast(findings));
            }
        }
        // The server may refuse the shard key here already.
        if !plan.is_sharded {
            self.index_shard_key(plan).await?;
        }
        for unique in &plan.taken_over {
            self.make_anew(unique, plan).await?;
            say(format!("{}: the index is made anew, not unique", unique.name()));
        }
        if plan.is_sharded {
            say(format!("{namespace} was sharded by {key} before"));
        } else {
            self.check_held(plan).await?;
            // Else a collection with a default collation can't be sharded.
            let simple = doc! { "locale": "simple" };
            let command = doc! { "shardCollection": namespace.to_string(), "key": key.clone(), "collation": simple };
            let sharded = self.client.database("admin").run_command(command).await;
            sharded.map_err(|error| match driver::code_of(&error) {
                Some(_) => ShardRefusal::NotSharded {
                    namespace: namespace.clone(),
                    reason: StoreError::from(error).to_string(),
                },
                None => error.into(),
            })?;
            say(format!("{namespace} is sharded by {key}"));
        }
        match self.compare(plan, noted, report).await? {
            0 => Ok(()),
            findings => Err(ShardRefusal::WrittenPastSince {
                namespace: namespace.clone(),
                findings,
            }),
        }
    }

    /// Builds the constraints. They hold on every Keyward then.
    async fn take_over(
        &self,
        plan: &ShardPlan,
        say: &mut (dyn FnMut(String) + Send + Sync),
    ) -> Result<(), ShardRefusal> {
        let indexes = self.indexes(plan.is_collated()).await?.for_list();
        let context = self.context(&plan.list);
        let found = FoundIndexes {
            before: Some(&indexes),
            is_any_made: false,
        };
        let built = tokio::select! {
            built = build(&context, &plan.wanted, found, None) => built,
            // No Keyward would build them.
            refusal = self.no_keyward() => return Err(refusal),
        };
        if let Err(failed) = built {
            failed.await_ended(&context, None).await;
            let reply = Document::from_reader(failed.reply.as_slice()).unwrap_or_default();
            return Err(ShardRefusal::NotBuilt(
                reply.get_str("errmsg").unwrap_or_default().to_owned(),
            ));
        }
        for constraint in plan.wanted.constraints() {
            say(format!("{}: the constraint holds everywhere", constraint.name()));
        }
        Ok(())
    }

    /// Waits until no Keyward is there any more that could build constraints.
    async fn no_keyward(&self) -> ShardRefusal {
        loop {
            if let Err(refusal) = self.living_keyward().await {
                return refusal;
            }
        }
    }

    /// How many documents audits have found that were written past Keyward, and have repaired if they could.
    async fn noted_by_audits(&self, plan: &ShardPlan) -> Result<u64, ShardRefusal> {
        let mut noted = 0;
        for constraint in plan.constraints() {
            noted += prepare::written_past(self.client, &constraint).await?;
        }
        Ok(noted)
    }

    /// Waits for writes past Keyward, and compares documents with reservations. Returns how many contradict each other, or were noted by audits
    /// after the first `noted` ones.
    async fn compare(
        &self,
        plan: &ShardPlan,
        noted: u64,
        report: &mut (dyn FnMut(&Finding) + Send + Sync),
    ) -> Result<u64, ShardRefusal> {
        let constraints = plan.constraints();
        if constraints.is_empty() {
            return Ok(0);
        }
        tracing::info!(namespace = %self.namespace, watch = %humantime::format_duration(self.watch), "waiting before documents and reservations are compared");
        tokio::time::sleep(self.watch).await;
        self.check_held(plan).await?;
        let mut tally = Tally::default();
        for protected in prepare::prepared(self.client, &constraints, self.lease, self.metrics).await? {
            for position in 0..protected.constraints.len() {
                prepare::check_enforced(self.client, &protected, position).await?;
                verify(&protected, position, self.verification, &mut tally, report).await?;
            }
        }
        let noted_since = self.noted_by_audits(plan).await?.saturating_sub(noted);
        // A TTL index leaves abandoned reservations, too.
        Ok(tally.contradictions() + noted_since)
    }

    /// Makes a unique index anew, without `unique`, while another index serves its queries.
    async fn make_anew(&self, unique: &UniqueIndex, plan: &ShardPlan) -> Result<(), ShardRefusal> {
        let database = self.client.database(&self.namespace.database);
        let collection = self.namespace.collection.as_str();
        let make = |index: Document| doc! { "createIndexes": collection, "indexes": [index] };
        let drop = |name: &str| doc! { "dropIndexes": collection, "index": name };
        let mut failed = None;
        loop {
            let step = self.indexes(plan.is_collated()).await?.next_step(unique)?;
            let command = match step {
                IndexStep::MakeMeanwhile => make(unique.meanwhile()),
                IndexStep::DropUnique => {
                    self.check_held(plan).await?;
                    drop(unique.name())
                }
                IndexStep::MakePlain => {
                    self.check_held(plan).await?;
                    make(unique.plain.clone())
                }
                IndexStep::DropMeanwhile => drop(&unique.meanwhile_name()),
                IndexStep::Done => return Ok(()),
            };
            match database.run_command(command).await {
                // A client has made the unique index again, or dropped it: the next step begins with the present indexes.
                Err(error) if is_overtaken(&error) && failed != Some(step) => failed = Some(step),
                done => drop_reply(done)?,
            }
        }
    }

    /// Checks that the constraints still hold that take the place of the indexes, and all others on the collection: a client may have
    /// dropped one, and a Keyward that doesn't know them may have begun to write to the collection.
    async fn check_held(&self, plan: &ShardPlan) -> Result<(), ShardRefusal> {
        let uuid = &plan.wanted.existing.uuid;
        if Existing::read(self.client, self.namespace).await?.uuid != *uuid {
            return Err(ShardRefusal::MadeAnew(self.namespace.clone()));
        }
        let ended = |constraint: &Constraint| ShardRefusal::Ended(constraint.full_name());
        let list = plan.list.store.read().await?;
        let holds = |entry: &ClientConstraint| entry.state == BuildState::Built && entry.collection_uuid == *uuid;
        for effective in &plan.wanted.effective {
            if !plan.wanted.same_in(&list, effective)?.is_some_and(holds) {
                return Err(ended(effective));
            }
        }
        let is_built = |id| list.entry(id).is_some_and(|entry| entry.state == BuildState::Built);
        let mut others = plan.others.iter();
        if let Some(constraint) = others.find(|one| one.client_entry().is_some_and(|id| !is_built(id))) {
            return Err(ended(constraint));
        }
        let constraints: Vec<Arc<Constraint>> = plan.constraints();
        let standings = prepare::standings(self.client, &constraints).await?;
        for (constraint, standing) in constraints.iter().zip(standings) {
            if standing.is_none_or(|standing| standing.state != ConstraintState::Enforced) {
                return Err(ended(constraint));
            }
        }
        Ok(())
    }

    /// Makes the index that `shardCollection` requires, unless there is one.
    async fn index_shard_key(&self, plan: &ShardPlan) -> Result<(), ShardRefusal> {
        let indexes = self.indexes(plan.is_collated()).await?;
        if indexes.serve_shard_key(self.key) {
            return Ok(());
        }
        let index =
            doc! { "key": self.key.clone(), "name": indexes.free_name(self.key), "collation": { "locale": "simple" } };
        let command = doc! { "createIndexes": &self.namespace.collection, "indexes": [index] };
        let database = self.client.database(&self.namespace.database);
        drop_reply(database.run_command(command).await)
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
