//! Changes the strategy of a collection in the cluster.
//!
//! All Keywards that write to a collection must have one strategy: one that trusts its lease would undo what one that doesn't promises.
//! So the strategy changes only while no Keyward counts on a constraint there:
//!
//! 1. Each constraint gets a new identity, and the strategy [`CHANGING`], which no Keyward can have: none starts, and none that was
//!    taken out of the register writes again.
//! 2. The register is read. If a Keyward counts on a former identity, the former strategies and identities come back.
//! 3. Otherwise each constraint gets its new strategy.
//!
//! A Keyward lists a constraint in the register first, and then looks at its definition once more. So if the register of step 2 doesn't list
//! the former identity, that Keyward finds the new one, and doesn't serve.

use bson::oid::ObjectId;
use bson::{Document, doc};
use mongodb::Client;

use super::{ChangeRefusal, check_unused, clients_list, definition_of};
use crate::constraint::Strategy;
use crate::namespace::Namespace;
use crate::prepare::{self, CHANGING_FIELD, DEFINITIONS, KnownDefinition, definition_id};
use crate::proxy_collection::{StoreError, answered};

/// The strategy of a constraint whose strategy is being changed.
const CHANGING: &str = "being changed";

/// Sets the strategy of the collection of the constraint `name`, and so of all its constraints, whose names it returns.
///
/// - Cancel: at any time; until the next try, Keywards with either strategy refuse to start.
pub async fn set_strategy(
    client: &Client,
    namespace: &Namespace,
    name: &str,
    strategy: Strategy,
) -> Result<Vec<String>, ChangeRefusal> {
    definition_of(client, namespace, name).await?;
    let constraints = constraints_of(client, namespace).await?;
    if let Some(removed) = constraints.iter().find(|one| one.removal.is_some()) {
        return Err(ChangeRefusal::BeingRemoved(removed.full_name()));
    }
    if strategy == Strategy::Strict {
        check_can_be_strict(client, namespace, &constraints).await?;
    }
    let differs = |one: &KnownDefinition| one.strategy.as_deref() != Some(strategy.stored_name());
    if constraints.iter().any(differs) {
        for constraint in constraints.iter().filter(|one| one.changing.is_none()) {
            begin(client, constraint).await?;
        }
        // Also one that a Keyward has added meanwhile, and what an earlier try has begun.
        let begun = constraints_of(client, namespace).await?;
        if begun.iter().any(|one| one.changing.is_none()) {
            return Err(ChangeRefusal::Overtaken);
        }
        let former = begun.iter().filter_map(|one| one.changing.as_ref()?.identity);
        let unused = check_unused(client, &former.collect::<Vec<_>>()).await;
        for constraint in &begun {
            match &unused {
                Ok(()) => end(client, constraint, Some(strategy.stored_name()), constraint.identity).await?,
                Err(_) => take_back(client, constraint).await?,
            }
        }
        unused.map_err(about_strategy)?;
    }
    // A Keyward may have added one meanwhile.
    let now = constraints_of(client, namespace).await?;
    match now.iter().any(differs) {
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
    // Also one that a client made and dropped.
    let is_of_client = |known: &KnownDefinition| {
        let mut listed = list.constraints.iter().map(|entry| &entry.constraint);
        known.of_client.is_some() || listed.any(|one| one.is_named(namespace, &known.name))
    };
    match constraints.iter().all(is_of_client) {
        true => Err(ChangeRefusal::OnlyOfClients(namespace.clone())),
        false => Ok(()),
    }
}

/// Notes that the constraint changes its strategy.
async fn begin(client: &Client, constraint: &KnownDefinition) -> Result<(), ChangeRefusal> {
    let mut changing = doc! { "identity": constraint.identity };
    if let Some(strategy) = &constraint.strategy {
        changing.insert("strategy", strategy);
    }
    let set = doc! { "strategy": CHANGING, "identity": ObjectId::new(), CHANGING_FIELD: changing };
    update(client, constraint, doc! { "$set": set }).await
}

/// Gives the constraint a strategy and an identity.
async fn end(
    client: &Client,
    constraint: &KnownDefinition,
    strategy: Option<&str>,
    identity: Option<ObjectId>,
) -> Result<(), ChangeRefusal> {
    let mut set = doc! { "identity": identity };
    let mut unset = doc! { CHANGING_FIELD: 1 };
    match strategy {
        Some(strategy) => set.insert("strategy", strategy),
        None => unset.insert("strategy", 1),
    };
    update(client, constraint, doc! { "$set": set, "$unset": unset }).await
}

/// Gives the constraint its former strategy and identity.
async fn take_back(client: &Client, constraint: &KnownDefinition) -> Result<(), ChangeRefusal> {
    match &constraint.changing {
        Some(former) => end(client, constraint, former.strategy.as_deref(), former.identity).await,
        None => Ok(()),
    }
}

/// Updates the constraint's definition unless it has changed since it was read.
async fn update(client: &Client, constraint: &KnownDefinition, update: Document) -> Result<(), ChangeRefusal> {
    let KnownDefinition { namespace, name, .. } = constraint;
    let definitions = client.database(&namespace.database).collection::<Document>(DEFINITIONS);
    let read = doc! {
        "_id": definition_id(namespace, name), "identity": constraint.identity, "strategy": &constraint.strategy,
        "definition": { "$exists": true },
    };
    let updated = answered(definitions.update_one(read, update).into_future()).await?;
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
