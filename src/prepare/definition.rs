//! Stores each constraint's definition, identity, version and state, in `keyward.constraints` of the protected
//! collection's database.
//!
//! It keeps all Keywards of a cluster consistent: a Keyward with another definition of the same constraint may not
//! start.

use std::collections::{BTreeSet, HashMap};

use bson::{Bson, Document, Uuid, doc, oid::ObjectId};
use futures_util::TryStreamExt;
use mongodb::options::ReadConcern;
use mongodb::{Client, Collection};

use super::PrepareError;
use super::backfill_claim::claimed_by;
use super::existing::Existing;
use super::left_out::Collections;
use super::position::{BACKFILL_EPOCH_FIELD, PROXY_FIELD};
use super::stored_definition::{
    AWAITS, ConstraintState, DEFINITIONS, ENFORCED_IN, HAS_PROXY, OF_CLIENT, WAITED_FOR, WAS_ENFORCED, check_strategy,
    collection_of, id, name_of, state, state_of,
};
use crate::constraint::{Constraint, ConstraintName, Strategy, proxy_collection};
use crate::fleet::{Register, RegisterEntry};
use crate::namespace::Namespace;
use crate::proxy_collection::{READ_MAX, StoreError, answered, uuid_of};

/// The state of a constraint when its document was read at registration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Registered {
    /// Its identity in the register of Keywards.
    pub identity: ObjectId,
    /// Every document is reserved, and every Keyward that may write reserves.
    pub is_enforced: bool,
    /// Its reservations were complete in another proxy collection, which was dropped or replaced. No Keyward has yet waited for the writes that
    /// may have reserved there.
    pub is_replaced: bool,
    /// Which drop of its proxy collection, whose reservations weren't complete, no Keyward has yet waited after. Writes under way may have
    /// reserved there.
    pub awaits: Option<ObjectId>,
    /// Its document doesn't say yet that its proxy collection was created.
    pub is_proxy_unnoted: bool,
}

/// The state of a constraint, as its document shows it.
#[derive(Debug, Clone, Copy)]
pub struct Standing {
    /// Its state.
    pub state: ConstraintState,
    /// Its identity in the register of Keywards.
    pub identity: ObjectId,
    /// The Keyward that reads its documents now, by its entry in the register.
    pub claimed_by: Option<ObjectId>,
    /// Whether it was enforced once, if it isn't now.
    pub was_enforced: bool,
    /// The uuid of the collection in which its reservations were complete last.
    pub proxy: Option<Uuid>,
}

/// The definitions of one database.
pub(super) struct Definitions {
    collection: Collection<Document>,
}

impl Definitions {
    /// The definitions of the protected collection's database.
    pub(super) fn of(client: &Client, namespace: &Namespace) -> Definitions {
        Definitions::in_database(client, &namespace.database)
    }

    /// The definitions of this database.
    pub(super) fn in_database(client: &Client, database: &str) -> Definitions {
        Definitions {
            collection: client.database(database).collection(DEFINITIONS),
        }
    }

    /// The state of each constraint of these collections that the cluster knows, by the collection and its name.
    pub(super) async fn standings(
        &self,
        collections: &BTreeSet<&str>,
    ) -> Result<HashMap<(String, String), Standing>, StoreError> {
        let collections: Vec<&str> = collections.iter().copied().collect();
        let found = self.collection.find(doc! { "_id.collection": { "$in": collections } });
        let found = found.projection(doc! {
            "state": 1, BACKFILL_EPOCH_FIELD: 1, ENFORCED_IN: 1, WAS_ENFORCED: 1, PROXY_FIELD.as_str(): 1, "identity": 1, "claimedBy": claimed_by(),
        });
        let found: Vec<Document> = answered(answered(found.into_future()).await?.try_collect()).await?;
        let standing = |document: &Document| {
            let name = (collection_of(document)?, name_of(document)?);
            let standing = Standing {
                state: state_of(document)?,
                identity: document.get_object_id("identity").ok()?,
                claimed_by: document.get_object_id("claimedBy").ok(),
                was_enforced: document.contains_key(WAS_ENFORCED),
                proxy: document.get(PROXY_FIELD.as_str()).and_then(uuid_of),
            };
            Some((name, standing))
        };
        Ok(found.iter().filter_map(standing).collect())
    }

    /// Stores the definition unless it exists, and returns how far the constraint has come. `proxy` is the uuid of its
    /// proxy collection, if that exists. After a drop or a restore, it may not be the collection whose reservations
    /// were found complete. Then all documents must be backfilled again.
    pub(super) async fn register(
        &self,
        constraint: &Constraint,
        proxy: Option<&Bson>,
    ) -> Result<Registered, PrepareError> {
        self.check_place(constraint).await?;
        let first_identity = ObjectId::new();
        let first = doc! { "$setOnInsert": {
            "definition": constraint.definition(), "identity": first_identity, "version": 1,
            "state": ConstraintState::Reserving.name(), BACKFILL_EPOCH_FIELD: ObjectId::new(), HAS_PROXY: false,
        } };
        let upsert = self.collection.find_one_and_update(id(constraint), first).upsert(true);
        let upsert = upsert.return_document(mongodb::options::ReturnDocument::After);
        let found = answered(upsert.into_future()).await?;
        let found = found.ok_or(StoreError::Unexpected("the definition of a constraint"))?;
        if !found.contains_key(BACKFILL_EPOCH_FIELD) {
            let mut without = id(constraint);
            without.insert(BACKFILL_EPOCH_FIELD, doc! { "$exists": false });
            let first = doc! { "$set": { BACKFILL_EPOCH_FIELD: ObjectId::new() } };
            answered(self.collection.update_one(without, first).into_future()).await?;
        }
        let state = state(constraint, &found)?;
        let identity = found.get_object_id("identity");
        let identity = identity.map_err(|_| StoreError::Unexpected("the identity of a constraint"))?;
        let complete_in = found.get(PROXY_FIELD.as_str());
        let was_complete = proxy.is_some() && complete_in == proxy;
        if state == ConstraintState::Enforced && !was_complete {
            tracing::warn!(
                namespace = %constraint.namespace(), constraint = constraint.name(),
                "the proxy collection isn't the one that was made complete: Keyward backfills every document again"
            );
            self.suspend(constraint).await?;
        }
        let is_enforced = state == ConstraintState::Enforced && was_complete;
        if is_enforced && !found.contains_key(WAS_ENFORCED) {
            // One that replaces it meanwhile has another identity.
            let mut same = id(constraint);
            same.insert("identity", identity);
            let note = doc! { "$set": { WAS_ENFORCED: true } };
            answered(self.collection.update_one(same, note).into_future()).await?;
        }
        let is_waited_for = proxy.is_some() && found.get(WAITED_FOR) == proxy;
        let is_proxy_unnoted = matches!(found.get_bool(HAS_PROXY), Ok(false));
        let is_proxy_gone = proxy.is_none() && complete_in.is_none() && identity != first_identity && !is_proxy_unnoted;
        let awaits = match is_proxy_gone {
            // It may have been created since it was looked for.
            true if self.has_proxy(constraint).await? => self.awaits(constraint).await?,
            true => Some(self.note_gone(constraint).await?),
            false => found.get_object_id(AWAITS).ok(),
        };
        Ok(Registered {
            identity,
            is_enforced,
            is_replaced: complete_in.is_some() && !was_complete && !is_waited_for,
            awaits,
            is_proxy_unnoted,
        })
    }

    async fn has_proxy(&self, constraint: &Constraint) -> Result<bool, PrepareError> {
        let proxy = Existing::read(self.collection.client(), &constraint.proxy_collection()).await?;
        Ok(proxy.uuid.is_some())
    }

    /// Which drop of the proxy collection is to be waited after. A Keyward notes that before it creates the collection anew.
    async fn awaits(&self, constraint: &Constraint) -> Result<Option<ObjectId>, StoreError> {
        let found = answered(self.collection.find_one(id(constraint)).into_future()).await?;
        Ok(found.and_then(|found| found.get_object_id(AWAITS).ok()))
    }

    /// Notes that the proxy collection is gone before its reservations were complete. The Keyward that creates it anew may be killed before it
    /// has waited for the writes that reserved in the former one.
    async fn note_gone(&self, constraint: &Constraint) -> Result<ObjectId, StoreError> {
        let awaits = ObjectId::new();
        let update = self
            .collection
            .update_one(id(constraint), doc! { "$set": { AWAITS: awaits } });
        answered(update.into_future()).await?;
        Ok(awaits)
    }

    /// Notes that the writes have ended that may have reserved in the proxy collection whose drop has the name `awaits`.
    pub(super) async fn note_awaited(&self, constraint: &Constraint, awaits: ObjectId) -> Result<(), StoreError> {
        let mut awaiting = id(constraint);
        awaiting.insert(AWAITS, awaits);
        let update = self.collection.update_one(awaiting, doc! { "$unset": { AWAITS: 1 } });
        answered(update.into_future()).await?;
        Ok(())
    }

    /// Notes that the writes have ended that may have reserved in a collection before the one with this `uuid`.
    pub(super) async fn note_waited_for(&self, constraint: &Constraint, uuid: Uuid) -> Result<(), StoreError> {
        let update = self
            .collection
            .update_one(id(constraint), doc! { "$set": { WAITED_FOR: uuid } });
        answered(update.into_future()).await?;
        Ok(())
    }

    /// Notes that the proxy collection of the constraint with this identity was created.
    pub(super) async fn note_proxy(&self, constraint: &Constraint, identity: ObjectId) -> Result<(), StoreError> {
        let mut same = id(constraint);
        same.insert("identity", identity);
        let update = self.collection.update_one(same, doc! { "$set": { HAS_PROXY: true } });
        answered(update.into_future()).await?;
        Ok(())
    }

    /// The constraint's state; none if the cluster doesn't know the constraint yet. Fails if the cluster has another
    /// definition or strategy.
    pub(super) async fn read(
        &self,
        constraint: &Constraint,
        strategy: Strategy,
    ) -> Result<Option<ConstraintState>, PrepareError> {
        let Some(found) = answered(self.collection.find_one(id(constraint)).into_future()).await? else {
            return Ok(None);
        };
        let state = state(constraint, &found)?;
        if let Ok(there) = found.get_str("strategy") {
            check_strategy(constraint, strategy, there)?;
        }
        Ok(Some(state))
    }

    /// The definition that the cluster has under the constraint's name, if there is one.
    pub(super) async fn definition(&self, constraint: &Constraint) -> Result<Option<Document>, StoreError> {
        let find = self.collection.find_one(id(constraint));
        let found = answered(find.projection(doc! { "definition": 1 }).into_future()).await?;
        Ok(found.and_then(|found| found.get_document("definition").ok().cloned()))
    }

    /// Checks that the constraint still has this identity: it wasn't removed, and its strategy wasn't changed. A primary that has been
    /// replaced can't answer this.
    pub(super) async fn check_identity(&self, constraint: &Constraint, identity: ObjectId) -> Result<(), PrepareError> {
        match self.identity(constraint).await? == Some(identity) {
            true => Ok(()),
            false => Err(PrepareError::Changed(constraint.full_name())),
        }
    }

    /// The constraint's identity, now or later than now.
    pub(super) async fn identity(&self, constraint: &Constraint) -> Result<Option<ObjectId>, StoreError> {
        let find = self.collection.find_one(id(constraint));
        let find = find.read_concern(ReadConcern::linearizable()).max_time(READ_MAX);
        let found = answered(find.into_future()).await?;
        Ok(found.and_then(|found| found.get_object_id("identity").ok()))
    }

    /// Whether the constraint is enforced, now or later than now.
    pub(super) async fn is_enforced(&self, constraint: &Constraint) -> Result<bool, StoreError> {
        let find = self.collection.find_one(id(constraint));
        let find = find.read_concern(ReadConcern::linearizable()).max_time(READ_MAX);
        let found = answered(find.into_future()).await?;
        Ok(found.and_then(|found| state_of(&found)) == Some(ConstraintState::Enforced))
    }

    /// Whether the constraint has this definition and strategy in the cluster, now or later than now, and isn't being removed.
    pub(super) async fn is_as_here(&self, constraint: &Constraint, strategy: Strategy) -> Result<bool, StoreError> {
        let find = self.collection.find_one(id(constraint));
        let find = find.read_concern(ReadConcern::linearizable()).max_time(READ_MAX);
        let Some(found) = answered(find.into_future()).await? else {
            return Ok(false);
        };
        let strategy_there = found.get_str("strategy").ok();
        Ok(state(constraint, &found).is_ok() && strategy_there.is_none_or(|there| there == strategy.stored_name()))
    }

    /// Checks that no other constraint has its reservations in the same collection.
    pub(super) async fn check_place(&self, constraint: &Constraint) -> Result<(), PrepareError> {
        let others = self
            .collection
            .find(doc! { "_id": { "$ne": id(constraint).remove("_id") } });
        let others = answered(others.into_future()).await?;
        let others: Vec<Document> = answered(others.try_collect()).await?;
        for other in others {
            let Ok(id) = other.get_document("_id") else { continue };
            let (Ok(collection), Ok(name)) = (id.get_str("collection"), id.get_str("name")) else {
                continue;
            };
            let other = Namespace::new(constraint.namespace().database.clone(), collection);
            if constraint.proxy_collection() == proxy_collection(&other, name) {
                return Err(PrepareError::SamePlace {
                    constraint: constraint.full_name(),
                    other: format!("{name} on {other}"),
                });
            }
        }
        Ok(())
    }

    /// Stores the strategy of the constraint's collection unless one is stored, and fails if another is stored. A
    /// Keyward that trusts its lease would break the guarantee of a Keyward that doesn't.
    pub(super) async fn agree_on_strategy(
        &self,
        constraint: &Constraint,
        strategy: Strategy,
    ) -> Result<(), PrepareError> {
        let here = strategy.stored_name();
        let first = vec![doc! { "$set": { "strategy": { "$ifNull": ["$strategy", here] } } }];
        let agreed = self.collection.find_one_and_update(id(constraint), first);
        let agreed = agreed.return_document(mongodb::options::ReturnDocument::After);
        let agreed = answered(agreed.into_future()).await?;
        let there = agreed.as_ref().and_then(|agreed| agreed.get_str("strategy").ok());
        match there {
            Some(there) => check_strategy(constraint, strategy, there),
            None => Err(StoreError::Unexpected("the strategy of a constraint").into()),
        }
    }

    /// Notes that every document is reserved in the proxy collection with the uuid `proxy`, and that the state is
    /// `now`: enforced or backfilled. Returns whether it is noted.
    ///
    /// It isn't if `backfill_epoch` is over. Another Keyward may have reported duplicates, and backfilled documents may
    /// have been changed since. Or a Keyward that doesn't reserve may have begun to write.
    ///
    /// If the fleet has enforced the constraint in this epoch meanwhile, a backfill beside it leaves that so.
    pub(super) async fn complete(
        &self,
        constraint: &Constraint,
        now: ConstraintState,
        proxy: Option<&Bson>,
        backfill_epoch: Option<&Bson>,
    ) -> Result<bool, PrepareError> {
        let mut filter = id(constraint);
        filter.insert(BACKFILL_EPOCH_FIELD, backfill_epoch);
        // Versions without backfill epochs end a backfill by removing its field `backfill`.
        let or = vec![
            doc! { "backfill": { "$exists": true } },
            doc! { "state": ConstraintState::Enforced.name() },
        ];
        filter.insert("$or", or);
        let mut enforced = id(constraint);
        enforced.extend(doc! {
            BACKFILL_EPOCH_FIELD: backfill_epoch, "state": ConstraintState::Enforced.name(), ENFORCED_IN: backfill_epoch,
        });
        if now == ConstraintState::Backfilled {
            filter.insert("$nor", [&enforced]);
        }
        let mut set = doc! { "state": now.name() };
        if let Some(proxy) = proxy {
            set.insert(PROXY_FIELD.as_str(), proxy);
        }
        if now == ConstraintState::Enforced {
            set.insert(ENFORCED_IN, backfill_epoch);
            set.insert(WAS_ENFORCED, true);
        }
        let update = self
            .collection
            .update_one(filter, doc! { "$set": set, "$unset": { "backfill": 1 } });
        let updated = answered(update.into_future()).await?;
        if updated.matched_count == 0 && now == ConstraintState::Backfilled {
            let found = answered(self.collection.find_one(enforced).into_future()).await?;
            return Ok(found.is_some());
        }
        Ok(updated.matched_count == 1)
    }

    /// Notes that documents may be written without reservations. The next Keyward that enforces the constraint
    /// backfills all documents again.
    pub(super) async fn suspend(&self, constraint: &Constraint) -> Result<(), PrepareError> {
        suspend_all(&self.collection, id(constraint)).await?;
        Ok(())
    }

    /// Notes that a client's constraint has ended. A constraint that was made again with this definition stays.
    pub(super) async fn end_of_client(&self, constraint: &Constraint, entry: ObjectId) -> Result<(), PrepareError> {
        let mut ended = id(constraint);
        ended.insert(OF_CLIENT, entry);
        let update = self.collection.update_one(ended, doc! { "$set": { OF_CLIENT: true } });
        answered(update.into_future()).await?;
        Ok(())
    }

    /// The constraints on these collections that clients made, and that don't have one of these identities. The answer is of now or later: a
    /// primary that was replaced can't give it.
    pub(super) async fn lacking_of_client(
        &self,
        collections: &Collections,
        identities: &BTreeSet<ObjectId>,
    ) -> Result<Vec<ConstraintName>, StoreError> {
        let mut of_client = others(collections, identities);
        of_client.insert(OF_CLIENT, doc! { "$type": "objectId" });
        let find = self.collection.find(of_client);
        let find = find.read_concern(ReadConcern::linearizable()).max_time(READ_MAX);
        let found: Vec<Document> = answered(answered(find.into_future()).await?.try_collect()).await?;
        Ok(self.names(&found))
    }

    /// The constraints on these collections that don't have one of these identities.
    pub(super) async fn lacking(
        &self,
        collections: &Collections,
        identities: &BTreeSet<ObjectId>,
    ) -> Result<Vec<ConstraintName>, StoreError> {
        let find = self.collection.find(others(collections, identities));
        let found: Vec<Document> = answered(answered(find.into_future()).await?.try_collect()).await?;
        Ok(self.names(&found))
    }

    fn names(&self, found: &[Document]) -> Vec<ConstraintName> {
        let database = self.collection.namespace().db;
        let name = |document: &Document| {
            Some(ConstraintName {
                namespace: Namespace::new(database.clone(), collection_of(document)?),
                name: name_of(document)?,
            })
        };
        found.iter().filter_map(name).collect()
    }

    /// Suspends all constraints on these collections that don't have one of these identities, except those that clients made if
    /// `are_clients_kept`; returns their number.
    pub(super) async fn suspend_others(
        &self,
        collections: &Collections,
        identities: &BTreeSet<ObjectId>,
        are_clients_kept: bool,
    ) -> Result<u64, StoreError> {
        let mut others = others(collections, identities);
        if are_clients_kept {
            others.insert(OF_CLIENT, doc! { "$not": { "$type": "objectId" } });
        }
        suspend_all(&self.collection, others).await
    }
}

/// Suspends the constraints that match `filter`; returns their number. A primary that has been replaced may not know one of them. It would
/// change nothing, and can't answer that there is none.
async fn suspend_all(definitions: &Collection<Document>, filter: Document) -> Result<u64, StoreError> {
    loop {
        let update = definitions.update_many(filter.clone(), suspension());
        let suspended = answered(update.into_future()).await?.matched_count;
        if suspended > 0 {
            return Ok(suspended);
        }
        let find = definitions.find_one(filter.clone());
        let find = find.read_concern(ReadConcern::linearizable()).max_time(READ_MAX);
        if answered(find.into_future()).await?.is_none() {
            return Ok(0);
        }
    }
}

/// Replaces the definition that an ended constraint of the same name left, if `constraint` is defined otherwise. Reservations of
/// the former one may stay: Keyward trusts none without its owner. A Keyward that comes back with the former definition refuses to
/// start. Returns none if the definition is the constraint's now. Otherwise it must be tried again: the Keywards that it returns may still
/// reserve for the former constraint. They haven't applied this `version` of the list of clients' constraints. It lacks the former one.
///
/// # Errors
/// [`PrepareError::OtherDefinition`] if a Keyward in the register reserves for a constraint that its file states; another one if the
/// cluster doesn't carry out a command.
pub async fn replace_ended_definition(
    client: &Client,
    constraint: &Constraint,
    version: i64,
) -> Result<Option<Vec<RegisterEntry>>, PrepareError> {
    let definitions = Definitions::of(client, constraint.namespace()).collection;
    let Some(found) = answered(definitions.find_one(id(constraint)).into_future()).await? else {
        return Ok(None);
    };
    let Err(error) = state(constraint, &found) else {
        return Ok(None);
    };
    let (PrepareError::OtherDefinition { .. }, Ok(identity)) = (&error, found.get_object_id("identity")) else {
        return Err(error);
    };
    // A Keyward that compared the definition before this may list the identity later. That means nothing any more: the new constraint
    // has another one.
    let mut entries = Register::of(client).current().await?;
    entries.retain(|entry| entry.constraints.contains(&identity));
    if !entries.is_empty() {
        return match entries.iter().all(|entry| entry.is_behind(version)) {
            true => Ok(Some(entries)),
            false => Err(error),
        };
    }
    // If the former one is made again meanwhile, that begins another epoch.
    let mut former = id(constraint);
    former.insert("identity", identity);
    former.insert(BACKFILL_EPOCH_FIELD, found.get(BACKFILL_EPOCH_FIELD));
    let new = doc! {
        "definition": constraint.definition(), "identity": ObjectId::new(), "version": 1,
        "state": ConstraintState::Reserving.name(), BACKFILL_EPOCH_FIELD: ObjectId::new(), HAS_PROXY: false,
    };
    let replaced = answered(definitions.replace_one(former, new).into_future()).await?;
    Ok((replaced.matched_count == 0).then(Vec::new))
}

/// Notes that documents may be written without reservations, unless the constraint is enforced.
pub async fn suspend_unless_enforced(client: &Client, constraint: &Constraint) -> Result<(), PrepareError> {
    let definitions = Definitions::of(client, constraint.namespace()).collection;
    let is_of_epoch = doc! { "$eq": [format!("${ENFORCED_IN}"), format!("${BACKFILL_EPOCH_FIELD}")] };
    let enforced = doc! { "state": ConstraintState::Enforced.name(), "$expr": is_of_epoch };
    let mut other = id(constraint);
    other.insert("$nor", vec![enforced]);
    suspend_all(&definitions, other).await?;
    Ok(())
}

/// Notes that documents may be written without reservations, as the build of a client's `constraint` begins. An earlier constraint with the
/// same definition may have left it enforced.
pub async fn begin_build(client: &Client, constraint: &Constraint) -> Result<(), PrepareError> {
    let definitions = Definitions::of(client, constraint.namespace()).collection;
    let mut update = suspension();
    if let (Ok(set), Some(entry)) = (update.get_document_mut("$set"), constraint.client_entry()) {
        set.insert(OF_CLIENT, entry);
    }
    answered(definitions.update_one(id(constraint), update).into_future()).await?;
    Ok(())
}

fn others(collections: &Collections, identities: &BTreeSet<ObjectId>) -> Document {
    let identities: Vec<ObjectId> = identities.iter().copied().collect();
    let mut others = doc! { "identity": { "$nin": identities } };
    if let Collections::These(names) = collections {
        let names: Vec<&String> = names.iter().collect();
        others.insert("_id.collection", doc! { "$in": names });
    }
    others
}

fn suspension() -> Document {
    doc! {
        "$set": { "state": ConstraintState::Reserving.name(), BACKFILL_EPOCH_FIELD: ObjectId::new() },
        "$unset": { "backfill": 1, ENFORCED_IN: 1 },
    }
}
