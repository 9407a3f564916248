//! Constraints that reserve, until they are enforced: the documents that are there are reserved, by one Keyward at a time, once
//! nobody may write any more who doesn't reserve.

use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, oid::ObjectId};
use mongodb::Client;

use super::backfill::{self, Report, Reports};
use super::claim::Claims;
use super::definition::{Definitions, State, definition_id};
use super::existing::Existing;
use super::position::{Between, Position};
use super::{Collection, PrepareError};
use crate::catalog::{Catalog, Protected};
use crate::constraint::Constraint;
use crate::fleet::{Entry, Membership};
use crate::namespace::Namespace;
use crate::proxy_collection::StoreError;

/// A constraint that can't be called enforced, because others may write without it.
#[derive(Debug)]
pub struct Waiting {
    /// The constraint.
    pub constraint: Arc<Constraint>,
    /// They, as the register of Keywards has them; none if another Keyward reads the documents just now.
    pub others: Vec<Entry>,
}

/// What to do about documents that another Keyward reads just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfClaimed {
    /// Wait until it is done, or gone.
    Wait,
    /// Come again later.
    Leave,
}

/// How long to leave it between two looks at what another Keyward has claimed.
const CLAIMED: Duration = Duration::from_secs(1);

/// Constraints whose keys can be reserved, though documents that were there before may not be reserved yet.
#[derive(Debug)]
pub struct Reserving {
    pub(super) collections: Vec<Collection>,
    /// Those that aren't enforced: which collection, which of its constraints.
    pub(super) unready: Vec<(usize, usize)>,
    /// What each constraint is called in the register of Keywards.
    pub(super) identities: Vec<(Arc<Constraint>, ObjectId)>,
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
    pub async fn backfill_documents(
        &self,
        client: &Client,
        lease: Duration,
        membership: Option<&Membership>,
        anew: impl Fn(&Constraint) -> bool,
        if_claimed: IfClaimed,
    ) -> Result<Vec<Waiting>, PrepareError> {
        let mut waiting = Vec::new();
        let mut pending = Vec::new();
        for (index, (protected, uuid)) in self.collections.iter().enumerate() {
            for (position, proxy) in protected.constraints.iter().enumerate() {
                if anew(&proxy.constraint) || self.unready.contains(&(index, position)) {
                    let identity = self.identities(|one| is_same(one, &proxy.constraint)).pop();
                    let identity = identity.ok_or(StoreError::Unexpected("the identity of a constraint"))?;
                    let guard = membership.map(|membership| (membership, identity));
                    pending.push(TakingIn::of(client, protected, position, uuid.as_ref(), lease, guard).await?);
                }
            }
        }
        loop {
            let claims = Claims::new(client);
            let work = take_in_unclaimed(pending, &claims, &mut waiting);
            let left = claims.renewed_during(work).await;
            // Where documents violate a constraint they are read again and again: that stays claimed for a while.
            let is_violated = matches!(left, Err(PrepareError::Duplicates(_)));
            if !is_violated || if_claimed == IfClaimed::Wait {
                claims.release().await;
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

/// Takes in the documents of those of `pending` that nobody has claimed; gives the others, but for those that are enforced by now.
async fn take_in_unclaimed<'a>(
    pending: Vec<TakingIn<'a>>,
    claims: &Claims,
    waiting: &mut Vec<Waiting>,
) -> Result<Vec<TakingIn<'a>>, PrepareError> {
    let (mut reports, mut taken_in, mut left) = (Vec::new(), Vec::new(), Vec::new());
    for one in pending {
        let others = one.lacking().await?;
        if !others.is_empty() {
            waiting.push(one.waiting(others));
            continue;
        }
        if one.guard.is_some() && !claims.take(one.constraint()).await? {
            if !one.is_enforced().await? {
                left.push(one);
            }
            continue;
        }
        match one.reserve_all().await? {
            Taken::All(backfill_epoch) => taken_in.push((one, backfill_epoch)),
            Taken::Violated(report) => reports.push(report),
            Taken::Nothing(others) => waiting.push(one.waiting(others)),
        }
    }
    // None while one is violated: who is refused one goes on without any.
    if reports.is_empty() {
        for (one, backfill_epoch) in taken_in {
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

fn is_same(one: &Constraint, other: &Constraint) -> bool {
    one.namespace() == other.namespace() && one.name() == other.name()
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

    /// Those that may write without reserving.
    async fn lacking(&self) -> Result<Vec<Entry>, StoreError> {
        match self.guard {
            Some((membership, identity)) => {
                let is_strict = self.protected.is_strict();
                membership.lacking(&self.protected.namespace, identity, is_strict).await
            }
            None => Ok(Vec::new()),
        }
    }

    /// Whether another Keyward has brought it to its end.
    async fn is_enforced(&self) -> Result<bool, PrepareError> {
        let definitions = Definitions::of(self.client, &self.protected.namespace);
        let state = definitions.look(self.constraint(), self.protected.strategy()).await?;
        Ok(state == Some(State::Enforced))
    }

    /// Reserves all documents, if all who may write reserve.
    async fn reserve_all(&self) -> Result<Taken, PrepareError> {
        let namespace = &self.protected.namespace;
        let id = definition_id(namespace, self.constraint().name());
        let database = self.client.database(&namespace.database);
        // First the era, then the register: who begins to write without the constraint registers first, and ends the era then.
        // So either it is seen here, or the era in which this began is over before its first write.
        let reached = Position::resume(database, id, self.between.clone(), self.guard.is_some()).await?;
        let others = self.lacking().await?;
        if !others.is_empty() {
            return Ok(Taken::Nothing(others));
        }
        let report = backfill::backfill(self.protected, self.position, self.lease, &reached).await?;
        Ok(match report.is_empty() {
            true => Taken::All(reached.backfill_epoch),
            false => Taken::Violated(report),
        })
    }

    /// Notes that the constraint is enforced, or was backfilled if nobody knows who reserves. Where the `era` in which its
    /// documents were reserved is over, that is done again first.
    async fn enforce(&self, mut backfill_epoch: Option<Bson>) -> Result<Taken, PrepareError> {
        let (namespace, constraint) = (&self.protected.namespace, self.constraint());
        let definitions = Definitions::of(self.client, namespace);
        let (proxy, state) = (
            self.between.proxy.as_ref(),
            match self.guard {
                Some(_) => State::Enforced,
                None => State::Backfilled,
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
            State::Enforced => tracing::info!(%namespace, constraint = constraint.name(), "constraint enforced"),
            _ => tracing::info!(%namespace, constraint = constraint.name(), "constraint backfilled"),
        }
        Ok(Taken::All(backfill_epoch))
    }
}
