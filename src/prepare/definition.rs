//! What the cluster knows of each constraint: definition, identity, version and state, in `keyward.constraints` of the
//! protected collection's database.
//!
//! It keeps a fleet of Keywards of one mind: whoever has another definition of the same constraint may not start.

use std::fmt::{self, Display, Formatter};

use bson::{Bson, Document, doc, oid::ObjectId};
use futures_util::TryStreamExt;
use mongodb::{Client, Collection};

use super::PrepareError;
use super::position::{ERA_FIELD, PROXY_FIELD};
use crate::constraint::{Constraint, SORT_KEYS_FIELD, Strategy, proxy_collection};
use crate::namespace::Namespace;
use crate::proxy_collection::{StoreError, answered};

/// How far a constraint has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Documents that were there before may not be reserved yet.
    Backfilling,
    /// Every document is reserved.
    Enforced,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Backfilling => "backfilling",
            State::Enforced => "enforced",
        }
    }
}

/// How far a constraint had come when it was looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Registered {
    /// Every document is reserved.
    pub is_enforced: bool,
    /// Every document was, once, in the proxy collection that is there.
    pub was_complete: bool,
}

/// A constraint that the cluster knows, whether or not the configuration does.
#[derive(Debug)]
pub(super) struct Written {
    /// The protected collection.
    pub namespace: Namespace,
    /// The constraint's name.
    pub name: String,
}

impl Display for Written {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.namespace, self.name)
    }
}

/// The definitions of one database.
pub(super) struct Definitions {
    collection: Collection<Document>,
}

impl Definitions {
    /// Those of the protected collection's database.
    pub(super) fn of(client: &Client, namespace: &Namespace) -> Definitions {
        Definitions::in_database(client, &namespace.database)
    }

    /// Those of a database.
    pub(super) fn in_database(client: &Client, database: &str) -> Definitions {
        Definitions {
            collection: client.database(database).collection(DEFINITIONS),
        }
    }

    /// All that are enforced, whoever does it.
    pub(super) async fn enforced(&self) -> Result<Vec<Written>, StoreError> {
        let enforced = self.collection.find(doc! { "state": State::Enforced.name() });
        let enforced: Vec<Document> = answered(answered(enforced.into_future()).await?.try_collect()).await?;
        let database = &self.collection.namespace().db;
        let written = |document: &Document| {
            let id = document.get_document("_id").ok()?;
            Some(Written {
                namespace: Namespace::new(database.clone(), id.get_str("collection").ok()?),
                name: id.get_str("name").ok()?.to_owned(),
            })
        };
        Ok(enforced.iter().filter_map(written).collect())
    }

    /// Writes the definition down unless it is there; gives how far the constraint has come. `proxy` is the uuid of its
    /// proxy collection, if there is one: where that isn't the one whose reservations were found complete, as when it was
    /// dropped or restored, all documents are to be taken in again.
    pub(super) async fn register(
        &self,
        constraint: &Constraint,
        proxy: Option<&Bson>,
    ) -> Result<Registered, PrepareError> {
        self.check_place(constraint).await?;
        let first = doc! { "$setOnInsert": {
            "definition": constraint.definition(), "identity": ObjectId::new(), "version": 1,
            "state": State::Backfilling.name(),
        } };
        let upsert = self.collection.find_one_and_update(id(constraint), first).upsert(true);
        let upsert = upsert.return_document(mongodb::options::ReturnDocument::After);
        let found = answered(upsert.into_future()).await?;
        let found = found.ok_or(StoreError::Unexpected("the definition of a constraint"))?;
        let state = state(constraint, &found)?;
        let was_complete = proxy.is_some() && found.get(PROXY_FIELD.as_str()) == proxy;
        if state == State::Enforced && !was_complete {
            tracing::warn!(
                namespace = %constraint.namespace(), constraint = constraint.name(),
                "the proxy collection isn't the one that was made complete: every document is taken in again"
            );
            self.suspend(constraint).await?;
        }
        let is_enforced = state == State::Enforced && was_complete;
        Ok(Registered {
            is_enforced,
            was_complete,
        })
    }

    /// The state that the constraint is in, where its documents are kept unique as it says here; none if the cluster
    /// doesn't know it yet.
    pub(super) async fn look(
        &self,
        constraint: &Constraint,
        strategy: Strategy,
    ) -> Result<Option<State>, PrepareError> {
        let Some(found) = answered(self.collection.find_one(id(constraint)).into_future()).await? else {
            return Ok(None);
        };
        let state = state(constraint, &found)?;
        if let Ok(there) = found.get_str("strategy") {
            check_strategy(constraint, strategy, there)?;
        }
        Ok(Some(state))
    }

    /// No other constraint may have its reservations in the same collection.
    async fn check_place(&self, constraint: &Constraint) -> Result<(), PrepareError> {
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
                    namespace: constraint.namespace().clone(),
                    name: constraint.name().to_owned(),
                    other: format!("{name} on {other}"),
                });
            }
        }
        Ok(())
    }

    /// Writes its collection's strategy down unless one is there: a Keyward that trusts its lease would undo what one that
    /// doesn't promises.
    pub(super) async fn agree_on_strategy(
        &self,
        constraint: &Constraint,
        strategy: Strategy,
    ) -> Result<(), PrepareError> {
        let here = strategy.name();
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

    /// Notes that every document is reserved, in the proxy collection with the uuid `proxy`. Not if the `era` in which they
    /// were taken in is over: another Keyward has reported duplicates, say, and documents may have been changed for it that
    /// were taken in here before. Gives whether it is noted.
    pub(super) async fn enforce(
        &self,
        constraint: &Constraint,
        proxy: Option<&Bson>,
        era: Option<&Bson>,
    ) -> Result<bool, PrepareError> {
        let mut filter = id(constraint);
        filter.insert(ERA_FIELD, era);
        // Versions without eras ended one so.
        let or = vec![
            doc! { "backfill": { "$exists": true } },
            doc! { "state": State::Enforced.name() },
        ];
        filter.insert("$or", or);
        let set = doc! { "state": State::Enforced.name(), PROXY_FIELD.as_str(): proxy };
        let update = self
            .collection
            .update_one(filter, doc! { "$set": set, "$unset": { "backfill": 1 } });
        let updated = answered(update.into_future()).await?;
        Ok(updated.matched_count == 1)
    }

    /// Notes that documents may come that aren't reserved: who enforces it next takes in all of them again.
    pub(super) async fn suspend(&self, constraint: &Constraint) -> Result<(), PrepareError> {
        self.suspend_named(constraint.namespace(), constraint.name()).await
    }

    /// The same of one that may only be known to the cluster.
    pub(super) async fn suspend_written(&self, written: &Written) -> Result<(), PrepareError> {
        self.suspend_named(&written.namespace, &written.name).await
    }

    async fn suspend_named(&self, namespace: &Namespace, name: &str) -> Result<(), PrepareError> {
        let update = doc! {
            "$set": { "state": State::Backfilling.name(), ERA_FIELD: ObjectId::new() }, "$unset": { "backfill": 1 },
        };
        let update = self
            .collection
            .update_one(doc! { "_id": definition_id(namespace, name) }, update);
        answered(update.into_future()).await?;
        Ok(())
    }
}

/// The state that a constraint's document says, if its definition is the same as here.
fn state(constraint: &Constraint, found: &Document) -> Result<State, PrepareError> {
    let definition = constraint.definition();
    let there = found
        .get_document("definition")
        .map_err(|_| StoreError::Unexpected("a definition"))?;
    if let Some(error) = other_sort_keys(constraint, &definition, there) {
        return Err(error);
    }
    if !is_same(there, &definition) {
        return Err(PrepareError::OtherDefinition {
            namespace: constraint.namespace().clone(),
            name: constraint.name().to_owned(),
            here: definition.to_string(),
            there: there.to_string(),
        });
    }
    match found.get_str("state") {
        Ok(name) if name == State::Enforced.name() => Ok(State::Enforced),
        Ok(name) if name == State::Backfilling.name() => Ok(State::Backfilling),
        _ => Err(StoreError::Unexpected("the state of a constraint").into()),
    }
}

fn check_strategy(constraint: &Constraint, here: Strategy, there: &str) -> Result<(), PrepareError> {
    let here = here.name();
    match there == here {
        true => Ok(()),
        false => Err(PrepareError::OtherStrategy {
            namespace: constraint.namespace().clone(),
            name: constraint.name().to_owned(),
            here,
            there: there.to_owned(),
        }),
    }
}

/// Whether they are the same byte for byte: the order of the fields of a key, which equality of documents leaves out, is the
/// order in which reservations have them.
fn is_same(one: &Document, other: &Document) -> bool {
    matches!((one.to_vec(), other.to_vec()), (Ok(one), Ok(other)) if one == other)
}

/// The error, if the two definitions differ in nothing but what made the sort keys.
fn other_sort_keys(constraint: &Constraint, here: &Document, there: &Document) -> Option<PrepareError> {
    let (mut ours, mut theirs) = (here.clone(), there.clone());
    let (ours_by, theirs_by) = (ours.remove(SORT_KEYS_FIELD)?, theirs.remove(SORT_KEYS_FIELD)?);
    (is_same(&ours, &theirs) && ours_by != theirs_by).then(|| PrepareError::OtherSortKeys {
        namespace: constraint.namespace().clone(),
        name: constraint.name().to_owned(),
        difference: format!("here {ours_by}, there {theirs_by}"),
    })
}

/// The query by which a constraint's document is found, for [`Definitions`].
fn id(constraint: &Constraint) -> Document {
    doc! { "_id": definition_id(constraint.namespace(), constraint.name()) }
}

/// The collection of each database's constraints' documents.
pub const DEFINITIONS: &str = "keyward.constraints";

/// The `_id` of a constraint's document in [`DEFINITIONS`].
pub fn definition_id(namespace: &Namespace, constraint: &str) -> Document {
    doc! { "collection": &namespace.collection, "name": constraint }
}
