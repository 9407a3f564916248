//! Prepares constraints in the cluster, so that they hold from the first write on.
//!
//! Before the port opens, every proxy collection exists, is sharded, and has a reservation for every existing document. A
//! constraint that is added later first reserves for new writes, and then backfills the existing documents.
//!
//! Every step can be repeated, and several Keywards may run it at once. A Keyward that stops midway leaves work for the
//! next start. It never leaves a constraint that only seems to hold.

mod backfill;
mod backfill_claim;
mod backfill_documents;
mod batches;
mod collated;
mod counted_keys;
mod definition;
mod dry_run;
mod duplicate_groups;
mod error;
mod existing;
mod known;
mod left_out;
mod position;
pub mod privileges;
mod removal;
mod report;
mod reserving;
mod sharding;
mod stored_definition;
mod writes_at_work;
mod written_past;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use bson::oid::ObjectId;
use bson::{Bson, Document, doc};
use mongodb::Client;

use crate::backfill_share::BackfillShare;
use crate::catalog::Protected;
use crate::constraint::{Constraint, Strategy};
use crate::default_collations::DefaultCollations;
use crate::fleet::Membership;
use crate::metrics::Metrics;
use crate::namespace::Namespace;
use crate::proxy_collection::{ProxyCollection, StoreError};
use crate::server::driver;
use crate::upstream::WIRE_VERSION_MIN;

pub use backfill_claim::release_claim;
pub use backfill_documents::{BackfillOutcome, backfill_documents};
use collated::collated;
use definition::Definitions;
pub use definition::{Standing, begin_build, replace_ended_definition, suspend_unless_enforced};
pub use dry_run::find_duplicates;
pub use duplicate_groups::DuplicateGroups;
pub use error::PrepareError;
pub use existing::Existing;
pub use known::{
    BackfillProgress, CHANGING_FIELD, FormerStrategy, KnownDefinition, has_definitions, known_definitions,
};
pub use left_out::{Collections, suspend_lacking};
pub use removal::Removal;
pub use report::{DuplicatedKey, Report, ReportLines, Reports, UnindexableDocument, UnlistedKeys};
pub use reserving::{IfClaimed, ReservingConstraints, WaitingConstraint};
use sharding::Deployment;
pub use stored_definition::{ConstraintState, DEFINITIONS, definition_id};
pub use written_past::{note_written_past, written_past};

/// Prepares all `constraints` in their order, but backfills no documents for those `deferred`. Returns the prepared constraints, and those
/// that can't be called enforced yet because another Keyward may write without them, or because they are deferred. Without `membership`, no
/// constraint becomes enforced: this process doesn't know whether any Keyward reserves meanwhile. Each backfill keeps to
/// `share`.
///
/// # Errors
/// [`PrepareError`]; Keyward must not serve clients then.
pub async fn prepare(
    client: &Client,
    constraints: &[Arc<Constraint>],
    lease: Duration,
    metrics: &Metrics,
    membership: Option<&Membership>,
    (deferred, share): (&[Arc<Constraint>], BackfillShare),
) -> Result<(ReservingConstraints, Vec<WaitingConstraint>), PrepareError> {
    // Checked before anything is stored, because a stored strategy would conflict with the next configuration.
    check_strategies(client, constraints, lease, metrics).await?;
    let reserving = make(client, constraints, lease, metrics).await?;
    if let Some(membership) = membership {
        // Until all documents are reserved anew, clients' writes don't meet their keys: so before Keyward serves any.
        reserving.await_replaced(client, membership, |_| true).await?;
    }
    // Clients' constraints are backfilled while Keyward serves.
    let is_deferred = |constraint: &Constraint| deferred.iter().any(|one| one.has_name_of(constraint));
    let is_meant = |constraint: &Constraint| constraint.client_entry().is_none() && !is_deferred(constraint);
    let waiting = reserving
        .backfill_documents(
            client,
            membership,
            (is_meant, |_: &Constraint| false, |_: &Constraint| true),
            (IfClaimed::Wait, share),
        )
        .await?;
    Ok((reserving, waiting))
}

/// Stores the definitions of `constraints` in the cluster and creates their proxy collections. Constraints that hold
/// already stay unchanged.
///
/// # Errors
/// [`PrepareError`] if the cluster has another definition of one, or doesn't carry out a command.
pub async fn make(
    client: &Client,
    constraints: &[Arc<Constraint>],
    lease: Duration,
    metrics: &Metrics,
) -> Result<ReservingConstraints, PrepareError> {
    let (deployment, mut collections) = read_all(client, constraints, lease, metrics).await?;
    let (mut unready, mut identities) = (Vec::new(), Vec::new());
    let (mut replaced, mut awaiting) = (Vec::new(), Vec::new());
    for (index, (protected, uuid)) in collections.iter_mut().enumerate() {
        // A collection that is still to be created may yet be sharded.
        if uuid.is_some() {
            warn_of_routes_without_effect(protected);
        }
        deployment.create_results(client, &protected.namespace.database).await?;
        let definitions = Definitions::of(client, &protected.namespace);
        let strategy = protected.strategy();
        for (position, proxy) in protected.constraints.iter_mut().enumerate() {
            let constraint = &proxy.constraint.clone();
            proxy
                .prepare_collation()
                .await
                .map_err(|error| not_collated(constraint, error))?;
            let proxy_collection = Existing::read(client, &constraint.proxy_collection()).await?;
            if proxy_collection.collation.is_some() {
                return Err(PrepareError::NotOurs(constraint.proxy_collection(), "has a collation"));
            }
            let registered = definitions.register(constraint, proxy_collection.uuid.as_ref()).await?;
            definitions.agree_on_strategy(constraint, strategy).await?;
            deployment.create(client, constraint).await?;
            if registered.is_proxy_unnoted {
                definitions.note_proxy(constraint, registered.identity).await?;
            }
            match proxy_collection.uuid {
                Some(uuid) => proxy.note_uuid(Some(&uuid)),
                None => {
                    proxy.note_made();
                    let made = Existing::read(client, &constraint.proxy_collection()).await?;
                    proxy.note_uuid(made.uuid.as_ref());
                }
            }
            identities.push((constraint.clone(), registered.identity));
            if !registered.is_enforced {
                unready.push((index, position));
            }
            if registered.is_replaced {
                replaced.push(constraint.clone());
            }
            if let Some(awaits) = registered.awaits {
                awaiting.push((constraint.clone(), awaits));
            }
        }
    }
    Ok(ReservingConstraints {
        collections,
        unready,
        replaced,
        awaiting,
        identities,
    })
}

fn warn_of_routes_without_effect(protected: &Protected) {
    let constraints = protected.constraints.iter().map(|proxy| &proxy.constraint);
    for constraint in constraints.filter(|constraint| constraint.routes()) {
        if let Some(reason) = protected.unroutable(constraint) {
            tracing::warn!(
                namespace = %protected.namespace, constraint = constraint.name(), reason,
                "route: true has no effect"
            );
        }
    }
}

/// Notes in the cluster that, as far as is known here, no Keyward reserves for `constraint` any more. A Keyward that
/// has it again backfills all its documents.
pub async fn suspend(client: &Client, constraint: &Constraint) -> Result<(), PrepareError> {
    Definitions::of(client, constraint.namespace())
        .suspend(constraint)
        .await
}

/// The same, unless the cluster has another definition of this constraint. Returns whether it has not.
pub async fn suspend_same(client: &Client, constraint: &Constraint) -> Result<bool, PrepareError> {
    let definitions = Definitions::of(client, constraint.namespace());
    match definitions.read(constraint, Strategy::Compensating).await {
        Err(PrepareError::OtherDefinition { .. }) => return Ok(false),
        Ok(_) | Err(PrepareError::OtherStrategy { .. }) => {}
        Err(error) => return Err(error),
    }
    definitions.suspend(constraint).await?;
    Ok(true)
}

/// The same as [`suspend`], and that a client's constraint has ended.
pub async fn end(client: &Client, constraint: &Constraint) -> Result<(), PrepareError> {
    let definitions = Definitions::of(client, constraint.namespace());
    definitions.suspend(constraint).await?;
    match constraint.client_entry() {
        Some(entry) => definitions.end_of_client(constraint, entry).await,
        None => Ok(()),
    }
}

/// The protected collections as the cluster has them. Changes nothing.
///
/// # Errors
/// [`PrepareError`] if the cluster doesn't answer, or a constraint can't be used there.
pub async fn prepared(
    client: &Client,
    constraints: &[Arc<Constraint>],
    lease: Duration,
    metrics: &Metrics,
) -> Result<Vec<Protected>, PrepareError> {
    let (_, collections) = read_all(client, constraints, lease, metrics).await?;
    Ok(collections.into_iter().map(|(protected, _)| protected).collect())
}

/// Checks that each collection has the same strategy here as in the cluster. It differs if the configuration leaves out
/// the constraint that chose it.
///
/// # Errors
/// [`PrepareError`] if a strategy or a definition differs.
pub async fn check_strategies(
    client: &Client,
    constraints: &[Arc<Constraint>],
    lease: Duration,
    metrics: &Metrics,
) -> Result<(), PrepareError> {
    for protected in prepared(client, constraints, lease, metrics).await? {
        let definitions = Definitions::of(client, &protected.namespace);
        for proxy in &protected.constraints {
            definitions.read(&proxy.constraint, protected.strategy()).await?;
        }
    }
    Ok(())
}

/// Checks that every document of the collection is reserved under the constraint at `position`, as it is defined here.
/// Some Keyward may still write without reserving.
///
/// # Errors
/// [`PrepareError`] if some documents aren't reserved, or the cluster has another definition or strategy.
pub async fn check_enforced(client: &Client, protected: &Protected, position: usize) -> Result<(), PrepareError> {
    let constraint = &protected.constraints[position].constraint;
    let definitions = Definitions::of(client, &protected.namespace);
    match definitions.read(constraint, protected.strategy()).await? {
        Some(ConstraintState::Enforced | ConstraintState::Backfilled) => Ok(()),
        Some(ConstraintState::Reserving) | None => Err(PrepareError::NotEnforced(constraint.full_name())),
    }
}

/// Whether the constraint of `proxy` still has the definition and the strategy in the cluster that it has here.
///
/// A process judges reservations by its own definition. Another one may be in force by now: this process may have stood still, or not have
/// applied a change yet. By the new definition the owner may hold the key. So a judge must do this, in this order:
///
/// 1. It reads the reservations, with their tokens.
/// 2. It asks this. The read is linearizable, so a deposed primary can't answer it.
/// 3. It deletes or takes over by these tokens, at any later time.
///
/// A backfill of another definition begins after step 2, because it begins after the definition is stored. It gives each reservation
/// that it finds for a document a token that step 3 doesn't name ([`backfill_documents`]). Or it finds none, and writes one. Before
/// this backfill is complete, the new constraint isn't enforced. A write under the new definition relies on no reservation that it
/// only found, with one exception: a document keeps a key that it held before. Then the backfill finds that document with the key, too.
///
/// The constraint's identity needn't be the same. If the constraint was removed and made again before step 2, with the same definition, the
/// judgement is right by the new one as well.
///
/// # Errors
/// [`StoreError`] if the cluster doesn't answer.
pub async fn is_defined_as_here(protected: &Protected, proxy: &ProxyCollection) -> Result<bool, StoreError> {
    let definitions = Definitions::of(proxy.client(), &protected.namespace);
    definitions.is_as_here(&proxy.constraint, protected.strategy()).await
}

/// A collection with its uuid, if it exists.
type Collection = (Protected, Option<Bson>);

async fn read_all(
    client: &Client,
    constraints: &[Arc<Constraint>],
    lease: Duration,
    metrics: &Metrics,
) -> Result<(Deployment, Vec<Collection>), PrepareError> {
    let deployment = Deployment::of(client).await?;
    if !constraints.is_empty() {
        deployment.refuse_shard(client).await?;
    }
    let mut seen = HashSet::new();
    let namespaces: Vec<&Namespace> = constraints
        .iter()
        .map(|constraint| constraint.namespace())
        .filter(|namespace| seen.insert(*namespace))
        .collect();
    let mut collections = Vec::with_capacity(namespaces.len());
    for namespace in namespaces {
        collections.push(read_one(&deployment, client, namespace, constraints, lease, metrics).await?);
    }
    Ok((deployment, collections))
}

/// Reads what the catalog needs to know of one collection: its options, its shard key, and its constraints with what they
/// inherit.
async fn read_one(
    deployment: &Deployment,
    client: &Client,
    namespace: &Namespace,
    constraints: &[Arc<Constraint>],
    lease: Duration,
    metrics: &Metrics,
) -> Result<Collection, PrepareError> {
    let constraints = || {
        constraints
            .iter()
            .filter(|constraint| constraint.namespace() == namespace)
    };
    let existing = match Existing::read(client, namespace).await {
        // One client's constraint mustn't stop all others. It is kept as for a collection that doesn't exist, so nothing passes it unseen.
        Err(PrepareError::NoCollection(_)) if constraints().all(|one| one.client_entry().is_some()) => {
            tracing::warn!(
                %namespace,
                "a client made a unique constraint on a collection that is a view or a time series now; send dropIndexes to end it"
            );
            Existing::default()
        }
        existing => existing?,
    };
    existing.check(namespace, constraints())?;
    let is_clustered_by_sort_keys = existing.is_clustered_by_sort_keys();
    let Existing {
        collation: default,
        is_clustered,
        uuid,
        ..
    } = existing;
    let mut proxies = Vec::new();
    for constraint in constraints() {
        let metrics = metrics.constraint(constraint);
        let constraint = collated(client, constraint, default.as_ref()).await?;
        let mut proxy = ProxyCollection::new(client, constraint, metrics, lease);
        proxy.note_clustered(is_clustered);
        proxies.push(proxy);
    }
    // The server checks the index on `_id` before any other.
    proxies.sort_by_key(|proxy| !proxy.constraint.is_on_id());
    let creatable_with = match uuid.is_some() {
        true => DefaultCollations::of_existing(default.as_ref()),
        false => DefaultCollations::of_absent(proxies.iter().map(|proxy| &*proxy.constraint)),
    };
    let protected = Protected {
        namespace: namespace.clone(),
        constraints: proxies,
        shard_key: deployment.shard_key(client, namespace).await?,
        is_on_one_replica_set: *deployment == Deployment::Unsharded,
        is_collated: default.is_some() || creatable_with.has_any(),
        is_clustered_by_sort_keys,
        creatable_with,
    };
    Ok((protected, uuid))
}

/// The state of each of `constraints` in the cluster; none for a constraint that the cluster doesn't know. It reads once for each
/// database.
pub async fn standings(client: &Client, constraints: &[Arc<Constraint>]) -> Result<Vec<Option<Standing>>, StoreError> {
    let mut collections: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for constraint in constraints {
        let Namespace { database, collection } = constraint.namespace();
        collections.entry(database).or_default().insert(collection);
    }
    let mut known = HashMap::new();
    for (database, collections) in collections {
        let standings = Definitions::in_database(client, database)
            .standings(&collections)
            .await?;
        known.insert(database, standings);
    }
    let standing = |constraint: &Arc<Constraint>| {
        let Namespace { database, collection } = constraint.namespace();
        let name = (collection.clone(), constraint.name().to_owned());
        known.get(database.as_str())?.get(&name).copied()
    };
    Ok(constraints.iter().map(standing).collect())
}

/// Checks that no other constraint that the cluster knows has its reservations in the proxy collection of `constraint`.
///
/// # Errors
/// [`PrepareError::SamePlace`] if one has, and [`PrepareError::Store`] if the cluster doesn't answer.
pub async fn check_place(client: &Client, constraint: &Constraint) -> Result<(), PrepareError> {
    Definitions::of(client, constraint.namespace())
        .check_place(constraint)
        .await
}

/// Whether `constraint` is enforced, now or later than now. A primary that has been replaced can't answer this.
///
/// # Errors
/// [`StoreError`] if the cluster doesn't answer.
pub async fn is_enforced(client: &Client, constraint: &Constraint) -> Result<bool, StoreError> {
    Definitions::of(client, constraint.namespace())
        .is_enforced(constraint)
        .await
}

/// Whether the identity of each constraint, as the cluster has it now or later than now, is among those `listed`.
///
/// # Errors
/// [`StoreError`] if the cluster doesn't answer.
pub async fn are_listed(
    client: &Client,
    constraints: impl Iterator<Item = &Constraint>,
    listed: &BTreeSet<ObjectId>,
) -> Result<bool, StoreError> {
    for constraint in constraints {
        let definitions = Definitions::of(client, constraint.namespace());
        let identity = definitions.identity(constraint).await?;
        if !identity.is_some_and(|identity| listed.contains(&identity)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn not_collated(constraint: &Constraint, reason: impl Display) -> PrepareError {
    PrepareError::Collation {
        constraint: constraint.full_name(),
        reason: reason.to_string(),
    }
}

/// The names of the shards; none on a replica set.
///
/// # Errors
/// [`PrepareError`] if the deployment doesn't answer, is a single server, or is one shard of a cluster.
pub async fn shards(client: &Client) -> Result<Option<Vec<String>>, PrepareError> {
    let deployment = Deployment::of(client).await?;
    deployment.refuse_shard(client).await?;
    if deployment == Deployment::Unsharded {
        return Ok(None);
    }
    let reply = client.database("admin").run_command(doc! { "listShards": 1 }).await?;
    let shards = reply.get_array("shards").map(Vec::as_slice).unwrap_or_default();
    let name = |shard: &Bson| Some(shard.as_document()?.get_str("_id").ok()?.to_owned());
    Ok(Some(shards.iter().filter_map(name).collect()))
}

/// Checks that the deployment answers Keyward's own user.
///
/// # Errors
/// [`StoreError`] if it doesn't, or is too old.
pub async fn ping(client: &Client) -> Result<(), StoreError> {
    let hello = client.database("admin").run_command(doc! { "hello": 1 }).await?;
    check_version(&hello)?;
    check_time(client, &hello).await
}

/// Checks that the server which answered `hello` is new enough.
///
/// # Errors
/// [`StoreError::TooOld`] if it isn't.
pub fn check_version(hello: &Document) -> Result<(), StoreError> {
    let version = hello.get_i32("maxWireVersion").unwrap_or(WIRE_VERSION_MIN);
    match version < WIRE_VERSION_MIN {
        true => Err(StoreError::TooOld(version)),
        false => Ok(()),
    }
}

/// Checks that the deployment which answered `hello` states the cluster time.
///
/// # Errors
/// [`StoreError`] if it doesn't.
pub async fn check_time(client: &Client, hello: &Document) -> Result<(), StoreError> {
    let has_time = hello.contains_key("setName") || driver::is_of_router(hello);
    if !has_time || hello.contains_key("operationTime") {
        return Ok(());
    }
    // Ages of reservations need the cluster time. A new deployment with users does not report it before it has keys to
    // sign it. A router without earlier requests may first have to ask for the time.
    let ping = client.database("admin").run_command(doc! { "ping": 1 }).await?;
    match ping.contains_key("operationTime") {
        true => Ok(()),
        false => Err(StoreError::Unexpected("a reply without operationTime")),
    }
}
