//! Builds clients' constraints to their end: this Keyward's own, and those of a Keyward that is gone.

use std::sync::Arc;

use bson::oid::ObjectId;
use mongodb::Client;

use super::{Membership, RegisterEntry};
use crate::backfill_share::BackfillShare;
use crate::client_constraints::{ClientConstraints, SharedList, reply_of_violated};
use crate::constraint::Constraint;
use crate::prepare::{self, IfClaimed, PrepareError, Report, Reports, ReservingConstraints, WaitingConstraint};
use crate::proxy_collection::StoreError;
use crate::session::Service;

/// The builds of the applied list, as the register shows their Keywards.
pub(super) struct Builds<'a> {
    clients: &'a ClientConstraints,
    own: ObjectId,
    entries: &'a [RegisterEntry],
}

impl<'a> Builds<'a> {
    /// The builds of `clients`, for the Keyward with the entry `own` in the register.
    pub(super) fn of(clients: &'a ClientConstraints, own: ObjectId, entries: &'a [RegisterEntry]) -> Builds<'a> {
        Builds { clients, own, entries }
    }

    /// The Keyward that builds `constraint`, if the constraint is being built.
    fn builder(&self, constraint: &Constraint) -> Option<ObjectId> {
        self.clients.entry(constraint.client_entry()?)?.state.builder()
    }

    /// Whether another Keyward builds `constraint`, or did and is gone: this one builds it only once the list says so.
    pub(super) fn is_of_other(&self, constraint: &Constraint) -> bool {
        self.builder(constraint).is_some_and(|builder| builder != self.own)
    }

    /// Whether this Keyward builds `constraint`.
    fn is_own(&self, constraint: &Constraint) -> bool {
        self.builder(constraint) == Some(self.own)
    }

    /// The entry of `constraint`, if this Keyward builds it and it is enforced. Once that is recorded, nothing takes it back. So a primary that
    /// has been replaced mustn't be the one that says so.
    pub(super) async fn enforced(&self, client: &Client, constraint: &Constraint) -> Option<ObjectId> {
        if !self.is_own(constraint) {
            return None;
        }
        match prepare::is_enforced(client, constraint).await {
            Ok(is_enforced) => constraint.client_entry().filter(|_| is_enforced),
            Err(error) => {
                tracing::warn!(%error, "whether the constraints are enforced can't be seen");
                None
            }
        }
    }

    /// Begins the builds of those of `constraints` that this Keyward is to build: takes back that they are enforced.
    ///
    /// An earlier constraint with the same definition may have left that. A Keyward that gives the earlier one up then looks at the list
    /// after it has left the register, and goes on to reserve. So a Keyward that enforces the constraint from now on knows all
    /// Keywards that may write without it.
    pub(super) async fn begin(&self, service: &Service, constraints: &[Arc<Constraint>]) -> Result<(), PrepareError> {
        let Some(list) = &service.client_list else {
            return Ok(());
        };
        for constraint in constraints.iter().filter(|one| self.is_own(one)) {
            if let Some(id) = constraint.client_entry().filter(|id| !list.has_begun(*id)) {
                prepare::begin_build(service.upstream.client(), constraint).await?;
                list.begin(id);
            }
        }
        Ok(())
    }

    /// Records in the list which of this Keyward's constraints are `enforced` by now. From then on a violation doesn't end them any
    /// more. It also takes over the builds of Keywards that are gone.
    pub(super) async fn record(&self, list: &SharedList, enforced: &[ObjectId]) -> Result<(), StoreError> {
        let holds = |id| enforced.contains(&id) && list.has_begun(id);
        let is_any_finished = !self.clients.finished(holds).is_empty();
        let lives = |builder: &ObjectId| {
            *builder == self.own || self.entries.iter().any(|entry| entry.id == *builder && !entry.has_left)
        };
        let builders = self
            .clients
            .constraints
            .iter()
            .filter_map(|entry| entry.state.builder());
        let gone: Vec<ObjectId> = builders.filter(|builder| !lives(builder)).collect();
        if !is_any_finished && gone.is_empty() {
            return Ok(());
        }
        let changed = list.change(|current| {
            // Judged anew: a command may have begun another build meanwhile.
            let finished = current.finished(holds).into_iter();
            let built = finished.filter(|command| current.note_built(*command)).count();
            let inherited = gone
                .iter()
                .filter(|builder| current.inherit(**builder, self.own))
                .count();
            (built + inherited > 0).then_some(())
        });
        changed.await.map(drop)
    }

    /// Backfills the documents of those `meant`, one constraint after the other: a violated one keeps no other from being enforced. This
    /// Keyward's builds come first, because clients wait for them. A build that meets violating documents ends.
    pub(super) async fn backfill(
        &self,
        service: &Service,
        membership: &Membership,
        meant: &[Arc<Constraint>],
        (reserving, share): (&ReservingConstraints, BackfillShare),
    ) -> Result<Backfilled, PrepareError> {
        let client = service.upstream.client();
        let mut backfilled = Backfilled::default();
        // Once for all of them.
        let is_meant = |one: &Constraint| meant.iter().any(|other| other.has_name_of(one));
        reserving.await_former(client, membership, is_meant).await?;
        let is_own = |one: &&Arc<Constraint>| self.is_own(one);
        let (own, others): (Vec<_>, Vec<_>) = meant.iter().partition(is_own);
        for constraint in own.into_iter().chain(others) {
            let is_it = |one: &Constraint| one.has_name_of(constraint);
            let never = |_: &Constraint| false;
            let waiting = reserving
                .backfill_documents(
                    client,
                    Some(membership),
                    (is_it, never, never),
                    (IfClaimed::Leave, share),
                )
                .await;
            match waiting {
                Ok(mut waiting) => {
                    waiting.retain(|one| is_it(&one.constraint));
                    backfilled.waiting.extend(waiting);
                }
                Err(PrepareError::Duplicates(reports)) => match is_own(&constraint) {
                    true => {
                        end_violated(service, constraint, &reports).await?;
                        // Until the list is applied without it.
                        backfilled.waiting.push(WaitingConstraint::of(constraint, Vec::new()));
                    }
                    false => {
                        if let (Some(list), Some(id)) = (&service.client_list, constraint.client_entry()) {
                            list.note_violated(id, reply_of_violated(&reports));
                        }
                        backfilled.violated.extend(reports.0);
                    }
                },
                Err(error) => return Err(error),
            }
        }
        Ok(backfilled)
    }
}

/// The result of a backfill in the background.
#[derive(Debug, Default)]
pub(super) struct Backfilled {
    /// The constraints that wait for something.
    pub waiting: Vec<WaitingConstraint>,
    /// The documents that violate constraints. A client's constraint that is being built isn't among them.
    pub violated: Vec<Report>,
}

impl Backfilled {
    /// Whether all the constraints are enforced by now.
    pub fn is_complete(&self) -> bool {
        self.waiting.is_empty() && self.violated.is_empty()
    }
}

/// Ends this Keyward's build of `constraint`, which documents violate.
async fn end_violated(service: &Service, constraint: &Constraint, reports: &Reports) -> Result<(), PrepareError> {
    // All keys: no file names the constraint, so `keyward backfill` can't report them.
    tracing::warn!(
        reports = %format_args!("{reports:#}"),
        "the build of a client's constraint ends"
    );
    if let (Some(list), Some(id)) = (&service.client_list, constraint.client_entry()) {
        // Before the client knows: it may change a document, and send its command again.
        if let Err(error) = prepare::release_claim(service.upstream.client(), constraint).await {
            tracing::debug!(%error, "a claim to a backfill could not be given up");
        }
        let reply = reply_of_violated(reports);
        list.change(|list| list.end_violated(id, &reply).then_some(())).await?;
    }
    Ok(())
}
