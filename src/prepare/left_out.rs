//! Suspends constraints that the cluster has and this Keyward lacks, because it lets writes through that no Keyward
//! reserves.
//!
//! Keyward notes this in the cluster before it forwards the first such write, whether or not its configuration names
//! the collection. The constraints are then no longer enforced. A Keyward that has them backfills every document again.

use std::collections::{BTreeMap, BTreeSet};

use bson::oid::ObjectId;
use mongodb::Client;

use super::definition::Definitions;
use crate::constraint::ConstraintName;
use crate::proxy_collection::StoreError;

/// Some collections of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Collections {
    /// Those with these names.
    These(BTreeSet<String>),
    /// All of them.
    All,
}

/// Notes that the constraints on these `collections` of a `database` aren't enforced, except those whose identities are in `constraints`.
/// Before this call, the Keyward that begins to write without them must be in the register.
///
/// A constraint that a client made is no operator's to leave out. If this Keyward may not read their list (`is_list_unreadable`), it
/// doesn't suspend these. It returns those that it lacks, and must not write to their collections.
///
/// # Errors
/// [`StoreError`] if the cluster doesn't confirm it.
pub async fn suspend_lacking(
    client: &Client,
    database: &str,
    collections: &Collections,
    constraints: &BTreeSet<ObjectId>,
    is_list_unreadable: bool,
) -> Result<Vec<ConstraintName>, StoreError> {
    let definitions = Definitions::in_database(client, database);
    if definitions
        .suspend_others(collections, constraints, is_list_unreadable)
        .await?
        > 0
    {
        let mut lacking: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for ConstraintName { namespace, name } in definitions.lacking(collections, constraints).await? {
            lacking.entry(namespace.to_string()).or_default().push(name);
        }
        for (namespace, names) in lacking {
            tracing::warn!(
                namespace,
                constraints = names.join(", "),
                "this Keyward runs without constraints that the cluster has on a collection to which clients write here: they are \
                 noted as not enforced, and a Keyward that has them backfills all documents again once this Keyward has them or is gone"
            );
        }
    }
    // Only after this Keyward is in the register with the collections: a build that begins later waits for it.
    match is_list_unreadable {
        true => definitions.lacking_of_client(collections, constraints).await,
        false => Ok(Vec::new()),
    }
}
