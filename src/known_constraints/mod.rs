//! Shows the constraints that the cluster knows, ends them, and changes their strategy, for `keyward constraints`.
//!
//! It needs no configuration: it reads the definitions of every database, the list of clients' constraints, and the register of Keywards.
//! It changes a constraint only while no Keyward in the register counts on it.

mod refusal;
mod remove;
mod strategy;

use std::collections::BTreeSet;

use bson::oid::ObjectId;
use bson::{Bson, Document};
use mongodb::Client;

use crate::client_constraints::{BuildState, ClientConstraint, ClientConstraintStore, ClientConstraints, FoundList};
use crate::constraint::{ConstraintName, Strategy, proxy_collection};
use crate::fleet::{Register, RegisterEntry};
use crate::namespace::{Namespace, OF_MONGODB};
use crate::prepare::{self, BackfillProgress, KnownDefinition};
use crate::proxy_collection::{StoreError, answered};

pub use refusal::ChangeRefusal;
pub use remove::{Removed, remove};
pub use strategy::set_strategy;

/// A constraint that the cluster knows.
#[derive(Debug, Clone)]
pub struct KnownConstraint {
    /// The protected collection.
    pub namespace: Namespace,
    /// Its name.
    pub name: String,
    /// Its definition: the key and the options.
    pub definition: Option<Document>,
    /// Its identity in the register of Keywards.
    pub identity: Option<ObjectId>,
    /// Whether a client made it by `createIndexes`; it may have dropped it since. Otherwise a configuration file did.
    pub is_of_client: bool,
    /// The strategy of its collection, as a configuration file names it.
    pub strategy: Option<String>,
    /// How far it has come, in a word or two.
    pub state: &'static str,
    /// The position of a backfill that has begun.
    pub backfill: Option<BackfillProgress>,
    /// The Keywards that count on it.
    pub counted_on_by: Vec<RegisterEntry>,
    /// The Keywards that may write to its collection without it.
    pub lacked_by: Vec<RegisterEntry>,
}

impl KnownConstraint {
    /// The collection with its reservations.
    pub fn proxy_collection(&self) -> Namespace {
        proxy_collection(&self.namespace, &self.name)
    }

    /// Its key pattern.
    pub fn key(&self) -> Option<&Document> {
        self.definition.as_ref()?.get_document("key").ok()
    }

    /// About how many reservations it has, by the server's own count. That may include some that a move of a chunk left behind.
    pub async fn count_reservations(&self, client: &Client) -> Result<u64, StoreError> {
        let Namespace { database, collection } = self.proxy_collection();
        let proxy = client.database(&database).collection::<Document>(&collection);
        answered(proxy.estimated_document_count().into_future()).await
    }

    fn of(definition: KnownDefinition, list: &ClientConstraints, entries: &[RegisterEntry]) -> KnownConstraint {
        let identity = definition.identity;
        let is_it = |entry: &&ClientConstraint| entry.constraint.is_named(&definition.namespace, &definition.name);
        let listed = list.constraints.iter().find(is_it);
        let state = match (&definition.removal, definition.state, listed.map(|entry| entry.state)) {
            (Some(_), _, _) => "being removed",
            (None, Some(prepare::ConstraintState::Reserving), _) if definition.is_claimed => "backfilling",
            (None, Some(prepare::ConstraintState::Reserving), Some(BuildState::Building(_))) => "being built",
            (None, Some(state), _) => state.name(),
            (None, None, _) => "unknown",
        };
        // While its strategy changes, Keywards may count on the former identity.
        let former = definition.changing.as_ref().and_then(|former| former.identity);
        let identities: Vec<ObjectId> = identity.into_iter().chain(former).collect();
        let counts = |entry: &RegisterEntry| identities.iter().any(|one| entry.constraints.contains(one));
        let lacks = |entry: &RegisterEntry| {
            !identities.is_empty() && entry.may_write_to(&definition.namespace) && !counts(entry)
        };
        let of = |is_meant: &dyn Fn(&RegisterEntry) -> bool| -> Vec<RegisterEntry> {
            entries.iter().filter(|entry| is_meant(entry)).cloned().collect()
        };
        KnownConstraint {
            is_of_client: listed.is_some() || definition.of_client.is_some(),
            strategy: definition.strategy.map(strategy_in_file),
            state,
            backfill: definition.backfill,
            counted_on_by: of(&counts),
            lacked_by: of(&lacks),
            namespace: definition.namespace,
            name: definition.name,
            definition: definition.definition,
            identity,
        }
    }
}

/// A strategy's name in a configuration file, from that in the cluster. One of a later version stays as it is.
fn strategy_in_file(stored: String) -> String {
    let named = Strategy::of_stored_name(&stored);
    named.map_or(stored, |strategy| strategy.name().to_owned())
}

/// All constraints that the deployment of `client` knows, by collection and name: those with a definition, and those of clients that no
/// Keyward has defined yet.
pub async fn known_constraints(client: &Client) -> Result<Vec<KnownConstraint>, StoreError> {
    let list = ClientConstraintStore::of_deployment(client).await?.into_parts().1;
    let entries = Register::of(client).recent().await?;
    let mut databases = databases(client).await?;
    let of_clients = list.constraints.iter();
    databases.extend(of_clients.map(|entry| entry.constraint.namespace().database.clone()));
    let mut known = Vec::new();
    for database in databases {
        let definitions = prepare::known_definitions(client, &database).await?;
        known.extend(
            definitions
                .into_iter()
                .map(|one| KnownConstraint::of(one, &list, &entries)),
        );
    }
    for entry in &list.constraints {
        let constraint = &entry.constraint;
        let is_it = |one: &KnownConstraint| constraint.is_named(&one.namespace, &one.name);
        if !known.iter().any(is_it) {
            known.push(KnownConstraint {
                namespace: constraint.namespace().clone(),
                name: constraint.name().to_owned(),
                definition: Some(constraint.definition()),
                identity: None,
                is_of_client: true,
                strategy: None,
                state: "not made yet",
                backfill: None,
                counted_on_by: Vec::new(),
                lacked_by: Vec::new(),
            });
        }
    }
    known.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    Ok(known)
}

/// The databases of applications.
async fn databases(client: &Client) -> Result<BTreeSet<String>, StoreError> {
    // Also without the privilege to list all databases: then the server names those that the user has privileges on.
    let names = answered(client.list_database_names().into_future()).await?;
    Ok(names
        .into_iter()
        .filter(|name| !OF_MONGODB.contains(&name.as_str()))
        .collect())
}

/// The constraints of clients by their definitions alone, for a user who may not read the list. One that no Keyward has defined yet isn't
/// among them.
pub async fn defined_for_clients(client: &Client) -> Result<Vec<ConstraintName>, StoreError> {
    let mut names = Vec::new();
    for database in databases(client).await? {
        let definitions = prepare::known_definitions(client, &database).await?;
        // If the client has dropped it since, the field is only `true`.
        let of_clients = definitions
            .iter()
            .filter(|one| matches!(one.of_client, Some(Bson::ObjectId(_))));
        names.extend(of_clients.map(KnownDefinition::full_name));
    }
    Ok(names)
}

/// The list of clients' constraints; empty where Keywards follow none.
async fn clients_list(client: &Client) -> Result<ClientConstraints, ChangeRefusal> {
    match ClientConstraintStore::of_deployment(client).await? {
        FoundList::There(_, list) => Ok(list),
        FoundList::None => Ok(ClientConstraints::default()),
        // A client may need the constraint.
        FoundList::Unreadable => Err(ChangeRefusal::MayNotReadList),
    }
}

/// The Keywards that are in the way of a change to the constraints with these identities.
async fn check_unused(client: &Client, identities: &[ObjectId]) -> Result<(), ChangeRefusal> {
    let entries = Register::of(client).current().await?;
    let counts = |entry: &&RegisterEntry| identities.iter().any(|identity| entry.constraints.contains(identity));
    let counting: Vec<RegisterEntry> = entries.iter().filter(counts).cloned().collect();
    if !counting.is_empty() {
        return Err(ChangeRefusal::InUse(counting));
    }
    // One that starts now, with the constraint as it was before, wouldn't notice.
    let unnoticing = entries
        .into_iter()
        .filter(|entry| !entry.notices_changes && !entry.has_left);
    let unnoticing: Vec<RegisterEntry> = unnoticing.collect();
    match unnoticing.is_empty() {
        true => Ok(()),
        false => Err(ChangeRefusal::Unnoticing(unnoticing)),
    }
}

/// The constraint of this name in the cluster.
async fn definition_of(client: &Client, namespace: &Namespace, name: &str) -> Result<KnownDefinition, ChangeRefusal> {
    let definitions = prepare::known_definitions(client, &namespace.database).await?;
    let is_it = |one: &KnownDefinition| one.namespace == *namespace && one.name == name;
    let unknown = || ChangeRefusal::Unknown(ConstraintName::new(namespace, name));
    definitions.into_iter().find(is_it).ok_or_else(unknown)
}
