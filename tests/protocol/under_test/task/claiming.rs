//! A task and its keys: what the attempt asks for is sent, and what comes back is told to it.

use keyward::reservation::{Age, Attempt, ConflictingReservation, Effect, Ended, Event, NotHeld, Token};

use super::{Requests, Stage, Task, Verdict};
use crate::under_test::network::{Reply, Request};
use crate::under_test::store::Reservation;
use crate::under_test::words::{Deed, Id, Key, Keys, Outcome};

/// A stand-in for a reservation of which only the owner is used.
fn presumed(owner: Id) -> Reservation {
    Reservation {
        owner,
        token: Token::UNKNOWN,
        at: 0,
        is_over: false,
    }
}

impl Task {
    pub(super) fn claim(&mut self, stage: Stage, keys: Keys, requests: &mut Requests) {
        self.stage = stage;
        self.keys = keys.iter().collect();
        self.conflicting = vec![None; self.keys.len()];
        self.since = None;
        self.is_late = false;
        let token = self
            .id
            .token(self.round, self.op.retryable && self.stage == Stage::Claiming);
        // Who expects a duplicate looks first: of two inserts one does.
        let looks_first =
            matches!(self.op.deed, Deed::Insert { .. }) && !(self.id.op.client + self.id.op.index).is_multiple_of(2);
        let recalled = self
            .op
            .recalls
            .filter(|_| self.stage == Stage::Claiming && !self.keys.is_empty());
        if let Some(owner) = recalled {
            self.conflicting[0] = Some(presumed(owner));
        }
        let is_insert = self.stage == Stage::Claiming && (matches!(self.op.deed, Deed::Insert { .. }) || self.inserts);
        let count = self.keys.len();
        let (attempt, effects) = match (recalled, looks_first) {
            _ if is_insert && self.checks_unreserved => {
                self.conflicting.fill(Some(presumed(self.op.deed.id())));
                Attempt::begin_unreserved(token, count, &(0..count).collect::<Vec<_>>())
            }
            (Some(_), _) => Attempt::begin_recalling(token, count),
            (None, true) => Attempt::begin_reading(token, count),
            (None, false) => Attempt::begin(token, count),
        };
        self.attempt = attempt;
        self.queue.extend(effects);
        self.go_on(requests);
    }

    /// Gives everything back and begins anew.
    pub(super) fn claim_again(&mut self, requests: &mut Requests) {
        self.conflicting.fill(None);
        self.since = None;
        self.is_late = false;
        self.queue = self.attempt.begin_again(self.keys.len());
        self.go_on(requests);
    }

    pub(super) fn step(&mut self, event: &Event) {
        let effects = self.attempt.step(event);
        if self.attempt.waits_with_nothing() {
            self.since = None;
            self.is_late = false;
        }
        if self.attempt.ended().is_some() {
            self.queue.retain(|effect| matches!(effect, Effect::Release(_)));
        }
        self.queue.extend(effects);
    }

    /// Sends what the attempt asks for. What is given back must be gone before it can be claimed again.
    pub(super) fn go_on(&mut self, requests: &mut Requests) {
        let token = self.attempt.token();
        for effect in self.queue.extract_if(.., |effect| matches!(effect, Effect::Release(_))) {
            if let Effect::Release(position) = effect {
                let key = self.keys[position];
                requests.push(Request::Release { key, token });
                self.releasing += 1;
            }
        }
        if self.releasing > 0 {
            return;
        }
        for effect in std::mem::take(&mut self.queue) {
            match effect {
                Effect::Reserve(position) => {
                    self.conflicting[position] = None;
                    let (key, owner) = (self.keys[position], self.op.deed.id());
                    requests.push(Request::Reserve { key, owner, token });
                }
                Effect::Read(position) => requests.push(Request::Read {
                    key: self.keys[position],
                }),
                Effect::LookUp { key, scope } => {
                    if let Some(conflicting) = self.conflicting[key] {
                        let (key, owner) = (self.keys[key], conflicting.owner);
                        requests.push(Request::LookUp { key, owner, scope });
                    }
                }
                Effect::TakeOver { key, from_absent, .. } => {
                    if let Some(seen) = self.conflicting[key] {
                        requests.push(Request::TakeOver {
                            key: self.keys[key],
                            seen,
                            anew: Some((self.op.deed.id(), token)),
                            from_absent,
                        });
                    }
                }
                Effect::Wait { conflicting } => self.awaited = Some(conflicting),
                // When it is sent is another matter.
                Effect::Forward | Effect::Release(_) => {}
            }
        }
        if self.stage == Stage::Clearing && self.attempt.may_forward() {
            self.queue = self.attempt.withdraw();
            return self.end(Verdict::Repeat, requests);
        }
        if self.is_claiming() {
            match self.attempt.ended() {
                Some(Ended::NotHeld(NotHeld::Duplicate(position))) => self.is_duplicate(position, requests),
                Some(Ended::NotHeld(NotHeld::Unsure(_))) => self.end(Verdict::Answer(Outcome::Unsure), requests),
                _ => {}
            }
        }
    }

    pub(super) fn is_duplicate(&mut self, position: usize, requests: &mut Requests) {
        let duplicate = Outcome::Duplicate(self.keys[position]);
        let is_own = self.conflicting[position].is_some_and(|conflicting| conflicting.owner == self.op.deed.id());
        let verdict = match self.op.deed {
            Deed::Insert { .. } if self.op.retryable => Verdict::Unless(duplicate),
            Deed::Insert { .. } => Verdict::Answer(duplicate),
            _ if self.stage == Stage::Clearing && is_own => Verdict::Repeat,
            _ if self.stage == Stage::Clearing && self.op.retryable => Verdict::Unless(duplicate),
            _ if self.stage == Stage::Clearing => Verdict::Answer(duplicate),
            _ if is_own => Verdict::Again,
            _ => Verdict::Obstacle,
        };
        self.end(verdict, requests);
    }

    pub(super) fn is_claiming(&self) -> bool {
        matches!(self.stage, Stage::Claiming | Stage::Clearing)
    }

    /// Whether it may send the write now.
    pub fn may_forward(&self) -> bool {
        self.stage == Stage::Claiming && self.attempt.may_forward() && self.releasing == 0 && self.reading == 0
    }

    /// Whose outcome it waits for, and about which keys.
    pub fn waits_for(&self) -> Option<(Token, &[Key])> {
        match self.attempt.is_waiting() && self.releasing == 0 && self.is_claiming() {
            true => self.awaited.map(|conflicting| (conflicting, self.keys.as_slice())),
            false => None,
        }
    }

    pub fn wait_is_over(&mut self) -> Requests {
        let mut requests = Vec::new();
        self.awaited = None;
        self.step(&Event::WaitOver);
        self.go_on(&mut requests);
        requests
    }

    pub(super) fn position(&self, key: Key) -> usize {
        self.keys.iter().position(|own| *own == key).unwrap_or(usize::MAX)
    }

    /// What came back for a claim, as an event; nothing is decided here.
    pub(super) fn claimed(&mut self, request: &Request, reply: Reply, requests: &mut Requests) {
        let (Request::Reserve { key, .. }
        | Request::Read { key }
        | Request::LookUp { key, .. }
        | Request::TakeOver { key, .. }) = request
        else {
            return;
        };
        let position = self.position(*key);
        if let Reply::Written(at) = reply {
            self.since = Some(self.since.map_or(at, |since| since.min(at)));
            self.conflicting[position] = None;
        }
        let event = match (request, reply) {
            (_, Reply::Silence) => Event::Failed(position),
            (Request::Reserve { .. }, Reply::Written(_)) => Event::Reserved(position),
            (Request::Reserve { .. }, _) => Event::Taken(position),
            (Request::Read { .. }, Reply::Reservation(Some(there))) => {
                self.conflicting[position] = Some(there);
                let conflicting = ConflictingReservation {
                    token: there.token,
                    same_owner: there.owner == self.op.deed.id(),
                    // Whether one shard is asked first changes nothing but the number of looks.
                    has_route: false,
                    age: match there.is_over {
                        true => Age::Expired,
                        false => Age::InLease,
                    },
                };
                Event::Found(position, conflicting)
            }
            (Request::Read { .. }, _) => Event::Vacant(position),
            (Request::LookUp { .. }, Reply::Yes) => Event::OwnerHolds(position),
            (Request::LookUp { .. }, _) => Event::OwnerAbsent(position),
            (_, Reply::Written(_)) => Event::TookOver(position),
            (_, Reply::OwnerHolds) => Event::OwnerHolds(position),
            (_, Reply::Busy) => Event::Busy(position),
            (_, _) => Event::Changed(position),
        };
        self.step(&event);
        self.go_on(requests);
    }
}
