//! Constraints that the cluster has and a Keyward hasn't: who writes to their collection lets by what nobody reserves.
//!
//! That is noted in the cluster before the first of its writes goes on, whether or not its configuration names the collection:
//! those constraints aren't enforced any more, and who has them takes every document in again.

use std::collections::BTreeSet;

use bson::oid::ObjectId;
use mongodb::Client;

use super::definition::Definitions;
use crate::namespace::Namespace;
use crate::proxy_collection::StoreError;

/// Notes that those constraints of the collection aren't enforced that aren't among these. The Keyward that begins to write
/// without them must be in the register by then.
///
/// # Errors
/// [`StoreError`] if the cluster doesn't say that it is noted.
pub async fn suspend_lacking(
    client: &Client,
    namespace: &Namespace,
    constraints: &BTreeSet<ObjectId>,
) -> Result<(), StoreError> {
    let definitions = Definitions::of(client, namespace);
    if definitions.suspend_others(namespace, constraints).await? > 0 {
        let names = definitions.lacking(namespace, constraints).await?;
        tracing::warn!(
            %namespace, constraints = names.join(", "),
            "the configuration leaves out constraints that the cluster has on a collection to which clients write here: it is noted \
             that they aren't enforced, and who has them takes every document in again once this Keyward has them or is gone"
        );
    }
    Ok(())
}
