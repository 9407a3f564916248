//! Everything together as a [`Model`]: the states of a run, and every way it can go on.

use stateright::Model;

use crate::network::{Message, Phase, Reply, Request};
use crate::rules::{Broken, Rules};
use crate::store::{KEYS, Reservation, Store};
use crate::task::{Requests, Task};
use crate::words::{At, Deed, Id, Key, Keys, Op, OpId, Outcome, TaskId};
use keyward::reservation::Scope;

/// A run: what there is, who wants what, and how much may go wrong.
#[derive(Debug, Clone)]
pub struct System {
    pub rules: Rules,
    /// The documents at the beginning, each with its reservations.
    pub documents: Vec<(Id, Keys)>,
    /// Each client's operations, one after the other.
    pub programs: Vec<Vec<Op>>,
    /// How many of these may happen: a Keyward dies, a client loses its Keyward, a request is not answered in
    /// time, a primary is deposed.
    pub faults: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub store: Store,
    pub network: Vec<Message>,
    pub tasks: Vec<Task>,
    pub clients: Vec<Client>,
    faults: u8,
    /// A primary is deposed, and doesn't know.
    is_deposed: bool,
    /// A duplicate was reported of a key that nobody held.
    pub wrong_duplicate: bool,
    /// A refusal was reported of what had taken effect.
    pub wrong_refusal: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Client {
    call: Option<Call>,
    /// Each with whether the driver had sent it again.
    pub outcomes: Vec<(Outcome, bool)>,
}

/// A client's operation under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Call {
    try_number: u8,
    /// Keys that a document has held at some moment since it began.
    held: Keys,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Call {
        client: u8,
    },
    Forward {
        task: TaskId,
    },
    WaitOver {
        task: TaskId,
    },
    Arrive(Message),
    /// It is answered by a deposed primary.
    ArriveStale(Message),
    /// Whoever sent it gives it up; it may still arrive.
    TimeOut(Message),
    /// The server ends a transaction whose Keyward is gone.
    Vanish(Message),
    LeaseEnds {
        key: Key,
    },
    /// The sweeper finds a reservation whose lease is over and whose owner isn't there: what follows from it is on its way.
    Sweep {
        key: Key,
    },
    KeywardDies {
        keyward: u8,
    },
    ClientIsCutOff {
        client: u8,
    },
    /// A step-down undoes a reservation that a majority hasn't got.
    RollBack {
        key: Key,
    },
}

impl System {
    fn op(&self, id: OpId) -> Op {
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

impl State {
    fn send(&mut self, from: TaskId, requests: Requests) {
        self.network.extend(requests.into_iter().map(|request| Message {
            to: Some(from),
            request,
        }));
    }

    fn take(&mut self, message: &Message) {
        if let Some(index) = self.network.iter().position(|other| other == message) {
            self.network.remove(index);
        }
    }

    /// Nobody waits for these replies any more; what would only have told something is gone.
    fn forget(&mut self, is_gone: impl Fn(TaskId) -> bool) {
        for message in &mut self.network {
            if message.to.is_some_and(&is_gone) {
                message.to = None;
            }
        }
        self.network
            .retain(|message| message.to.is_some() || message.request.is_write());
    }

    fn is_back_at_the_start(&self, message: &Message) -> bool {
        matches!(&message.request, Request::Write(write) if write.phase == Phase::Sent)
    }

    fn note_what_is_held(&mut self) {
        let held = self.store.held();
        for call in self.clients.iter_mut().filter_map(|client| client.call.as_mut()) {
            call.held = call.held.and(held);
        }
    }

    /// Only the order of times counts, and only of those that somebody knows.
    fn renumber(&mut self) {
        fn visit_all(state: &mut State, visit: &mut impl FnMut(&mut At)) {
            state
                .store
                .reservations
                .iter_mut()
                .flatten()
                .for_each(|there| visit(&mut there.at));
            state
                .network
                .iter_mut()
                .for_each(|message| message.request.times(visit));
            state.tasks.iter_mut().for_each(|task| task.times(visit));
        }
        let mut known = Vec::new();
        visit_all(self, &mut |at| known.push(*at));
        known.sort_unstable();
        known.dedup();
        let rank = |at: At| At::try_from(known.partition_point(|other| *other < at) + 1).unwrap_or(At::MAX);
        visit_all(self, &mut |at| *at = rank(*at));
        self.store.clock = At::try_from(known.len()).unwrap_or(At::MAX);
        self.network.sort_unstable();
        self.tasks.sort_unstable_by_key(|task| task.id);
    }

    /// Nobody is at anything, and nobody wants anything more. What is still on its way may as well never arrive.
    pub fn is_quiet(&self, system: &System) -> bool {
        self.tasks.is_empty()
            && !self.store.locked.iter().any(Option::is_some)
            && self
                .clients
                .iter()
                .zip(&system.programs)
                .all(|(client, program)| client.outcomes.len() == program.len())
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
            keys.iter().for_each(|key| store.reserve(key, *id, token));
        }
        vec![State {
            store,
            network: Vec::new(),
            tasks: Vec::new(),
            clients: vec![Client::default(); self.programs.len()],
            faults: self.faults,
            is_deposed: false,
            wrong_duplicate: false,
            wrong_refusal: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (number, client) in state.clients.iter().enumerate() {
            let client_number = u8::try_from(number).unwrap_or(u8::MAX);
            match &client.call {
                None if client.outcomes.len() < self.programs[number].len() => {
                    actions.push(Action::Call { client: client_number });
                }
                // A client that won't send it again only stops listening: the same as a late answer.
                Some(call) if state.faults > 0 && call.try_number == 0 => {
                    let index = u8::try_from(client.outcomes.len()).unwrap_or(u8::MAX);
                    if self
                        .op(OpId {
                            client: client_number,
                            index,
                        })
                        .retryable
                    {
                        actions.push(Action::ClientIsCutOff { client: client_number });
                    }
                }
                _ => {}
            }
        }
        for task in &state.tasks {
            if task.may_forward() {
                actions.push(Action::Forward { task: task.id });
            }
            if let Some((rival, keys)) = task.waits_for() {
                let is_undecided = |key: &Key| {
                    state.store.reservations[*key as usize].is_some_and(|there| {
                        there.token == rival && !there.is_over && !state.store.holds(there.owner, *key)
                    })
                };
                if !keys.iter().any(is_undecided) {
                    actions.push(Action::WaitOver { task: task.id });
                }
            }
        }
        for (index, message) in state.network.iter().enumerate() {
            if index > 0 && state.network[index - 1] == *message {
                continue;
            }
            let is_blocked = match &message.request {
                Request::Write(write) if self.rules.is_strict() => {
                    state.store.is_locked_for(write) || state.store.is_in_the_way(write)
                }
                _ => false,
            };
            if !is_blocked {
                actions.push(Action::Arrive(message.clone()));
            }
            let is_open = matches!(&message.request, Request::Write(write) if write.phase == Phase::Open);
            // Anything else that never arrives is like one that hasn't arrived yet.
            if message.to.is_none() && is_open {
                actions.push(Action::Vanish(message.clone()));
            }
            if message.to.is_some() && state.faults > 0 {
                actions.push(Action::TimeOut(message.clone()));
            }
            let fenced = !self.rules.lacks(Broken::LookWithoutFence);
            if let Request::LookUp { key, owner, scope } = &message.request
                && (state.is_deposed || state.faults > 0)
                && !(*scope == Scope::Fenced && fenced)
                && state.store.holds(*owner, *key)
            {
                actions.push(Action::ArriveStale(message.clone()));
            }
        }
        // Leases are equal: the one that began first ends first.
        let running = (0..KEYS).filter_map(|key| {
            let there = state.store.reservations[key].filter(|there| !there.is_over)?;
            Some((there.at, Key::try_from(key).unwrap_or(Key::MAX)))
        });
        if let Some((_, key)) = running.min() {
            actions.push(Action::LeaseEnds { key });
        }
        for key in 0..Key::try_from(KEYS).unwrap_or(Key::MAX) {
            let is_stale = |there: Reservation| {
                there.is_over && (!state.store.holds(there.owner, key) || self.rules.lacks(Broken::LookWithoutOwner))
            };
            let is_at_it = state
                .network
                .iter()
                .any(|message| message.to.is_none() && message.request.deletes(key));
            if !is_at_it && state.store.reservations[key as usize].is_some_and(is_stale) {
                actions.push(Action::Sweep { key });
            }
        }
        if state.faults > 0 {
            for keyward in 0..2 {
                if state.tasks.iter().any(|task| task.id.keyward() == keyward) {
                    actions.push(Action::KeywardDies { keyward });
                }
            }
            if self.rules.lacks(Broken::WithoutMajority) {
                let keys = 0..Key::try_from(KEYS).unwrap_or(Key::MAX);
                let there = keys.filter(|key| state.store.reservations[*key as usize].is_some());
                actions.extend(there.map(|key| Action::RollBack { key }));
            }
        }
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
                self.receive(&mut state, &message, Reply::Silence);
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
                let request = match self.rules.is_strict() {
                    true => Request::TakeOver {
                        key,
                        seen,
                        anew: None,
                        from_absent: true,
                    },
                    false => Request::DeleteSeen { key, seen },
                };
                state.network.push(Message { to: None, request });
            }
            Action::KeywardDies { keyward } => {
                state.faults -= 1;
                self.lose(&mut state, |id| id.keyward() == keyward);
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
        crate::properties::all()
    }
}

/// An insert, and so on, that the driver sends again.
pub fn retryable(deed: Deed) -> Op {
    Op { deed, retryable: true }
}

/// One that it doesn't.
pub fn once(deed: Deed) -> Op {
    Op { deed, retryable: false }
}
