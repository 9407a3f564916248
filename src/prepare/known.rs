//! Reads all that a database's `keyward.constraints` says of its constraints, whether or not a configuration names them.

use bson::oid::ObjectId;
use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::Client;
use mongodb::options::ReadConcern;

use super::backfill_claim::is_claimed;
use super::position::BACKFILL_EPOCH_FIELD;
use super::removal::REMOVAL_FIELD;
use super::stored_definition::{DEFINITIONS, ENFORCED_IN, OF_CLIENT, state_of};
use super::{ConstraintState, Removal};
use crate::constraint::ConstraintName;
use crate::namespace::Namespace;
use crate::proxy_collection::{StoreError, answered};

/// How far a backfill has come.
#[derive(Debug, Clone, PartialEq)]
pub struct BackfillProgress {
    /// About how many documents are done.
    pub done: i64,
    /// About how many documents there were when it began, if that is stored.
    pub of: Option<i64>,
    /// The `_id` up to which all documents are done.
    pub after: Option<Bson>,
}

/// The field in a constraint's document with what it was before its strategy began to change.
pub const CHANGING_FIELD: &str = "changing";

/// A constraint before its strategy began to change.
#[derive(Debug, Clone)]
pub struct FormerStrategy {
    /// The strategy, by its name in the cluster.
    pub strategy: Option<String>,
    /// The identity in the register of Keywards.
    pub identity: Option<ObjectId>,
}

/// A constraint, as its document in the cluster shows it.
#[derive(Debug, Clone)]
pub struct KnownDefinition {
    /// The protected collection.
    pub namespace: Namespace,
    /// The constraint's name.
    pub name: String,
    /// Its definition; none if this version can't read it.
    pub definition: Option<Document>,
    /// Its identity in the register of Keywards.
    pub identity: Option<ObjectId>,
    /// The strategy of its collection, by its name in the cluster.
    pub strategy: Option<String>,
    /// Its state, if this version knows it.
    pub state: Option<ConstraintState>,
    /// Whether a Keyward reads its documents now.
    pub is_claimed: bool,
    /// Present if a client made it: its entry in the list of clients' constraints, or `true` once it has ended.
    pub of_client: Option<Bson>,
    /// The position of its backfill, if one has begun and hasn't ended.
    pub backfill: Option<BackfillProgress>,
    /// Its removal, if one has begun.
    pub removal: Option<Removal>,
    /// Its former state, if its strategy changes just now.
    pub changing: Option<FormerStrategy>,
}

impl KnownDefinition {
    /// Its name with its collection.
    pub fn full_name(&self) -> ConstraintName {
        ConstraintName::new(&self.namespace, &self.name)
    }
}

/// Whether the cluster knows constraints in a database. Other Keywards may have them.
///
/// # Errors
/// [`StoreError`] if the cluster doesn't answer.
pub async fn has_definitions(client: &Client, database: &str) -> Result<bool, StoreError> {
    let definitions = client.database(database).collection::<Document>(DEFINITIONS);
    let find = definitions.find_one(doc! {}).read_concern(ReadConcern::majority());
    Ok(answered(find.into_future()).await?.is_some())
}

/// The constraints of a database that the cluster knows.
pub async fn known_definitions(client: &Client, database: &str) -> Result<Vec<KnownDefinition>, StoreError> {
    let definitions = client.database(database).collection::<Document>(DEFINITIONS);
    let find = definitions.find(doc! {}).sort(doc! { "_id": 1 });
    let find = find.read_concern(ReadConcern::majority()).projection(doc! {
        "definition": 1, "identity": 1, "strategy": 1, "state": 1, BACKFILL_EPOCH_FIELD: 1, ENFORCED_IN: 1, "backfill": 1,
        REMOVAL_FIELD: 1, CHANGING_FIELD: 1, OF_CLIENT: 1, "isClaimed": is_claimed(),
    });
    let found: Vec<Document> = answered(answered(find.into_future()).await?.try_collect()).await?;
    Ok(found.iter().filter_map(|one| known(database, one)).collect())
}

fn known(database: &str, found: &Document) -> Option<KnownDefinition> {
    let id = found.get_document("_id").ok()?;
    let backfill = found.get_document("backfill").ok();
    Some(KnownDefinition {
        namespace: Namespace::new(database, id.get_str("collection").ok()?),
        name: id.get_str("name").ok()?.to_owned(),
        definition: found.get_document("definition").ok().cloned(),
        identity: found.get_object_id("identity").ok(),
        strategy: found.get_str("strategy").ok().map(str::to_owned),
        state: state_of(found),
        is_claimed: found.get_bool("isClaimed").unwrap_or(false),
        of_client: found.get(OF_CLIENT).cloned(),
        backfill: backfill.map(|backfill| BackfillProgress {
            done: backfill.get_i64("done").unwrap_or(0),
            of: backfill.get_i64("of").ok(),
            after: backfill.get("after").cloned(),
        }),
        removal: Removal::of(found),
        changing: found.get_document(CHANGING_FIELD).ok().map(|former| FormerStrategy {
            strategy: former.get_str("strategy").ok().map(str::to_owned),
            identity: former.get_object_id("identity").ok(),
        }),
    })
}
