//! Reads how far the builds of clients' constraints have come, on whichever Keyward they run.

use std::collections::BTreeSet;
use std::sync::Arc;

use bson::oid::ObjectId;
use mongodb::Client;

use super::{BuildState, ClientConstraint, ClientConstraintStore, ClientConstraints};
use crate::constraint::Constraint;
use crate::namespace::Namespace;
use crate::prepare::{ConstraintState, KnownDefinition, known_definitions};
use crate::proxy_collection::StoreError;

/// The step that a build is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuildPhase {
    /// It waits until every Keyward that may write to the collection reserves for the constraints.
    Waiting,
    /// Its Keyward reserves for the documents.
    Backfilling,
    /// The constraints hold, and the builder has yet to note that.
    Ending,
}

/// The documents of a build, all its constraints together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DocumentProgress {
    /// About how many are done.
    pub done: i64,
    /// About how many there are.
    pub of: i64,
}

impl DocumentProgress {
    /// The share that is done, in percent.
    pub fn percent(self) -> i64 {
        match self.of {
            of if of <= 0 => 100,
            of => (self.done.saturating_mul(100) / of).clamp(0, 100),
        }
    }
}

/// The build of all constraints of one `createIndexes`.
#[derive(Debug, Clone)]
pub struct BuildUnderWay {
    /// The number of the command.
    pub command: ObjectId,
    /// The Keyward that builds them, by its entry in the register.
    pub builder: ObjectId,
    /// The constraints; at least one.
    pub constraints: Vec<Arc<Constraint>>,
    /// The step that it is at.
    pub phase: BuildPhase,
    /// How many documents are done, once a Keyward has counted them.
    pub documents: Option<DocumentProgress>,
}

impl BuildUnderWay {
    /// The collection.
    pub fn namespace(&self) -> &Namespace {
        self.constraints[0].namespace()
    }
}

/// All builds under way in the deployment of `client`, whose list is in `store`.
///
/// # Errors
/// [`StoreError`] if they can't be read.
pub async fn builds_under_way(
    client: &Client,
    store: &ClientConstraintStore,
) -> Result<Vec<BuildUnderWay>, StoreError> {
    let list = store.read().await?;
    let databases: BTreeSet<&String> = building(&list)
        .map(|(entry, _)| &entry.constraint.namespace().database)
        .collect();
    let mut definitions = Vec::new();
    for database in databases {
        definitions.extend(known_definitions(client, database).await?);
    }
    Ok(under_way(&list, &definitions))
}

/// The entries that are being built, with their builders.
fn building(list: &ClientConstraints) -> impl Iterator<Item = (&ClientConstraint, ObjectId)> {
    list.constraints.iter().filter_map(|entry| match entry.state {
        BuildState::Building(builder) => Some((entry, builder)),
        BuildState::Built => None,
    })
}

fn under_way(list: &ClientConstraints, definitions: &[KnownDefinition]) -> Vec<BuildUnderWay> {
    let mut builds: Vec<BuildUnderWay> = Vec::new();
    for (entry, builder) in building(list) {
        let is_it = |one: &&KnownDefinition| entry.constraint.is_named(&one.namespace, &one.name);
        let (phase, documents) = standing(definitions.iter().find(is_it));
        match builds.iter_mut().find(|build| build.command == entry.command) {
            Some(build) => {
                build.constraints.push(entry.constraint.clone());
                build.phase = common(build.phase, phase);
                build.documents = sum(build.documents, documents);
            }
            None => builds.push(BuildUnderWay {
                command: entry.command,
                builder,
                constraints: vec![entry.constraint.clone()],
                phase,
                documents,
            }),
        }
    }
    builds
}

/// How far one constraint has come, by its definition.
fn standing(definition: Option<&KnownDefinition>) -> (BuildPhase, Option<DocumentProgress>) {
    let Some(definition) = definition else {
        return (BuildPhase::Waiting, None);
    };
    let progress = definition.backfill.as_ref().and_then(|backfill| {
        let (done, of) = (backfill.done, backfill.of?);
        Some(DocumentProgress { done, of: of.max(done) })
    });
    match definition.state {
        Some(ConstraintState::Enforced) => (BuildPhase::Ending, None),
        _ if definition.is_claimed => (BuildPhase::Backfilling, progress),
        _ => (BuildPhase::Waiting, None),
    }
}

/// The phase of two constraints: one of them may hold while the other one is backfilled.
fn common(one: BuildPhase, other: BuildPhase) -> BuildPhase {
    match one == other {
        true => one,
        false if [one, other].contains(&BuildPhase::Backfilling) => BuildPhase::Backfilling,
        false => BuildPhase::Waiting,
    }
}

fn sum(one: Option<DocumentProgress>, other: Option<DocumentProgress>) -> Option<DocumentProgress> {
    match (one, other) {
        (Some(one), Some(other)) => Some(DocumentProgress {
            done: one.done.saturating_add(other.done),
            of: one.of.saturating_add(other.of),
        }),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;
    use crate::constraint::IndexSpec;
    use crate::prepare::BackfillProgress;

    fn entry(name: &str, command: ObjectId) -> ClientConstraint {
        let spec = IndexSpec {
            key: doc! { name: 1 },
            name: Some(name.to_owned()),
            ..IndexSpec::default()
        };
        ClientConstraint {
            id: ObjectId::new(),
            command,
            constraint: Arc::new(Constraint::new(Namespace::new("shop", "users"), spec).unwrap()),
            collection_uuid: None,
            state: BuildState::Building(ObjectId::new()),
        }
    }

    fn definition(name: &str, state: ConstraintState, done: Option<i64>) -> KnownDefinition {
        KnownDefinition {
            namespace: Namespace::new("shop", "users"),
            name: name.to_owned(),
            definition: None,
            identity: None,
            strategy: None,
            state: Some(state),
            is_claimed: done.is_some(),
            of_client: None,
            backfill: done.map(|done| BackfillProgress {
                done,
                of: Some(100),
                after: None,
            }),
            removal: None,
            changing: None,
        }
    }

    #[test]
    fn the_constraints_of_a_command_are_one_build() {
        let (both, alone) = (ObjectId::new(), ObjectId::new());
        let mut built = entry("d", ObjectId::new());
        built.state = BuildState::Built;
        let list = ClientConstraints {
            constraints: vec![entry("a", both), entry("b", both), entry("c", alone), built],
            ..ClientConstraints::default()
        };
        let definitions = [
            definition("a", ConstraintState::Reserving, Some(40)),
            definition("b", ConstraintState::Reserving, Some(20)),
            definition("d", ConstraintState::Reserving, None),
        ];
        let builds = under_way(&list, &definitions);
        let [first, second] = <[BuildUnderWay; 2]>::try_from(builds).unwrap();
        assert_eq!(
            (first.command, first.phase, first.constraints.len()),
            (both, BuildPhase::Backfilling, 2)
        );
        assert_eq!(first.documents, Some(DocumentProgress { done: 60, of: 200 }));
        assert_eq!(first.documents.unwrap().percent(), 30);
        assert_eq!(
            (second.command, second.phase, second.documents),
            (alone, BuildPhase::Waiting, None)
        );
    }

    #[test]
    fn a_build_ends_once_all_its_constraints_hold() {
        let command = ObjectId::new();
        let list = ClientConstraints {
            constraints: vec![entry("a", command), entry("b", command)],
            ..ClientConstraints::default()
        };
        let phase = |b: KnownDefinition| {
            let a = definition("a", ConstraintState::Enforced, None);
            under_way(&list, &[a, b])[0].phase
        };
        assert_eq!(
            phase(definition("b", ConstraintState::Enforced, None)),
            BuildPhase::Ending
        );
        assert_eq!(
            phase(definition("b", ConstraintState::Reserving, Some(1))),
            BuildPhase::Backfilling
        );
        assert_eq!(
            phase(definition("b", ConstraintState::Reserving, None)),
            BuildPhase::Waiting
        );
    }
}
