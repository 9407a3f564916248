//! Makes constraints that reserve enforced: one Keyward at a time backfills the existing documents, once every Keyward
//! that may write reserves.

use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, Uuid, oid::ObjectId};
use mongodb::Client;

use super::backfill;
use super::backfill_claim::BackfillClaims;
use super::definition::Definitions;
use super::existing::Existing;
use super::position::{BackfillPosition, Between};
use super::report::{Report, Reports};
use super::stored_definition::{ConstraintState, definition_id};
use super::{Collection, PrepareError, standings, suspend};
use crate::backfill_share::BackfillShare;
use crate::catalog::{Catalog, Protected};
use crate::constraint::Constraint;
use crate::fleet::{Membership, RegisterEntry};
use crate::namespace::Namespace;
use crate::proxy_collection::{ProxyCollection, StoreError, uuid_of};

/// A constraint that can't be called enforced, because other Keywards may write without it.
#[derive(Debug)]
pub struct WaitingConstraint {
    /// The constraint.
    pub constraint: Arc<Constraint>,
    /// These Keywards' entries in the register; none if a Keyward reads the documents just now, or is about to.
    pub others: Vec<RegisterEntry>,
}

impl WaitingConstraint {
    /// `constraint`, which waits for `others`.
    pub fn of(constraint: &Arc<Constraint>, others: Vec<RegisterEntry>) -> WaitingConstraint {
        WaitingConstraint {
            constraint: constraint.clone(),
            others,
        }
    }
}

/// How to treat documents that another Keyward reads just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfClaimed {
    /// Wait until the other Keyward has finished or is gone.
    Wait,
    /// Return now, and try again later.
    Leave,
}

/// How long to wait between two checks of another Keyward's claim.
const CLAIMED: Duration = Duration::from_secs(1);

/// Constraints whose keys can be reserved, although earlier documents may not be reserved yet.
#[derive(Debug)]
pub struct ReservingConstraints {
    pub(super) collections: Vec<Collection>,
    /// The constraints that aren't enforced: index of the collection, and of the constraint in it.
    pub(super) unready: Vec<(usize, usize)>,
    /// The constraints whose proxy collection isn't the one in which their reservations were complete.
    pub(super) replaced: Vec<Arc<Constraint>>,
    /// The constraints whose proxy collection was dropped before their reservations were complete in it, each with the name of the drop in its
    /// document. No Keyward has yet waited for the writes that may have reserved there.
    pub(super) awaiting: Vec<(Arc<Constraint>, ObjectId)>,
    /// The identity of each constraint in the register of Keywards.
    pub(super) identities: Vec<(Arc<Constraint>, ObjectId)>,
}

impl ReservingConstraints {
    /// The catalog in which all these constraints reserve.
    pub fn catalog(&self) -> Catalog {
        Catalog::new(
            self.collections
                .iter()
                .map(|(protected, _)| protected.clone())
                .collect(),
        )
    }

    /// Goes on from the catalog `before`: with the ages of reservations that this process knows, and the collections that have them. Returns
    /// whether these collections are there, as far as is known.
    pub fn go_on_from(&mut self, before: &Catalog) -> bool {
        let mut are_there = true;
        for (protected, _) in &mut self.collections {
            let Some(before) = before.on(&protected.namespace) else {
                continue;
            };
            for proxy in &mut protected.constraints {
                before.constraints.iter().for_each(|before| proxy.go_on_from(before));
                are_there &= !proxy.is_gone();
            }
        }
        are_there
    }

    /// The constraints that aren't enforced.
    pub fn unready(&self) -> Vec<Arc<Constraint>> {
        let unready = self.unready.iter();
        let unready = unready.map(|(index, position)| &self.collections[*index].0.constraints[*position].constraint);
        unready.cloned().collect()
    }

    /// Waits until no write takes effect any more that another Keyward has reserved in the former proxy collection of one of these
    /// `constraints`. A backfill that begins after this finds it. Such a Keyward can reserve nothing more. The second time that a process
    /// waits for the same collection, it is over. It waits for those that `may_reserve`.
    ///
    /// # Errors
    /// [`PrepareError`] if the cluster doesn't answer.
    pub async fn await_writes_of_others(
        &self,
        client: &Client,
        membership: &Membership,
        constraints: &[Arc<Constraint>],
        may_reserve: impl Fn(&RegisterEntry) -> bool,
    ) -> Result<(), PrepareError> {
        let proxies = self
            .collections
            .iter()
            .flat_map(|(protected, _)| &protected.constraints);
        let meant = proxies.filter(|proxy| constraints.iter().any(|one| one.has_name_of(&proxy.constraint)));
        let meant: Vec<(&Arc<Constraint>, Uuid)> = meant
            .filter_map(|proxy| Some((&proxy.constraint, proxy.uuid()?)))
            .collect();
        let namespaces: Vec<&Namespace> = meant.iter().map(|(constraint, _)| constraint.namespace()).collect();
        let uuids: Vec<Uuid> = meant.iter().map(|(_, uuid)| *uuid).collect();
        if !membership.await_others(&namespaces, &uuids, may_reserve).await? {
            return Ok(());
        }
        // A backfill that began before now may have passed such a write.
        for (constraint, standing) in constraints.iter().zip(standings(client, constraints).await?) {
            if standing.is_none_or(|standing| standing.state != ConstraintState::Enforced) {
                suspend(client, constraint).await?;
            }
        }
        for (constraint, awaits) in &self.awaiting {
            if constraints.iter().any(|one| one.has_name_of(constraint)) {
                let definitions = Definitions::of(client, constraint.namespace());
                definitions.note_awaited(constraint, *awaits).await?;
            }
        }
        let is_replaced = |one: &Constraint| self.replaced.iter().any(|other| other.has_name_of(one));
        for (constraint, uuid) in meant.iter().filter(|(constraint, _)| is_replaced(constraint)) {
            let definitions = Definitions::of(client, constraint.namespace());
            definitions.note_waited_for(constraint, *uuid).await?;
        }
        membership.note_awaited(&uuids);
        Ok(())
    }

    /// Notes that no write takes effect any more that has its reservations in the former proxy collections of those that `are_meant`.
    pub fn note_waited_for(&mut self, are_meant: impl Fn(&Constraint) -> bool) {
        self.replaced.retain(|constraint| !are_meant(constraint));
    }

    /// Waits as [`ReservingConstraints::await_writes_of_others`], for those constraints that `are_meant`, and whose proxy collections were replaced.
    ///
    /// # Errors
    /// [`PrepareError`] if the cluster doesn't answer.
    pub async fn await_replaced(
        &self,
        client: &Client,
        membership: &Membership,
        are_meant: impl Fn(&Constraint) -> bool,
    ) -> Result<(), PrepareError> {
        let replaced = self.replaced.iter().filter(|constraint| are_meant(constraint));
        let replaced: Vec<_> = replaced.cloned().collect();
        if replaced.is_empty() {
            return Ok(());
        }
        let any = |_: &RegisterEntry| true;
        self.await_writes_of_others(client, membership, &replaced, any).await
    }

    /// The same, also for those whose proxy collections were dropped before all documents were reserved. No constraint relied on their
    /// reservations. So it waits there only for the Keywards that list one of these constraints.
    ///
    /// # Errors
    /// [`PrepareError`] if the cluster doesn't answer.
    pub async fn await_former(
        &self,
        client: &Client,
        membership: &Membership,
        are_meant: impl Fn(&Constraint) -> bool,
    ) -> Result<(), PrepareError> {
        self.await_replaced(client, membership, &are_meant).await?;
        let awaiting = self.awaiting.iter().map(|(constraint, _)| constraint.clone());
        let awaiting: Vec<_> = awaiting.filter(|constraint| are_meant(constraint)).collect();
        if awaiting.is_empty() {
            return Ok(());
        }
        let identities = self.identities(|one| awaiting.iter().any(|other| other.has_name_of(one)));
        let lists_one = |entry: &RegisterEntry| identities.iter().any(|one| entry.constraints.contains(one));
        self.await_writes_of_others(client, membership, &awaiting, lists_one)
            .await
    }

    /// The catalog with the proxy collections of those constraints that `are_meant` as they are here. Their protected collections may have been
    /// created anew, too.
    pub fn in_place_of(&self, catalog: &Catalog, are_meant: impl Fn(&Constraint) -> bool) -> Catalog {
        let changed = catalog.all().map(|protected| {
            let mut changed = Protected::clone(protected);
            let mut here = self.collections.iter().map(|(here, _)| here);
            let Some(here) = here.find(|here| here.namespace == protected.namespace) else {
                return changed;
            };
            changed.is_clustered_by_sort_keys = here.is_clustered_by_sort_keys;
            for proxy in changed
                .constraints
                .iter_mut()
                .filter(|proxy| are_meant(&proxy.constraint))
            {
                if let Some(anew) = find_same_name(here, &proxy.constraint) {
                    *proxy = anew.clone();
                }
            }
            changed
        });
        Catalog::new(changed.collect())
    }

    /// Whether a constraint is defined otherwise here than in the catalog.
    pub fn differs_from(&self, catalog: &Catalog) -> bool {
        catalog
            .all()
            .any(|protected| self.defined_otherwise(protected).is_some())
    }

    /// The catalog with the collections as they are here in which a constraint is defined otherwise. Constraints that aren't here stay.
    pub fn in_place_of_changed(&self, catalog: &Catalog) -> Catalog {
        let changed = catalog.all().map(|protected| {
            let Some(here) = self.defined_otherwise(protected) else {
                return Protected::clone(protected);
            };
            let mut changed = here.clone();
            let is_here = |one: &ProxyCollection| find_same_name(here, &one.constraint).is_some();
            let others = protected.constraints.iter().filter(|one| !is_here(one));
            changed.constraints.extend(others.cloned());
            changed
        });
        Catalog::new(changed.collect())
    }

    /// The collection of a catalog as it is here, if one of its constraints is defined otherwise.
    fn defined_otherwise(&self, catalog: &Protected) -> Option<&Protected> {
        let mut here = self.collections.iter().map(|(here, _)| here);
        here.find(|here| here.namespace == catalog.namespace && here.redefines(catalog))
    }

    /// Whether this constraint is one of them.
    pub fn has(&self, constraint: &Constraint) -> bool {
        self.identities.iter().any(|(one, _)| one.has_name_of(constraint))
    }

    /// The identities, in the register of Keywards, of those constraints that `are_meant`.
    pub fn identities(&self, are_meant: impl Fn(&Constraint) -> bool) -> Vec<ObjectId> {
        let meant = self.identities.iter().filter(|(constraint, _)| are_meant(constraint));
        meant.map(|(_, identity)| *identity).collect()
    }

    /// Checks that those of the constraints that `are_meant` still are as they were read here. The register must list their identities by
    /// now. A command that removes a constraint, or changes its strategy, changes the definition first, and then reads the register.
    /// So one of the two notices the other.
    ///
    /// # Errors
    /// [`PrepareError::Changed`]: this Keyward must not count on the constraint.
    pub async fn check_unchanged(
        &self,
        client: &Client,
        are_meant: impl Fn(&Constraint) -> bool,
    ) -> Result<(), PrepareError> {
        for (constraint, identity) in self.identities.iter().filter(|(constraint, _)| are_meant(constraint)) {
            let definitions = Definitions::of(client, constraint.namespace());
            definitions.check_identity(constraint, *identity).await?;
        }
        Ok(())
    }

    /// The collections that the configuration file protects. Keyward declares the others when clients write there: a Keyward may not
    /// have all the constraints there, and declaring the collection revokes `enforced` from those that it lacks.
    pub fn namespaces_of_file(&self) -> impl Iterator<Item = Namespace> {
        let is_of_file = |protected: &&Protected| {
            let mut constraints = protected.constraints.iter().map(|proxy| &proxy.constraint);
            constraints.any(|constraint| constraint.client_entry().is_none())
        };
        let collections = self.collections.iter().map(|(protected, _)| protected);
        collections
            .filter(is_of_file)
            .map(|protected| protected.namespace.clone())
    }

    /// Reserves the keys of existing documents, and marks the constraints as enforced. It does so only for constraints that
    /// `are_meant`, if they weren't enforced, or are `anew`: these were suspended since. A constraint can't be enforced if another
    /// Keyward may write without it. Its violations are reported nonetheless, if it may be left out, and `are_new` here. Returns the
    /// constraints that must wait for a Keyward which may write without reserving, and those that aren't meant and not enforced. Each
    /// backfill keeps to `share`.
    ///
    /// # Errors
    /// [`PrepareError`], with all documents that violate one of the constraints.
    pub async fn backfill_documents(
        &self,
        client: &Client,
        membership: Option<&Membership>,
        (are_meant, anew, are_new): (
            impl Fn(&Constraint) -> bool,
            impl Fn(&Constraint) -> bool,
            impl Fn(&Constraint) -> bool,
        ),
        (if_claimed, share): (IfClaimed, BackfillShare),
    ) -> Result<Vec<WaitingConstraint>, PrepareError> {
        if let Some(membership) = membership {
            self.await_former(client, membership, &are_meant).await?;
        }
        let mut waiting = Vec::new();
        let mut pending = Vec::new();
        for (index, (protected, uuid)) in self.collections.iter().enumerate() {
            for (position, proxy) in protected.constraints.iter().enumerate() {
                let is_unready = anew(&proxy.constraint) || self.unready.contains(&(index, position));
                if is_unready && !are_meant(&proxy.constraint) {
                    waiting.push(WaitingConstraint::of(&proxy.constraint, Vec::new()));
                } else if is_unready {
                    let identity = self.identities(|one| one.has_name_of(&proxy.constraint)).pop();
                    let identity = identity.ok_or(StoreError::Unexpected("the identity of a constraint"))?;
                    let guard = membership.map(|membership| (membership, identity));
                    let mut one = Backfilling::of(client, protected, position, uuid.as_ref(), guard).await?;
                    one.share = share;
                    let is_replaced = self.replaced.iter().any(|other| other.has_name_of(&proxy.constraint));
                    let is_same = one.between.proxy.as_ref().and_then(uuid_of) == proxy.uuid();
                    one.is_waited_for = guard.is_some() || is_same && !is_replaced;
                    one.may_be_left_out = are_new(&proxy.constraint) && proxy.constraint.may_be_left_out();
                    pending.push(one);
                }
            }
        }
        // Without a membership nothing is claimed.
        let by = membership.map_or_else(ObjectId::new, Membership::id);
        loop {
            let claims = BackfillClaims::of(client, by);
            let work = backfill_unclaimed(pending, &claims, &mut waiting);
            let left = claims.renewed_during(work).await;
            // The documents of a violated constraint are read again at every try. So its claim stays until it expires.
            match (&left, if_claimed) {
                (Err(PrepareError::Duplicates(_)), IfClaimed::Leave) => claims.leave().await,
                _ => claims.release().await,
            }
            let left = left?;
            if left.is_empty() || if_claimed == IfClaimed::Leave {
                waiting.extend(left.iter().map(|one| one.waiting(Vec::new())));
                return Ok(waiting);
            }
            tokio::time::sleep(CLAIMED).await;
            pending = left;
        }
    }
}

fn find_same_name<'p>(protected: &'p Protected, constraint: &Constraint) -> Option<&'p ProxyCollection> {
    let mut proxies = protected.constraints.iter();
    proxies.find(|proxy| proxy.constraint.has_name_of(constraint))
}

/// Backfills those of `pending` that no other backfill has claimed. Returns the others, except those that are enforced
/// by now.
async fn backfill_unclaimed<'a>(
    pending: Vec<Backfilling<'a>>,
    claims: &BackfillClaims,
    waiting: &mut Vec<WaitingConstraint>,
) -> Result<Vec<Backfilling<'a>>, PrepareError> {
    let (mut reports, mut backfilled, mut left) = (Vec::new(), Vec::new(), Vec::new());
    for one in pending {
        let others = one.lacking().await?;
        if !others.is_empty() && !one.may_be_left_out {
            waiting.push(one.waiting(others));
            continue;
        }
        if one.guard.is_some() && !claims.take(one.constraint()).await? {
            if !one.is_enforced().await? {
                left.push(one);
            }
            continue;
        }
        if !others.is_empty() {
            match one.report().await? {
                report if report.is_empty() => waiting.push(one.waiting(others)),
                report => reports.push(report),
            }
            continue;
        }
        match one.reserve_all().await? {
            Taken::All(backfill_epoch) => backfilled.push((one, backfill_epoch)),
            Taken::Violated(report) => reports.push(report),
            Taken::Nothing(others) => waiting.push(one.waiting(others)),
        }
    }
    // If one constraint is violated, none becomes enforced: a Keyward that is refused one constraint continues without
    // any.
    if reports.is_empty() {
        for (one, backfill_epoch) in backfilled {
            match one.enforce(backfill_epoch).await? {
                Taken::All(_) => {}
                Taken::Violated(report) => reports.push(report),
                Taken::Nothing(others) => waiting.push(one.waiting(others)),
            }
        }
    }
    match reports.is_empty() {
        true => Ok(left),
        false => Err(PrepareError::Duplicates(Reports(reports))),
    }
}

/// A constraint whose documents are being backfilled.
struct Backfilling<'a> {
    client: &'a Client,
    protected: &'a Protected,
    position: usize,
    between: Between,
    /// The membership that shows whether other Keywards write without the constraint, and the constraint's identity
    /// there.
    guard: Option<(&'a Membership, ObjectId)>,
    /// Whether the constraint is left out if documents violate it. Then Keyward reads them also while others may write
    /// without it.
    may_be_left_out: bool,
    /// How fast the backfill may be.
    share: BackfillShare,
    /// Whether no write takes effect any more that has its reservations in the proxy collection before this one.
    is_waited_for: bool,
}

/// The result for the documents of a constraint.
enum Taken {
    /// All are reserved in this backfill epoch.
    All(Option<Bson>),
    /// Some violate the constraint.
    Violated(Report),
    /// These Keywards may write without reserving, so the backfill did not begin.
    Nothing(Vec<RegisterEntry>),
}

impl<'a> Backfilling<'a> {
    /// The constraint at `position` of a collection, which has this uuid.
    async fn of(
        client: &'a Client,
        protected: &'a Protected,
        position: usize,
        uuid: Option<&Bson>,
        guard: Option<(&'a Membership, ObjectId)>,
    ) -> Result<Backfilling<'a>, PrepareError> {
        let constraint = &protected.constraints[position].constraint;
        // This read comes before the first reservation in the proxy collection: nothing is known of a collection that
        // replaces it later.
        let proxy = Existing::read(client, &constraint.proxy_collection()).await?.uuid;
        Ok(Backfilling {
            client,
            protected,
            position,
            between: Between {
                collection: uuid.cloned(),
                proxy,
            },
            guard,
            may_be_left_out: false,
            share: BackfillShare::ALL,
            is_waited_for: false,
        })
    }

    fn constraint(&self) -> &Arc<Constraint> {
        &self.protected.constraints[self.position].constraint
    }

    fn waiting(&self, others: Vec<RegisterEntry>) -> WaitingConstraint {
        WaitingConstraint::of(self.constraint(), others)
    }

    /// The Keywards that may write without reserving.
    async fn lacking(&self) -> Result<Vec<RegisterEntry>, StoreError> {
        match self.guard {
            Some((membership, identity)) => {
                let Protected { namespace, .. } = self.protected;
                membership.lacking(namespace, identity, self.protected.strategy()).await
            }
            None => Ok(Vec::new()),
        }
    }

    /// Whether another Keyward has made the constraint enforced.
    async fn is_enforced(&self) -> Result<bool, PrepareError> {
        let definitions = Definitions::of(self.client, &self.protected.namespace);
        let state = definitions.read(self.constraint(), self.protected.strategy()).await?;
        Ok(state == Some(ConstraintState::Enforced))
    }

    /// Reserves all documents, whether or not every Keyward that may write reserves, and reports those that violate the
    /// constraint.
    async fn report(&self) -> Result<Report, PrepareError> {
        let reached = self.resume(false).await?;
        backfill::backfill(self.client, self.protected, self.position, &reached, self.share).await
    }

    /// Reserves all documents, if every Keyward that may write reserves.
    async fn reserve_all(&self) -> Result<Taken, PrepareError> {
        // Read the backfill epoch before the register. A Keyward that begins to write without the constraint registers
        // first, and then ends the epoch. So either this check sees that Keyward, or the epoch read here ends before
        // its first write.
        let reached = self.resume(self.guard.is_some()).await?;
        let others = self.lacking().await?;
        if !others.is_empty() {
            return Ok(Taken::Nothing(others));
        }
        let report = backfill::backfill(self.client, self.protected, self.position, &reached, self.share).await?;
        Ok(match report.is_empty() {
            true => Taken::All(reached.backfill_epoch),
            false => Taken::Violated(report),
        })
    }

    /// Takes over from the backfill before.
    async fn resume(&self, is_guarded: bool) -> Result<BackfillPosition, StoreError> {
        let namespace = &self.protected.namespace;
        let id = definition_id(namespace, self.constraint().name());
        let database = self.client.database(&namespace.database);
        let (documents, _) = self.protected.constraints[self.position].estimate().await?;
        BackfillPosition::resume(database, id, self.between.clone(), is_guarded, documents).await
    }

    /// Marks the constraint as enforced, or as backfilled if it is unknown which Keywards reserve. If `backfill_epoch`,
    /// in which its documents were reserved, is over, they are reserved again first.
    async fn enforce(&self, mut backfill_epoch: Option<Bson>) -> Result<Taken, PrepareError> {
        let (namespace, constraint) = (&self.protected.namespace, self.constraint());
        let definitions = Definitions::of(self.client, namespace);
        let (proxy, state) = (
            // Otherwise a Keyward that starts wouldn't know that it has to wait.
            self.between.proxy.as_ref().filter(|_| self.is_waited_for),
            match self.guard {
                Some(_) => ConstraintState::Enforced,
                None => ConstraintState::Backfilled,
            },
        );
        while !definitions
            .complete(constraint, state, proxy, backfill_epoch.as_ref())
            .await?
        {
            backfill_epoch = match self.reserve_all().await? {
                Taken::All(backfill_epoch) => backfill_epoch,
                other => return Ok(other),
            };
        }
        match state {
            ConstraintState::Enforced => {
                tracing::info!(%namespace, constraint = constraint.name(), "constraint enforced")
            }
            _ => tracing::info!(%namespace, constraint = constraint.name(), "constraint backfilled"),
        }
        Ok(Taken::All(backfill_epoch))
    }
}
