//! Serves the commands about indexes, so that a client sees a unique index where Keyward keeps a constraint.
//!
//! On a sharded collection, the server refuses a unique index unless the shard key is a prefix of it. Keyward then makes a constraint
//! and an index that isn't unique, which serves queries. A `collMod` makes a constraint of an existing index. `listIndexes` shows such an
//! index as unique, and `dropIndexes` ends the constraint with it.
//!
//! The server checks the client's privileges and the form of the command before Keyward changes anything. Where Keyward
//! refuses a command by what it knows, it does so before, if the client seems to have the right to the command.

mod build;
mod building;
mod command;
mod convert;
mod create;
mod drop;
mod list;
mod refusal;
mod shard;
mod specification;
mod unique_change;
mod waiting;

pub use build::build;
pub use building::{BuildContext, WantedConstraints};
pub use command::{IndexCommand, asks_for_unique};
pub use list::{FoundIndexes, ListedIndex};
pub use refusal::IndexRefusal;
pub use shard::explained;
pub use specification::{is_index_of, is_same_key, server_can_keep, specification_of};
pub use unique_change::asks_to_convert;
pub use waiting::{ClientAddress, WaitingClient, WaitingClients};

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bson::Bson;
use mongodb::Client;
use tokio::time::Instant;

use crate::authorization::{Actions, Rights};
use crate::catalog::Catalog;
use crate::classify::{Target, Write};
use crate::client_constraints::{ClientConstraint, ClientConstraints, SharedList};
use crate::command::running::{API, append_fields};
use crate::constraint::Constraint;
use crate::fleet::Membership;
use crate::namespace::Namespace;
use crate::prepare::Existing;
use crate::proxy_collection::StoreError;
use crate::raw::{Builder, Doc, Malformed};
use crate::session::Service;
use crate::stream::Incoming;
use crate::upstream::Connection;
use crate::wire::OpMsg;
use crate::write::ForwardError;

/// The state that a change of clients' constraints needs.
struct IndexContext<'a> {
    service: &'a Service,
    /// The constraints by which the command was judged.
    catalog: &'a Catalog,
    membership: &'a Membership,
    list: &'a SharedList,
    /// The client that sent the command.
    address: ClientAddress,
    /// Its connection.
    connection: &'a Incoming,
}

/// How long to wait at most until all Keywards have ended a constraint, or until this one has applied the list. After the former, a Keyward
/// may refuse a duplicate for a while longer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to leave it between two polls of the register, or of the applied constraints.
const POLL: Duration = Duration::from_millis(100);
/// After so many polls of the applied constraints, the list is read again.
const POLLS_OF_READ: u32 = 10;

impl IndexContext<'_> {
    /// The constraints on a collection by which the command was judged.
    fn constraints_on(&self, namespace: &Namespace) -> impl Iterator<Item = &Arc<Constraint>> {
        let constraints = self
            .catalog
            .on(namespace)
            .into_iter()
            .flat_map(|protected| &protected.constraints);
        constraints.map(|proxy| &proxy.constraint)
    }

    /// Those of them that the configuration file states.
    fn of_file(&self, namespace: &Namespace) -> impl Iterator<Item = &Arc<Constraint>> {
        let constraints = self.constraints_on(namespace);
        constraints.filter(|constraint| constraint.client_entry().is_none())
    }

    /// The same for building constraints.
    fn building(&self) -> BuildContext<'_> {
        BuildContext {
            client: self.service.upstream.client(),
            list: self.list,
            serving: Some(self.service),
            waiting: Some(self.connection),
        }
    }
}

/// Serves a command about indexes. Returns nothing if Keyward forwards it unchanged.
pub async fn serve(
    command: IndexCommand<'_>,
    message: &OpMsg<'_>,
    (service, address, connection): (&Service, ClientAddress, &Incoming),
    catalog: &Catalog,
    upstream: &mut Connection,
) -> Result<Option<Vec<u8>>, ForwardError> {
    if let IndexCommand::List(target) = command {
        return match catalog.protected(target.database, target.collection) {
            Some(protected) => Ok(Some(list::list_indexes(protected, message.body, upstream).await?)),
            None => Ok(None),
        };
    }
    if command == IndexCommand::Shard {
        return Ok(Some(explained(upstream.run(message.body.bytes()).await?)?));
    }
    let (Some(membership), Some(list)) = (&service.membership, &service.client_list) else {
        return Ok(None);
    };
    let context = IndexContext {
        service,
        catalog,
        membership,
        list,
        address,
        connection,
    };
    match command {
        IndexCommand::Create(target) => create::create_indexes(&context, message, target, upstream).await,
        IndexCommand::Convert(target) => convert::convert_index(&context, target, message.body, upstream).await,
        IndexCommand::Drop(target) => drop::drop_indexes(&context, target, message.body, upstream).await,
        IndexCommand::List(_) | IndexCommand::Shard => Ok(None),
    }
}

/// Refuses a command. If the client seems to lack the right to `actions`, the server refuses it instead, and the client learns of no constraint.
async fn refused(
    context: &IndexContext<'_>,
    refusal: &IndexRefusal,
    (actions, target): (Actions, Target<'_>),
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<Option<Vec<u8>>, ForwardError> {
    let has_users = context.service.upstream.has_credential();
    let rights = Rights::if_known(has_users, body, upstream).await?;
    let may = rights.may(actions, target.database, target.collection);
    Ok(may.then(|| refusal.error().body()))
}

/// Whether a command that `judged` decided reserves for all constraints that clients have made on `namespaces` by now, and for no others of
/// clients. The register must have the collections: then every constraint that isn't in the list yet waits for this Keyward.
///
/// # Errors
/// [`StoreError`] if it can't be known which constraints there are.
pub async fn follows_all(namespaces: &[Namespace], judged: &Catalog, service: &Service) -> Result<bool, StoreError> {
    Ok(match &service.client_list {
        Some(list) => follows(judged, namespaces, &made_on(namespaces, list).await?),
        None => true,
    })
}

/// Waits until this Keyward reserves for these constraints, and for no others of clients, if that is soon. It applies the list meanwhile,
/// and that may wait for all commands that an earlier catalog decided. So the caller mustn't have such a command under way.
///
/// # Errors
/// The same, or [`StoreError::Unfollowed`] if it goes on without one.
pub async fn await_list(namespaces: &[Namespace], service: &Service) -> Result<(), StoreError> {
    let Some(list) = &service.client_list else {
        return Ok(());
    };
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        // Read again now and then: clients may change them meanwhile.
        let made = made_on(namespaces, list).await?;
        list.note_change();
        for _ in 0..POLLS_OF_READ {
            if follows(&service.writes.catalog(), namespaces, &made) {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
    }
    Err(StoreError::Unfollowed)
}

/// The constraints that clients have made on `namespaces` by now.
async fn made_on(namespaces: &[Namespace], list: &SharedList) -> Result<Vec<ClientConstraint>, StoreError> {
    // A primary that was deposed, and doesn't know it yet, would show a list without the newest constraints. No constraint waits for this
    // Keyward then.
    let mut made = list.store.read_current().await?.constraints;
    made.retain(|entry| namespaces.contains(entry.constraint.namespace()));
    Ok(made)
}

/// Whether `catalog` has on `namespaces` the constraints `made`, and no others of clients.
fn follows(catalog: &Catalog, namespaces: &[Namespace], made: &[ClientConstraint]) -> bool {
    made.iter().all(|entry| reserves_for(catalog, entry))
        && namespaces.iter().all(|namespace| has_only(catalog, namespace, made))
}

/// Whether `catalog` has the constraint of this entry, or the configuration file's of that name in its place.
fn reserves_for(catalog: &Catalog, entry: &ClientConstraint) -> bool {
    let (namespace, name) = (entry.constraint.namespace(), entry.constraint.name());
    let mut constraints = catalog
        .on(namespace)
        .into_iter()
        .flat_map(|protected| &protected.constraints);
    constraints
        .any(|proxy| proxy.constraint.name() == name && proxy.constraint.client_entry().is_none_or(|id| id == entry.id))
}

/// Whether each of the catalog's constraints that a client made on `namespace` is one of `made`. The client that dropped another one did not
/// wait for this Keyward.
fn has_only(catalog: &Catalog, namespace: &Namespace, made: &[ClientConstraint]) -> bool {
    let protected = catalog.on(namespace);
    let mut constraints = protected.iter().flat_map(|protected| &protected.constraints);
    constraints.all(|proxy| {
        let id = proxy.constraint.client_entry();
        id.is_none_or(|id| made.iter().any(|entry| entry.id == id))
    })
}

/// A constraint that a client made on a collection that is about to be dropped.
pub struct ConstraintToEnd {
    constraint: Arc<Constraint>,
    /// The identity of that collection in the list, if the list could be read.
    collection_uuid: Option<Option<Bson>>,
}

impl ConstraintToEnd {
    /// Whether `list` still has it for the collection that was dropped, or for one of the `gone`: a later `createIndexes` may have kept it for a
    /// new collection.
    fn is_to_end(&self, list: &ClientConstraints, gone: &[ClientConstraint]) -> bool {
        let Some(entry) = self.constraint.client_entry().and_then(|id| list.entry(id)) else {
            return false;
        };
        let is_gone = |one: &ClientConstraint| one.id == entry.id && one.collection_uuid == entry.collection_uuid;
        let is_of_dropped = |uuid: &Option<Bson>| entry.collection_uuid == *uuid;
        self.collection_uuid.as_ref().is_none_or(is_of_dropped) || gone.iter().any(is_gone)
    }
}

/// Those entries of these constraints whose collection isn't there any more. One that can't be read counts as there.
async fn gone(
    to_end: &[ConstraintToEnd],
    list: &SharedList,
    client: &Client,
) -> Result<Vec<ClientConstraint>, StoreError> {
    let is_meant = |entry: &ClientConstraint| {
        let mut ids = to_end.iter().filter_map(|one| one.constraint.client_entry());
        ids.any(|id| id == entry.id)
    };
    // Before the collections: a client that keeps an entry for a new collection changes the entry.
    let mut entries = list.store.read().await?.constraints;
    entries.retain(is_meant);
    let mut present: HashMap<Namespace, Option<Option<Bson>>> = HashMap::new();
    for entry in &entries {
        let namespace = entry.constraint.namespace();
        if !present.contains_key(namespace) {
            let existing = Existing::read(client, namespace).await.ok();
            present.insert(namespace.clone(), existing.map(|existing| existing.uuid));
        }
    }
    entries.retain(|entry| {
        let uuid = present.get(entry.constraint.namespace()).and_then(Option::as_ref);
        uuid.is_some_and(|uuid| uuid.is_none() || *uuid != entry.collection_uuid)
    });
    Ok(entries)
}

/// The constraints that clients made on the collections that `write` is about to drop.
///
/// The list says which: this Keyward may not have applied its newest version yet. If it can't be read, `catalog` says which.
pub async fn constraints_to_end(write: &Write<'_>, service: &Service, catalog: &Catalog) -> Vec<ConstraintToEnd> {
    let (Some(list), Write::Drop(_) | Write::DropDatabase { .. }) = (&service.client_list, write) else {
        return Vec::new();
    };
    let is_dropped = |namespace: &Namespace| match write {
        Write::Drop(target) => {
            (namespace.database.as_bytes(), namespace.collection.as_bytes()) == (target.database, target.collection)
        }
        Write::DropDatabase { database } => namespace.database.as_bytes() == *database,
        _ => false,
    };
    // Boxed, like all that a connection seldom needs: its state would be part of every idle connection.
    let error = match Box::pin(list.store.read()).await {
        Ok(list) => {
            let dropped = list.constraints.iter();
            let dropped = dropped.filter(|entry| is_dropped(entry.constraint.namespace()));
            let dropped = dropped.map(|entry| ConstraintToEnd {
                constraint: entry.constraint.clone(),
                collection_uuid: Some(entry.collection_uuid.clone()),
            });
            return dropped.collect();
        }
        Err(error) => error,
    };
    tracing::warn!(%error, "the newest constraints of a dropped collection may stay; send dropIndexes for them once it is created again");
    let dropped = catalog.all().filter(|protected| is_dropped(&protected.namespace));
    let constraints = dropped.flat_map(|protected| &protected.constraints);
    let constraints = constraints.map(|proxy| &proxy.constraint);
    let constraints = constraints.filter(|one| one.client_entry().is_some());
    let constraints = constraints.map(|one| ConstraintToEnd {
        constraint: one.clone(),
        collection_uuid: None,
    });
    constraints.collect()
}

/// Ends those of these constraints whose collections the server has dropped: the indexes are gone with them. Returns those that it ended.
pub async fn end_constraints_of_dropped(to_end: &[ConstraintToEnd], service: &Service) -> Vec<Arc<Constraint>> {
    let Some(list) = &service.client_list else {
        return Vec::new();
    };
    let ended = async {
        let gone = gone(to_end, list, service.upstream.client()).await?;
        list.change(|list| end(to_end, list, &gone)).await
    };
    match ended.await {
        Ok(ended) => ended.unwrap_or_default(),
        Err(error) => {
            tracing::warn!(%error, "constraints of a dropped collection stay; send dropIndexes for them once it is created again");
            Vec::new()
        }
    }
}

/// Removes those from `list` that are to end; returns them, if there are any.
fn end(
    to_end: &[ConstraintToEnd],
    list: &mut ClientConstraints,
    gone: &[ClientConstraint],
) -> Option<Vec<Arc<Constraint>>> {
    let ended = to_end.iter().filter(|one| one.is_to_end(list, gone));
    let ended: Vec<Arc<Constraint>> = ended.map(|one| one.constraint.clone()).collect();
    for id in ended.iter().filter_map(|one| one.client_entry()) {
        list.remove(id);
    }
    (!ended.is_empty()).then_some(ended)
}

/// Waits until no Keyward enforces these constraints any more, which have ended, if that is soon. This Keyward waits for all commands that
/// its catalog decided, so the caller mustn't have one under way.
pub async fn await_ended(constraints: &[Arc<Constraint>], service: &Service) {
    let Some(list) = &service.client_list else {
        return;
    };
    let context = BuildContext {
        client: service.upstream.client(),
        list,
        serving: Some(service),
        waiting: None,
    };
    if let Err(error) = context.await_ended(constraints).await {
        tracing::warn!(%error, "a Keyward may still enforce a constraint of a dropped collection");
    }
}

/// Appends the session and the API version of the client's command `body` to a command of Keyward's.
fn append_session(command: &mut Builder, body: Doc<'_>) -> Result<(), Malformed> {
    append_fields(command, body, &["lsid"])?;
    append_fields(command, body, &API)
}
