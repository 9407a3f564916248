//! The cluster: documents, reservations, and what becomes of a request that arrives.
//!
//! Every request is carried out at one moment, but a strict insert, which is a transaction of four: it begins, it writes,
//! its reservations are seen, it commits.

use keyward::reservation::Token;

use crate::under_test::network::{Message, Phase, Reply, Request, Write};
use crate::under_test::rules::{Broken, Rules};
use crate::under_test::words::{At, Deed, Id, Key, Keys, NONE, OpId, taking_in};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reservation {
    pub owner: Id,
    pub token: Token,
    pub at: At,
    pub is_over: bool,
}

impl Reservation {
    /// Whether it is the very one that was seen.
    fn is(&self, seen: &Reservation) -> bool {
        (self.token, self.at) == (seen.token, seen.at)
    }
}

/// A cluster of so many documents and keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Store<const IDS: usize, const KEYS: usize> {
    pub documents: [Option<Keys>; IDS],
    pub reservations: [Option<Reservation>; KEYS],
    /// Documents that an open transaction has written.
    pub locked: [Option<Token>; IDS],
    /// How often each operation took effect; of a retryable one the server, or the record in its transaction, knows it.
    pub effects: Vec<(OpId, u8)>,
    pub clock: At,
}

impl<const IDS: usize, const KEYS: usize> Default for Store<IDS, KEYS> {
    fn default() -> Self {
        Store {
            documents: [None; IDS],
            reservations: [None; KEYS],
            locked: [None; IDS],
            effects: Vec::new(),
            clock: At::default(),
        }
    }
}

impl<const IDS: usize, const KEYS: usize> Store<IDS, KEYS> {
    pub fn holds(&self, id: Id, key: Key) -> bool {
        self.documents[id as usize].is_some_and(|keys| keys.has(key))
    }

    /// All keys that documents hold.
    pub fn held(&self) -> Keys {
        self.documents.iter().flatten().fold(NONE, |all, keys| all.and(*keys))
    }

    pub fn effects_of(&self, op: OpId) -> u8 {
        self.effects
            .iter()
            .find(|(of, _)| *of == op)
            .map_or(0, |(_, count)| *count)
    }

    pub fn reserve(&mut self, key: Key, owner: Id, token: Token) {
        self.clock += 1;
        self.reservations[key as usize] = Some(Reservation {
            owner,
            token,
            at: self.clock,
            is_over: false,
        });
    }

    fn takes_effect(&mut self, op: OpId) {
        match self.effects.iter_mut().find(|(of, _)| *of == op) {
            Some((_, count)) => *count += 1,
            None => {
                self.effects.push((op, 1));
                self.effects.sort_unstable();
            }
        }
    }

    /// A step-down takes it back.
    pub fn undo_effect(&mut self, op: OpId) {
        if let Some((_, count)) = self.effects.iter_mut().find(|(of, _)| *of == op) {
            *count -= 1;
        }
    }

    /// Whether the server has to say that it did this before.
    fn was_done(&self, write: &Write) -> bool {
        write.retryable && self.effects_of(write.op) > 0
    }

    /// Whether a strict write of this document has to wait for another transaction's end.
    pub fn is_locked_for(&self, write: &Write) -> bool {
        self.locked[write.deed.id() as usize].is_some_and(|by| by != write.token)
    }

    /// Carries a request out. `None` if it isn't answered yet: a transaction that goes on, `request` saying how. `others` are
    /// the other messages on their way, whose transactions may come to conflict.
    pub fn carry_out(&mut self, rules: &Rules, request: &mut Request, others: &mut [Message]) -> Option<Reply> {
        Some(match request {
            Request::Reserve { key, owner, token } => match self.reservations[*key as usize] {
                Some(_) => Reply::No,
                None => {
                    self.reserve(*key, *owner, *token);
                    Reply::Written(self.clock)
                }
            },
            Request::Backfill { key, owner } => match self.reservations[*key as usize] {
                Some(_) => Reply::No,
                None => {
                    self.reserve(*key, *owner, taking_in(*owner));
                    // Nobody waits for a lease.
                    if let Some(there) = &mut self.reservations[*key as usize] {
                        there.is_over = true;
                    }
                    Reply::Written(self.clock)
                }
            },
            Request::Read { key } => Reply::Reservation(self.reservations[*key as usize]),
            Request::LookUp { key, owner, .. } => {
                match self.holds(*owner, *key) && !rules.lacks(Broken::LookWithoutOwner) {
                    true => Reply::Yes,
                    false => Reply::No,
                }
            }
            Request::TakeOver { .. } => self.take_over(rules, request, others),
            Request::Release { key, token } => {
                let is_own = |there: &Reservation| there.token == *token || rules.lacks(Broken::ReleaseWithoutToken);
                if self.reservations[*key as usize].as_ref().is_some_and(is_own) {
                    self.reservations[*key as usize] = None;
                }
                Reply::Yes
            }
            Request::DeleteSeen { key, seen } => {
                let is_seen = |there: &Reservation| there.is(seen) || rules.lacks(Broken::DeleteWithoutToken);
                if self.reservations[*key as usize].as_ref().is_some_and(is_seen) {
                    self.reservations[*key as usize] = None;
                }
                Reply::Yes
            }
            Request::LookAt { id, .. } => Reply::Document(self.documents[*id as usize]),
            Request::AskDone { op, .. } => match self.effects_of(*op) > 0 {
                true => Reply::Yes,
                false => Reply::No,
            },
            Request::Obstacle { id, keys } => {
                let is_other = |other: &usize| *other != *id as usize;
                let others = (0..IDS).filter(is_other).filter_map(|other| self.documents[other]);
                let held = others.fold(NONE, Keys::and).shared(*keys);
                Reply::Obstacle(held.iter().next())
            }
            Request::Write(write) if write.deed.runs_in_a_transaction(rules) => {
                self.change_in_transaction(write, others)
            }
            Request::Write(write) => match write.deed {
                Deed::Insert { id, keys } if rules.is_strict() => {
                    return self.insert_strictly(rules, write, id, keys, others);
                }
                _ => self.write(write),
            },
        })
    }

    fn take_over(&mut self, rules: &Rules, request: &Request, others: &mut [Message]) -> Reply {
        let Request::TakeOver {
            key,
            seen,
            anew,
            from_absent,
        } = request
        else {
            return Reply::No;
        };
        let is_seen = |there: &Reservation| {
            there.is(seen)
                || rules.lacks(Broken::TakeoverWithoutToken)
                || rules.lacks(Broken::TakeoverWithoutAt) && there.token == seen.token
        };
        if !self.reservations[*key as usize].as_ref().is_some_and(is_seen) {
            return Reply::No;
        }
        if *from_absent && rules.is_strict() && !rules.lacks(Broken::WithoutPlaceholder) {
            if self.holds(seen.owner, *key) {
                return Reply::OwnerHolds;
            }
            if self.locked[seen.owner as usize].is_some() {
                return Reply::Busy;
            }
            touch(seen.owner, others);
        }
        match anew {
            Some((owner, token)) => self.reserve(*key, *owner, *token),
            None => self.reservations[*key as usize] = None,
        }
        Reply::Written(self.clock)
    }

    /// A write that the server carries out by itself.
    fn write(&mut self, write: &Write) -> Reply {
        if self.was_done(write) {
            return Reply::Applied { before: true };
        }
        let document = &mut self.documents[write.deed.id() as usize];
        match write.deed {
            Deed::Insert { .. } if document.is_some() => return Reply::DuplicateId,
            // What found no document is sent so that it matches none.
            Deed::PlainUpsert { .. } if write.pinned.is_none() && document.is_some() => return Reply::DuplicateId,
            Deed::Insert { keys, .. } => *document = Some(keys),
            _ if *document != write.pinned => return Reply::Missed,
            Deed::Change { to: keys, .. } | Deed::PlainUpsert { keys, .. } => *document = Some(keys),
            Deed::Delete { .. } => *document = None,
            Deed::Upsert { .. } => return Reply::Missed,
        }
        self.takes_effect(write.op);
        Reply::Applied { before: false }
    }

    fn insert_strictly(
        &mut self,
        rules: &Rules,
        write: &mut Write,
        id: Id,
        keys: Keys,
        others: &mut [Message],
    ) -> Option<Reply> {
        let is_own = |key: Key| self.reservations[key as usize].is_some_and(|there| there.token == write.token);
        let are_reserved = keys.iter().all(is_own);
        match write.phase {
            Phase::Sent => {
                if self.was_done(write) {
                    return Some(Reply::Applied { before: true });
                }
                if rules.lacks(Broken::LookBeforeSnapshot) && !are_reserved {
                    return Some(Reply::Superseded);
                }
                write.phase = Phase::Begun { conflicts: false };
            }
            Phase::Begun { conflicts } => {
                // Where the look came first, the snapshot is of this moment.
                if conflicts && !rules.lacks(Broken::LookBeforeSnapshot) || self.is_locked_for(write) {
                    write.phase = Phase::Sent;
                    return None;
                }
                if self.documents[id as usize].is_some() {
                    return Some(match are_reserved {
                        true => Reply::DuplicateId,
                        false => Reply::Superseded,
                    });
                }
                self.locked[id as usize] = Some(write.token);
                write.phase = Phase::Inserted;
            }
            Phase::Inserted => {
                let is_looked_at = !rules.lacks(Broken::WithoutLook) && !rules.lacks(Broken::LookBeforeSnapshot);
                if is_looked_at && !are_reserved {
                    self.locked[id as usize] = None;
                    return Some(Reply::Superseded);
                }
                write.phase = Phase::Seen;
            }
            Phase::Seen => {
                self.locked[id as usize] = None;
                // The record of the statement is there by now: another try has committed.
                if self.was_done(write) {
                    write.phase = Phase::Sent;
                    return None;
                }
                self.documents[id as usize] = Some(keys);
                self.takes_effect(write.op);
                touch(id, others);
                return Some(Reply::Applied { before: false });
            }
        }
        None
    }

    /// A transaction that writes document and reservations together; it does nothing where a reservation is in its way.
    fn change_in_transaction(&mut self, write: &Write, others: &mut [Message]) -> Reply {
        if self.was_done(write) {
            return Reply::Applied { before: true };
        }
        let id = write.deed.id();
        let before = match (self.documents[id as usize], write.deed) {
            (Some(before), _) => before,
            (None, Deed::Upsert { .. } | Deed::PlainUpsert { .. }) => NONE,
            (None, _) => return Reply::Missed,
        };
        let after = match write.deed {
            Deed::Change { to: keys, .. }
            | Deed::Upsert { keys, .. }
            | Deed::PlainUpsert { keys, .. }
            | Deed::Insert { keys, .. } => Some(keys),
            Deed::Delete { .. } => None,
        };
        let (new, old) = (after.unwrap_or(NONE).but(before), before.but(after.unwrap_or(NONE)));
        if let Some(key) = new.iter().find(|key| self.reservations[*key as usize].is_some()) {
            return Reply::ReservationConflict(key);
        }
        for key in old.iter() {
            if self.reservations[key as usize].is_some_and(|there| there.owner == id) {
                self.reservations[key as usize] = None;
            }
        }
        new.iter().for_each(|key| self.reserve(key, id, write.token));
        self.documents[id as usize] = after;
        self.takes_effect(write.op);
        touch(id, others);
        Reply::Applied { before: false }
    }

    /// A transaction that is open is ended by the server.
    pub fn abort(&mut self, write: &Write) {
        if write.phase.is_open() {
            self.locked[write.deed.id() as usize] = None;
        }
    }
}

/// The document, or its place, is written: transactions with an older snapshot conflict.
fn touch(id: Id, others: &mut [Message]) {
    for message in others {
        if let Request::Write(write) = &mut message.request
            && write.deed.id() == id
            && let Phase::Begun { conflicts } = &mut write.phase
        {
            *conflicts = true;
        }
    }
}
