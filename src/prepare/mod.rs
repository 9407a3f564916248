//! Makes constraints hold from the first write on: before the port opens, every proxy collection exists, is spread over
//! the shards, and has a reservation for every document that is there already. A constraint that comes later reserves for
//! what is written before it takes in what is there.
//!
//! Every step can be repeated, and several Keywards may take it at once; whoever stops midway leaves work for the next
//! start, never a constraint that only seems to hold.

mod backfill;
mod batches;
mod definition;
mod error;
mod existing;
mod left_out;
mod position;
pub mod privileges;
mod results;
mod sharding;
mod take_in;

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, Document, doc, oid::ObjectId};
use mongodb::Client;

use crate::catalog::{Catalog, Protected};
use crate::classify::Encrypted;
use crate::constraint::Constraint;
use crate::default_collations::DefaultCollations;
use crate::fleet::{Entry, Membership};
use crate::metrics::Metrics;
use crate::namespace::Namespace;
use crate::proxy_collection::{ProxyCollection, StoreError};
use crate::upstream::WIRE_VERSION_MIN;

pub use backfill::{Report, Reports};
use definition::Definitions;
pub use definition::{DEFINITIONS, State, definition_id};
pub use error::PrepareError;
use existing::Existing;
pub use left_out::suspend_lacking;
use position::{Between, Position};
use sharding::Deployment;
pub use take_in::{Outcome, take_in};

/// Prepares all `constraints`, in their order; gives what enforces them, and those that can't be called enforced yet because
/// some Keyward may write without them. Without `membership`, none is: nobody reserves meanwhile, as far as is known here.
///
/// # Errors
/// [`PrepareError`]: nothing may be served then.
pub async fn prepare(
    client: &Client,
    constraints: &[Arc<Constraint>],
    lease: Duration,
    metrics: &Metrics,
    membership: Option<&Membership>,
) -> Result<(Reserving, Vec<Waiting>), PrepareError> {
    // Before anything is written down, which would hold against the next configuration.
    check_strategies(client, constraints, lease, metrics).await?;
    let reserving = make(client, constraints, lease, metrics).await?;
    let waiting = reserving.take_in(client, lease, membership, |_| false).await?;
    Ok((reserving, waiting))
}

/// A constraint that can't be called enforced, because others may write without it.
#[derive(Debug)]
pub struct Waiting {
    /// The constraint.
    pub constraint: Arc<Constraint>,
    /// They, as the register of Keywards has them.
    pub others: Vec<Entry>,
}

/// Constraints whose keys can be reserved, though documents that were there before may not be reserved yet.
#[derive(Debug)]
pub struct Reserving {
    collections: Vec<Collection>,
    /// Those that aren't enforced: which collection, which of its constraints.
    unready: Vec<(usize, usize)>,
    /// What each constraint is called in the register of Keywards.
    identities: Vec<(Arc<Constraint>, ObjectId)>,
}

/// Makes what `constraints` need in the cluster: they are written down there, and their proxy collections exist. It changes
/// nothing for constraints that hold already.
///
/// # Errors
/// [`PrepareError`] if one stands otherwise in the cluster, or it doesn't do as it is asked.
pub async fn make(
    client: &Client,
    constraints: &[Arc<Constraint>],
    lease: Duration,
    metrics: &Metrics,
) -> Result<Reserving, PrepareError> {
    let (deployment, collections) = look(client, constraints, lease, metrics).await?;
    let (mut unready, mut identities) = (Vec::new(), Vec::new());
    for (index, (protected, _)) in collections.iter().enumerate() {
        results::create(client, &protected.namespace.database).await?;
        let definitions = Definitions::of(client, &protected.namespace);
        for (position, proxy) in protected.constraints.iter().enumerate() {
            let constraint = &proxy.constraint;
            proxy
                .prepare_collation()
                .await
                .map_err(|error| not_collated(constraint, error))?;
            let proxy_collection = Existing::look(client, &constraint.proxy_collection()).await?;
            if proxy_collection.collation.is_some() {
                return Err(PrepareError::NotOurs(constraint.proxy_collection(), "has a collation"));
            }
            let registered = definitions.register(constraint, proxy_collection.uuid.as_ref()).await?;
            definitions.agree_on_strategy(constraint, protected.strategy()).await?;
            deployment.create(client, constraint, registered.was_complete).await?;
            if proxy_collection.uuid.is_none() {
                proxy.note_made();
            }
            identities.push((constraint.clone(), registered.identity));
            if !registered.is_enforced {
                unready.push((index, position));
            }
        }
    }
    Ok(Reserving {
        collections,
        unready,
        identities,
    })
}

impl Reserving {
    /// The catalog in which all of them reserve.
    pub fn catalog(&self) -> Catalog {
        Catalog::new(
            self.collections
                .iter()
                .map(|(protected, _)| protected.clone())
                .collect(),
        )
    }

    /// What those constraints that `are_meant` are called in the register of Keywards.
    pub fn identities(&self, are_meant: impl Fn(&Constraint) -> bool) -> Vec<ObjectId> {
        let meant = self.identities.iter().filter(|(constraint, _)| are_meant(constraint));
        meant.map(|(_, identity)| *identity).collect()
    }

    /// Their collections.
    pub fn namespaces(&self) -> impl Iterator<Item = Namespace> {
        self.collections
            .iter()
            .map(|(protected, _)| protected.namespace.clone())
    }

    /// Reserves the keys of the documents that are there, and notes that the constraints are enforced; for those that
    /// weren't, and for those that are `anew`, which were suspended since. Gives those for which some Keyward is to be waited
    /// that may write without reserving.
    ///
    /// # Errors
    /// [`PrepareError`], with all documents that violate one of the constraints.
    pub async fn take_in(
        &self,
        client: &Client,
        lease: Duration,
        membership: Option<&Membership>,
        anew: impl Fn(&Constraint) -> bool,
    ) -> Result<Vec<Waiting>, PrepareError> {
        let (mut reports, mut taken_in, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (protected, uuid)) in self.collections.iter().enumerate() {
            for (position, proxy) in protected.constraints.iter().enumerate() {
                if anew(&proxy.constraint) || self.unready.contains(&(index, position)) {
                    let identity = self.identities(|one| is_same(one, &proxy.constraint)).pop();
                    let identity = identity.ok_or(StoreError::Unexpected("the identity of a constraint"))?;
                    let guard = membership.map(|membership| (membership, identity));
                    let one = TakingIn::of(client, protected, position, uuid.as_ref(), lease, guard).await?;
                    match one.reserve_all().await? {
                        Taken::All(era) => taken_in.push((one, era)),
                        Taken::Violated(report) => reports.push(report),
                        Taken::Nothing(others) => waiting.push(one.waiting(others)),
                    }
                }
            }
        }
        // None while one is violated: who is refused one goes on without any.
        if reports.is_empty() {
            for (one, era) in taken_in {
                match one.enforce(era).await? {
                    Taken::All(_) => {}
                    Taken::Violated(report) => reports.push(report),
                    Taken::Nothing(others) => waiting.push(one.waiting(others)),
                }
            }
        }
        match reports.is_empty() {
            true => Ok(waiting),
            false => Err(PrepareError::Duplicates(Reports(reports))),
        }
    }
}

fn is_same(one: &Constraint, other: &Constraint) -> bool {
    one.namespace() == other.namespace() && one.name() == other.name()
}

/// Notes in the cluster that nobody reserves for `constraint` any more as far as is known here: whoever has it again takes its
/// documents in anew.
///
/// # Errors
/// [`PrepareError`] if the cluster doesn't do as it is asked.
pub async fn suspend(client: &Client, constraint: &Constraint) -> Result<(), PrepareError> {
    Definitions::of(client, constraint.namespace())
        .suspend(constraint)
        .await
}

/// The protected collections as the cluster has them; nothing is changed.
///
/// # Errors
/// [`PrepareError`] if the cluster has another idea of a constraint.
pub async fn prepared(
    client: &Client,
    constraints: &[Arc<Constraint>],
    lease: Duration,
    metrics: &Metrics,
) -> Result<Vec<Protected>, PrepareError> {
    let (_, collections) = look(client, constraints, lease, metrics).await?;
    Ok(collections.into_iter().map(|(protected, _)| protected).collect())
}

/// That each collection with these constraints has the strategy that the cluster knows of: who leaves out the one that chose it
/// would have another one.
///
/// # Errors
/// [`PrepareError`] if one has another, or isn't defined so there.
pub async fn check_strategies(
    client: &Client,
    constraints: &[Arc<Constraint>],
    lease: Duration,
    metrics: &Metrics,
) -> Result<(), PrepareError> {
    for protected in prepared(client, constraints, lease, metrics).await? {
        let definitions = Definitions::of(client, &protected.namespace);
        for proxy in &protected.constraints {
            definitions.look(&proxy.constraint, protected.strategy()).await?;
        }
    }
    Ok(())
}

/// Whether every document of the collection is reserved under the constraint at `position`, as it stands here; all who write
/// needn't reserve by now.
///
/// # Errors
/// [`PrepareError`] if it isn't, or stands otherwise in the cluster.
pub async fn check_enforced(client: &Client, protected: &Protected, position: usize) -> Result<(), PrepareError> {
    let constraint = &protected.constraints[position].constraint;
    let definitions = Definitions::of(client, &protected.namespace);
    match definitions.look(constraint, protected.strategy()).await? {
        Some(State::Enforced | State::Backfilled) => Ok(()),
        Some(State::Reserving) | None => Err(PrepareError::NotEnforced {
            namespace: protected.namespace.clone(),
            name: constraint.name().to_owned(),
        }),
    }
}

/// A collection with its uuid, which it has once it is there.
type Collection = (Protected, Option<Bson>);

async fn look(
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
        let Existing {
            collation: default,
            uuid,
            encrypted,
        } = Existing::look(client, namespace).await?;
        let of_collection = constraints
            .iter()
            .filter(|constraint| constraint.namespace() == namespace);
        if let Some(Encrypted { constraint, field }) = encrypted.read_by(of_collection.map(|constraint| &**constraint))
        {
            return Err(PrepareError::Encrypted {
                namespace: namespace.clone(),
                name: constraint,
                field,
            });
        }
        let mut proxies = Vec::new();
        for constraint in constraints {
            if constraint.namespace() != namespace {
                continue;
            }
            let metrics = metrics.constraint(constraint);
            let constraint = inheriting(constraint, default.as_ref())?;
            proxies.push(ProxyCollection::new(client, constraint, metrics, lease));
        }
        // The server asks the index on `_id` before any other.
        proxies.sort_by_key(|proxy| !proxy.constraint.is_on_id());
        let creatable_with = match uuid.is_some() {
            true => DefaultCollations::of_existing(default.as_ref()),
            false => DefaultCollations::of_absent(proxies.iter().map(|proxy| &*proxy.constraint)),
        };
        let protected = Protected {
            namespace: namespace.clone(),
            constraints: proxies,
            shard_key: deployment.shard_key(client, namespace).await?,
            is_on_one_replica_set: matches!(deployment, Deployment::Unsharded),
            is_collated: default.is_some() || creatable_with.has_any(),
            creatable_with,
        };
        collections.push((protected, uuid));
    }
    Ok((deployment, collections))
}

/// The state of each of `constraints` in the cluster; none of one that it doesn't know.
///
/// # Errors
/// [`StoreError`] if the cluster doesn't say.
pub async fn states(client: &Client, constraints: &[Arc<Constraint>]) -> Result<Vec<Option<State>>, StoreError> {
    let mut known = HashMap::new();
    for constraint in constraints {
        let namespace = constraint.namespace();
        if !known.contains_key(namespace) {
            let states = Definitions::of(client, namespace).states(namespace).await?;
            known.insert(namespace, states.into_iter().collect::<HashMap<String, State>>());
        }
    }
    let state = |constraint: &Arc<Constraint>| known.get(constraint.namespace())?.get(constraint.name()).copied();
    Ok(constraints.iter().map(state).collect())
}

/// A constraint whose documents are taken in.
struct TakingIn<'a> {
    client: &'a Client,
    protected: &'a Protected,
    position: usize,
    lease: Duration,
    between: Between,
    /// Where to see whether others write without it, and what it is called there.
    guard: Option<(&'a Membership, ObjectId)>,
}

/// What became of the documents of a constraint.
enum Taken {
    /// All are reserved in this era.
    All(Option<Bson>),
    /// Some violate the constraint.
    Violated(Report),
    /// These may write without reserving: nothing was begun.
    Nothing(Vec<Entry>),
}

impl<'a> TakingIn<'a> {
    /// The constraint at `position` of a collection, which has this uuid.
    async fn of(
        client: &'a Client,
        protected: &'a Protected,
        position: usize,
        uuid: Option<&Bson>,
        lease: Duration,
        guard: Option<(&'a Membership, ObjectId)>,
    ) -> Result<TakingIn<'a>, PrepareError> {
        let constraint = &protected.constraints[position].constraint;
        // As it is before anything is reserved in it: of one that is put in its place meanwhile nothing is known.
        let proxy = Existing::look(client, &constraint.proxy_collection()).await?.uuid;
        Ok(TakingIn {
            client,
            protected,
            position,
            lease,
            between: Between {
                collection: uuid.cloned(),
                proxy,
            },
            guard,
        })
    }

    fn constraint(&self) -> &Arc<Constraint> {
        &self.protected.constraints[self.position].constraint
    }

    fn waiting(&self, others: Vec<Entry>) -> Waiting {
        Waiting {
            constraint: self.constraint().clone(),
            others,
        }
    }

    /// Reserves all documents, if all who may write reserve.
    async fn reserve_all(&self) -> Result<Taken, PrepareError> {
        let namespace = &self.protected.namespace;
        let id = definition_id(namespace, self.constraint().name());
        let database = self.client.database(&namespace.database);
        // First the era, then the register: who begins to write without the constraint registers first, and ends the era then.
        // So either it is seen here, or the era in which this began is over before its first write.
        let reached = Position::resume(database, id, self.between.clone(), self.guard.is_some()).await?;
        if let Some((membership, identity)) = self.guard {
            let is_strict = self.protected.is_strict();
            let others = membership.lacking(namespace, identity, is_strict).await?;
            if !others.is_empty() {
                return Ok(Taken::Nothing(others));
            }
        }
        let report = backfill::backfill(self.protected, self.position, self.lease, &reached).await?;
        Ok(match report.is_empty() {
            true => Taken::All(reached.era),
            false => Taken::Violated(report),
        })
    }

    /// Notes that the constraint is enforced, or was backfilled if nobody knows who reserves. Where the `era` in which its
    /// documents were reserved is over, that is done again first.
    async fn enforce(&self, mut era: Option<Bson>) -> Result<Taken, PrepareError> {
        let (namespace, constraint) = (&self.protected.namespace, self.constraint());
        let definitions = Definitions::of(self.client, namespace);
        let (proxy, state) = (
            self.between.proxy.as_ref(),
            match self.guard {
                Some(_) => State::Enforced,
                None => State::Backfilled,
            },
        );
        while !definitions.complete(constraint, state, proxy, era.as_ref()).await? {
            era = match self.reserve_all().await? {
                Taken::All(era) => era,
                other => return Ok(other),
            };
        }
        match state {
            State::Enforced => tracing::info!(%namespace, constraint = constraint.name(), "constraint enforced"),
            _ => tracing::info!(%namespace, constraint = constraint.name(), "constraint backfilled"),
        }
        Ok(Taken::All(era))
    }
}

/// The constraint as `createIndex` would make it on a collection with this default collation.
fn inheriting(constraint: &Arc<Constraint>, default: Option<&Document>) -> Result<Arc<Constraint>, PrepareError> {
    match constraint.inheriting(default) {
        Ok(Some(collated)) => Ok(Arc::new(collated)),
        Ok(None) => Ok(constraint.clone()),
        Err(error) => Err(not_collated(
            constraint,
            format_args!("{error}; it is the collection's default, state another one, or {{ locale: simple }}"),
        )),
    }
}

fn not_collated(constraint: &Constraint, reason: impl Display) -> PrepareError {
    PrepareError::Collation {
        namespace: constraint.namespace().clone(),
        name: constraint.name().to_owned(),
        reason: reason.to_string(),
    }
}

/// Asks the deployment whether it answers at all, with Keyward's own user.
///
/// # Errors
/// [`StoreError`] if it doesn't, or is too old.
pub async fn ping(client: &Client) -> Result<(), StoreError> {
    let hello = client.database("admin").run_command(doc! { "hello": 1 }).await?;
    let version = hello.get_i32("maxWireVersion").unwrap_or(WIRE_VERSION_MIN);
    if version < WIRE_VERSION_MIN {
        return Err(StoreError::TooOld(version));
    }
    let has_time = hello.contains_key("setName") || hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid");
    if !has_time || hello.contains_key("operationTime") {
        return Ok(());
    }
    // A new deployment with users says nothing of its time before it has keys to sign it with; ages of reservations need it.
    // A router that nobody has asked anything yet may have to ask for it first.
    let ping = client.database("admin").run_command(doc! { "ping": 1 }).await?;
    match ping.contains_key("operationTime") {
        true => Ok(()),
        false => Err(StoreError::Unexpected("a reply without operationTime")),
    }
}
