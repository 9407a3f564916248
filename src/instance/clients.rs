//! Follows the list of clients' constraints: reads it once a second, and keeps the one that is applied.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use bson::Document;
use bson::oid::ObjectId;
use mongodb::Client;
use tokio::time::Instant;

use super::left_out::LeftOutConstraints;
use crate::client_constraints::{
    BuildUnderWay, ClientConstraintStore, ClientConstraints, FoundList, SharedList, builds_under_way, reply_of_violated,
};
use crate::constraint::Constraint;
use crate::fleet::{ClientsView, Membership, RegisterEntry};
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

    /// Reports that `list` couldn't be applied. It ends the new builds in it that this Keyward was to do. If a constraint is the cause whose
    /// builder is gone, it ends that build, too: nothing else does, and no later list can be applied before.
    pub(super) async fn refused(&mut self, list: ClientConstraints, error: &ReloadError, membership: &Membership) {
        self.note_applying(self.applied.version);
        if let ReloadError::ListChanged = error {
            return;
        }
        tracing::error!(%error, version = list.version, "clients' constraints can't be applied; those before still hold");
        self.refused = Some((list.version, Instant::now()));
        let is_new = |id| self.applied.entry(id).is_none();
        let builds = list.constraints.iter().filter(|entry| is_new(entry.id));
        let builds = builds.filter_map(|entry| Some((entry.id, entry.state.builder()?)));
        let mut ended: Vec<Build> = builds.filter(|(_, builder)| *builder == membership.id()).collect();
        if let ReloadError::Prepare(cause) = error {
            let mut about = builds_about(&list, cause);
            about.retain(|(id, _)| is_new(*id));
            ended.extend(gone_now(about, membership).await);
        }
        self.end_builds(&ended, &reply_to(error)).await;
    }

    /// Ends the builds because of which a start fails, if their Keywards are gone: else each start would fail. Any other Keyward ends them
    /// itself. Where it may be gone, this waits until its entry is renewed or taken out of the register.
    pub(super) async fn end_gone(&self, error: &PrepareError, membership: &Membership) {
        let builds = builds_about(&self.applied, error);
        if builds.is_empty() {
            return;
        }
        match gone_at_last(builds, membership).await {
            Ok(gone) if gone.is_empty() => {}
            Ok(gone) => {
                tracing::warn!(
                    "the build of a client's constraint is ended, because it can't go on and its Keyward is gone: start again"
                );
                self.end_builds(&gone, &not_applied(error)).await;
            }
            Err(error) => tracing::warn!(%error, "the list of clients' constraints can't be changed"),
        }
    }

    async fn end_builds(&self, builds: &[Build], reply: &Document) {
        let (Some(shared), false) = (&self.shared, builds.is_empty()) else {
            return;
        };
        let ended = shared.change(|list| {
            // Another Keyward may go on with a build by now.
            let mut ends: Vec<ObjectId> = Vec::new();
            for (id, former) in builds {
                let is_as_before = list.entry(*id).and_then(|entry| entry.state.builder()) == Some(*former);
                ends.extend(is_as_before.then_some(*id));
            }
            let ended = ends.iter().filter(|id| list.end_build(**id, reply)).count();
            (ended > 0).then_some(())
        });
        if let Err(error) = ended.await {
            tracing::warn!(%error, "the list of clients' constraints can't be changed");
        }
    }
}

/// An entry of the list, and the Keyward that builds its constraint.
type Build = (ObjectId, ObjectId);

/// The builds in `list` that `error` is about.
fn builds_about(list: &ClientConstraints, error: &PrepareError) -> Vec<Build> {
    let about = list.constraints.iter();
    let about = about.filter(|entry| error.is_about(&entry.constraint));
    about
        .filter_map(|entry| Some((entry.id, entry.state.builder()?)))
        .collect()
}

/// Those of `builds` whose Keywards aren't in the register. None if that can't be read.
async fn gone_now(mut builds: Vec<Build>, membership: &Membership) -> Vec<Build> {
    if builds.is_empty() {
        return builds;
    }
    match membership.entries().await {
        Ok(entries) => builds.retain(|(_, builder)| living(&entries, *builder).is_none()),
        Err(error) => {
            tracing::warn!(%error, "the list of clients' constraints can't be changed");
            builds.clear();
        }
    }
    builds
}

/// The same, once each of these Keywards has renewed its entry or was taken out of the register.
///
/// # Errors
/// [`StoreError`] if the register can't be read.
async fn gone_at_last(mut builds: Vec<Build>, membership: &Membership) -> Result<Vec<Build>, StoreError> {
    let first = membership.poll().await?;
    loop {
        let entries = membership.poll().await?;
        let lives = |builder| match (living(&first, builder), living(&entries, builder)) {
            // Time takes a pinned one never away.
            (Some(first), Some(now)) => now.is_pinned || now.beat != first.beat,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        builds.retain(|(_, builder)| !lives(*builder));
        if builds.iter().all(|(_, builder)| living(&entries, *builder).is_none()) {
            return Ok(builds);
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The entry of the Keyward `id`, if that hasn't left.
fn living(entries: &[RegisterEntry], id: ObjectId) -> Option<&RegisterEntry> {
    entries.iter().find(|entry| entry.id == id && !entry.has_left)
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
    match error {
        ReloadError::Prepare(PrepareError::Duplicates(reports)) => reply_of_violated(reports),
        error => not_applied(error),
    }
}

fn not_applied(error: &impl Display) -> Document {
    let refusal = IndexRefusal::NotApplied(error.to_string());
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
