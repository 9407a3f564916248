//! Reads the document of a constraint in the cluster: its name, its state, and whether it is defined as here.

use bson::{Document, doc};

use super::PrepareError;
use super::position::BACKFILL_EPOCH_FIELD;
use super::removal::REMOVAL_FIELD;
use crate::constraint::{Constraint, SORT_KEYS_FIELD, Strategy};
use crate::namespace::Namespace;
use crate::proxy_collection::StoreError;

/// The state of a constraint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConstraintState {
    /// Some documents may exist, or be written, without a reservation.
    Reserving,
    /// Every document was reserved once, by a Keyward that couldn't know whether all writing Keywards reserve.
    Backfilled,
    /// Every document is reserved, and every Keyward that may write reserves.
    Enforced,
}

impl ConstraintState {
    /// Its name in the cluster.
    pub fn name(self) -> &'static str {
        match self {
            ConstraintState::Reserving => "reserving",
            ConstraintState::Backfilled => "backfilled",
            ConstraintState::Enforced => "enforced",
        }
    }
}

/// In a constraint's document: the backfill epoch in which it was marked as enforced. In any other epoch it isn't
/// enforced. Versions that know no register of Keywards don't write this field.
pub(super) const ENFORCED_IN: &str = "enforcedIn";
/// There once the constraint was enforced, also if it isn't any more. Earlier versions don't write this field.
pub(super) const WAS_ENFORCED: &str = "wasEnforced";
/// Whether the constraint's proxy collection was ever created. Nothing is reserved there before this says so. Earlier versions don't write
/// this field.
pub(super) const HAS_PROXY: &str = "hasProxy";
/// Which drop of the proxy collection a Keyward must still wait after, because its reservations weren't complete: writes under way may have
/// reserved there. Earlier versions don't write this field.
pub(super) const AWAITS: &str = "awaits";
/// The uuid of a proxy collection that replaced a former one. A Keyward has waited since until no write that had reserved in the former one could
/// take effect any more. Earlier versions don't write this field.
pub(super) const WAITED_FOR: &str = "waitedFor";
/// In the document of a constraint that a client made: its entry in the list of clients' constraints, or `true` once it has ended.
pub(super) const OF_CLIENT: &str = "ofClient";
/// The state that versions without the register write for a constraint that isn't enforced.
const BACKFILLING: &str = "backfilling";

/// The constraint's name in its document.
pub(super) fn name_of(document: &Document) -> Option<String> {
    Some(document.get_document("_id").ok()?.get_str("name").ok()?.to_owned())
}

/// The protected collection in a constraint's document.
pub(super) fn collection_of(document: &Document) -> Option<String> {
    Some(
        document
            .get_document("_id")
            .ok()?
            .get_str("collection")
            .ok()?
            .to_owned(),
    )
}

/// The state in a constraint's document, if this version knows it.
pub(super) fn state_of(found: &Document) -> Option<ConstraintState> {
    let is_of_epoch = found.get(ENFORCED_IN).is_some() && found.get(ENFORCED_IN) == found.get(BACKFILL_EPOCH_FIELD);
    match found.get_str("state").ok()? {
        name if name == ConstraintState::Enforced.name() && is_of_epoch => Some(ConstraintState::Enforced),
        name if name == ConstraintState::Enforced.name() => Some(ConstraintState::Backfilled),
        name if name == ConstraintState::Backfilled.name() => Some(ConstraintState::Backfilled),
        name if name == ConstraintState::Reserving.name() || name == BACKFILLING => Some(ConstraintState::Reserving),
        _ => None,
    }
}

/// The state in a constraint's document, if its definition is the same as here.
pub(super) fn state(constraint: &Constraint, found: &Document) -> Result<ConstraintState, PrepareError> {
    if found.contains_key(REMOVAL_FIELD) {
        return Err(PrepareError::BeingRemoved(constraint.full_name()));
    }
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
    state_of(found).ok_or_else(|| StoreError::Unexpected("the state of a constraint").into())
}

pub(super) fn check_strategy(constraint: &Constraint, here: Strategy, there: &str) -> Result<(), PrepareError> {
    if there == here.stored_name() {
        return Ok(());
    }
    let named = Strategy::of_stored_name(there);
    Err(PrepareError::OtherStrategy {
        constraint: constraint.full_name(),
        here: here.name(),
        there: named.map_or_else(|| there.to_owned(), |named| named.name().to_owned()),
    })
}

/// Whether both are the same byte for byte. Equality of documents ignores the order of fields, but reservations keep
/// the order of a key's fields.
pub(super) fn is_same(one: &Document, other: &Document) -> bool {
    matches!((one.to_vec(), other.to_vec()), (Ok(one), Ok(other)) if one == other)
}

/// The error if the two definitions differ only in the version that made the sort keys.
fn other_sort_keys(constraint: &Constraint, here: &Document, there: &Document) -> Option<PrepareError> {
    let (mut ours, mut theirs) = (here.clone(), there.clone());
    let (ours_by, theirs_by) = (ours.remove(SORT_KEYS_FIELD)?, theirs.remove(SORT_KEYS_FIELD)?);
    (is_same(&ours, &theirs) && ours_by != theirs_by).then(|| PrepareError::OtherSortKeys {
        constraint: constraint.full_name(),
        difference: format!("here {ours_by}, there {theirs_by}"),
    })
}

/// The query that finds a constraint's document, for [`Definitions`].
pub(super) fn id(constraint: &Constraint) -> Document {
    doc! { "_id": definition_id(constraint.namespace(), constraint.name()) }
}

/// The name of each database's collection of constraint definitions.
pub const DEFINITIONS: &str = "keyward.constraints";

/// The `_id` of a constraint's document in [`DEFINITIONS`].
pub fn definition_id(namespace: &Namespace, constraint: &str) -> Document {
    doc! { "collection": &namespace.collection, "name": constraint }
}
