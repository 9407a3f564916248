//! Follows the list of clients' constraints: reads it once a second, and keeps the one that is applied.

use std::sync::Arc;
use std::time::Duration;

use bson::Document;
use bson::oid::ObjectId;
use mongodb::Client;
use tokio::time::Instant;

use super::left_out::LeftOutConstraints;
use crate::client_constraints::{
    BuildState, BuildUnderWay, ClientConstraint, ClientConstraintStore, ClientConstraints, FoundList, SharedList,
    builds_under_way, reply_of_violated,
};
use crate::constraint::{Constraint, ConstraintName};
use crate::fleet::{ClientsView, Membership};
use crate::indexes::IndexRefusal;
use crate::prepare::PrepareError;
use crate::proxy_collection::StoreError;
use crate::reload::{ListFollower, ReloadError};
use crate::session::Service;

/// How long to leave it between two reads of the list.
const POLL: Duration = Duration::from_secs(1);
/// How long to leave it until a list that couldn't be applied is tried again.
const AFTER_REFUSAL: Duration = Duration::from_secs(10);

/// The list of clients' constraints, as this Keyward has applied it.
#[derive(Debug)]
pub(super) struct FollowedList {
    /// None on a replica set, where the server keeps every index unique, and without the privileges.
    shared: Option<Arc<SharedList>>,
    /// Whether it is the privileges that are missing.
    is_unreadable: bool,
    applied: ClientConstraints,
    /// The version that couldn't be applied, and when.
    refused: Option<(i64, Instant)>,
}

impl FollowedList {
    /// The list of the deployment of `client`.
    ///
    /// # Errors
    /// [`StoreError`] if a list exists that this version can't keep, or the deployment doesn't answer.
    pub(super) async fn of(client: &Client) -> Result<FollowedList, StoreError> {
        let found = ClientConstraintStore::of_deployment(client).await?;
        let is_unreadable = matches!(found, FoundList::Unreadable);
        let (store, applied) = found.into_parts();
        Ok(FollowedList {
            is_unreadable,
            shared: store.map(|store| Arc::new(SharedList::new(store, applied.version))),
            applied,
            refused: None,
        })
    }

    /// The view of it for the status.
    pub(super) fn view(&self) -> ClientsView {
        ClientsView {
            version: self.shared.as_ref().map(|_| self.applied.version),
            is_unreadable: self.is_unreadable,
        }
    }

    /// The list, for connections that change it.
    pub(super) fn shared(&self) -> Option<Arc<SharedList>> {
        self.shared.clone()
    }

    /// The list that is applied.
    pub(super) fn list(&self) -> &ClientConstraints {
        &self.applied
    }

    /// Waits until the list has changed, and returns the new one.
    ///
    /// - Cancel: at any time.
    pub(super) async fn changed(&self) -> ClientConstraints {
        let Some(shared) = &self.shared else {
            return std::future::pending().await;
        };
        loop {
            tokio::select! {
                () = tokio::time::sleep(POLL) => {}
                () = shared.noted() => {}
            }
            match shared.store.read_unless(self.applied.version).await {
                Ok(Some(list)) if !self.was_refused_lately(&list) => return list,
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "the list of clients' constraints can't be read"),
            }
        }
    }

    fn was_refused_lately(&self, list: &ClientConstraints) -> bool {
        self.refused
            .is_some_and(|(version, at)| version == list.version && at.elapsed() < AFTER_REFUSAL)
    }

    /// Notes that this Keyward is about to apply the list of this version.
    pub(super) fn note_applying(&self, version: i64) {
        if let Some(shared) = &self.shared {
            shared.note_applying(version);
        }
    }

    /// Notes that `list` is applied.
    pub(super) fn applied(&mut self, list: ClientConstraints) {
        if list.has_lost(&self.applied) {
            tracing::error!(
                "keyward.clientConstraints has lost the list of clients' constraints: these constraints have ended; restore the list, or \
                 have clients send createIndexes again"
            );
        }
        self.applied = list;
        self.refused = None;
    }

    /// Reports that `list` couldn't be applied. It ends the new builds in it that this Keyward was to do. If it can never be applied, because of a
    /// constraint whose builder is gone, it ends that build, too.
    pub(super) async fn refused(&mut self, list: ClientConstraints, error: &ReloadError, membership: &Membership) {
        self.note_applying(self.applied.version);
        if let ReloadError::ListChanged = error {
            return;
        }
        tracing::error!(%error, version = list.version, "clients' constraints can't be applied; those before still hold");
        self.refused = Some((list.version, Instant::now()));
        let is_new = |id| self.applied.entry(id).is_none();
        let gone = match error {
            // That lasts, and nothing else ends it.
            ReloadError::Prepare(PrepareError::SamePlace { constraint, .. }) => {
                gone_builder(&list, constraint, membership).await
            }
            _ => None,
        };
        let ends = |entry: &ClientConstraint| match entry.state {
            BuildState::Building(builder) => builder == membership.id() || gone == Some((entry.id, builder)),
            BuildState::Built => false,
        };
        let builds = list.constraints.iter();
        let builds = builds.filter(|entry| is_new(entry.id) && ends(entry));
        let builds: Vec<ObjectId> = builds.map(|entry| entry.id).collect();
        let (Some(shared), false) = (&self.shared, builds.is_empty()) else {
            return;
        };
        let reply = reply_to(error);
        let ended = shared.change(|list| {
            // Another Keyward may go on with a build by now.
            let mut builds = builds.clone();
            builds.retain(|id| list.entry(*id).is_some_and(ends));
            let ended = builds.iter().filter(|id| list.end_build(**id, &reply)).count();
            (ended > 0).then_some(())
        });
        if let Err(error) = ended.await {
            tracing::warn!(%error, "the list of clients' constraints can't be changed");
        }
    }
}

/// The entry of `constraint` in `list`, and the Keyward that was to build it, if that is in the register no more. None if the register can't
/// be read.
async fn gone_builder(
    list: &ClientConstraints,
    constraint: &ConstraintName,
    membership: &Membership,
) -> Option<(ObjectId, ObjectId)> {
    let mut entries = list.constraints.iter();
    let entry = entries.find(|entry| entry.constraint.full_name() == *constraint)?;
    let BuildState::Building(builder) = entry.state else {
        return None;
    };
    match membership.entries().await {
        Ok(registered) => {
            let lives = registered.iter().any(|one| one.id == builder && !one.has_left);
            (!lives).then_some((entry.id, builder))
        }
        Err(error) => {
            tracing::warn!(%error, "the list of clients' constraints can't be changed");
            None
        }
    }
}

/// The list while a reload replaces one configuration by another one.
pub(super) struct FollowedInReload<'a> {
    pub(super) clients: &'a mut FollowedList,
    /// For the wanted file: the constraints that are left out, and those that aren't.
    pub(super) wanted: (&'a LeftOutConstraints, &'a [Arc<Constraint>]),
    /// The same for the former file.
    pub(super) former: (&'a LeftOutConstraints, &'a [Arc<Constraint>]),
}

impl ListFollower for FollowedInReload<'_> {
    async fn changed(&self) -> ClientConstraints {
        self.clients.changed().await
    }

    fn wanted(&self, list: &ClientConstraints) -> Vec<Arc<Constraint>> {
        let (left_out, of_file) = self.wanted;
        left_out.serving(of_file, list)
    }

    fn former(&self) -> Vec<Arc<Constraint>> {
        let (left_out, of_file) = self.former;
        left_out.serving(of_file, self.clients.list())
    }

    fn note_applying(&self, version: i64) {
        self.clients.note_applying(version);
    }

    fn applied(&mut self, list: ClientConstraints) {
        self.clients.applied(list);
    }

    async fn refused(&mut self, list: ClientConstraints, error: &ReloadError, membership: &Membership) {
        self.clients.refused(list, error, membership).await;
    }
}

/// The reply for a client whose constraint couldn't be applied.
fn reply_to(error: &ReloadError) -> Document {
    let refusal = match error {
        ReloadError::Prepare(PrepareError::Duplicates(reports)) => return reply_of_violated(reports),
        error => IndexRefusal::NotApplied(error.to_string()),
    };
    Document::from_reader(refusal.error().body().as_slice()).unwrap_or_default()
}

/// The builds of clients' constraints; none if they can't be read.
pub(super) async fn builds(service: Arc<Service>) -> Vec<BuildUnderWay> {
    let Some(list) = &service.client_list else {
        return Vec::new();
    };
    let builds = builds_under_way(service.upstream.client(), &list.store).await;
    builds.unwrap_or_else(|error| {
        tracing::debug!(%error, "builds of clients' constraints could not be read for the status");
        Vec::new()
    })
}
