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
use crate::prepare::{self, ConstraintState, Existing, PrepareError, Standing};
use crate::proxy_collection::StoreError;

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
    /// Waits until no Keyward reserves for the constraints that the command took out of the list.
    pub async fn await_ended(&self, context: &BuildContext<'_>) {
        if !self.ended.is_empty()
            && let Err(error) = context.await_ended(&self.ended).await
        {
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
        own.extend(builds.iter().filter(|build| build.is_own).map(|build| build.id));
        match await_built(context, wanted, (&builds, &own), deadline).await {
            Ok(()) => return Ok(()),
            Err(Unbuilt::EndedByOther) => {}
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
    (builds, own): (&[AwaitedBuild], &[ObjectId]),
    reply: Vec<u8>,
) -> Result<(), FailedBuild> {
    let (mut is_built, mut is_withdrawn) = (false, false);
    let withdrawn = context.list.change(|list| {
        let holds = |id| list.entry(id).is_some_and(|entry| entry.state == BuildState::Built);
        // The list doesn't have the constraints of the file.
        is_built = wanted.of_file.is_empty() && builds.iter().all(|build| holds(build.id));
        let ended = Document::from_reader(reply.as_slice()).unwrap_or_default();
        let removed = own.iter().filter(|id| list.end_build(**id, &ended)).count();
        // If they hold by now, they stay, although another constraint of the command failed: another client may know of them.
        is_withdrawn = !own.is_empty() && own.iter().all(|id| list.entry(*id).is_none());
        (removed > 0).then_some(())
    });
    match withdrawn.await {
        // It came to its end just before.
        Ok(_) if is_built => Ok(()),
        Ok(_) => {
            let of_own = wanted
                .entries
                .iter()
                .filter(|entry| is_withdrawn && own.contains(&entry.id));
            let ended = of_own.map(|entry| entry.constraint.clone()).collect();
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
    /// Whether this command made the entry.
    is_own: bool,
}

/// Adds the constraints to the list, except those that it has. One that it has for a former collection is built again, and stays in the list
/// meanwhile.
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
    settle_outdated(context, wanted, indexes.before).await?;
    for effective in &wanted.effective {
        replace_ended_definition(context, wanted, effective, deadline).await?;
    }
    let mut builds = Vec::new();
    let mut conflict = None;
    let add = |list: &mut ClientConstraints| {
        builds.clear();
        let mut is_changed = false;
        for (entry, effective) in wanted.entries.iter().zip(&wanted.effective) {
            let same = match wanted.same_in(list, effective) {
                Ok(same) => same.map(|same| (same.id, same.collection_uuid == entry.collection_uuid)),
                Err(refusal) => {
                    conflict = Some(refusal);
                    return None;
                }
            };
            is_changed |= !matches!(same, Some((_, true))) || indexes.may_have_lacked(entry.constraint.name());
            let (id, is_own) = match same {
                Some((id, true)) => (id, false),
                Some((id, false)) => {
                    list.renew(id, entry);
                    (entry.id, false)
                }
                None => {
                    list.constraints.push(entry.clone());
                    (entry.id, true)
                }
            };
            builds.push(AwaitedBuild { id, is_own });
        }
        is_changed.then_some(())
    };
    context.list.change(add).await?;
    conflict.map_or(Ok(builds), Err)
}

/// Brings the list up to date with a collection that has another identity than before.
///
/// If it still has a constraint's index, it was resharded, and the constraint stays: nothing may be written without it meanwhile. Its
/// documents are read again, because the collection may also have been restored past Keyward. If it doesn't have the index, it was
/// dropped past Keyward, or Keyward was killed after it had dropped it: then the constraint ends.
///
/// Those that the client asks for again stay as they are: it waits for them.
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
    let (mut others, mut end) = (Vec::new(), Vec::new());
    for outdated in list.outdated(namespace, present.uuid.as_ref()) {
        // A constraint that can't have the collection's default collation isn't one of this collection.
        let Ok(constraint) = wanted.effective(&outdated.constraint) else {
            end.push(outdated.id);
            continue;
        };
        let is_same = |effective: &Constraint| matches!(is_same_index(effective, &constraint), Ok(true));
        if !wanted.is_of_collection(outdated, indexes) || !prepare::suspend_same(client, &constraint).await? {
            end.push(outdated.id);
        } else if !wanted.effective.iter().any(is_same) {
            others.push(outdated.id);
        }
    }
    if !others.is_empty() {
        let uuid = present.uuid.as_ref();
        let note = |list: &mut ClientConstraints| list.note_collection(&others, uuid).then_some(());
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
    deadline: Option<Instant>,
    logged: Instant,
}

impl ClientsWait {
    /// One that ends at the client's `deadline`.
    fn until(deadline: Option<Instant>) -> ClientsWait {
        ClientsWait {
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
        tokio::time::sleep(POLL).await;
        Ok(())
    }
}

/// Why constraints don't hold that a client waits for.
enum Unbuilt {
    /// The command fails with this reply.
    Refused(Vec<u8>),
    /// Another client's command failed, and ended a build that this one waited for. That says nothing about the constraint.
    EndedByOther,
}

/// Waits until the constraints hold. Those with the numbers `own` are this command's.
async fn await_built(
    context: &BuildContext<'_>,
    wanted: &WantedConstraints,
    (builds, own): (&[AwaitedBuild], &[ObjectId]),
    deadline: Option<Instant>,
) -> Result<(), Unbuilt> {
    let mut wait = ClientsWait::until(deadline);
    let entries = wanted.entries.iter().map(|entry| entry.constraint.name());
    let names: Vec<_> = entries.chain(wanted.of_file.iter().map(|one| one.name())).collect();
    let reply = |refusal: IndexRefusal| Unbuilt::Refused(refusal.error().body());
    loop {
        let list = context.list.store.read().await;
        let list = list.map_err(|error| reply(error.into()))?;
        let are_built = are_built(context, &wanted.entries, (builds, own), &list)?;
        if are_built
            && are_enforced(context, &wanted.of_file)
                .await
                .map_err(|error| reply(error.into()))?
        {
            return Ok(());
        }
        let waited = wait.poll(&names, "/readyz names what they wait for").await;
        waited.map_err(reply)?;
    }
}

/// Whether the constraints of the configuration file hold on every Keyward.
async fn are_enforced(context: &BuildContext<'_>, of_file: &[Arc<Constraint>]) -> Result<bool, StoreError> {
    let standings = prepare::standings(context.client, of_file).await?;
    let is_enforced = |standing: &Option<Standing>| standing.is_some_and(|one| one.state == ConstraintState::Enforced);
    Ok(standings.iter().all(is_enforced))
}

/// Whether all the constraints hold by `list`, and this Keyward enforces them.
fn are_built(
    context: &BuildContext<'_>,
    wanted: &[ClientConstraint],
    (builds, own): (&[AwaitedBuild], &[ObjectId]),
    list: &ClientConstraints,
) -> Result<bool, Unbuilt> {
    let (mut are_all, mut is_ended_by_other) = (true, false);
    for (build, entry) in builds.iter().zip(wanted) {
        let constraint = &entry.constraint;
        match (list.entry(build.id), list.end_of(build.id)) {
            (Some(entry), _) => {
                are_all &= entry.state == BuildState::Built && context.enforces(constraint) != Some(false);
            }
            (None, Some(ended)) if !ended.is_violated && !own.contains(&build.id) => is_ended_by_other = true,
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
