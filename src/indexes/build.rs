//! Starts the builds of a `createIndexes`, waits for them, and withdraws failed ones.

use std::sync::Arc;
use std::time::Duration;

use bson::Document;
use bson::oid::ObjectId;
use tokio::time::Instant;

use super::POLL;
use super::building::{BuildContext, WantedConstraints};
use super::create::is_same_index;
use super::list::{FoundIndexes, ListedIndex};
use super::refusal::IndexRefusal;
use crate::client_constraints::{BuildState, ClientConstraint, ClientConstraints};
use crate::constraint::Constraint;
use crate::prepare::{self, Existing, PrepareError};
use crate::proxy_collection::StoreError;

/// How long a wait counts as short, and how often it polls later.
const AT_FIRST: Duration = Duration::from_secs(10);
const LATER_POLL: Duration = Duration::from_secs(1);
/// How often the log says that a client still waits.
const LOGGED: Duration = Duration::from_secs(10);

/// A command whose constraints don't hold.
pub struct FailedBuild {
    /// The client's reply.
    pub reply: Vec<u8>,
    /// Whether the constraints of this command are gone from the list.
    pub is_withdrawn: bool,
    /// The constraints that it has taken out of the list.
    pub ended: Vec<Arc<Constraint>>,
}

impl FailedBuild {
    /// Waits until no Keyward reserves for the constraints that the command took out of the list, but not longer than the `deadline`.
    pub async fn await_ended(&self, context: &BuildContext<'_>, deadline: Option<Instant>) {
        if self.ended.is_empty() {
            return;
        }
        let ending = context.await_ended(&self.ended);
        let ended = match deadline {
            Some(deadline) => tokio::time::timeout_at(deadline, ending).await.unwrap_or(Ok(())),
            None => ending.await,
        };
        if let Err(error) = ended {
            tracing::warn!(%error, "another Keyward may still enforce a constraint of a createIndexes that failed");
        }
    }
}

/// Starts the builds of the constraints, and waits until they hold. The server has their indexes by now.
///
/// # Errors
/// [`FailedBuild`] if they don't.
pub async fn build(
    context: &BuildContext<'_>,
    wanted: &WantedConstraints,
    indexes: FoundIndexes<'_>,
    deadline: Option<Instant>,
) -> Result<(), FailedBuild> {
    let (mut builds, mut own) = (Vec::new(), Vec::new());
    let reply = loop {
        builds = match publish(context, wanted, indexes, deadline).await {
            Ok(builds) => builds,
            Err(refusal) if own.is_empty() => {
                return Err(FailedBuild {
                    reply: refusal.error().body(),
                    is_withdrawn: !matches!(refusal, IndexRefusal::Store(_)),
                    ended: Vec::new(),
                });
            }
            Err(refusal) => break refusal.error().body(),
        };
        own.extend(builds.iter().filter_map(|build| build.made.clone()));
        match await_built(context, wanted, (&builds, &own), deadline).await {
            Ok(()) => return Ok(()),
            Err(Unbuilt::EndedByOther) => {}
            Err(Unbuilt::ClientLeft) => {
                return Err(FailedBuild {
                    reply: IndexRefusal::ClientLeft.error().body(),
                    is_withdrawn: false,
                    ended: Vec::new(),
                });
            }
            Err(Unbuilt::Refused(reply)) => break reply,
        }
    };
    withdraw(context, wanted, (&builds, &own), reply).await
}

/// Takes this command's `own` constraints out of the list, because it fails with `reply`.
///
/// # Errors
/// [`FailedBuild`] unless all constraints hold by now.
async fn withdraw(
    context: &BuildContext<'_>,
    wanted: &WantedConstraints,
    (builds, own): (&[AwaitedBuild], &[ClientConstraint]),
    reply: Vec<u8>,
) -> Result<(), FailedBuild> {
    let (mut is_built, mut is_withdrawn) = (false, false);
    let withdrawn = context.list.change(|list| {
        let holds = |id| list.entry(id).is_some_and(|entry| entry.state == BuildState::Built);
        // The list doesn't have the constraints of the file, nor does it say whether one that held before is enforced now.
        let is_known = |build: &AwaitedBuild| !build.held_before && holds(build.id);
        is_built = wanted.of_file.is_empty() && builds.iter().all(is_known);
        let ended = Document::from_reader(reply.as_slice()).unwrap_or_default();
        let removed = own.iter().filter(|made| list.end_build(made.id, &ended)).count();
        // If they hold by now, they stay, although another constraint of the command failed: another client may know of them.
        is_withdrawn = !own.is_empty() && own.iter().all(|made| list.entry(made.id).is_none());
        (removed > 0).then_some(())
    });
    match withdrawn.await {
        // It came to its end just before.
        Ok(_) if is_built => Ok(()),
        Ok(_) => {
            let withdrawn = own.iter().filter(|_| is_withdrawn);
            let ended = withdrawn.map(|made| made.constraint.clone()).collect();
            Err(FailedBuild {
                reply,
                is_withdrawn,
                ended,
            })
        }
        Err(error) => {
            tracing::error!(%error, "constraints of a createIndexes that failed may stay; send dropIndexes for them");
            Err(FailedBuild {
                reply,
                is_withdrawn: false,
                ended: Vec::new(),
            })
        }
    }
}

/// One constraint that a client waits for.
struct AwaitedBuild {
    /// Its entry in the list.
    id: ObjectId,
    /// The same entry, if this command made it.
    made: Option<ClientConstraint>,
    /// Whether the constraint held before the command. It needn't hold now: its documents may have to be read again.
    held_before: bool,
}

/// Adds the constraints to the list, except those that it has. One that was being built for a former collection is built again, and stays in
/// the list meanwhile. One that held for it stays as it is, and its documents are read again.
///
/// Another client's `dropIndexes` may have dropped the index of a listed constraint before this command made the index again. Then the
/// list gets another version, although its entries stay. So the other command can't remove the constraint without noticing the index.
async fn publish(
    context: &BuildContext<'_>,
    wanted: &WantedConstraints,
    indexes: FoundIndexes<'_>,
    deadline: Option<Instant>,
) -> Result<Vec<AwaitedBuild>, IndexRefusal> {
    // The list may be gone. Every Keyward is behind a list that is made anew, and ends what the former one had. Without one, some Keywards
    // go on with it, and a wait for them wouldn't end.
    let needs_list = !wanted.entries.is_empty();
    let make = |list: &mut ClientConstraints| (needs_list && list.version == 0).then_some(());
    context.list.change(make).await?;
    loop {
        settle_outdated(context, wanted, indexes.before).await?;
        for effective in &wanted.effective {
            replace_ended_definition(context, wanted, effective, deadline).await?;
        }
        let mut added = Ok(None);
        let change = |list: &mut ClientConstraints| {
            added = add(list, wanted, indexes);
            let is_changed = matches!(&added, Ok(Some(added)) if added.is_list_changed);
            is_changed.then_some(())
        };
        context.list.change(change).await?;
        if let Some(mut added) = added? {
            // A process that serves no clients reads no documents, and gets no findings about them.
            let serves = context.serving.is_some();
            added.builds.iter_mut().for_each(|build| build.held_before &= serves);
            // Only a later finding about their documents counts.
            let held = added.builds.iter().filter(|build| build.held_before);
            held.for_each(|build| context.list.forget_violated(build.id));
            return Ok(added.builds);
        }
    }
}

/// The constraints that a client waits for, as the list has them.
struct PublishedEntries {
    builds: Vec<AwaitedBuild>,
    is_list_changed: bool,
}

/// Adds the constraints to `list`, as [`publish`] does. Returns none if `list` has one that held for a former collection: it must be settled
/// before.
///
/// Each entry gets a new number at every try. The list may have had an earlier one, and a number that ended says nothing about the
/// constraint: Keywards may have written without it since.
fn add(
    list: &mut ClientConstraints,
    wanted: &WantedConstraints,
    indexes: FoundIndexes<'_>,
) -> Result<Option<PublishedEntries>, IndexRefusal> {
    let (mut builds, mut is_list_changed) = (Vec::new(), false);
    for (entry, effective) in wanted.entries.iter().zip(&wanted.effective) {
        let same = wanted.same_in(list, effective)?;
        let same = same.map(|same| (same.id, same.state, same.collection_uuid == entry.collection_uuid));
        is_list_changed |= !matches!(same, Some((.., true))) || indexes.may_have_lacked(entry.constraint.name());
        let held_before = matches!(same, Some((_, BuildState::Built, _)));
        let (id, made) = match same {
            Some((id, _, true)) => (id, None),
            Some((_, BuildState::Built, false)) => return Ok(None),
            Some((id, BuildState::Building(_), false)) => {
                let anew = entry.renumbered();
                list.renew(id, &anew);
                (anew.id, None)
            }
            None => {
                let anew = entry.renumbered();
                list.constraints.push(anew.clone());
                (anew.id, Some(anew))
            }
        };
        builds.push(AwaitedBuild { id, made, held_before });
    }
    Ok(Some(PublishedEntries {
        builds,
        is_list_changed,
    }))
}

/// Brings the list up to date with a collection that has another identity than before.
///
/// If it still has a constraint's index, it was resharded, and the constraint stays: nothing may be written without it meanwhile. Its
/// documents are read again, because the collection may also have been restored past Keyward. If it doesn't have the index, it was
/// dropped past Keyward, or Keyward was killed after it had dropped it: then the constraint ends.
///
/// Those that are being built, and that the client asks for again, stay as they are: it builds them again.
///
/// The list is read before the collection's identity, so an entry with another identity is of an earlier collection.
async fn settle_outdated(
    context: &BuildContext<'_>,
    wanted: &WantedConstraints,
    indexes: Option<&[ListedIndex]>,
) -> Result<(), IndexRefusal> {
    let Some(entry) = wanted.entries.first() else {
        return Ok(());
    };
    let namespace = &wanted.namespace;
    let list = context.list.store.read().await?;
    let client = context.client;
    let present = Existing::read(client, namespace).await?;
    if present.uuid != entry.collection_uuid {
        return Err(IndexRefusal::dropped(&entry.constraint));
    }
    let (mut stay, mut end) = (Vec::new(), Vec::new());
    for outdated in list.outdated(namespace, present.uuid.as_ref()) {
        // A constraint that can't have the collection's default collation isn't one of this collection.
        let Ok(constraint) = wanted.effective(&outdated.constraint) else {
            end.push(outdated.id);
            continue;
        };
        let is_same = |effective: &Constraint| matches!(is_same_index(effective, &constraint), Ok(true));
        if !wanted.is_of_collection(outdated, indexes) || !prepare::suspend_same(client, &constraint).await? {
            end.push(outdated.id);
        } else if outdated.state == BuildState::Built || !wanted.effective.iter().any(is_same) {
            stay.push(outdated.id);
        }
    }
    if !stay.is_empty() {
        let uuid = present.uuid.as_ref();
        let note = |list: &mut ClientConstraints| list.note_collection(&stay, uuid).then_some(());
        context.list.change(note).await?;
    }
    if !end.is_empty() {
        context.list.remove(&end).await?;
    }
    Ok(())
}

/// Replaces the definition that an ended constraint left, if a new constraint of the same name is defined otherwise. It waits until no
/// Keyward reserves for the ended constraint any more.
async fn replace_ended_definition(
    context: &BuildContext<'_>,
    wanted: &WantedConstraints,
    effective: &Constraint,
    deadline: Option<Instant>,
) -> Result<(), IndexRefusal> {
    let mut wait = ClientsWait::until(deadline);
    let client = context.client;
    loop {
        // Anew each time: another client may make the former one again.
        let list = context.list.store.read().await?;
        if wanted.same_in(&list, effective)?.is_some() {
            return Ok(());
        }
        match prepare::replace_ended_definition(client, effective, list.version).await {
            Ok(None) => return Ok(()),
            Ok(Some(behind)) => {
                let behind: Vec<String> = behind.iter().map(ToString::to_string).collect();
                let reason = format!(
                    "an ended constraint of this name, with another definition, is still reserved for by {}",
                    behind.join("; ")
                );
                wait.poll(&[effective.name()], &reason).await?;
            }
            Err(PrepareError::OtherDefinition { name, .. }) => return Err(IndexRefusal::SameName { name }),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A client's wait for its constraints.
struct ClientsWait {
    begun: Instant,
    deadline: Option<Instant>,
    logged: Instant,
}

impl ClientsWait {
    /// One that ends at the client's `deadline`.
    fn until(deadline: Option<Instant>) -> ClientsWait {
        ClientsWait {
            begun: Instant::now(),
            deadline,
            logged: Instant::now(),
        }
    }

    /// Waits for the next poll, and says now and then that the client waits, and why.
    async fn poll(&mut self, names: &[&str], reason: &str) -> Result<(), IndexRefusal> {
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(IndexRefusal::TimeLimit);
        }
        if self.logged.elapsed() >= LOGGED {
            self.logged = Instant::now();
            tracing::info!(names = names.join(", "), reason, "waiting until the constraints hold");
        }
        // Reading all documents may take hours, and many clients may wait.
        let pause = match self.begun.elapsed() < AT_FIRST {
            true => POLL,
            false => LATER_POLL,
        };
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

/// Why constraints don't hold that a client waits for.
enum Unbuilt {
    /// The command fails with this reply.
    Refused(Vec<u8>),
    /// Another client's command failed, and ended a build that this one waited for. That says nothing about the constraint.
    EndedByOther,
    /// The client is gone, and the command has made none of them. So it has nothing to take back if they can't hold.
    ClientLeft,
}

/// Waits until the constraints hold. This command has made the entries `own`.
async fn await_built(
    context: &BuildContext<'_>,
    wanted: &WantedConstraints,
    (builds, own): (&[AwaitedBuild], &[ClientConstraint]),
    deadline: Option<Instant>,
) -> Result<(), Unbuilt> {
    let mut wait = ClientsWait::until(deadline);
    let entries = wanted.entries.iter().map(|entry| entry.constraint.name());
    let names: Vec<_> = entries.chain(wanted.of_file.iter().map(|one| one.name())).collect();
    let reply = |refusal: IndexRefusal| Unbuilt::Refused(refusal.error().body());
    // The list doesn't say whether these hold now.
    let held = builds
        .iter()
        .zip(&wanted.entries)
        .filter(|(build, _)| build.held_before);
    let held = held.map(|(_, entry)| &entry.constraint);
    let unlisted: Vec<_> = held.chain(&wanted.of_file).cloned().collect();
    loop {
        let list = context.list.store.read().await;
        let list = list.map_err(|error| reply(error.into()))?;
        let are_built = are_built(context, &wanted.entries, (builds, own), &list)?;
        let are_enforced = are_built
            && are_enforced(context, &unlisted)
                .await
                .map_err(|error| reply(error.into()))?;
        if are_enforced {
            return Ok(());
        }
        let mut held = builds.iter().filter(|build| build.held_before);
        if let Some(violated) = held.find_map(|build| context.list.violated(build.id)) {
            return Err(Unbuilt::Refused(violated.to_vec().unwrap_or_default()));
        }
        if own.is_empty() && context.has_client_left() {
            return Err(Unbuilt::ClientLeft);
        }
        let waited = wait.poll(&names, "/readyz names what they wait for").await;
        waited.map_err(reply)?;
    }
}

/// Whether the constraints hold on every Keyward.
async fn are_enforced(context: &BuildContext<'_>, constraints: &[Arc<Constraint>]) -> Result<bool, StoreError> {
    for constraint in constraints {
        if !prepare::is_enforced(context.client, constraint).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether all the constraints hold by `list`, and this Keyward enforces them.
fn are_built(
    context: &BuildContext<'_>,
    wanted: &[ClientConstraint],
    (builds, own): (&[AwaitedBuild], &[ClientConstraint]),
    list: &ClientConstraints,
) -> Result<bool, Unbuilt> {
    let (mut are_all, mut is_ended_by_other) = (true, false);
    for (build, entry) in builds.iter().zip(wanted) {
        let constraint = &entry.constraint;
        let is_own = || own.iter().any(|made| made.id == build.id);
        match (list.entry(build.id), list.end_of(build.id)) {
            (Some(entry), _) => {
                are_all &= entry.state == BuildState::Built && context.enforces(constraint) != Some(false);
            }
            (None, Some(ended)) if !ended.is_violated && !is_own() => is_ended_by_other = true,
            (None, ended) => {
                let known = ended.and_then(|ended| ended.reply.to_vec().ok());
                let dropped = || IndexRefusal::dropped(constraint).error().body();
                return Err(Unbuilt::Refused(known.unwrap_or_else(dropped)));
            }
        }
    }
    match is_ended_by_other {
        true => Err(Unbuilt::EndedByOther),
        false => Ok(are_all),
    }
}
