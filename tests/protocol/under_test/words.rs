//! What is talked about: documents, keys, operations and who carries them out.

use keyward::reservation::{RetryId, Token, WriteId};

use crate::under_test::rules::Rules;

/// A document's `_id`; its shard key is part of it, so no two documents have the same.
pub type Id = u8;

/// A key, by its position.
pub type Key = u8;

/// When a reservation was written.
pub type At = u32;

/// Several keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Keys(u8);

pub const NONE: Keys = Keys(0);
pub const A: Keys = Keys(1);
pub const B: Keys = Keys(2);
pub const AB: Keys = Keys(3);

impl Keys {
    /// One.
    pub fn of(key: Key) -> Keys {
        Keys(1 << key)
    }

    pub fn has(self, key: Key) -> bool {
        self.0 & (1 << key) != 0
    }

    pub fn and(self, others: Keys) -> Keys {
        Keys(self.0 | others.0)
    }

    pub fn but(self, others: Keys) -> Keys {
        Keys(self.0 & !others.0)
    }

    pub fn shared(self, others: Keys) -> Keys {
        Keys(self.0 & others.0)
    }

    /// In order.
    pub fn iter(self) -> impl Iterator<Item = Key> {
        (0..8).filter(move |key| self.has(*key))
    }
}

/// What a client wants done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Deed {
    Insert {
        id: Id,
        keys: Keys,
    },
    /// The document gets these keys instead of its own.
    Change {
        id: Id,
        to: Keys,
    },
    Delete {
        id: Id,
    },
    /// The document gets these keys, or is inserted with them, in a transaction.
    Upsert {
        id: Id,
        keys: Keys,
    },
    /// The same; its Keyward can read the keys from the statement.
    PlainUpsert {
        id: Id,
        keys: Keys,
    },
}

impl Deed {
    pub fn id(self) -> Id {
        match self {
            Deed::Insert { id, .. }
            | Deed::Change { id, .. }
            | Deed::Delete { id }
            | Deed::Upsert { id, .. }
            | Deed::PlainUpsert { id, .. } => id,
        }
    }

    /// Whether document and reservations are written in one transaction.
    pub fn runs_in_a_transaction(self, rules: &Rules) -> bool {
        match self {
            Deed::Insert { .. } => false,
            Deed::Change { .. } | Deed::Delete { .. } | Deed::PlainUpsert { .. } => rules.is_strict(),
            Deed::Upsert { .. } => true,
        }
    }
}

/// One operation of a client's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Op {
    pub deed: Deed,
    /// Whether the driver sends it again when it hears nothing.
    pub retryable: bool,
    /// A document that its Keyward takes to hold its first key.
    pub recalls: Option<Id>,
}

/// Which operation: the client, and its place in the client's program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId {
    pub client: u8,
    pub index: u8,
}

/// Which of its tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId {
    pub op: OpId,
    pub try_number: u8,
}

impl TaskId {
    /// The token of its attempt when it begins for the `round`th time.
    pub fn token(self, round: u8, retryable: bool) -> Token {
        let mut write = [0; 16];
        write[..4].copy_from_slice(&[self.op.client, self.op.index, self.try_number, round]);
        Token {
            write: WriteId(write),
            position: 0,
            retry_id: retryable.then_some(RetryId {
                session: [self.op.client; 16],
                txn_number: self.op.index.into(),
                statement: 0,
            }),
        }
    }
}

/// The token under which a document is backfilled.
pub fn taking_in(id: Id) -> Token {
    let nobody = OpId {
        client: u8::MAX,
        index: id,
    };
    let once = TaskId {
        op: nobody,
        try_number: 0,
    };
    once.token(0, false)
}

/// How an operation ended for its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    Applied,
    /// No document matched.
    Nothing,
    Duplicate(Key),
    /// There is a document with this `_id`.
    DuplicateId,
    /// Keyward's own refusal.
    Unsure,
    /// Nobody knows.
    Unknown,
}

impl Outcome {
    /// Whether the client may take it that nothing happened.
    pub fn is_refusal(self) -> bool {
        !matches!(self, Outcome::Applied | Outcome::Unknown)
    }
}
