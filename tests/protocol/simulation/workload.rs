//! One run: events in the order of virtual time, until every client has its answers and all has arrived.

use std::collections::BTreeMap;

use crate::simulation::checker::Violation;
use crate::simulation::cluster::{Cluster, Ticket};
use crate::simulation::history::{Fault, Happened, History};
use crate::simulation::plan::{LEASE, Plan, Time};
use crate::simulation::queue::{Event, Queue};
use crate::simulation::random::Random;
use crate::simulation::watch::Watch;
use crate::under_test::network::{Message, Reply, Request};
use crate::under_test::rules::Rules;
use crate::under_test::task::{Requests, Task};
use crate::under_test::words::TaskId;

/// A write is forwarded only within this part of the lease: as `src/write/lease_left.rs` has it.
const LATEST: Time = LEASE * 6 / 10;
/// How long a delayed message may take.
pub const DELAY_MAX: Time = 5 * LEASE;
/// How long after the last answer and the last fault everything has arrived, and the sweeper has been by. A sweeper needs more than a
/// lease without a fault: a Keyward that has just started doesn't know yet how old a reservation is.
const AFTERMATH: Time = 8 * LEASE;
/// How long clients may take, all in all, once nothing goes wrong any more.
const PATIENCE: Time = 400 * LEASE;

pub struct Simulation {
    pub plan: Plan,
    pub random: Random,
    pub now: Time,
    pub queue: Queue,
    pub cluster: Cluster,
    pub keywards: Vec<Keyward>,
    pub clients: Vec<Client>,
    /// Who is at what.
    pub tasks: BTreeMap<TaskId, Running>,
    /// Who waits for the reply to which request.
    pub outstanding: BTreeMap<Ticket, (TaskId, Request)>,
    /// Strict inserts under way in the cluster, and their tickets in the same order.
    pub transactions: Vec<Message>,
    pub transaction_tickets: Vec<Ticket>,
    pub history: History,
    tickets: Ticket,
}

#[derive(Debug)]
pub struct Keyward {
    pub is_alive: bool,
    pub paused_until: Time,
    pub watch: Watch,
}

#[derive(Debug, Default)]
pub struct Client {
    /// How many operations have been answered.
    pub answered: u8,
    /// Which try of the next one is awaited.
    pub try_number: Option<u8>,
}

pub struct Running {
    pub task: Task,
    pub keyward: u8,
    /// Whether an event that looks after it is on its way.
    is_looked_after: bool,
}

/// Runs what the seed stands for.
pub fn run(rules: Rules, seed: u64, keeps_log: bool) -> History {
    let mut random = Random::new(seed);
    let plan = Plan::new(rules, &mut random);
    let mut simulation = Simulation {
        now: 0,
        queue: Queue::default(),
        cluster: Cluster::new(plan.shards),
        keywards: (0..plan.keywards)
            .map(|_| Keyward {
                is_alive: true,
                paused_until: 0,
                watch: Watch::default(),
            })
            .collect(),
        clients: plan.programs.iter().map(|_| Client::default()).collect(),
        tasks: BTreeMap::new(),
        outstanding: BTreeMap::new(),
        transactions: Vec::new(),
        transaction_tickets: Vec::new(),
        history: History::default(),
        tickets: 0,
        random,
        plan,
    };
    simulation.history.log = keeps_log.then(Vec::new);
    simulation.history.checker.faults_until = simulation.plan.faults.until;
    simulation.begin();
    simulation.go();
    simulation.history
}

impl Simulation {
    fn begin(&mut self) {
        for client in 0..self.clients.len() {
            let at = self.random.below(LEASE / 10);
            self.queue.push(at, Event::Call { client: client as u8 });
        }
        let faults = self.plan.faults;
        for (every, event) in [
            (faults.crash_every, Event::Die),
            (faults.pause_every, Event::Pause),
            (faults.step_down_every, Event::StepDown),
            (faults.backfill_every, Event::Backfill),
            (faults.leap_every, Event::Leap),
        ] {
            self.again(every, event);
        }
        self.queue.push(LEASE / 3, Event::Sweep);
        for shard in &mut self.cluster.shards {
            shard.skew = self.random.skew(faults.skew);
        }
        for keyward in 0..self.plan.keywards {
            let at = self.random.below(LEASE / 4);
            self.queue.push(at, Event::Look { keyward });
        }
    }

    /// A fault that comes back, as long as there are faults.
    pub fn again(&mut self, every: Time, event: Event) {
        let at = self.now + self.random.below(2 * every);
        if every > 0 && at < self.plan.faults.until {
            self.queue.push(at, event);
        }
    }

    fn go(&mut self) {
        let mut end = None;
        while let Some((at, event)) = self.queue.pop() {
            self.now = at;
            if self.history.violation.is_some() {
                return;
            }
            if end.is_none() && self.is_over() {
                end = Some(self.now.max(self.plan.faults.until) + AFTERMATH);
            }
            if end.is_some_and(|end| self.now > end) {
                self.note(Happened::Quiet);
                return;
            }
            if self.now > self.plan.faults.until + PATIENCE {
                break;
            }
            self.happen(event);
        }
        let stuck = self.clients.iter().position(|client| client.try_number.is_some());
        let client = stuck.unwrap_or(0);
        let op = self.op_id(client as u8);
        self.history.violation.get_or_insert(Violation::Unanswered { op });
    }

    fn is_over(&self) -> bool {
        let is_done = |(client, program): (&Client, &Vec<_>)| usize::from(client.answered) == program.len();
        self.tasks.is_empty()
            && self.transactions.is_empty()
            && self.clients.iter().zip(&self.plan.programs).all(is_done)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Call { client } => self.call(client),
            Event::Begin { client, try_number } => self.begin_try(client, try_number),
            Event::GiveUp { task } => self.give_up(task),
            Event::Forward { task } => {
                if let Some(later) = self.paused_until(task) {
                    return self.queue.push(later, Event::Forward { task });
                }
                self.forward(task);
            }
            Event::WaitOver { task } => {
                if let Some(later) = self.paused_until(task) {
                    return self.queue.push(later, Event::WaitOver { task });
                }
                let Some(running) = self.tasks.get_mut(&task) else {
                    return;
                };
                running.is_looked_after = false;
                let requests = match running.task.waits_for() {
                    Some(_) => running.task.wait_is_over(),
                    None => Vec::new(),
                };
                self.look_after(task, requests);
            }
            Event::Arrive {
                ticket,
                message,
                was_slow,
            } => self.arrive(ticket, *message, was_slow),
            Event::Advance { ticket } => self.advance(ticket),
            Event::Reply { ticket, reply } => self.receive(ticket, reply),
            Event::Confirm { shard, term, up_to } => {
                if self.cluster.shards[shard].term == term {
                    for (ticket, reply) in self.cluster.shards[shard].confirm(up_to) {
                        self.reply(ticket, reply);
                    }
                }
            }
            Event::Sweep => self.sweep(),
            Event::Backfill => self.backfill_documents(),
            Event::Die => self.die(),
            Event::Restart { keyward } => self.keywards[keyward as usize].is_alive = true,
            Event::Pause => self.pause(),
            Event::StepDown => self.step_down(),
            Event::Look { keyward } => self.look_at_the_clocks(keyward),
            Event::Bring(brought) => self.bring(brought),
            Event::Brought { brought, term } => self.brought(brought, term),
            Event::Leap => self.leap(),
        }
    }

    pub fn note(&mut self, happened: Happened) {
        self.history.note(self.now, happened);
    }

    pub fn has_faults(&self) -> bool {
        self.now < self.plan.faults.until
    }

    /// Whether this fault befalls what happens now.
    pub fn befalls(&mut self, per_mille: u32, fault: Fault) -> bool {
        let befalls = self.has_faults() && self.random.chance(per_mille);
        if befalls {
            self.note(Happened::Fault(fault));
        }
        befalls
    }

    pub fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        self.tickets
    }

    fn paused_until(&self, task: TaskId) -> Option<Time> {
        let running = self.tasks.get(&task)?;
        let until = self.keywards[running.keyward as usize].paused_until;
        (until > self.now).then_some(until)
    }

    fn forward(&mut self, id: TaskId) {
        let rules = self.plan.rules;
        let Some(running) = self.tasks.get_mut(&id) else { return };
        running.is_looked_after = false;
        let task = &mut running.task;
        let mut requests = Vec::new();
        if task.may_forward() {
            task.is_late = task.since.is_some_and(|since| self.now.saturating_sub(since) > LATEST);
            requests = task.forward(&rules);
        }
        self.look_after(id, requests);
    }

    fn receive(&mut self, ticket: Ticket, mut reply: Reply) {
        let Some((task, _)) = self.outstanding.get(&ticket) else {
            return;
        };
        if let Some(later) = self.paused_until(*task) {
            return self.queue.push(later, Event::Reply { ticket, reply });
        }
        let Some((id, request)) = self.outstanding.remove(&ticket) else {
            return;
        };
        if let (Reply::Reservation(Some(there)), Some(running)) = (&mut reply, self.tasks.get(&id)) {
            there.is_over = self.is_over_for(running.keyward, there);
        }
        let Some(running) = self.tasks.get_mut(&id) else { return };
        let requests = running.task.receive(&request, reply);
        if self.history.log.is_some() {
            self.note(Happened::Received {
                task: id,
                request,
                reply,
            });
        }
        self.look_after(id, requests);
    }

    /// Sends what the task asks for, and sees to it that it goes on.
    pub fn look_after(&mut self, id: TaskId, requests: Requests) {
        for request in requests {
            self.send(id, request);
        }
        let Some(running) = self.tasks.get_mut(&id) else { return };
        if let Some(outcome) = running.task.outcome() {
            self.end_task(id);
            if self.is_awaited(id) {
                self.answer(id.op.client, outcome);
            }
            return;
        }
        if running.is_looked_after {
            return;
        }
        if running.task.may_forward() {
            running.is_looked_after = true;
            let at = self.now + self.random.between(1, 5);
            self.queue.push(at, Event::Forward { task: id });
        } else if running.task.waits_for().is_some() {
            running.is_looked_after = true;
            let at = self.now + self.random.between(LEASE / 100, LEASE / 6);
            self.queue.push(at, Event::WaitOver { task: id });
        }
    }

    pub fn begin_task(&mut self, id: TaskId, keyward: u8) {
        let op = self.plan.programs[id.op.client as usize][id.op.index as usize];
        let (task, requests) = Task::begin(id, op, &self.plan.rules);
        self.note(Happened::Begun { task: id, keyward });
        self.tasks.insert(
            id,
            Running {
                task,
                keyward,
                is_looked_after: false,
            },
        );
        self.look_after(id, requests);
    }

    /// Nobody waits for the replies any more.
    pub fn end_task(&mut self, id: TaskId) {
        self.tasks.remove(&id);
        self.outstanding.retain(|_, (task, _)| *task != id);
    }
}
