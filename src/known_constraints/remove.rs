//! Ends a constraint in the cluster: its definition, and its proxy collection with all reservations.
//!
//! [`Removal`] describes the steps, and why a Keyward that starts meanwhile can't count on the constraint. The proxy collection is
//! dropped by its uuid, which was read while the removal was there. So a command that arrives late can't drop the collection of a
//! constraint that was made anew.

use bson::doc;
use mongodb::Client;

use super::{ChangeRefusal, check_unused, clients_list, definition_of};
use crate::constraint::proxy_collection;
use crate::namespace::Namespace;
use crate::prepare::{Existing, PrepareError, Removal, privileges};
use crate::proxy_collection::StoreError;
use crate::server::{code, driver};

/// The result of a removal.
#[derive(Debug, Clone, PartialEq)]
pub struct Removed {
    /// The proxy collection that was dropped; none if there was none any more.
    pub proxy_collection: Option<Namespace>,
}

/// Ends the constraint `name` on `namespace`, unless a Keyward counts on it. A removal that was cut off goes on.
///
/// - Cancel: at any time; until the next try, no Keyward can make the constraint hold.
pub async fn remove(client: &Client, namespace: &Namespace, name: &str) -> Result<Removed, ChangeRefusal> {
    let known = definition_of(client, namespace, name).await?;
    let proxy = proxy_collection(namespace, name);
    let may_drop = privileges::may(client, &proxy, "dropCollection").await;
    if !may_drop.map_err(store_error)? {
        return Err(ChangeRefusal::MayNotDrop(proxy));
    }
    // Keywards may count on its former identity, which only the change of the strategy checks.
    if known.changing.is_some() {
        return Err(ChangeRefusal::StrategyChanging(known.full_name()));
    }
    let removal = match known.removal.clone() {
        Some(removal) => removal,
        None => {
            // Nothing is changed if it can be seen beforehand that the removal would be taken back.
            check_free(client, namespace, name, known.identity.as_slice()).await?;
            let begun = Removal::begin(client, &known).await?;
            begun.ok_or(ChangeRefusal::Overtaken)?
        }
    };
    if !removal.is_decided {
        if let Err(refusal) = check_free(client, namespace, name, removal.former.as_slice()).await {
            removal.take_back(client, namespace, name).await?;
            return Err(refusal);
        }
        if !removal.decide(client, namespace, name).await? {
            return Err(ChangeRefusal::Overtaken);
        }
    }
    let uuid = Existing::read(client, &proxy).await.map_err(store_error)?.uuid;
    // Once it is gone, the uuid may be that of a collection that Keywards count on again.
    if !removal.is_there(client, namespace, name).await? {
        return Err(ChangeRefusal::Overtaken);
    }
    let is_there = uuid.is_some();
    if let Some(uuid) = uuid {
        let command = doc! { "drop": &proxy.collection, "collectionUUID": uuid, "writeConcern": { "w": "majority" } };
        let dropped = client.database(&proxy.database).run_command(command).await;
        match dropped {
            Err(error) if !is_gone(&error) => return Err(StoreError::from(error).into()),
            _ => {}
        }
    }
    removal.finish(client, namespace, name).await?;
    Ok(Removed {
        proxy_collection: is_there.then_some(proxy),
    })
}

/// Checks that no client and no Keyward needs the constraint.
async fn check_free(
    client: &Client,
    namespace: &Namespace,
    name: &str,
    identity: &[bson::oid::ObjectId],
) -> Result<(), ChangeRefusal> {
    let list = clients_list(client).await?;
    let mut listed = list.constraints.iter().map(|entry| &entry.constraint);
    if let Some(listed) = listed.find(|listed| listed.is_named(namespace, name)) {
        return Err(ChangeRefusal::OfClient(listed.full_name()));
    }
    check_unused(client, identity).await
}

/// Whether another removal has dropped the collection meanwhile.
fn is_gone(error: &mongodb::error::Error) -> bool {
    matches!(
        driver::code_of(error),
        Some(code::NAMESPACE_NOT_FOUND | code::COLLECTION_UUID_MISMATCH)
    )
}

fn store_error(error: PrepareError) -> ChangeRefusal {
    match error {
        PrepareError::Store(error) => error.into(),
        _ => StoreError::Unexpected("the proxy collection").into(),
    }
}
