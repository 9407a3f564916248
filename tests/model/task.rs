//! A Keyward at work on one try of one operation: drives the real [`Attempt`], and does around it what production does.
//!
//! An insert goes as in `src/write/insert.rs` and `retried.rs`, a change or delete as in `src/write/change.rs`.

use keyward::reservation::{Age, Attempt, Effect, Ended, Event, NotHeld, Rival, Scope, Token};

use crate::network::{Phase, Reply, Request, Write};
use crate::rules::{Broken, Rules};
use crate::store::Reservation;
use crate::words::{At, Deed, Key, Keys, NONE, Op, Outcome, TaskId};

/// How often a change looks at its document again before it gives up.
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
    rivals: Vec<Option<Reservation>>,
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
            rivals: Vec::new(),
            queue: Vec::new(),
            releasing: 0,
            awaited: None,
            since: None,
            is_late: false,
            seen: None,
            given_up: Vec::new(),
            reading: 0,
        };
        let mut requests = Vec::new();
        match op.deed {
            Deed::Insert { .. } if rules.is_strict() && op.retryable => {
                task.stage = Stage::Asking;
                requests.push(Request::AskDone { op: id.op });
            }
            Deed::Insert { keys, .. } => task.claim(keys, &mut requests),
            _ if rules.is_strict() => requests.push(task.write()),
            _ => task.look(&mut requests),
        }
        (task, requests)
    }

    fn look(&mut self, requests: &mut Requests) {
        self.stage = Stage::Looking;
        requests.push(Request::LookAt { id: self.op.deed.id() });
    }

    fn claim(&mut self, keys: Keys, requests: &mut Requests) {
        self.stage = Stage::Claiming;
        self.keys = keys.iter().collect();
        self.rivals = vec![None; self.keys.len()];
        self.since = None;
        self.is_late = false;
        let token = self.id.token(self.round, self.op.retryable);
        let (attempt, effects) = Attempt::begin(token, self.keys.len());
        self.attempt = attempt;
        self.queue.extend(effects);
        self.go_on(requests);
    }

    fn step(&mut self, event: &Event) {
        let (attempt, effects) = self.attempt.clone().step(event);
        self.attempt = attempt;
        self.queue.extend(effects);
    }

    /// Sends what the attempt asks for. What is given back must be gone before it can be claimed again.
    fn go_on(&mut self, requests: &mut Requests) {
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
                    self.rivals[position] = None;
                    let (key, owner) = (self.keys[position], self.op.deed.id());
                    requests.push(Request::Reserve { key, owner, token });
                }
                Effect::Read(position) => requests.push(Request::Read {
                    key: self.keys[position],
                }),
                Effect::LookUp { key, scope } => {
                    if let Some(rival) = self.rivals[key] {
                        let (key, owner) = (self.keys[key], rival.owner);
                        requests.push(Request::LookUp { key, owner, scope });
                    }
                }
                Effect::TakeOver { key, from_absent, .. } => {
                    if let Some(seen) = self.rivals[key] {
                        requests.push(Request::TakeOver {
                            key: self.keys[key],
                            seen,
                            anew: Some((self.op.deed.id(), token)),
                            from_absent,
                        });
                    }
                }
                Effect::Wait { rival } => self.awaited = Some(rival),
                // When it is sent is another matter.
                Effect::Forward | Effect::Release(_) => {}
            }
        }
        if self.stage == Stage::Claiming {
            match self.attempt.ended() {
                Some(Ended::NotHeld(NotHeld::Duplicate(position))) => self.is_duplicate(position, requests),
                Some(Ended::NotHeld(NotHeld::Unsure(_))) => self.end(Verdict::Answer(Outcome::Unsure), requests),
                _ => {}
            }
        }
    }

    fn is_duplicate(&mut self, position: usize, requests: &mut Requests) {
        let duplicate = Outcome::Duplicate(self.keys[position]);
        let is_own = self.rivals[position].is_some_and(|rival| rival.owner == self.op.deed.id());
        let verdict = match self.op.deed {
            Deed::Insert { .. } if self.op.retryable => Verdict::Unless(duplicate),
            Deed::Insert { .. } => Verdict::Answer(duplicate),
            _ if is_own => Verdict::Again,
            _ => Verdict::Obstacle,
        };
        self.end(verdict, requests);
    }

    /// Ends with this verdict once every release is done.
    fn end(&mut self, verdict: Verdict, requests: &mut Requests) {
        self.stage = Stage::Ending(verdict);
        self.go_on(requests);
        self.conclude(requests);
    }

    fn conclude(&mut self, requests: &mut Requests) {
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
                self.look(requests);
            }
            Verdict::Unless(outcome) => {
                self.stage = Stage::AskingDone(outcome);
                requests.push(Request::AskDone { op: self.id.op });
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

    /// Whether it may send the write now.
    pub fn may_forward(&self) -> bool {
        self.stage == Stage::Claiming && self.attempt.may_forward() && self.releasing == 0 && self.reading == 0
    }

    /// Whose outcome it waits for, and about which keys.
    pub fn waits_for(&self) -> Option<(Token, &[Key])> {
        match self.attempt.is_waiting() && self.releasing == 0 && self.stage == Stage::Claiming {
            true => self.awaited.map(|rival| (rival, self.keys.as_slice())),
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

    /// Sends the write, or begins anew if its keys' lease is over.
    pub fn forward(&mut self, rules: &Rules) -> Requests {
        let mut requests = Vec::new();
        if self.is_late && !rules.is_strict() {
            self.queue = self.attempt.clone().withdraw();
            match self.op.deed {
                Deed::Insert { keys, .. } => self.claim(keys, &mut requests),
                _ => self.end(Verdict::Again, &mut requests),
            }
            return requests;
        }
        requests.push(self.write());
        if rules.lacks(Broken::ReleaseBeforeWrite) {
            requests.extend(given_up(self.given_up.drain(..)));
        }
        requests
    }

    fn write(&mut self) -> Request {
        self.stage = Stage::Writing;
        Request::Write(Write {
            op: self.id.op,
            retryable: self.op.retryable,
            deed: self.op.deed,
            pinned: self.seen,
            token: self.attempt.token(),
            since: self.since,
            phase: Phase::Sent,
        })
    }

    fn after(&self) -> Keys {
        match self.op.deed {
            Deed::Insert { keys, .. } => keys,
            Deed::Change { to, .. } => to,
            Deed::Delete { .. } => NONE,
        }
    }

    fn new_keys(&self) -> Keys {
        self.after().but(self.seen.unwrap_or(NONE))
    }

    /// Takes in what came back for one of its requests.
    pub fn receive(&mut self, request: &Request, reply: Reply) -> Requests {
        let mut requests = Vec::new();
        match (&self.stage, request) {
            (_, Request::Release { key, .. }) => {
                self.releasing -= 1;
                if reply == Reply::Silence && self.stage == Stage::Claiming {
                    let position = self.position(*key);
                    self.step(&Event::Failed(position));
                }
                self.go_on(&mut requests);
                self.conclude(&mut requests);
            }
            (_, Request::DeleteSeen { .. }) => {}
            (Stage::Asking, Request::AskDone { .. }) => match reply {
                Reply::Yes => self.end(Verdict::Answer(Outcome::Applied), &mut requests),
                Reply::No => self.claim(self.after(), &mut requests),
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

    fn looked(&mut self, reply: Reply, requests: &mut Requests) {
        let Reply::Document(document) = reply else {
            return self.end(Verdict::Answer(Outcome::Unknown), requests);
        };
        self.seen = document;
        let Some(before) = document else {
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
        self.claim(self.new_keys(), requests);
    }

    fn position(&self, key: Key) -> usize {
        self.keys.iter().position(|own| *own == key).unwrap_or(usize::MAX)
    }

    /// What came back for a claim, as an event; nothing is decided here.
    fn claimed(&mut self, request: &Request, reply: Reply, requests: &mut Requests) {
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
            self.rivals[position] = None;
        }
        let event = match (request, reply) {
            (_, Reply::Silence) => Event::Failed(position),
            (Request::Reserve { .. }, Reply::Written(_)) => Event::Reserved(position),
            (Request::Reserve { .. }, _) => Event::Taken(position),
            (Request::Read { .. }, Reply::Reservation(Some(there))) => {
                self.rivals[position] = Some(there);
                let rival = Rival {
                    token: there.token,
                    same_owner: there.owner == self.op.deed.id(),
                    // Whether one shard is asked first changes nothing but the number of looks.
                    has_route: false,
                    age: match there.is_over {
                        true => Age::Expired,
                        false => Age::InLease,
                    },
                };
                Event::Found(position, rival)
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

    fn written(&mut self, reply: Reply, requests: &mut Requests) {
        let is_insert = matches!(self.op.deed, Deed::Insert { .. });
        match reply {
            Reply::Applied { before: true } if is_insert => {
                self.step(&Event::Applied);
                self.stage = Stage::LookingForMoved(u8::try_from(self.keys.len()).unwrap_or(0));
                let owner = self.op.deed.id();
                let scope = Scope::Everywhere;
                requests.extend(self.keys.iter().map(|key| Request::LookUp {
                    key: *key,
                    owner,
                    scope,
                }));
            }
            Reply::Applied { .. } if is_insert || self.seen.is_none() => {
                self.step(&Event::Applied);
                self.end(Verdict::Answer(Outcome::Applied), requests);
            }
            Reply::Applied { .. } if self.op.retryable => {
                self.stage = Stage::LookingAgain;
                requests.push(Request::LookAt { id: self.op.deed.id() });
            }
            Reply::Applied { .. } => self.settle(self.after(), requests),
            Reply::DuplicateId => {
                self.step(&Event::NotApplied);
                self.end(Verdict::Answer(Outcome::DuplicateId), requests);
            }
            Reply::Lost => {
                self.stage = Stage::Claiming;
                self.since = None;
                self.step(&Event::Lost);
                self.go_on(requests);
            }
            // A strict change is one transaction: there is nothing, or a document is in its way.
            Reply::Missed if self.seen.is_none() => self.end(Verdict::Answer(Outcome::Nothing), requests),
            Reply::Obstacle(Some(key)) => self.end(Verdict::Answer(Outcome::Duplicate(key)), requests),
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
    fn settle(&mut self, held: Keys, requests: &mut Requests) {
        let is_new_held = self.keys.iter().all(|key| held.has(*key));
        self.step(match is_new_held {
            true => &Event::Applied,
            false => &Event::NotApplied,
        });
        let free = self.given_up.drain(..).filter(|(key, _)| !held.has(*key));
        requests.extend(given_up(free));
        self.end(Verdict::Answer(Outcome::Applied), requests);
    }

    /// Every time of a reservation that it knows of.
    pub fn times(&mut self, visit: &mut impl FnMut(&mut At)) {
        self.rivals.iter_mut().flatten().for_each(|rival| visit(&mut rival.at));
        self.given_up.iter_mut().for_each(|(_, seen)| visit(&mut seen.at));
        self.since.iter_mut().for_each(visit);
    }
}

fn given_up(seen: impl Iterator<Item = (Key, Reservation)>) -> Requests {
    seen.map(|(key, seen)| Request::DeleteSeen { key, seen }).collect()
}
