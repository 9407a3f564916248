//! A task and its write: when it is sent, and what follows from its reply.

use keyward::reservation::{Event, Scope};

use super::{ROUNDS, Requests, Stage, Task, Verdict};
use crate::under_test::network::{Phase, Reply, Request, Write};
use crate::under_test::rules::{Broken, Rules};
use crate::under_test::store::Reservation;
use crate::under_test::words::{Deed, Key, Keys, NONE, Outcome};

impl Task {
    /// Sends the write, or begins anew if its keys' lease is over.
    pub fn forward(&mut self, rules: &Rules) -> Requests {
        let mut requests = Vec::new();
        if self.is_late && !rules.is_strict() {
            match self.op.deed {
                Deed::Insert { .. } => self.claim_again(&mut requests),
                _ => {
                    self.queue = self.attempt.withdraw();
                    self.end(Verdict::Again, &mut requests);
                }
            }
            return requests;
        }
        requests.push(self.write());
        if rules.lacks(Broken::ReleaseBeforeWrite) {
            requests.extend(given_up(self.given_up.drain(..)));
        }
        requests
    }

    pub(super) fn write(&mut self) -> Request {
        self.stage = Stage::Writing;
        Request::Write(Write {
            op: self.id.op,
            retryable: self.op.retryable,
            deed: self.op.deed,
            pinned: self.seen,
            token: self.id.token(self.round, self.op.retryable),
            since: self.since,
            phase: Phase::Sent,
        })
    }

    pub(super) fn after(&self) -> Keys {
        match self.op.deed {
            Deed::Insert { keys, .. } | Deed::Upsert { keys, .. } | Deed::PlainUpsert { keys, .. } => keys,
            Deed::Change { to, .. } => to,
            Deed::Delete { .. } => NONE,
        }
    }

    pub(super) fn new_keys(&self) -> Keys {
        self.after().but(self.seen.unwrap_or(NONE))
    }

    pub(super) fn looked(&mut self, reply: Reply, requests: &mut Requests) {
        let Reply::Document(document) = reply else {
            return self.end(Verdict::Answer(Outcome::Unknown), requests);
        };
        self.seen = document;
        let Some(before) = document else {
            if matches!(self.op.deed, Deed::PlainUpsert { .. }) {
                self.inserts = true;
                return self.claim(Stage::Claiming, self.new_keys(), requests);
            }
            let verdict = match self.op.retryable {
                true => Verdict::Unless(Outcome::Nothing),
                false => Verdict::Answer(Outcome::Nothing),
            };
            return self.end(verdict, requests);
        };
        for key in before.but(self.after()).iter() {
            self.reading += 1;
            requests.push(Request::Read { key });
        }
        self.claim(Stage::Claiming, self.new_keys(), requests);
    }

    pub(super) fn written(&mut self, reply: Reply, requests: &mut Requests) {
        let is_insert = matches!(self.op.deed, Deed::Insert { .. });
        match reply {
            Reply::Applied { before: true } if is_insert => {
                self.step(&Event::Applied);
                self.stage = Stage::LookingForMoved(u8::try_from(self.keys.len()).unwrap_or(0));
                let owner = self.op.deed.id();
                let scope = Scope::Linearizable;
                requests.extend(self.keys.iter().map(|key| Request::LookUp {
                    key: *key,
                    owner,
                    scope,
                }));
            }
            Reply::Applied { .. } if is_insert || self.seen.is_none() && !self.inserts => {
                self.step(&Event::Applied);
                self.end(Verdict::Answer(Outcome::Applied), requests);
            }
            Reply::Applied { before: true } => {
                self.given_up.clear();
                self.stage = Stage::LookingAgain;
                requests.push(Request::LookAt {
                    id: self.op.deed.id(),
                    by_majority: true,
                });
            }
            Reply::Applied { .. } => self.settle(self.after(), requests),
            Reply::DuplicateId if self.inserts => {
                self.step(&Event::NotApplied);
                self.end(Verdict::Obstacle, requests);
            }
            Reply::DuplicateId => {
                self.step(&Event::NotApplied);
                self.end(Verdict::Answer(Outcome::DuplicateId), requests);
            }
            Reply::Superseded => {
                self.stage = Stage::Claiming;
                self.since = None;
                self.step(&Event::Superseded);
                self.go_on(requests);
            }
            // A strict change is one transaction: there is nothing, or a document is in its way.
            Reply::Missed if self.seen.is_none() => self.end(Verdict::Answer(Outcome::Nothing), requests),
            Reply::ReservationConflict(_) if self.round >= ROUNDS => {
                self.end(Verdict::Answer(Outcome::Unsure), requests)
            }
            Reply::ReservationConflict(key) => {
                self.round += 1;
                self.claim(Stage::Clearing, Keys::of(key), requests);
            }
            Reply::Missed => {
                self.step(&Event::NotApplied);
                self.end(Verdict::Again, requests);
            }
            _ => {
                self.step(&Event::InDoubt);
                self.end(Verdict::Answer(Outcome::Unknown), requests);
            }
        }
    }

    /// Gives up what the document doesn't hold any more, and what it didn't come to hold.
    pub(super) fn settle(&mut self, held: Keys, requests: &mut Requests) {
        // It was carried out, so nothing of it is on its way any more: each key is decided by itself.
        self.step(&Event::Applied);
        let token = self.attempt.token();
        for key in self.keys.iter().copied().filter(|key| !held.has(*key)) {
            requests.push(Request::Release { key, token });
            self.releasing += 1;
        }
        let free = self.given_up.drain(..).filter(|(key, _)| !held.has(*key));
        requests.extend(given_up(free));
        self.end(Verdict::Answer(Outcome::Applied), requests);
    }
}

fn given_up(seen: impl Iterator<Item = (Key, Reservation)>) -> Requests {
    seen.map(|(key, seen)| Request::DeleteSeen { key, seen }).collect()
}
