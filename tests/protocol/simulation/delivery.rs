//! Requests and replies on their way, and what goes wrong there.

use crate::simulation::cluster::{Carried, Change, Ticket, waits_for_a_majority};
use crate::simulation::history::{Fault, Happened};
use crate::simulation::plan::{LEASE, Time};
use crate::simulation::queue::Event;
use crate::simulation::workload::{DELAY_MAX, Simulation};
use crate::under_test::network::{Message, Phase, Reply, Request, Write};
use crate::under_test::rules::Broken;
use crate::under_test::words::{Deed, OpId, TaskId};
use keyward::reservation::Scope;

/// How long a compensating write may be on its way: `src/write/lease_left.rs` keeps this part of the lease back.
const WAY_MAX: Time = LEASE / 10;
/// How long a request may take before its sender gives it up.
const TIMEOUT: Time = LEASE / 2;

impl Simulation {
    pub fn send(&mut self, task: TaskId, request: Request) {
        let ticket = self.ticket();
        if self.history.log.is_some() {
            let request = request.clone();
            self.note(Happened::Sent { task, request });
        }
        let timeout = match request {
            Request::Write(_) => LEASE,
            _ => TIMEOUT,
        };
        let reply = request.unanswered(&self.plan.rules);
        self.queue.push(self.now + timeout, Event::Reply { ticket, reply });
        self.outstanding.insert(ticket, (task, request.clone()));
        let message = Message {
            to: Some(task),
            request,
        };
        let way_max = match self.ends_in_time(&message.request) {
            true => WAY_MAX,
            false => DELAY_MAX,
        };
        if self.befalls(self.plan.faults.drop, Fault::RequestLost) {
            return;
        }
        if matches!(message.request, Request::Reserve { .. }) && self.befalls(self.plan.faults.delay, Fault::LetBe) {
            let at = self.now + self.random.between(1, LEASE / 6);
            let reply = Reply::Busy;
            self.queue.push(at, Event::Reply { ticket, reply });
            return self.put_on_its_way(ticket, message, 2 * LEASE);
        }
        if message.request.may_be_ended() && self.befalls(self.plan.faults.delay, Fault::Ended) {
            let at = self.now + self.random.between(1, LEASE / 6);
            let reply = Reply::Busy;
            self.queue.push(at, Event::Reply { ticket, reply });
            if self.plan.rules.lacks(Broken::ReleaseLeftBehind) {
                let way = self.random.between(1, LEASE);
                self.arrives_after(way, ticket, message);
            }
            return;
        }
        if message.request.may_come_twice() && self.befalls(self.plan.faults.duplicate, Fault::Duplicated) {
            self.put_on_its_way(ticket, message.clone(), way_max);
        }
        self.put_on_its_way(ticket, message, way_max);
    }

    /// Sends what nobody waits for.
    pub fn transmit(&mut self, message: Message, usual: Time) {
        let ticket = self.ticket();
        let extra = self.random.below(usual);
        if self.befalls(self.plan.faults.delay, Fault::Delayed) {
            return self.put_on_its_way(ticket, message, DELAY_MAX);
        }
        self.arrives_after(1 + extra, ticket, message);
    }

    fn put_on_its_way(&mut self, ticket: Ticket, message: Message, way_max: Time) {
        let way = match self.befalls(self.plan.faults.delay, Fault::Delayed) {
            true => self.random.magnitude(way_max),
            false => self.random.between(1, 20),
        };
        self.arrives_after(way, ticket, message);
    }

    fn arrives_after(&mut self, way: Time, ticket: Ticket, message: Message) {
        let message = Box::new(message);
        let was_slow = false;
        let arrival = Event::Arrive {
            ticket,
            message,
            was_slow,
        };
        self.queue.push(self.now + way, arrival);
    }

    /// Whether the lease bounds how long this write may take.
    fn ends_in_time(&self, request: &Request) -> bool {
        let is_forwarded = |write: &Write| {
            write.since.is_some() && !self.plan.rules.is_strict() && !write.deed.runs_in_a_transaction(&self.plan.rules)
        };
        self.plan.rules.lease_holds && matches!(request, Request::Write(write) if is_forwarded(write))
    }

    fn has_receiver(&self, ticket: Ticket) -> bool {
        self.outstanding.contains_key(&ticket)
    }

    pub fn arrive(&mut self, ticket: Ticket, message: Message, was_slow: bool) {
        let rules = self.plan.rules;
        let request = &message.request;
        if !request.is_write() && !self.has_receiver(ticket) {
            return;
        }
        if let Request::LookUp { scope, .. } = request
            && *scope == Scope::Linearizable
            && !rules.lacks(Broken::LookNotLinearizable)
        {
            // A deposed primary knows that it can't answer.
        } else if self.has_faults()
            && self.random.chance(self.plan.faults.stale)
            && let Some(reply) = self.cluster.former_reply(&rules, request, self.now)
        {
            self.note(Happened::Fault(Fault::AskedADeposedPrimary));
            if let (Request::LookUp { key, .. }, Reply::Yes) = (request, reply) {
                self.note(Happened::ShownByADeposedPrimary { key: *key });
            }
            return self.reply(ticket, reply);
        }
        if let Request::Write(write) = request {
            if write.deed.runs_in_a_transaction(&rules) || rules.is_strict() {
                if !self.has_receiver(ticket) && self.random.chance(500) {
                    return;
                }
                let is_locked = self.cluster.store.is_locked_for(write);
                match write.deed {
                    Deed::Insert { .. } => return self.open(ticket, message),
                    _ if is_locked => {
                        let at = self.now + self.random.between(10, LEASE / 20);
                        let message = Box::new(message);
                        return self.queue.push(
                            at,
                            Event::Arrive {
                                ticket,
                                message,
                                was_slow,
                            },
                        );
                    }
                    _ => {}
                }
            } else if !was_slow && self.is_slow_or_ended(ticket, &message) {
                return;
            }
        }
        self.carry_out(ticket, message);
    }

    /// The server takes its time for a write, and ends it before the lease is over.
    fn is_slow_or_ended(&mut self, ticket: Ticket, message: &Message) -> bool {
        let Request::Write(write) = &message.request else {
            return false;
        };
        let latest = write
            .since
            .map(|since| since + LEASE)
            .filter(|_| self.plan.rules.lease_holds);
        if latest.is_some_and(|latest| self.now >= latest) {
            self.note(Happened::Fault(Fault::EndedByTheServer));
            self.reply(ticket, Reply::Silence);
            return true;
        }
        if !self.befalls(self.plan.faults.slow, Fault::Slow) {
            return false;
        }
        let end = latest.unwrap_or(self.now + LEASE);
        let at = self.now + self.random.below(end - self.now);
        let message = Box::new(message.clone());
        self.queue.push(
            at,
            Event::Arrive {
                ticket,
                message,
                was_slow: true,
            },
        );
        true
    }

    fn carry_out(&mut self, ticket: Ticket, mut message: Message) {
        self.cluster.at(self.now);
        let carried = self
            .cluster
            .carry_out(&self.plan.rules, &mut message.request, &mut self.transactions);
        self.note_carried(&carried);
        if let Some(reply) = carried.reply {
            self.answer_once_sure(ticket, &message.request, reply);
        }
    }

    /// A strict insert begins its transaction.
    fn open(&mut self, ticket: Ticket, message: Message) {
        self.transactions.push(message);
        self.transaction_tickets.push(ticket);
        self.advance(ticket);
    }

    /// One step of a strict insert's transaction; any time may pass before the next.
    pub fn advance(&mut self, ticket: Ticket) {
        let Some(index) = self.transaction_tickets.iter().position(|own| *own == ticket) else {
            return;
        };
        self.transaction_tickets.swap_remove(index);
        let mut message = self.transactions.swap_remove(index);
        let Request::Write(write) = &message.request else {
            return;
        };
        // Who sent it is gone: what was to come next may be on its way already.
        if !self.has_receiver(ticket) && (write.phase == Phase::Sent || self.random.chance(500)) {
            return self.cluster.store.abort(write);
        }
        self.cluster.at(self.now);
        let carried = self
            .cluster
            .carry_out(&self.plan.rules, &mut message.request, &mut self.transactions);
        self.note_carried(&carried);
        match carried.reply {
            Some(reply) => self.answer_once_sure(ticket, &message.request, reply),
            None => {
                self.transactions.push(message);
                self.transaction_tickets.push(ticket);
                let way = match self.befalls(self.plan.faults.delay, Fault::Delayed) {
                    true => self.random.magnitude(DELAY_MAX),
                    false => self.random.between(1, 20),
                };
                self.queue.push(self.now + way, Event::Advance { ticket });
            }
        }
    }

    /// Tells the checker what is there now.
    pub fn note_changes(&mut self, changes: &[Change], of_effect: impl Fn(OpId) -> Happened) {
        let mut documents = Vec::new();
        for change in changes {
            match change {
                Change::Document(id, _) => documents.push((*id, self.cluster.store.documents[*id as usize])),
                Change::Reservation(key, _) => {
                    let there = self.cluster.store.reservations[*key as usize];
                    let owner = there.map(|there| there.owner);
                    self.note(Happened::Reservation { key: *key, owner });
                }
                Change::Effect(op) => self.note(of_effect(*op)),
            }
        }
        if !documents.is_empty() {
            self.note(Happened::Documents(documents));
        }
    }

    fn note_carried(&mut self, carried: &Carried) {
        self.note_changes(&carried.changes, |op| Happened::TookEffect { op });
        if let Some((shard, up_to)) = carried.unconfirmed {
            let term = self.cluster.shards[shard].term;
            let at = self.now + 1 + self.random.below(self.plan.faults.lag);
            self.queue.push(at, Event::Confirm { shard, term, up_to });
        }
    }

    fn answer_once_sure(&mut self, ticket: Ticket, request: &Request, reply: Reply) {
        let shard = self.cluster.of_request(request);
        let shard = &mut self.cluster.shards[shard];
        match waits_for_a_majority(request, &self.plan.rules) && !shard.is_confirmed() {
            true => shard.keep(ticket, reply),
            false => self.reply(ticket, reply),
        }
    }

    pub fn reply(&mut self, ticket: Ticket, reply: Reply) {
        if !self.has_receiver(ticket) || self.befalls(self.plan.faults.drop, Fault::ReplyLost) {
            return;
        }
        let way = match self.befalls(self.plan.faults.delay, Fault::Delayed) {
            true => self.random.magnitude(LEASE),
            false => self.random.between(1, 20),
        };
        self.queue.push(self.now + way, Event::Reply { ticket, reply });
    }
}
