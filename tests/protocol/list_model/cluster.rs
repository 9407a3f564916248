//! Holds a state of a run: the cluster, the messages on their way, the Keywards and the clients.

use std::sync::{Arc, LazyLock};

use bson::doc;
use bson::oid::ObjectId;
use keyward::client_constraints::{BuildState, ClientConstraint, ClientConstraints};
use keyward::constraint::{Constraint, IndexSpec};
use keyward::namespace::Namespace;

/// The Keyward through which a client writes its document. The other one only builds, and follows.
pub const WRITER: u8 = 1;

/// The number of an entry, in the list or in the register; each is used once.
pub type Id = u8;

/// An entry of the list of clients' constraints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Listed {
    pub id: Id,
    /// The builder's entry in the register; none once the constraint is built.
    pub builder: Option<Id>,
}

/// The list at one version. The constraint is at most once in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct List {
    pub version: u8,
    pub entry: Option<Listed>,
}

impl List {
    /// Changes the list by the code that runs in production; another version comes only if `change` says that it changed something.
    pub fn change(&mut self, change: impl FnOnce(&mut ClientConstraints) -> bool) -> bool {
        let mut list = self.in_production();
        if !change(&mut list) {
            return false;
        }
        self.version += 1;
        self.entry = list.constraints.first().map(|entry| Listed {
            id: number(entry.id),
            builder: match entry.state {
                BuildState::Building(builder) => Some(number(builder)),
                BuildState::Built => None,
            },
        });
        true
    }

    /// Adds the constraint, with this builder.
    pub fn add(&mut self, id: Id, builder: Id) {
        self.version += 1;
        self.entry = Some(Listed {
            id,
            builder: Some(builder),
        });
    }

    /// Whether the list calls the build of `id` unfinished although it holds, by the code that runs in production.
    pub fn is_finished(&self, id: Id) -> bool {
        !self.in_production().finished(|one| one == object_id(id)).is_empty()
    }

    fn in_production(&self) -> ClientConstraints {
        static CONSTRAINT: LazyLock<Arc<Constraint>> = LazyLock::new(|| {
            let key = doc! { "email": 1 };
            let spec = IndexSpec {
                key,
                ..IndexSpec::default()
            };
            let constraint = Constraint::new(Namespace::new("shop", "users"), spec);
            constraint.map(Arc::new).unwrap_or_else(|error| panic!("{error}"))
        });
        let entry = |listed: &Listed| ClientConstraint {
            id: object_id(listed.id),
            command: object_id(listed.id),
            constraint: CONSTRAINT.clone(),
            collection_uuid: None,
            state: listed
                .builder
                .map_or(BuildState::Built, |builder| BuildState::Building(object_id(builder))),
        };
        ClientConstraints {
            version: self.version.into(),
            constraints: self.entry.iter().map(entry).collect(),
            ended: Vec::new(),
        }
    }
}

pub fn object_id(id: Id) -> ObjectId {
    ObjectId::from_bytes([id; 12])
}

fn number(id: ObjectId) -> Id {
    id.bytes()[0]
}

/// An entry in the register. Each has the collection from its first write on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Registered {
    pub id: Id,
    pub of: u8,
    pub writes: bool,
    pub reserves: bool,
    /// The version of the list that its Keyward has applied.
    pub applied: u8,
}

/// A message that may arrive at any later moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// The document of the writing Keyward's client.
    Insert { is_reserved: bool },
    /// The compare-and-set of a Keyward that was killed.
    Enforce { epoch: u8 },
}

/// Where a Keyward is on its way to its first write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Declared {
    No,
    /// Its entry has the collection.
    Added,
    /// It reserves for what the list has.
    Follows,
    Yes,
}

/// Where a backfill is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Enforcing {
    Idle,
    /// It has read the epoch.
    Epoch(u8),
    /// No entry lacks the constraint: it reads the document, and reserves for it.
    Reads(u8),
    Notes(u8),
}

/// Where a Keyward is with a list that it applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Following {
    No,
    /// It has read the list.
    HasRead(List),
    /// The catalog has the new constraint; the epoch is to be ended.
    Reserves(List),
    /// It waits for the writes that were decided before.
    Drains(List),
    /// Its entry lists the constraint; the epoch is to be ended once more.
    IsListed(List),
    /// The constraint was taken out of its entry; the list is to be read again.
    TakenOut(List),
    /// The list was the newest: the epoch is to be ended, then the catalog loses the constraint.
    Ends(List),
}

/// Where a client's write is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Write {
    None,
    /// It is decided; with a reservation or without.
    Decided(bool),
    /// It is sent, or lost.
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Keyward {
    pub runs: bool,
    pub starts: u8,
    /// Its entry in the register.
    pub id: Id,
    pub applied: List,
    /// The entry of the list whose constraint the catalog has.
    pub reserves: Option<Id>,
    pub following: Following,
    /// The entry whose build it has begun.
    pub begun: Option<Id>,
    pub enforcing: Enforcing,
    /// It has seen the constraint of this entry enforced.
    pub seen_enforced: Option<Id>,
    pub declared: Declared,
    pub write: Write,
}

/// A command about the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// `createIndexes`, through this Keyward.
    Create(u8),
    /// `dropIndexes`, through this Keyward.
    Drop(u8),
}

/// Where a client's command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Client {
    NotSent,
    /// It waits for the constraint of this entry.
    Awaits(Id),
    /// It has taken the entry out of the list, at this version.
    AwaitsEnd(u8),
    Created(Id),
    /// The constraint has ended, at this version; whether the other client's Keyward could write by then.
    Dropped(u8, bool),
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub list: List,
    pub register: Vec<Registered>,
    pub next_id: Id,
    pub epoch: u8,
    /// The epoch in which the constraint was noted as enforced.
    pub enforced_in: Option<u8>,
    pub is_document_there: bool,
    pub is_document_reserved: bool,
    pub network: Vec<Message>,
    pub keywards: [Keyward; 2],
    pub clients: Vec<Client>,
    pub faults: u8,
}

impl State {
    pub fn is_enforced(&self) -> bool {
        self.enforced_in == Some(self.epoch)
    }

    pub fn end_epoch(&mut self) {
        self.epoch += 1;
        self.enforced_in = None;
    }

    pub fn new_id(&mut self) -> Id {
        self.next_id += 1;
        self.next_id
    }

    pub fn send(&mut self, message: Message) {
        self.network.push(message);
        self.network.sort_unstable();
    }

    pub fn entry_of(&mut self, number: u8) -> Option<&mut Registered> {
        let id = self.keywards[usize::from(number)].id;
        self.register.iter_mut().find(|entry| entry.id == id)
    }

    /// Whether the write may still take effect without a reservation.
    pub fn has_unreserved(&self) -> bool {
        let is_it = |message: &Message| matches!(message, Message::Insert { is_reserved: false });
        self.keywards[usize::from(WRITER)].write == Write::Decided(false) || self.network.iter().any(is_it)
    }
}
