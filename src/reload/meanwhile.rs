//! Follows the list of clients' constraints while a reload reads all documents.
//!
//! That may take hours. Until this Keyward has applied the list, no new constraint of a client is enforced, and a command that ends one waits.
//! So this Keyward applies each list to the constraints for which it reserves meanwhile: those that the reload makes hold, and those that it
//! removes at its end. If the reload is refused, the former file holds again with the list that was applied last. The builds of this
//! Keyward's own clients go on after the reload.

use std::pin::{Pin, pin};
use std::sync::Arc;

use super::{Applied, ReloadError, apply_constraints, made, suspend, without, written_without};
use crate::catalog::Catalog;
use crate::client_constraints::ClientConstraints;
use crate::config::Config;
use crate::constraint::Constraint;
use crate::fleet::Membership;
use crate::metrics::{constraint_label, constraint_labels};
use crate::prepare::{PrepareError, ReservingConstraints};
use crate::readiness::Readiness;
use crate::session::Service;

/// The list of clients' constraints, for a change of configuration.
pub trait ListFollower {
    /// Waits until the list has changed, and returns the new one.
    ///
    /// - Cancel: at any time.
    fn changed(&self) -> impl Future<Output = ClientConstraints>;

    /// The constraints of the wanted configuration and of this list together.
    fn wanted(&self, list: &ClientConstraints) -> Vec<Arc<Constraint>>;

    /// The constraints of the configuration before and of the applied list together.
    fn former(&self) -> Vec<Arc<Constraint>>;

    /// Notes that this Keyward is about to apply the list of this version.
    fn note_applying(&self, version: i64);

    /// Notes that `list` is applied.
    fn applied(&mut self, list: ClientConstraints);

    /// Reports that `list` couldn't be applied.
    fn refused(
        &mut self,
        list: ClientConstraints,
        error: &ReloadError,
        membership: &Membership,
    ) -> impl Future<Output = ()>;
}

/// No list: for a change that follows none.
struct NoList;

impl ListFollower for NoList {
    async fn changed(&self) -> ClientConstraints {
        std::future::pending().await
    }

    fn wanted(&self, _: &ClientConstraints) -> Vec<Arc<Constraint>> {
        Vec::new()
    }

    fn former(&self) -> Vec<Arc<Constraint>> {
        Vec::new()
    }

    fn note_applying(&self, _: i64) {}

    fn applied(&mut self, _: ClientConstraints) {}

    async fn refused(&mut self, _: ClientConstraints, _: &ReloadError, _: &Membership) {}
}

/// A change of the constraints in progress.
pub(super) struct Meanwhile<'a, L> {
    pub service: &'a Service,
    pub membership: &'a Membership,
    pub readiness: &'a Readiness,
    /// The configuration with the constraints that reserve meanwhile.
    pub reserving: Config,
    /// The constraints that reserve until the change is complete.
    pub removed: &'a [Arc<Constraint>],
    pub follower: &'a mut L,
    /// Whether another list was applied, at least in part.
    pub has_followed: bool,
}

impl<L: ListFollower> Meanwhile<'_, L> {
    /// Does the `work`, and follows the list as long as it takes.
    pub(super) async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            let list = tokio::select! {
                done = &mut work => return done,
                list = self.follower.changed() => list,
            };
            if self.has_removed(&list) {
                // The end of the change notices that the list isn't applied.
                return work.await;
            }
            let mut applying = pin!(self.apply(list));
            tokio::select! {
                done = &mut work => {
                    applying.await;
                    return done;
                }
                () = &mut applying => {}
            }
        }
    }

    /// Whether a client has made a constraint that is about to be removed.
    fn has_removed(&self, list: &ClientConstraints) -> bool {
        let mut wanted = self.follower.wanted(list).into_iter();
        wanted.any(|one| self.removed.iter().any(|removed| removed.has_name_of(&one)))
    }

    async fn apply(&mut self, list: ClientConstraints) {
        let mut removed = self.removed.to_vec();
        removed.retain(|one| self.reserves(one));
        let wanted = [self.follower.wanted(&list), removed].concat();
        self.follower.note_applying(list.version);
        self.has_followed = true;
        let config = &mut self.reserving;
        // Of a known type, because it does the same in turn.
        let applying: Pin<Box<dyn Future<Output = Result<(), ReloadError>> + '_>> =
            Box::pin(replace_clients_constraints(
                self.service,
                self.membership,
                self.readiness,
                config,
                wanted,
                list.version,
            ));
        if let Err(error) = applying.await {
            return self.follower.refused(list, &error, self.membership).await;
        }
        if let Err(error) = self.membership.note_clients_version(list.version).await {
            tracing::debug!(%error, "the version of the list of clients' constraints is noted after the reload");
        }
        self.follower.applied(list);
    }

    /// The constraints that reserve once the change is complete; none if they are those that were wanted.
    pub(super) fn holding(&self) -> Option<Vec<Arc<Constraint>>> {
        self.has_followed
            .then(|| without(&self.reserving.constraints, self.removed, Constraint::has_name_of))
    }

    /// Makes the constraints of `current` hold again, by the catalog `before`. If clients have changed theirs since, `current` and the catalog
    /// get the changes. The change was to make the constraints `added` reserve.
    pub(super) async fn take_back(
        &self,
        current: &mut Config,
        (reserving, added): (&ReservingConstraints, &[Arc<Constraint>]),
        before: Arc<Catalog>,
    ) {
        let (service, membership) = (self.service, self.membership);
        let changed = self.taken_back();
        let is_changed = changed.is_some();
        current.constraints = changed.unwrap_or_else(|| current.constraints.clone());
        let constraints = &current.constraints;
        let new = without(&self.reserving.constraints, constraints, Constraint::has_name_of);
        let is_new = |constraint: &Constraint| new.iter().any(|one| one.has_name_of(constraint));
        let taken_back = async {
            let catalog = match is_changed {
                false => before,
                true => {
                    let made = made(service, current, constraints, Vec::new()).await?;
                    Arc::new(made.catalog())
                }
            };
            // Also one that the catalog has under another definition, by which it continues to reserve.
            let is_given_up = |constraint: &Constraint| is_new(constraint) || !catalog.has(constraint);
            let given_up = membership.give_up(&reserving.identities(is_given_up)).await;
            given_up.map_err(PrepareError::from)?;
            let suspended = [added, &without(&new, added, Constraint::has_name_of)].concat();
            suspend(service, &written_without(membership, &suspended)).await?;
            Ok::<_, ReloadError>(catalog)
        };
        let taken_back = taken_back.await;
        match taken_back {
            Ok(catalog) => {
                drop(service.writes.replace(catalog));
                for constraint in &new {
                    service.forget(constraint);
                    self.readiness.forget_note(&constraint_label(constraint));
                }
            }
            // Reserving without need does no harm. A Keyward that doesn't reserve must not be taken for one that does. So they stay among
            // those that hold: else the next list took them out of the catalog, and not out of the register.
            Err(error) => {
                tracing::error!(%error, "the new constraints of a refused configuration go on to reserve");
                current.constraints.extend(new);
            }
        }
    }

    /// The constraints that hold if the change is taken back; none if they are those that held before.
    ///
    /// They don't come from those that reserve meanwhile: a constraint of the wanted file may have taken the place of a client's. But one
    /// that doesn't reserve meanwhile was ended for a list that couldn't be applied as a whole. It stays ended.
    fn taken_back(&self) -> Option<Vec<Arc<Constraint>>> {
        let mut former = self.has_followed.then(|| self.follower.former())?;
        former.retain(|one| self.reserves(one));
        Some(former)
    }

    fn reserves(&self, constraint: &Constraint) -> bool {
        let mut reserving = self.reserving.constraints.iter();
        reserving.any(|one| one.has_name_of(constraint))
    }
}

/// Makes `wanted` hold in place of the constraints of `config`, by the list of clients' constraints of this `version`. First it ends
/// those that clients have dropped. New ones may have to wait for transactions, and a first write where one was dropped doesn't wait for long.
/// One that was made again with other options was dropped before: the cluster has only the definition of the new one.
///
/// - Cancel: as [`super::apply`].
/// # Errors
/// [`ReloadError`]; then the previous constraints still hold.
pub async fn replace_clients_constraints(
    service: &Service,
    membership: &Membership,
    readiness: &Readiness,
    config: &mut Config,
    wanted: Vec<Arc<Constraint>>,
    version: i64,
) -> Result<(), ReloadError> {
    let mut left = config.constraints.clone();
    left.retain(|before| wanted.iter().any(|one| one.is_equivalent(before)));
    let shared = (service, membership, readiness);
    let (mut added, removed) = replace_constraints(shared, config, left).await?;
    added.extend(replace_constraints(shared, config, wanted).await?.0);
    if !(added.is_empty() && removed.is_empty()) {
        let (added, removed) = (added.join(", "), removed.join(", "));
        tracing::info!(added, removed, version, "clients' constraints applied");
    }
    Ok(())
}

/// Makes `wanted` hold in place of the constraints of `current`; returns the names of the constraints added and removed.
async fn replace_constraints(
    (service, membership, readiness): (&Service, &Membership, &Readiness),
    current: &mut Config,
    wanted: Vec<Arc<Constraint>>,
) -> Result<(Vec<String>, Vec<String>), ReloadError> {
    let share = current.backfill_share;
    let applied = apply_constraints((service, membership, readiness), current, (&wanted, share), &mut NoList).await?;
    let Applied { added, removed, .. } = applied.shown(service, readiness);
    current.constraints = wanted;
    Ok((constraint_labels(&added), constraint_labels(&removed)))
}
