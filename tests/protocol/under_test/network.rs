//! What is on its way between Keywards and the cluster.
//!
//! A reply isn't a message of its own: to hold it back is to hold back what would follow from it. That a sender hears
//! nothing is said by a message that has no receiver for its reply any more; it may still arrive.

use keyward::reservation::{Scope, Token};

use crate::under_test::rules::{Broken, Rules};
use crate::under_test::store::Reservation;
use crate::under_test::words::{At, Deed, Id, Key, Keys, OpId, TaskId};

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    /// Who waits for the reply.
    pub to: Option<TaskId>,
    pub request: Request,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Request {
    Reserve {
        key: Key,
        owner: Id,
        token: Token,
    },
    /// Reserves a key for a document that held it when it was read: nothing is in flight.
    Backfill {
        key: Key,
        owner: Id,
    },
    Read {
        key: Key,
    },
    LookUp {
        key: Key,
        owner: Id,
        scope: Scope,
    },
    /// Replaces the reservation that was seen, or deletes it.
    TakeOver {
        key: Key,
        seen: Reservation,
        anew: Option<(Id, Token)>,
        from_absent: bool,
    },
    Release {
        key: Key,
        token: Token,
    },
    DeleteSeen {
        key: Key,
        seen: Reservation,
    },
    LookAt {
        id: Id,
        /// As a majority has it, and not before it has what was done.
        by_majority: bool,
    },
    /// Whether the operation took effect before.
    AskDone {
        op: OpId,
        id: Id,
    },
    /// Which of these keys another document holds.
    Obstacle {
        id: Id,
        keys: Keys,
    },
    Write(Write),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Write {
    pub op: OpId,
    pub retryable: bool,
    pub deed: Deed,
    /// What a change or delete expects of the document.
    pub pinned: Option<Keys>,
    pub token: Token,
    /// When the oldest reservation that it rests on was written.
    pub since: Option<At>,
    pub phase: Phase,
}

/// How far the transaction of a strict insert has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    Sent,
    /// It has its snapshot; whether the document's place was written to since.
    Begun {
        conflicts: bool,
    },
    /// The document is written.
    Inserted,
    /// The reservations were seen after that; it is to be committed.
    Seen,
}

impl Phase {
    /// Whether the document is written, and not committed.
    pub fn is_open(self) -> bool {
        matches!(self, Phase::Inserted | Phase::Seen)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    Yes,
    No,
    /// A reservation is written, at this time.
    Written(At),
    Reservation(Option<Reservation>),
    Document(Option<Keys>),
    OwnerHolds,
    Busy,
    Applied {
        before: bool,
    },
    DuplicateId,
    Missed,
    Superseded,
    Obstacle(Option<Key>),
    /// A reservation keeps a transaction from its end.
    ReservationConflict(Key),
    /// None came.
    Silence,
}

impl Request {
    /// Whether it changes anything but what its sender knows.
    pub fn is_write(&self) -> bool {
        !matches!(
            self,
            Request::Read { .. }
                | Request::LookUp { .. }
                | Request::LookAt { .. }
                | Request::AskDone { .. }
                | Request::Obstacle { .. }
        )
    }

    /// What the sweeper sends about a reservation whose owner it has found absent.
    pub fn sweep(key: Key, seen: Reservation, rules: &Rules) -> Request {
        match rules.is_strict() {
            true => Request::TakeOver {
                key,
                seen,
                anew: None,
                from_absent: true,
            },
            false => Request::DeleteSeen { key, seen },
        }
    }

    /// Whether the server may end it for having waited too long, and says so: where an open transaction has written to the
    /// reservation. Whoever sent it sends it again.
    pub fn may_be_ended(&self) -> bool {
        matches!(self, Request::Release { .. })
    }

    /// What its sender takes it for that no answer comes.
    pub fn unanswered(&self, rules: &Rules) -> Reply {
        match self {
            Request::Release { .. } if rules.lacks(Broken::ReleaseBelieved) => Reply::Yes,
            _ => Reply::Silence,
        }
    }

    /// Whether it may come twice. A release is repeated only once the first is known not to come, and a client's write not
    /// at all: a driver's second try is a try of its own.
    pub fn may_come_twice(&self) -> bool {
        !matches!(self, Request::Release { .. } | Request::Write(_))
    }

    /// Whether it deletes the reservation of this key that was seen.
    pub fn deletes(&self, of: Key) -> bool {
        match self {
            Request::DeleteSeen { key, .. } | Request::TakeOver { key, anew: None, .. } => *key == of,
            _ => false,
        }
    }

    /// Every time of a reservation that it speaks of.
    pub fn times(&mut self, visit: &mut impl FnMut(&mut At)) {
        match self {
            Request::TakeOver { seen, .. } | Request::DeleteSeen { seen, .. } => visit(&mut seen.at),
            Request::Write(Write { since: Some(at), .. }) => visit(at),
            _ => {}
        }
    }
}
