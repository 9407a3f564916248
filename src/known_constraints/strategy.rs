//! Changes the strategy of a collection in the cluster.
//!
//! All Keywards that write to a collection must have one strategy: one that trusts its lease would undo what one that doesn't promises.
//! So the strategy changes only while no Keyward counts on a constraint there. Each constraint gets a new identity with its new strategy.
//! A Keyward that starts meanwhile, and has read the former strategy, finds that after it has registered, and doesn't serve. One that
//! wakes up, and was taken out of the register before, finds it before it writes again.

use bson::oid::ObjectId;
use bson::{Document, doc};
use mongodb::Client;

use super::{ChangeRefusal, check_unused, clients_list, definition_of};
use crate::constraint::Strategy;
use crate::namespace::Namespace;
use crate::prepare::{self, DEFINITIONS, KnownDefinition, definition_id};
use crate::proxy_collection::{StoreError, answered};

/// Sets the strategy of the collection of the constraint `name`, and so of all its constraints, whose names it returns.
///
/// - Cancel: at any time; until the next try, Keywards with either strategy refuse to start.
/// # Errors
/// [`ChangeRefusal`].
pub async fn set_strategy(
    client: &Client,
    namespace: &Namespace,
    name: &str,
    strategy: Strategy,
) -> Result<Vec<String>, ChangeRefusal> {
    definition_of(client, namespace, name).await?;
    let constraints = constraints_of(client, namespace).await?;
    if let Some(removed) = constraints.iter().find(|one| one.removal.is_some()) {
        return Err(ChangeRefusal::BeingRemoved {
            namespace: namespace.clone(),
            name: removed.name.clone(),
        });
    }
    if strategy == Strategy::Transaction {
        check_can_be_strict(client, namespace, &constraints).await?;
    }
    let differs = |one: &&KnownDefinition| one.strategy.as_deref() != Some(strategy.stored_name());
    if constraints.iter().any(|one| differs(&one)) {
        let identities: Vec<ObjectId> = constraints.iter().filter_map(|one| one.identity).collect();
        check_unused(client, &identities).await.map_err(about_strategy)?;
        for constraint in constraints.iter().filter(differs) {
            change(client, constraint, strategy).await?;
        }
    }
    // A Keyward may have added one meanwhile.
    let now = constraints_of(client, namespace).await?;
    match now.iter().any(|one| differs(&one)) {
        true => Err(ChangeRefusal::Overtaken),
        false => Ok(now.into_iter().map(|one| one.name).collect()),
    }
}

async fn constraints_of(client: &Client, namespace: &Namespace) -> Result<Vec<KnownDefinition>, StoreError> {
    let mut constraints = prepare::known_definitions(client, &namespace.database).await?;
    constraints.retain(|one| one.namespace == *namespace);
    Ok(constraints)
}

/// A collection is strict if a constraint in a file says so; a client's can't.
async fn check_can_be_strict(
    client: &Client,
    namespace: &Namespace,
    constraints: &[KnownDefinition],
) -> Result<(), ChangeRefusal> {
    let list = clients_list(client).await?;
    let is_of_client = |known: &KnownDefinition| {
        let mut listed = list.constraints.iter().map(|entry| &entry.constraint);
        listed.any(|one| one.namespace() == namespace && one.name() == known.name)
    };
    match constraints.iter().all(is_of_client) {
        true => Err(ChangeRefusal::OnlyOfClients(namespace.clone())),
        false => Ok(()),
    }
}

async fn change(client: &Client, constraint: &KnownDefinition, strategy: Strategy) -> Result<(), ChangeRefusal> {
    let KnownDefinition { namespace, name, .. } = constraint;
    let definitions = client.database(&namespace.database).collection::<Document>(DEFINITIONS);
    let read = doc! {
        "_id": definition_id(namespace, name), "identity": constraint.identity, "definition": { "$exists": true },
    };
    let set = doc! { "$set": { "strategy": strategy.stored_name(), "identity": ObjectId::new() } };
    let updated = answered(definitions.update_one(read, set).into_future()).await?;
    match updated.matched_count {
        1 => Ok(()),
        _ => Err(ChangeRefusal::Overtaken),
    }
}

fn about_strategy(refusal: ChangeRefusal) -> ChangeRefusal {
    match refusal {
        ChangeRefusal::InUse(entries) => ChangeRefusal::InUseWithStrategy(entries),
        other => other,
    }
}
