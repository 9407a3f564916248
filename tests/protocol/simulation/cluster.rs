//! The store on several shards: what a majority of each has, what a step-down undoes, and what a deposed primary still tells.

use std::collections::{BTreeMap, VecDeque};

use crate::simulation::plan::Time;
use crate::simulation::size::Store;
use crate::simulation::size::{IDS, KEYS};
use crate::under_test::network::{Message, Reply, Request};
use crate::under_test::rules::{Broken, Rules};
use crate::under_test::store::Reservation;
use crate::under_test::words::{At, Id, Key, Keys, OpId};

/// A request on its way; the same for a duplicate of it.
pub type Ticket = u32;

#[derive(Debug)]
pub struct Cluster {
    pub store: Store,
    pub shards: Vec<Shard>,
    /// The cluster time of each reservation, as its shard had it, by when it was written.
    pub told: BTreeMap<At, Time>,
    now: Time,
}

#[derive(Debug, Default)]
pub struct Shard {
    /// Counts its primaries.
    pub term: u32,
    last: u32,
    /// What no majority has yet: how to undo it, by its number.
    unconfirmed: VecDeque<(u32, Vec<Change>)>,
    /// Replies that wait for a majority.
    waiting: Vec<(u32, Ticket, Reply)>,
    /// What its primary knew before it was deposed, and until when it may be asked.
    former: Option<(Box<Store>, Time)>,
    /// The cluster time of its primary.
    pub clock: Time,
    /// A majority is past this one.
    pub known: Time,
    /// How far its primary's own clock is off.
    pub skew: i64,
}

/// What was written, with what was there before.
#[derive(Debug, Clone, Copy)]
pub enum Change {
    Document(Id, Option<Keys>),
    Reservation(Key, Option<Reservation>),
    Effect(OpId),
}

/// What became of a request.
#[derive(Debug)]
pub struct Carried {
    /// `None` while its transaction goes on.
    pub reply: Option<Reply>,
    pub changes: Vec<Change>,
    /// The shards that have writes no majority has yet, with the latest one's number.
    pub unconfirmed: Option<(usize, u32)>,
}

/// What a step-down leaves to be done.
#[derive(Debug, Default)]
pub struct SteppedDown {
    pub undone: Vec<Change>,
    pub unanswered: Vec<Ticket>,
}

impl Cluster {
    pub fn new(shards: u8) -> Cluster {
        Cluster {
            store: Store::default(),
            shards: (0..shards).map(|_| Shard::default()).collect(),
            told: BTreeMap::new(),
            now: 0,
        }
    }

    pub fn of_document(&self, id: Id) -> usize {
        id as usize % self.shards.len()
    }

    pub fn of_key(&self, key: Key) -> usize {
        key as usize % self.shards.len()
    }

    /// The shard whose majority a reply may have to wait for.
    pub fn of_request(&self, request: &Request) -> usize {
        match request {
            Request::Reserve { key, .. }
            | Request::Backfill { key, .. }
            | Request::Read { key }
            | Request::TakeOver { key, .. }
            | Request::Release { key, .. }
            | Request::DeleteSeen { key, .. } => self.of_key(*key),
            Request::LookUp { owner, .. } => self.of_document(*owner),
            Request::LookAt { id, .. } | Request::Obstacle { id, .. } => self.of_document(*id),
            Request::Write(write) => self.of_document(write.deed.id()),
            Request::AskDone { id, .. } => self.of_document(*id),
        }
    }

    fn of_change(&self, change: &Change, document: Option<Id>) -> usize {
        match change {
            Change::Document(id, _) => self.of_document(*id),
            Change::Reservation(key, _) => self.of_key(*key),
            Change::Effect(_) => self.of_document(document.unwrap_or(0)),
        }
    }

    /// Time has passed.
    pub fn at(&mut self, now: Time) {
        self.store.clock = self.store.clock.max(now);
        self.now = now;
    }

    pub fn carry_out(&mut self, rules: &Rules, request: &mut Request, others: &mut [Message]) -> Carried {
        let (documents, reservations) = (self.store.documents, self.store.reservations);
        let write = match request {
            Request::Write(write) => Some((write.op, write.deed.id(), self.store.effects_of(write.op))),
            _ => None,
        };
        let placeholder = match request {
            Request::TakeOver { seen, from_absent, .. } if *from_absent && rules.is_strict() => Some(seen.owner),
            _ => None,
        };
        let reply = self.store.carry_out(rules, request, others);
        let mut changes = Vec::new();
        if !request.is_write() {
            return Carried {
                reply,
                changes,
                unconfirmed: None,
            };
        }
        let ids = (0..IDS).filter(|id| documents[*id] != self.store.documents[*id]);
        changes.extend(ids.map(|id| Change::Document(id as Id, documents[id])));
        let identity = |there: Option<Reservation>| there.map(|there| (there.owner, there.token, there.at));
        let keys = (0..KEYS).filter(|key| identity(reservations[*key]) != identity(self.store.reservations[*key]));
        changes.extend(keys.map(|key| Change::Reservation(key as Key, reservations[key])));
        for key in 0..KEYS {
            if let Some(there) = self.store.reservations[key].filter(|there| !self.told.contains_key(&there.at)) {
                let shard = self.of_key(key as Key);
                self.told.insert(there.at, self.shards[shard].tick(self.now));
            }
        }
        if let Some((op, _, before)) = write
            && self.store.effects_of(op) != before
        {
            changes.push(Change::Effect(op));
        }
        let unconfirmed = self.write_down(&changes, write.map(|(_, id, _)| id), placeholder);
        Carried {
            reply,
            changes,
            unconfirmed,
        }
    }

    /// A transaction over several shards counts at once, for good, and with it all that came before it there: it was
    /// prepared by a majority of each.
    fn write_down(&mut self, changes: &[Change], id: Option<Id>, placeholder: Option<Id>) -> Option<(usize, u32)> {
        let mut touched: Vec<usize> = changes.iter().map(|change| self.of_change(change, id)).collect();
        if !changes.is_empty() {
            touched.extend(placeholder.map(|id| self.of_document(id)));
        }
        touched.sort_unstable();
        touched.dedup();
        match touched[..] {
            [] => None,
            [only] => {
                let shard = &mut self.shards[only];
                shard.last += 1;
                shard.unconfirmed.push_back((shard.last, changes.to_vec()));
                Some((only, shard.last))
            }
            _ => {
                touched.iter().for_each(|shard| self.shards[*shard].confirm_all());
                None
            }
        }
    }

    /// Undoes what a new primary hasn't: everything after the first `kept` writes that no majority has.
    pub fn step_down(&mut self, index: usize, kept: usize, former_until: Time) -> SteppedDown {
        let former = self.store.clone();
        let shard = &mut self.shards[index];
        let lost: Vec<(u32, Vec<Change>)> = shard.unconfirmed.drain(kept..).collect();
        shard.confirm_all();
        shard.term += 1;
        shard.former = Some((Box::new(former), former_until));
        let waiting = std::mem::take(&mut shard.waiting);
        let undone: Vec<Change> = lost
            .into_iter()
            .rev()
            .flat_map(|(_, changes)| changes.into_iter().rev())
            .collect();
        for change in &undone {
            match change {
                Change::Document(id, before) => self.store.documents[*id as usize] = *before,
                Change::Reservation(key, before) => self.store.reservations[*key as usize] = *before,
                Change::Effect(op) => self.store.undo_effect(*op),
            }
        }
        // What a majority has, the next primary has.
        let written = (0..KEYS).filter(|key| self.of_key(*key as Key) == index);
        let written = written.filter_map(|key| self.told.get(&self.store.reservations[key]?.at));
        let latest = written.copied().max().unwrap_or(0);
        let shard = &mut self.shards[index];
        shard.clock = shard.known.max(latest);
        SteppedDown {
            undone,
            unanswered: waiting.into_iter().map(|(_, ticket, _)| ticket).collect(),
        }
    }

    /// What a deposed primary would answer, if there is one to be asked.
    pub fn former_reply(&mut self, rules: &Rules, request: &Request, now: Time) -> Option<Reply> {
        if !matches!(request, Request::Read { .. } | Request::LookUp { .. }) {
            return None;
        }
        let shard = self.of_request(request);
        let (store, until) = self.shards[shard].former.as_mut()?;
        if now >= *until {
            return None;
        }
        store.carry_out(rules, &mut request.clone(), &mut [])
    }
}

impl Shard {
    /// Its cluster time: what its own clock says, or the latest that it has heard of.
    pub fn time(&self, now: Time) -> Time {
        let own = Time::try_from((i64::from(now) + self.skew).max(0)).unwrap_or(Time::MAX);
        own.max(self.clock)
    }

    /// The time of something that it writes.
    fn tick(&mut self, now: Time) -> Time {
        self.clock = self.time(now).max(self.clock + 1);
        self.clock
    }

    fn confirm_all(&mut self) {
        self.unconfirmed.clear();
    }

    pub fn unconfirmed(&self) -> usize {
        self.unconfirmed.len()
    }

    pub fn is_confirmed(&self) -> bool {
        self.unconfirmed.is_empty()
    }

    /// Keeps a reply until a majority has all that is there now.
    pub fn keep(&mut self, ticket: Ticket, reply: Reply) {
        self.waiting.push((self.last, ticket, reply));
    }

    /// A majority has everything up to this; what may be answered now.
    pub fn confirm(&mut self, up_to: u32) -> Vec<(Ticket, Reply)> {
        while self.unconfirmed.front().is_some_and(|(number, _)| *number <= up_to) {
            self.unconfirmed.pop_front();
        }
        let first = self.unconfirmed.front().map_or(u32::MAX, |(number, _)| *number);
        let ready = self.waiting.extract_if(.., |(number, _, _)| *number < first);
        ready.map(|(_, ticket, reply)| (ticket, reply)).collect()
    }
}

/// Whether the reply says something of which a majority has to be sure.
pub fn waits_for_a_majority(request: &Request, rules: &Rules) -> bool {
    use keyward::reservation::Scope;
    match request {
        Request::Reserve { .. } | Request::Backfill { .. } | Request::TakeOver { .. } => {
            !rules.lacks(Broken::WithoutMajority)
        }
        Request::Write(_) => !rules.lacks(Broken::AnswerBeforeMajority),
        Request::LookUp { scope, .. } => *scope == Scope::Linearizable && !rules.lacks(Broken::LookNotLinearizable),
        Request::LookAt { by_majority, .. } => *by_majority,
        // Where nothing was done there is nothing to wait for, but that costs only time.
        Request::AskDone { .. } => !rules.lacks(Broken::AskBeforeMajority),
        Request::Read { .. } | Request::Release { .. } | Request::DeleteSeen { .. } | Request::Obstacle { .. } => false,
    }
}
