//! Suspends constraints that the cluster has and this Keyward lacks, because it lets writes through that no Keyward
//! reserves.
//!
//! Keyward notes this in the cluster before it forwards the first such write, whether or not its configuration names
//! the collection. The constraints are then no longer enforced. A Keyward that has them backfills every document again.

use std::collections::BTreeSet;

use bson::oid::ObjectId;
use mongodb::Client;

use super::definition::Definitions;
use crate::constraint::ConstraintName;
use crate::namespace::Namespace;
use crate::proxy_collection::StoreError;

/// Notes that the collection's constraints aren't enforced, except those whose identities are in `constraints`. Before
/// this call, the Keyward that begins to write without them must be in the register.
///
/// A constraint that a client made is no operator's to leave out. If this Keyward may not read their list (`is_list_unreadable`), it
/// doesn't write to a collection where it lacks one.
///
/// # Errors
/// [`StoreError`] if the cluster doesn't confirm it, or clients made one of them and this Keyward may not read their list.
pub async fn suspend_lacking(
    client: &Client,
    namespace: &Namespace,
    constraints: &BTreeSet<ObjectId>,
    is_list_unreadable: bool,
) -> Result<(), StoreError> {
    let definitions = Definitions::of(client, namespace);
    if definitions
        .suspend_others(namespace, constraints, is_list_unreadable)
        .await?
        > 0
    {
        let names = definitions.lacking(namespace, constraints).await?;
        tracing::warn!(
            %namespace, constraints = names.join(", "),
            "this Keyward runs without constraints that the cluster has on a collection to which clients write here: they are \
             noted as not enforced, and a Keyward that has them backfills all documents again once this Keyward has them or is gone"
        );
    }
    // Only after this Keyward is in the register with the collection: a build that begins later waits for it.
    if is_list_unreadable && let Some(name) = definitions.lacking_of_client(namespace, constraints).await? {
        let namespace = namespace.clone();
        return Err(StoreError::OfClient(ConstraintName { namespace, name }));
    }
    Ok(())
}
