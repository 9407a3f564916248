//! Clients and their drivers: one operation after the other; a retryable one is sent again once, by another Keyward where
//! there is one.

use crate::simulation::history::{Fault, Happened};
use crate::simulation::plan::LEASE;
use crate::simulation::queue::Event;
use crate::simulation::workload::Simulation;
use crate::under_test::words::{Op, OpId, Outcome, TaskId};

impl Simulation {
    pub fn op_id(&self, client: u8) -> OpId {
        let index = self.clients[client as usize].answered;
        OpId { client, index }
    }

    fn op(&self, client: u8) -> Option<Op> {
        let index = self.clients[client as usize].answered;
        self.plan.programs[client as usize].get(usize::from(index)).copied()
    }

    pub fn call(&mut self, client: u8) {
        let Some(what) = self.op(client) else { return };
        let op = self.op_id(client);
        self.note(Happened::Called { op, what });
        self.clients[client as usize].try_number = Some(0);
        self.begin_try(client, 0);
    }

    pub fn begin_try(&mut self, client: u8, try_number: u8) {
        let alive: Vec<u8> = (0..self.plan.keywards)
            .filter(|keyward| self.keywards[*keyward as usize].is_alive)
            .collect();
        if alive.is_empty() {
            let at = self.now + LEASE / 20;
            return self.queue.push(at, Event::Begin { client, try_number });
        }
        let keyward = alive[self.random.below(alive.len() as u32) as usize];
        let task = TaskId {
            op: self.op_id(client),
            try_number,
        };
        if self.has_faults() && self.random.chance(self.plan.faults.give_up) {
            let at = self.now + self.random.magnitude(2 * LEASE);
            self.queue.push(at, Event::GiveUp { task });
        }
        self.begin_task(task, keyward);
    }

    /// Whether the client waits for this very try.
    pub fn is_awaited(&self, task: TaskId) -> bool {
        let client = &self.clients[task.op.client as usize];
        client.answered == task.op.index && client.try_number == Some(task.try_number)
    }

    /// A client has waited long enough. Its Keyward may hear of it or not.
    pub fn give_up(&mut self, task: TaskId) {
        if !self.is_awaited(task) || !self.tasks.contains_key(&task) {
            return;
        }
        self.note(Happened::Fault(Fault::ClientGaveUp));
        if self.random.chance(500) {
            self.end_task(task);
        }
        self.answer(task.op.client, Outcome::Unknown);
    }

    /// The client hears how its operation ended.
    pub fn answer(&mut self, client: u8, outcome: Outcome) {
        let (Some(what), Some(try_number)) = (self.op(client), self.clients[client as usize].try_number) else {
            return;
        };
        let op = self.op_id(client);
        let is_open = matches!(outcome, Outcome::Unknown | Outcome::Unsure);
        if is_open && what.retryable && try_number == 0 {
            self.note(Happened::SentAgain { op });
            self.clients[client as usize].try_number = Some(1);
            let at = self.now + self.random.between(1, 20);
            return self.queue.push(at, Event::Begin { client, try_number: 1 });
        }
        // Of an earlier try nothing is known either.
        let outcome = match is_open && try_number > 0 {
            true => Outcome::Unknown,
            false => outcome,
        };
        self.note(Happened::Answered { op, outcome });
        let client_state = &mut self.clients[client as usize];
        client_state.answered += 1;
        client_state.try_number = None;
        let at = self.now + self.random.magnitude(LEASE / 5);
        self.queue.push(at, Event::Call { client });
    }
}
