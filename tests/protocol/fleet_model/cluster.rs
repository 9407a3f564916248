//! A state of a run: the cluster, what is on its way, and the two Keywards.

use std::sync::LazyLock;
use std::time::Duration;

use bson::oid::ObjectId;
use keyward::fleet::{EntryTerms, RegisterEntry};
use keyward::namespace::Namespace;

/// An entry in the register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Registered {
    pub id: u8,
    pub of: u8,
    /// It may forward writes to the collection.
    pub writes: bool,
    /// It lists the constraint.
    pub reserves: bool,
}

impl Registered {
    /// Whether the enforcer waits for it: asked of the code that runs in production.
    pub fn lacks(self) -> bool {
        static ANSWERS: LazyLock<[bool; 4]> = LazyLock::new(|| {
            [(false, false), (false, true), (true, false), (true, true)].map(|(writes, reserves)| {
                let (namespace, identity) = (Namespace::new("shop", "users"), ObjectId::from_bytes([1; 12]));
                let mut entry = RegisterEntry::of_this_process(String::new(), EntryTerms::of(Duration::ZERO));
                entry.collections.extend(writes.then(|| namespace.to_string()));
                entry.constraints.extend(reserves.then_some(identity));
                entry.lacks(&namespace, identity)
            })
        });
        ANSWERS[usize::from(self.writes) * 2 + usize::from(self.reserves)]
    }
}

/// What was sent, and may arrive at any later moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// The document of a Keyward's client.
    Insert { of: u8, start: u8, is_reserved: bool },
    /// A constraint is added to an entry.
    List { id: u8 },
    /// The compare-and-set of somebody who was killed.
    Enforce { epoch: u8 },
}

/// What a Keyward forwards to the collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Declared {
    No,
    /// The entry with this id has it.
    Added(u8),
    /// The epoch was ended after it was added to the entry with this id.
    EpochEnded(u8),
    Yes,
}

/// Where the enforcer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Enforcing {
    Idle,
    /// It has read the epoch.
    CatalogEpoch(u8),
    /// Planted: it has read the register, and no epoch.
    Register,
    /// It has found nobody to wait for, and reads the document with this number next.
    Reads(u8, u8),
    /// All are reserved.
    Notes(u8),
    /// It has found a duplicate.
    Violated,
}

/// Where a reload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reload {
    None,
    /// The catalog has the constraint; what was decided before is waited for.
    Drains,
    /// It is in the entry; the epoch is to be ended.
    Listed,
    /// The constraint is to be taken out of the entry.
    GivesUp,
    /// It is taken out; the epoch is to be ended, then the catalog goes.
    TakenOut,
    Done,
}

/// A Keyward's new entry, under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rejoining {
    No,
    Inserted(u8),
    /// The epochs were ended of what was declared then.
    EpochEnded(u8),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Keyward {
    /// How often it was started.
    pub starts: u8,
    pub runs: bool,
    /// The catalog has the constraint.
    pub reserves: bool,
    /// As its entry is, or will be: whether it has the collection, and the constraint.
    pub wants: (bool, bool),
    pub id: u8,
    /// A change of its entry may come late.
    pub is_change_lost: bool,
    pub may_write: bool,
    pub declared: Declared,
    pub rejoining: Rejoining,
    pub enforcing: Enforcing,
    pub reload: Reload,
    /// Its client has had its write decided by this start.
    pub has_decided: bool,
    /// A write that is decided and not sent yet; whether it is reserved.
    pub unsent: Option<bool>,
    pub is_acknowledged: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub register: Vec<Registered>,
    pub next_id: u8,
    pub epoch: u8,
    /// The epoch in which it was noted as enforced.
    pub enforced_in: Option<u8>,
    pub documents: [bool; 2],
    /// Whose document the key is reserved for.
    pub reserved_for: Option<u8>,
    pub network: Vec<Message>,
    pub keywards: [Keyward; 2],
    pub faults: u8,
}

impl State {
    pub fn is_enforced(&self) -> bool {
        self.enforced_in == Some(self.epoch)
    }

    pub fn send(&mut self, message: Message) {
        self.network.push(message);
        self.network.sort_unstable();
    }

    pub fn end_epoch(&mut self) {
        self.epoch += 1;
        self.enforced_in = None;
    }

    /// Changes an entry, if it is there.
    pub fn change(&mut self, id: u8, change: impl Fn(&mut Registered)) -> bool {
        let entry = self.register.iter_mut().find(|entry| entry.id == id);
        entry.map(change).is_some()
    }

    pub fn enter(&mut self, of: u8, (writes, reserves): (bool, bool)) -> u8 {
        let id = self.next_id;
        self.next_id += 1;
        self.register.push(Registered {
            id,
            of,
            writes,
            reserves,
        });
        id
    }

    /// Whether something of this Keyward's may still arrive that nobody has reserved.
    pub fn has_unreserved(&self, keyward: u8) -> bool {
        let is_one =
            |message: &Message| matches!(message, Message::Insert { of, is_reserved: false, .. } if *of == keyward);
        self.network.iter().any(is_one)
    }

    /// The same, or something that it has decided and not sent.
    pub fn has_undone(&self, keyward: u8) -> bool {
        self.has_unreserved(keyward) || self.keywards[usize::from(keyward)].unsent == Some(false)
    }

    /// Reserves the key for a document; another's reservation only once its document can't come any more.
    pub fn reserve(&mut self, document: u8) -> Option<bool> {
        match self.reserved_for {
            Some(other) if other != document => {
                let may_come = self
                    .network
                    .iter()
                    .any(|message| matches!(message, Message::Insert { of, .. } if *of == other))
                    || self.keywards[usize::from(other)].unsent.is_some();
                match (self.documents[usize::from(other)], may_come) {
                    (true, _) => return Some(false),
                    (false, true) => return None,
                    (false, false) => {}
                }
            }
            _ => {}
        }
        self.reserved_for = Some(document);
        Some(true)
    }
}
