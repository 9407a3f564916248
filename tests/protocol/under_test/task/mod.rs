//! A Keyward at work on one try of one operation: drives the real [`Attempt`], and does around it what production does.
//!
//! An insert goes as in `src/write/insert/mod.rs` and `retried.rs`, a change or delete as in `src/write/update/in_place.rs`. What runs in
//! a transaction goes as in `src/write/update/reservation_conflict.rs` where a reservation is in its way.

mod claiming;
mod writing;

use keyward::reservation::{Attempt, Effect, Event, Token};

use crate::under_test::network::{Reply, Request};
use crate::under_test::rules::Rules;
use crate::under_test::store::Reservation;
use crate::under_test::words::{At, Deed, Key, Keys, NONE, Op, Outcome, TaskId};

/// How often a change looks at its document again, or a transaction begins again, before it gives up.
const ROUNDS: u8 = 3;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Task {
    pub id: TaskId,
    op: Op,
    round: u8,
    stage: Stage,
    attempt: Attempt,
    /// The attempt's keys, in order.
    keys: Vec<Key>,
    /// The reservations in their way.
    conflicting: Vec<Option<Reservation>>,
    /// What the attempt asks for that waits until its releases are done.
    queue: Vec<Effect>,
    releasing: u8,
    awaited: Option<Token>,
    /// When the oldest of the attempt's reservations was written.
    pub since: Option<At>,
    /// Whether its lease is over, as its Keyward sees it.
    pub is_late: bool,
    /// A change's document as it was seen.
    seen: Option<Keys>,
    /// Whether an upsert inserts its document: it saw none.
    inserts: bool,
    /// Whether it checks, before it inserts a document, that the document doesn't exist without reservations.
    checks_unreserved: bool,
    /// The reservations of old keys, as they were before the change, and how many are yet to be read.
    given_up: Vec<(Key, Reservation)>,
    reading: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Stage {
    /// A strict insert asks first whether an earlier try took effect.
    Asking,
    Looking,
    Claiming,
    /// Of the key that kept a transaction from its end: it is free once it can be claimed.
    Clearing,
    Writing,
    /// A change that the server may have answered from memory looks what its document holds.
    LookingAgain,
    /// An insert that was done before looks which of its keys its document still holds.
    LookingForMoved(u8),
    /// The operation may have been done before, or else ends so.
    AskingDone(Outcome),
    /// What keeps a change from its keys.
    AskingObstacle,
    /// Only releases are left.
    Ending(Verdict),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Verdict {
    Answer(Outcome),
    Again,
    /// What kept the transaction from its end is cleared away.
    Repeat,
    /// Unless the operation was done before.
    Unless(Outcome),
    Obstacle,
}

/// What a task does next.
pub type Requests = Vec<Request>;

impl Task {
    pub fn begin(id: TaskId, op: Op, rules: &Rules) -> (Task, Requests) {
        let token = id.token(0, op.retryable);
        let mut task = Task {
            id,
            op,
            round: 0,
            stage: Stage::Claiming,
            attempt: Attempt::begin(token, 0).0,
            keys: Vec::new(),
            conflicting: Vec::new(),
            queue: Vec::new(),
            releasing: 0,
            awaited: None,
            since: None,
            is_late: false,
            seen: None,
            inserts: false,
            checks_unreserved: rules.inserts_check(),
            given_up: Vec::new(),
            reading: 0,
        };
        let mut requests = Vec::new();
        match op.deed {
            Deed::Insert { .. } if rules.is_strict() && op.retryable => {
                task.stage = Stage::Asking;
                requests.push(Request::AskDone {
                    op: id.op,
                    id: op.deed.id(),
                });
            }
            Deed::Insert { keys, .. } => task.claim(Stage::Claiming, keys, &mut requests),
            deed if deed.runs_in_a_transaction(rules) => requests.push(task.write()),
            _ => task.look(&mut requests),
        }
        (task, requests)
    }

    fn look(&mut self, requests: &mut Requests) {
        self.stage = Stage::Looking;
        requests.push(Request::LookAt {
            id: self.op.deed.id(),
            by_majority: false,
        });
    }

    /// Ends with this verdict once every release is done.
    fn end(&mut self, verdict: Verdict, requests: &mut Requests) {
        self.stage = Stage::Ending(verdict);
        self.go_on(requests);
        self.finish(requests);
    }

    fn finish(&mut self, requests: &mut Requests) {
        let Stage::Ending(verdict) = self.stage else { return };
        if self.releasing > 0 {
            return;
        }
        match verdict {
            Verdict::Answer(_) => {}
            Verdict::Again if self.round == ROUNDS => self.stage = Stage::Ending(Verdict::Answer(Outcome::Unsure)),
            Verdict::Again => {
                self.round += 1;
                self.given_up.clear();
                self.seen = None;
                self.inserts = false;
                self.look(requests);
            }
            Verdict::Repeat => {
                self.round += 1;
                requests.push(self.write());
            }
            Verdict::Unless(outcome) => {
                self.stage = Stage::AskingDone(outcome);
                requests.push(Request::AskDone {
                    op: self.id.op,
                    id: self.op.deed.id(),
                });
            }
            Verdict::Obstacle => {
                self.stage = Stage::AskingObstacle;
                requests.push(Request::Obstacle {
                    id: self.op.deed.id(),
                    keys: self.new_keys(),
                });
            }
        }
    }

    /// How it ended for the client, once it has.
    pub fn outcome(&self) -> Option<Outcome> {
        match self.stage {
            Stage::Ending(Verdict::Answer(outcome)) if self.releasing == 0 => Some(outcome),
            _ => None,
        }
    }

    /// Takes in what came back for one of its requests.
    pub fn receive(&mut self, request: &Request, reply: Reply) -> Requests {
        let mut requests = Vec::new();
        match (&self.stage, request) {
            (_, Request::Release { .. }) if reply == Reply::Busy => requests.push(request.clone()),
            (_, Request::Release { key, .. }) => {
                self.releasing -= 1;
                if reply == Reply::Silence && self.is_claiming() {
                    let position = self.position(*key);
                    self.step(&Event::Failed(position));
                }
                self.go_on(&mut requests);
                self.finish(&mut requests);
            }
            (_, Request::DeleteSeen { .. }) => {}
            (Stage::Asking, Request::AskDone { .. }) => match reply {
                Reply::Yes => self.end(Verdict::Answer(Outcome::Applied), &mut requests),
                Reply::No => self.claim(Stage::Claiming, self.after(), &mut requests),
                _ => self.end(Verdict::Answer(Outcome::Unknown), &mut requests),
            },
            (Stage::AskingDone(outcome), Request::AskDone { .. }) => {
                let outcome = match reply {
                    Reply::Yes => Outcome::Applied,
                    Reply::No => *outcome,
                    _ => Outcome::Unknown,
                };
                self.end(Verdict::Answer(outcome), &mut requests);
            }
            (Stage::Looking, Request::LookAt { .. }) => self.looked(reply, &mut requests),
            (Stage::LookingAgain, Request::LookAt { .. }) => match reply {
                Reply::Document(held) => self.settle(held.unwrap_or(NONE), &mut requests),
                _ => self.end(Verdict::Answer(Outcome::Unknown), &mut requests),
            },
            (Stage::AskingObstacle, Request::Obstacle { .. }) => {
                let verdict = match reply {
                    Reply::Obstacle(Some(key)) if self.op.retryable => Verdict::Unless(Outcome::Duplicate(key)),
                    Reply::Obstacle(Some(key)) => Verdict::Answer(Outcome::Duplicate(key)),
                    Reply::Obstacle(None) => Verdict::Again,
                    _ => Verdict::Answer(Outcome::Unknown),
                };
                self.end(verdict, &mut requests);
            }
            (Stage::LookingForMoved(left), Request::LookUp { key, .. }) => {
                self.stage = match left {
                    1 => Stage::Ending(Verdict::Answer(Outcome::Applied)),
                    _ => Stage::LookingForMoved(left - 1),
                };
                if reply == Reply::No {
                    let (key, token) = (*key, self.attempt.token());
                    requests.push(Request::Release { key, token });
                    self.releasing += 1;
                }
            }
            (Stage::Writing, Request::Write(_)) => self.written(reply, &mut requests),
            (_, Request::Read { key }) if !self.keys.contains(key) => {
                self.reading -= 1;
                if let Reply::Reservation(Some(there)) = reply
                    && there.owner == self.op.deed.id()
                {
                    self.given_up.push((*key, there));
                }
            }
            _ => self.claimed(request, reply, &mut requests),
        }
        requests
    }

    /// Every time of a reservation that it knows of.
    pub fn times(&mut self, visit: &mut impl FnMut(&mut At)) {
        self.conflicting
            .iter_mut()
            .flatten()
            .for_each(|conflicting| visit(&mut conflicting.at));
        self.given_up.iter_mut().for_each(|(_, seen)| visit(&mut seen.at));
        self.since.iter_mut().for_each(visit);
    }
}
