//! Reads and writes one Keyward's entry in the register.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use bson::oid::ObjectId;
use bson::{Bson, DateTime, Document, doc};
use rustix::system::uname;
use serde_json::{Value, json};

use super::EntryTerms;
use crate::constraint::Constraint;
use crate::namespace::Namespace;
use crate::proxy_collection::StoreError;
use crate::server::clock::millis;

/// One Keyward as the register has it.
#[derive(Debug, Clone, PartialEq)]
pub struct RegisterEntry {
    /// Names this start of the process.
    pub id: ObjectId,
    /// The host that it runs on.
    pub host: String,
    /// Its number there.
    pub pid: u32,
    /// Where clients connect to, as it is configured.
    pub address: String,
    /// Its version.
    pub version: String,
    /// When it was started, by its own clock; to be read by people only.
    pub started: DateTime,
    /// Counts its renewals.
    pub beat: i64,
    /// How long it may write after a renewal, and how long what it sent may take after that.
    pub terms: EntryTerms,
    /// The collections to which it may forward writes.
    pub collections: BTreeSet<String>,
    /// It may forward writes to any collection.
    pub is_everywhere: bool,
    /// The constraints, each by its identity, for which all that it writes reserves.
    pub constraints: BTreeSet<ObjectId>,
    /// It has ended; what it sent may still be done.
    pub has_left: bool,
    /// A strict constraint waits for it: the passing of time proves nothing.
    pub is_pinned: bool,
    /// The version of the list of clients' constraints up to which it has ended what was taken out. None if it doesn't follow the list;
    /// versions before the list don't write this field.
    pub clients_version: Option<i64>,
    /// Before it counts on a constraint, it checks again that no operator has removed the constraint or changed its strategy. Older
    /// versions don't write this field.
    pub notices_changes: bool,
}

impl RegisterEntry {
    /// The entry of this process, which writes nowhere yet.
    pub fn of_this_process(address: String, terms: EntryTerms) -> RegisterEntry {
        RegisterEntry {
            id: ObjectId::new(),
            host: uname().nodename().to_string_lossy().into_owned(),
            pid: std::process::id(),
            address,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: DateTime::now(),
            beat: 0,
            terms,
            collections: BTreeSet::new(),
            is_everywhere: false,
            constraints: BTreeSet::new(),
            has_left: false,
            is_pinned: false,
            clients_version: None,
            notices_changes: true,
        }
    }

    /// Whether it may forward writes to `namespace` that reserve nothing for the constraint with this identity.
    pub fn lacks(&self, namespace: &Namespace, identity: ObjectId) -> bool {
        self.may_write_to(namespace) && !self.constraints.contains(&identity)
    }

    /// Whether it has begun to write where it lacks the constraint with this identity: before that, it suspended the constraint. A Keyward
    /// that stands for all collections names only some of those to which it writes. One that doesn't go by this `version` of the list of
    /// clients' constraints may have been refused.
    pub fn has_suspended(&self, constraint: &Constraint, identity: ObjectId, version: i64) -> bool {
        let namespace = constraint.namespace();
        self.lacks(namespace, identity)
            && self.collections.contains(&namespace.to_string())
            && !self.is_behind(version)
            && (self.clients_version.is_some() || constraint.client_entry().is_none())
    }

    /// Whether it may forward writes to `namespace`.
    pub fn may_write_to(&self, namespace: &Namespace) -> bool {
        self.is_everywhere || self.collections.contains(&namespace.to_string())
    }

    /// Whether it may still go by a list of clients' constraints before this `version`. The version 0 means that the list is gone: then any
    /// other version is a former one.
    pub fn is_behind(&self, version: i64) -> bool {
        let is_former = |applied: i64| applied < version || (version == 0 && applied != 0);
        self.clients_version.is_some_and(is_former)
    }

    /// The form of it that is shown to people and programs.
    pub fn json(&self) -> Value {
        json!({
            "id": self.id.to_hex(), "host": self.host, "process": self.pid, "listen": self.address, "version": self.version,
            "started": self.started.try_to_rfc3339_string().ok(), "hasEnded": self.has_left,
        })
    }

    /// The document in the register.
    pub(super) fn document(&self) -> Document {
        doc! {
            "_id": self.id,
            "host": &self.host,
            "pid": i64::from(self.pid),
            "address": &self.address,
            "version": &self.version,
            "started": self.started,
            "beat": self.beat,
            "leaseMillis": millis(self.terms.lease),
            "aftermathMillis": millis(self.terms.aftermath),
            "collections": self.collections.iter().collect::<Vec<_>>(),
            "everywhere": self.is_everywhere,
            "constraints": self.constraints.iter().copied().collect::<Vec<_>>(),
            "left": self.has_left,
            "pinned": self.is_pinned,
            "clientsVersion": self.clients_version,
            "noticesChanges": self.notices_changes,
        }
    }

    /// Reads an entry from its document in the register.
    ///
    /// # Errors
    /// [`StoreError::Unexpected`] if it is none.
    pub(super) fn read(document: &Document) -> Result<RegisterEntry, StoreError> {
        RegisterEntry::parts(document).ok_or(StoreError::Unexpected("an entry in the register of Keywards"))
    }

    fn parts(document: &Document) -> Option<RegisterEntry> {
        let text = |field| document.get_str(field).ok().map(str::to_owned);
        let flag = |field| document.get_bool(field).ok();
        let array = |field| document.get_array(field).ok();
        let time = |field| Some(Duration::from_millis(document.get_i64(field).ok()?.try_into().ok()?));
        Some(RegisterEntry {
            id: document.get_object_id("_id").ok()?,
            host: text("host")?,
            pid: document.get_i64("pid").ok()?.try_into().ok()?,
            address: text("address")?,
            version: text("version")?,
            started: *document.get_datetime("started").ok()?,
            beat: document.get_i64("beat").ok()?,
            terms: EntryTerms {
                lease: time("leaseMillis")?,
                aftermath: time("aftermathMillis")?,
            },
            collections: array("collections")?
                .iter()
                .map(|one| Some(one.as_str()?.to_owned()))
                .collect::<Option<_>>()?,
            is_everywhere: flag("everywhere")?,
            constraints: array("constraints")?
                .iter()
                .map(Bson::as_object_id)
                .collect::<Option<_>>()?,
            has_left: flag("left")?,
            is_pinned: flag("pinned")?,
            clients_version: document.get_i64("clientsVersion").ok(),
            notices_changes: flag("noticesChanges").unwrap_or(false),
        })
    }
}

impl Display for RegisterEntry {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let RegisterEntry { id, host, pid, .. } = self;
        let started = self.started.try_to_rfc3339_string().unwrap_or_default();
        write!(
            formatter,
            "Keyward {id} (host {host}, process {pid}, listen {}, started {started}",
            self.address
        )?;
        match (self.has_left, self.is_pinned) {
            (true, _) => formatter.write_str(", has ended with writes under way)"),
            (false, true) => {
                formatter.write_str(", waited for without limit for a strict constraint; see `keyward forget`)")
            }
            (false, false) => formatter.write_str(")"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let mut entry =
            RegisterEntry::of_this_process("127.0.0.1:1".to_owned(), EntryTerms::of(Duration::from_secs(200)));
        entry.collections.insert("shop.users".to_owned());
        entry.constraints.insert(ObjectId::new());
        entry.is_pinned = true;
        assert_eq!(RegisterEntry::read(&entry.document()).unwrap(), entry);
        entry.clients_version = Some(7);
        assert_eq!(RegisterEntry::read(&entry.document()).unwrap(), entry);
        assert!(RegisterEntry::read(&doc! { "_id": 1 }).is_err());
    }

    #[test]
    fn a_keyward_is_behind_a_later_list_and_behind_the_end_of_its_list() {
        let mut entry = RegisterEntry::of_this_process(String::new(), EntryTerms::of(Duration::ZERO));
        assert!(!entry.is_behind(8) && !entry.is_behind(0), "it follows no list");
        entry.clients_version = Some(7);
        assert!(entry.is_behind(8) && entry.is_behind(0) && !entry.is_behind(7));
        entry.clients_version = Some(0);
        assert!(entry.is_behind(1) && !entry.is_behind(0));
    }

    #[test]
    fn only_a_keyward_that_has_begun_to_write_there_has_suspended_a_constraint() {
        let spec = crate::constraint::IndexSpec {
            key: doc! { "email": 1 },
            ..Default::default()
        };
        let constraint = Constraint::new(Namespace::new("shop", "users"), spec).unwrap();
        let identity = ObjectId::new();
        let mut entry = RegisterEntry::of_this_process(String::new(), EntryTerms::of(Duration::ZERO));
        entry.is_everywhere = true;
        assert!(entry.lacks(constraint.namespace(), identity));
        assert!(!entry.has_suspended(&constraint, identity, 7), "perhaps elsewhere");
        entry.collections.insert("shop.users".to_owned());
        assert!(entry.has_suspended(&constraint, identity, 7));
        entry.clients_version = Some(6);
        assert!(!entry.has_suspended(&constraint, identity, 7), "it may be refused");
        entry.clients_version = Some(7);
        entry.constraints.insert(identity);
        assert!(!entry.has_suspended(&constraint, identity, 7));
    }

    #[test]
    fn only_a_keyward_that_writes_to_the_collection_can_lack_a_constraint() {
        let (users, orders) = (Namespace::new("shop", "users"), Namespace::new("shop", "orders"));
        let (email, other) = (ObjectId::new(), ObjectId::new());
        let mut entry = RegisterEntry::of_this_process(String::new(), EntryTerms::of(Duration::ZERO));
        assert!(!entry.lacks(&users, email));
        entry.collections.insert(users.to_string());
        assert!(entry.lacks(&users, email) && !entry.lacks(&orders, email));
        entry.constraints.insert(email);
        // The same name made anew is another constraint.
        assert!(!entry.lacks(&users, email) && entry.lacks(&users, other));
        entry.is_everywhere = true;
        assert!(entry.lacks(&orders, other) && !entry.lacks(&orders, email));
    }
}
