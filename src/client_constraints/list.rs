//! Holds the list of clients' constraints at one version, and the changes to it.
//!
//! It does no I/O.

use std::sync::Arc;

use bson::oid::ObjectId;
use bson::{Bson, Document, doc};

use super::{BuildState, ClientConstraint};
use crate::constraint::Constraint;
use crate::namespace::Namespace;
use crate::proxy_collection::StoreError;

/// The list remembers the reasons of so many builds that ended: a client on another Keyward may still wait for one.
const ENDED_MAX: usize = 50;

/// The longest reply that is kept whole.
const REPLY_BYTES_MAX: usize = 64 << 10;
/// The longest text of a reply that isn't.
const ERRMSG_CHARS_MAX: usize = 1_000;

/// No list changes so often between two readings of one Keyward.
const CHANGES_MAX: i64 = 1_000;

/// The fields of the list's document.
const FIELDS: [&str; 4] = ["_id", "version", "constraints", "ended"];

/// Why the build of a client's constraint ended without it.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedBuild {
    /// The number of the entry that was removed.
    pub id: ObjectId,
    /// The reply for the client, in the server's form.
    pub reply: Document,
    /// Whether documents violate this constraint. Otherwise another constraint of the command failed, or its client gave up.
    pub is_violated: bool,
}

/// The list at one version.
#[derive(Debug, Clone, Default)]
pub struct ClientConstraints {
    /// Counts the changes; 0 if there never was one.
    pub version: i64,
    /// The constraints.
    pub constraints: Vec<ClientConstraint>,
    /// The builds that ended last.
    pub ended: Vec<EndedBuild>,
}

impl ClientConstraints {
    /// The entry with this number.
    pub fn entry(&self, id: ObjectId) -> Option<&ClientConstraint> {
        self.constraints.iter().find(|entry| entry.id == id)
    }

    /// The entries of a collection.
    pub fn on<'l>(&'l self, namespace: &Namespace) -> impl Iterator<Item = &'l ClientConstraint> {
        let entries = self.constraints.iter();
        entries.filter(move |entry| entry.constraint.namespace() == namespace)
    }

    /// Why the build of the entry with this number ended, if it is known still.
    pub fn end_of(&self, id: ObjectId) -> Option<&EndedBuild> {
        self.ended.iter().find(|ended| ended.id == id)
    }

    /// The constraints of `file` and of the list together. A file's constraint takes the place of a client's with the same name.
    pub fn with(&self, file: &[Arc<Constraint>]) -> Vec<Arc<Constraint>> {
        let is_in_file = |one: &Constraint| {
            let is_named = |other: &Arc<Constraint>| other.namespace() == one.namespace() && other.name() == one.name();
            file.iter().any(is_named)
        };
        let of_clients = self.constraints.iter().map(|entry| &entry.constraint);
        let of_clients = of_clients.filter(|constraint| !is_in_file(constraint));
        file.iter().chain(of_clients).cloned().collect()
    }

    /// Whether this list lacks entries of `former` that no client has dropped. It was made anew after `former` was lost, or an older one was
    /// put back, or there is none any more. One that is made anew begins with a much higher version (`store.rs`), and has none of the
    /// former entries.
    pub fn has_lost(&self, former: &ClientConstraints) -> bool {
        let is_anew = self.version.saturating_sub(former.version) > CHANGES_MAX;
        let mut entries = former.constraints.iter();
        let is_missing = |entry: &ClientConstraint| self.entry(entry.id).is_none();
        match self.version < former.version {
            true => entries.any(is_missing),
            false => is_anew && entries.len() > 0 && entries.all(is_missing),
        }
    }

    /// Removes the entry with this number; returns whether it was there.
    pub fn remove(&mut self, id: ObjectId) -> bool {
        let before = self.constraints.len();
        self.constraints.retain(|entry| entry.id != id);
        self.constraints.len() < before
    }

    /// The entries for former collections of this name; `uuid` is the identity of the present one.
    pub fn outdated(&self, namespace: &Namespace, uuid: Option<&Bson>) -> Vec<&ClientConstraint> {
        let is_outdated = |entry: &&ClientConstraint| entry.collection_uuid.as_ref() != uuid;
        self.on(namespace).filter(is_outdated).collect()
    }

    /// Replaces the entry with the number `id` by `anew`, which is the same index. If its build fails, or its client gives up, that ends no
    /// other constraint of the client's command.
    pub fn renew(&mut self, id: ObjectId, anew: &ClientConstraint) {
        for entry in self.constraints.iter_mut().filter(|entry| entry.id == id) {
            *entry = ClientConstraint {
                command: ObjectId::new(),
                ..anew.clone()
            };
        }
    }

    /// Notes that these entries are for the collection with the identity `uuid` from now on; returns whether one wasn't.
    pub fn note_collection(&mut self, ids: &[ObjectId], uuid: Option<&Bson>) -> bool {
        let mut is_any_changed = false;
        for entry in self.constraints.iter_mut().filter(|entry| ids.contains(&entry.id)) {
            is_any_changed |= entry.collection_uuid.as_ref() != uuid;
            entry.collection_uuid = uuid.cloned();
        }
        is_any_changed
    }

    /// Removes the entry with this number, and all others of its command, and notes why. Returns whether it did. It doesn't if the client
    /// knows that the constraint holds.
    pub fn end_build(&mut self, id: ObjectId, reply: &Document) -> bool {
        self.end(id, reply, false)
    }

    /// The same, because documents violate the constraint.
    pub fn end_violated(&mut self, id: ObjectId, reply: &Document) -> bool {
        self.end(id, reply, true)
    }

    fn end(&mut self, id: ObjectId, reply: &Document, is_violated: bool) -> bool {
        let is_building = |entry: &&ClientConstraint| entry.state != BuildState::Built;
        let Some(command) = self.entry(id).filter(is_building).map(|entry| entry.command) else {
            return false;
        };
        for entry in self.constraints.extract_if(.., |entry| entry.command == command) {
            self.ended.push(EndedBuild {
                id: entry.id,
                reply: kept_short(reply),
                is_violated: is_violated && entry.id == id,
            });
        }
        let surplus = self.ended.len().saturating_sub(ENDED_MAX);
        self.ended.drain(..surplus);
        true
    }

    /// The commands all of whose constraints hold by `holds`, though the list calls them being built.
    pub fn finished(&self, holds: impl Fn(ObjectId) -> bool) -> Vec<ObjectId> {
        let building = || self.constraints.iter().filter(|entry| entry.state != BuildState::Built);
        let is_pending = |command| building().any(|entry| entry.command == command && !holds(entry.id));
        let mut commands: Vec<ObjectId> = building().map(|entry| entry.command).collect();
        commands.dedup();
        commands.retain(|command| !is_pending(*command));
        commands
    }

    /// Notes that the constraints of this command hold; returns whether that is new.
    pub fn note_built(&mut self, command: ObjectId) -> bool {
        let of_command = self.constraints.iter_mut().filter(|entry| entry.command == command);
        let building = of_command.filter(|entry| entry.state != BuildState::Built);
        building.map(|entry| entry.state = BuildState::Built).count() > 0
    }

    /// Moves the builds of the Keyward `gone` to the one with the entry `own` in the register. Returns whether there are any.
    pub fn inherit(&mut self, gone: ObjectId, own: ObjectId) -> bool {
        let of_gone = self
            .constraints
            .iter_mut()
            .filter(|entry| entry.state == BuildState::Building(gone));
        of_gone.map(|entry| entry.state = BuildState::Building(own)).count() > 0
    }

    /// Its document, without the `_id`.
    pub(super) fn document(&self) -> Document {
        let constraints = self.constraints.iter().map(ClientConstraint::document);
        let ended = self.ended.iter();
        let ended = ended.map(|ended| {
            let mut document = doc! { "id": ended.id, "reply": ended.reply.clone() };
            if ended.is_violated {
                document.insert("violated", true);
            }
            document
        });
        doc! {
            "version": self.version,
            "constraints": constraints.map(Bson::Document).collect::<Vec<_>>(),
            "ended": ended.map(Bson::Document).collect::<Vec<_>>(),
        }
    }

    /// Reads the list from its document.
    ///
    /// # Errors
    /// [`StoreError::Unexpected`] if it is none that this version can keep.
    pub(super) fn read(document: &Document) -> Result<ClientConstraints, StoreError> {
        let unexpected = || StoreError::Unexpected("the list of clients' constraints");
        // This version would lose what a later one keeps there.
        if document.keys().any(|field| !FIELDS.contains(&field.as_str())) {
            return Err(unexpected());
        }
        let documents = |field: &str| -> Result<Vec<&Document>, StoreError> {
            let array = document.get_array(field).map_err(|_| unexpected())?;
            array
                .iter()
                .map(|one| one.as_document().ok_or_else(unexpected))
                .collect()
        };
        let constraints = documents("constraints")?.into_iter().map(ClientConstraint::read);
        let ended = documents("ended")?.into_iter().map(|ended| {
            Some(EndedBuild {
                id: ended.get_object_id("id").ok()?,
                reply: ended.get_document("reply").ok()?.clone(),
                is_violated: ended.get_bool("violated").unwrap_or(false),
            })
        });
        Ok(ClientConstraints {
            version: document.get_i64("version").map_err(|_| unexpected())?,
            constraints: constraints.collect::<Result<_, _>>()?,
            ended: ended.collect::<Option<_>>().ok_or_else(unexpected)?,
        })
    }
}

/// The reply without its key's values, if they are large: all replies lie in one document.
fn kept_short(reply: &Document) -> Document {
    let is_short = reply.to_vec().is_ok_and(|bytes| bytes.len() <= REPLY_BYTES_MAX);
    if is_short {
        return reply.clone();
    }
    let mut short = reply.clone();
    short.remove("keyValue");
    if let Ok(errmsg) = short.get_str("errmsg") {
        let errmsg: String = errmsg.chars().take(ERRMSG_CHARS_MAX).collect();
        short.insert("errmsg", errmsg);
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constraint::IndexSpec;

    fn entry(name: &str) -> ClientConstraint {
        let id = ObjectId::new();
        let spec = IndexSpec {
            key: doc! { "email": 1 },
            name: Some(name.to_owned()),
            client_entry: Some(id),
            ..IndexSpec::default()
        };
        ClientConstraint {
            id,
            command: id,
            constraint: Arc::new(Constraint::new(Namespace::new("shop", "users"), spec).unwrap()),
            collection_uuid: None,
            state: BuildState::Building(ObjectId::new()),
        }
    }

    #[test]
    fn a_list_that_was_made_anew_has_lost_the_former_one() {
        let list = |version, constraints: &[ClientConstraint]| ClientConstraints {
            version,
            constraints: constraints.to_vec(),
            ..ClientConstraints::default()
        };
        let (former, by_time) = (list(7, &[entry("a")]), 1_800_000_000_000);
        assert!(list(0, &[]).has_lost(&former));
        assert!(list(by_time, &[entry("a")]).has_lost(&former));
        // An older one from a backup.
        let longer = list(7, &[entry("a"), entry("b")]);
        assert!(list(5, &longer.constraints[..1]).has_lost(&longer));
        assert!(!list(5, &former.constraints).has_lost(&former));
        // A client has dropped the constraint, an operator has restored the list, or there was nothing to lose.
        assert!(!list(8, &[]).has_lost(&former));
        assert!(!list(by_time, &former.constraints).has_lost(&former));
        assert!(!list(by_time, &[entry("a")]).has_lost(&list(0, &[])));
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let mut list = ClientConstraints {
            version: 7,
            constraints: vec![entry("a"), entry("b")],
            ended: Vec::new(),
        };
        let [a, b] = [0, 1].map(|index| list.constraints[index].id);
        assert!(list.end_build(a, &doc! { "ok": 0.0 }));
        assert!(list.note_built(b) && !list.note_built(b));
        let read = ClientConstraints::read(&list.document()).unwrap();
        assert_eq!(read.document(), list.document());
        assert_eq!(read.end_of(a).unwrap().reply, doc! { "ok": 0.0 });
        assert_eq!(read.entry(b).unwrap().state, BuildState::Built);
        let mut later = list.document();
        later.insert("renamed", Bson::Null);
        assert!(ClientConstraints::read(&later).is_err());
    }

    #[test]
    fn a_constraint_that_a_client_knows_of_is_never_ended_as_a_build() {
        let mut list = ClientConstraints {
            constraints: vec![entry("a")],
            ..ClientConstraints::default()
        };
        let id = list.constraints[0].id;
        assert!(list.note_built(id));
        assert!(!list.end_build(id, &Document::new()));
        assert!(list.entry(id).is_some());
    }

    #[test]
    fn the_constraints_of_one_command_hold_or_end_together() {
        let (mut a, mut b) = (entry("a"), entry("b"));
        b.command = a.command;
        let gone = ObjectId::new();
        (a.state, b.state) = (BuildState::Building(gone), BuildState::Building(gone));
        let mut list = ClientConstraints {
            constraints: vec![a.clone(), b.clone(), entry("c")],
            ..ClientConstraints::default()
        };
        assert!(list.finished(|id| id == a.id).is_empty());
        assert_eq!(list.finished(|id| id == a.id || id == b.id), [a.command]);
        let own = ObjectId::new();
        assert!(list.inherit(gone, own) && !list.inherit(gone, own));
        assert!(list.end_build(b.id, &Document::new()));
        assert_eq!(list.constraints.len(), 1);
        assert!(list.end_of(a.id).is_some() && list.end_of(b.id).is_some());
    }

    /// A client that waits for the other one alone must not get this error.
    #[test]
    fn only_the_violated_constraint_of_a_command_is_noted_as_violated() {
        let (a, mut b) = (entry("a"), entry("b"));
        b.command = a.command;
        let mut list = ClientConstraints {
            constraints: vec![a.clone(), b.clone()],
            ..ClientConstraints::default()
        };
        assert!(list.end_violated(b.id, &doc! { "ok": 0.0 }));
        let read = ClientConstraints::read(&list.document()).unwrap();
        let is_violated = |id| read.end_of(id).unwrap().is_violated;
        assert!(is_violated(b.id) && !is_violated(a.id));
    }

    #[test]
    fn a_constraint_of_a_former_collection_is_outdated() {
        let (mut a, mut other) = (entry("a"), entry("b"));
        a.collection_uuid = Some("former".into());
        let spec = other.constraint.spec().clone();
        other.constraint = Arc::new(Constraint::new(Namespace::new("shop", "others"), spec).unwrap());
        let list = ClientConstraints {
            constraints: vec![a, other],
            ..ClientConstraints::default()
        };
        let users = Namespace::new("shop", "users");
        let outdated = |list: &ClientConstraints, uuid: &str| -> Vec<ObjectId> {
            let outdated = list.outdated(&users, Some(&uuid.into()));
            outdated.iter().map(|entry| entry.id).collect()
        };
        assert_eq!(outdated(&list, "former"), []);
        let former = [list.constraints[0].id];
        assert_eq!(outdated(&list, "present"), former);
        let mut list = list;
        assert!(list.note_collection(&former, Some(&"present".into())));
        assert_eq!(outdated(&list, "present"), []);
        assert!(!list.note_collection(&former, Some(&"present".into())));
    }

    #[test]
    fn a_files_constraint_takes_the_place_of_a_clients() {
        let list = ClientConstraints {
            constraints: vec![entry("a"), entry("b")],
            ..ClientConstraints::default()
        };
        let file = [entry("b").constraint];
        let names: Vec<_> = list.with(&file).iter().map(|one| one.name().to_owned()).collect();
        assert_eq!(names, ["b", "a"]);
    }
}
