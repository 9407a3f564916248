//! Everything together as a [`Model`]: the states of a run, and every way it can go on.

use stateright::Model;

use crate::model::actions::{self, Action};
use crate::model::size::Store;
use crate::model::state::{Call, Client, State};
use crate::under_test::network::{Message, Reply, Request};
use crate::under_test::rules::{Broken, Rules};
use crate::under_test::task::Task;
use crate::under_test::words::{Deed, Id, Key, Keys, Op, OpId, Outcome, TaskId};

/// A run: what there is, who wants what, and how much may go wrong.
#[derive(Debug, Clone)]
pub struct System {
    pub rules: Rules,
    /// The documents at the beginning, each with its reservations unless the constraint is being built.
    pub documents: Vec<(Id, Keys)>,
    /// Each client's operations, one after the other.
    pub programs: Vec<Vec<Op>>,
    /// A document that is backfilled at some time, though its key is reserved.
    pub to_backfill: Option<Id>,
    /// How many of these may happen: a Keyward dies, a client loses its Keyward, a request is not answered in
    /// time, a primary is deposed.
    pub faults: u8,
}

impl System {
    pub fn op(&self, id: OpId) -> Op {
        self.programs[id.client as usize][id.index as usize]
    }

    fn begin(&self, state: &mut State, client: u8, try_number: u8) {
        let index = u8::try_from(state.clients[client as usize].outcomes.len()).unwrap_or(u8::MAX);
        let id = TaskId {
            op: OpId { client, index },
            try_number,
        };
        let (task, requests) = Task::begin(id, self.op(id.op), &self.rules);
        state.tasks.push(task);
        state.send(id, requests);
    }

    /// The client hears how its operation ended.
    fn answer(&self, state: &mut State, client: u8, outcome: Outcome) {
        let Some(call) = state.clients[client as usize].call.clone() else {
            return;
        };
        let index = u8::try_from(state.clients[client as usize].outcomes.len()).unwrap_or(u8::MAX);
        let is_open = matches!(outcome, Outcome::Unknown | Outcome::Unsure);
        if is_open && self.op(OpId { client, index }).retryable && call.try_number == 0 {
            state.clients[client as usize].call = Some(Call { try_number: 1, ..call });
            self.begin(state, client, 1);
            return;
        }
        if let Outcome::Duplicate(key) = outcome
            && !call.held.has(key)
        {
            state.wrong_duplicate = true;
        }
        // Of an earlier try nothing is known either.
        let outcome = match is_open && call.try_number > 0 {
            true => Outcome::Unknown,
            false => outcome,
        };
        if outcome.is_refusal() && state.store.effects_of(OpId { client, index }) > 0 {
            state.wrong_refusal = true;
        }
        let client = &mut state.clients[client as usize];
        client.outcomes.push((outcome, call.try_number > 0));
        client.call = None;
    }

    /// Whether the client waits for this very try.
    fn is_awaited(state: &State, task: TaskId) -> bool {
        let client = &state.clients[task.op.client as usize];
        client.outcomes.len() == task.op.index as usize
            && client
                .call
                .as_ref()
                .is_some_and(|call| call.try_number == task.try_number)
    }

    fn receive(&self, state: &mut State, message: &Message, reply: Reply) {
        let Some(id) = message.to else { return };
        let Some(task) = state.tasks.iter_mut().find(|task| task.id == id) else {
            return;
        };
        let requests = task.receive(&message.request, reply);
        state.send(id, requests);
        self.end_tasks(state);
    }

    fn end_tasks(&self, state: &mut State) {
        while let Some(index) = state.tasks.iter().position(|task| task.outcome().is_some()) {
            let task = state.tasks.remove(index);
            state.forget(|to| to == task.id);
            if let Some(outcome) = task.outcome()
                && Self::is_awaited(state, task.id)
            {
                self.answer(state, task.id.op.client, outcome);
            }
        }
    }

    fn arrive(&self, state: &mut State, mut message: Message) {
        state.take(&message);
        let sent = message.request.clone();
        match state
            .store
            .carry_out(&self.rules, &mut message.request, &mut state.network)
        {
            Some(reply) => {
                state.note_what_is_held();
                message.request = sent;
                self.receive(state, &message, reply);
            }
            // Whose Keyward is gone begins no transaction again.
            None if message.to.is_none() && state.is_back_at_the_start(&message) => {}
            None => state.network.push(message),
        }
    }

    fn lease_ends(&self, state: &mut State, key: Key) {
        let Some(reservation) = &mut state.store.reservations[key as usize] else {
            return;
        };
        reservation.is_over = true;
        let at = reservation.at;
        for task in &mut state.tasks {
            if task.since.is_some_and(|since| since <= at) {
                task.is_late = true;
                task.since = None;
            }
        }
        if self.rules.lease_holds {
            let is_ended = |message: &&Message| match &message.request {
                Request::Write(write) => write.since.is_some_and(|since| since <= at),
                _ => false,
            };
            let ended: Vec<Message> = state.network.iter().filter(is_ended).cloned().collect();
            for message in ended {
                state.take(&message);
                self.receive(state, &message, Reply::Silence);
            }
        }
    }

    /// A try ends without a word; its messages may still arrive.
    fn lose(&self, state: &mut State, is_lost: impl Fn(TaskId) -> bool) {
        let lost: Vec<TaskId> = state
            .tasks
            .iter()
            .map(|task| task.id)
            .filter(|id| is_lost(*id))
            .collect();
        state.tasks.retain(|task| !lost.contains(&task.id));
        state.forget(|to| lost.contains(&to));
        for id in lost {
            if Self::is_awaited(state, id) {
                self.answer(state, id.op.client, Outcome::Unknown);
            }
        }
    }
}

impl Model for System {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut store = Store::default();
        for (id, keys) in &self.documents {
            store.documents[*id as usize] = Some(*keys);
            let setup = OpId { client: 3, index: *id };
            let token = TaskId {
                op: setup,
                try_number: 0,
            }
            .token(0, false);
            if !self.rules.is_being_built {
                keys.iter().for_each(|key| store.reserve(key, *id, token));
            }
        }
        vec![State {
            store,
            network: Vec::new(),
            tasks: Vec::new(),
            clients: vec![Client::default(); self.programs.len()],
            faults: self.faults,
            to_backfill: self.to_backfill,
            is_deposed: false,
            wrong_duplicate: false,
            wrong_refusal: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions::actions(self, state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Call { client } => {
                state.clients[client as usize].call = Some(Call {
                    try_number: 0,
                    held: state.store.held(),
                });
                self.begin(&mut state, client, 0);
            }
            Action::Forward { task } => {
                let own = state.tasks.iter_mut().find(|own| own.id == task)?;
                let requests = own.forward(&self.rules);
                state.send(task, requests);
                self.end_tasks(&mut state);
            }
            Action::WaitOver { task } => {
                let own = state.tasks.iter_mut().find(|own| own.id == task)?;
                let requests = own.wait_is_over();
                state.send(task, requests);
            }
            Action::Arrive(message) => self.arrive(&mut state, message),
            Action::ArriveStale(message) => {
                if !state.is_deposed {
                    state.faults -= 1;
                    state.is_deposed = true;
                }
                state.take(&message);
                self.receive(&mut state, &message, Reply::No);
            }
            Action::TimeOut(message) => {
                state.faults -= 1;
                state.take(&message);
                if message.request.is_write() {
                    state.network.push(Message {
                        to: None,
                        ..message.clone()
                    });
                }
                let reply = message.request.unanswered(&self.rules);
                self.receive(&mut state, &message, reply);
            }
            Action::IsEnded(message) => {
                state.faults -= 1;
                state.take(&message);
                if self.rules.lacks(Broken::ReleaseLeftBehind) {
                    state.network.push(Message {
                        to: None,
                        ..message.clone()
                    });
                }
                self.receive(&mut state, &message, Reply::Busy);
            }
            Action::Duplicate(message) => {
                state.faults -= 1;
                state.network.push(Message { to: None, ..message });
            }
            Action::Vanish(message) => {
                state.take(&message);
                if let Request::Write(write) = &message.request {
                    state.store.abort(write);
                }
            }
            Action::LeaseEnds { key } => self.lease_ends(&mut state, key),
            Action::Sweep { key } => {
                let seen = state.store.reservations[key as usize]?;
                let request = Request::sweep(key, seen, &self.rules);
                state.network.push(Message { to: None, request });
            }
            Action::Backfill { id, key } => {
                state.to_backfill = None;
                let request = Request::Backfill { key, owner: id };
                state.network.push(Message { to: None, request });
            }
            Action::KeywardDies { keyward } => {
                state.faults -= 1;
                self.lose(&mut state, |id| self::keyward(id) == keyward);
            }
            Action::ClientIsCutOff { client } => {
                state.faults -= 1;
                self.answer(&mut state, client, Outcome::Unknown);
            }
            Action::RollBack { key } => {
                state.faults -= 1;
                state.store.reservations[key as usize] = None;
            }
        }
        state.renumber();
        Some(state)
    }

    fn properties(&self) -> Vec<stateright::Property<Self>> {
        crate::model::properties::all()
    }
}

/// An insert, and so on, that the driver sends again.
pub fn retryable(deed: Deed) -> Op {
    Op {
        deed,
        retryable: true,
        recalls: None,
    }
}

/// One that it doesn't.
pub fn once(deed: Deed) -> Op {
    Op {
        deed,
        retryable: false,
        recalls: None,
    }
}

/// A try goes through another Keyward than the one before it.
pub fn keyward(task: TaskId) -> u8 {
    (task.op.client + task.try_number) % 2
}
