//! Everything together as a [`Model`]: the worlds, what can be taken away, and what must hold.

use stateright::{Model, Property};

use crate::fleet_model::cluster::{Declared, Enforcing, Keyward, Message, Registered, Rejoining, Reload, State};

/// Whenever the state reads `enforced`.
pub const SOUND: &str = "enforced: the key is one document's, reserved for it, and nobody writes without reserving";
pub const ENFORCED: &str = "it is enforced, after whatever has gone wrong";
const STAYS: &str = "what was acknowledged is there";

/// How a Keyward is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    With,
    Without,
    /// Without; the constraint comes by a reload.
    Reloaded,
    /// With; a reload takes the constraint away.
    GivingUp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum World {
    /// One has the constraint; the other begins to write without it.
    Newcomer,
    /// Who wrote without the constraint is started again with it.
    Restarted,
    /// Who writes without the constraint gets it by a reload.
    Reloaded,
    /// Who has the constraint loses it by a reload.
    GivenUp,
    /// Who had the constraint is started again without it.
    Left,
}

/// What is taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    RegisterUnread,
    ForwardsFirst,
    EpochEndedFirst,
    RegisterBeforeEpoch,
    EpochIgnored,
    ListedUndrained,
    EvictedEarly,
    LeaseUnlooked,
    SentUnlooked,
    NotedUnderAnOldEntry,
    EntryKeptAfterLateChange,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Start(u8),
    Declare(u8),
    Write(u8),
    Enforce(u8),
    Reload(u8),
    Rejoin(u8),
    /// It ends properly.
    Stop(u8),
    Kill(u8),
    /// It couldn't renew its entry in time: it was stopped, say. What it does next it does as it continues.
    LeaseEnds(u8),
    Renew(u8),
    /// A change of its entry isn't answered, and the reload is taken back.
    ChangeIsLate(u8),
    Arrive(Message),
    /// What a Keyward sent that is gone, or doesn't wait any more, never arrives.
    Lose(Message),
    Evict(u8),
}

#[derive(Debug, Clone)]
pub struct System {
    pub starts: [&'static [Start]; 2],
    pub faults: u8,
    pub broken: Option<Broken>,
}

impl System {
    pub fn of(world: World, faults: u8, broken: Option<Broken>) -> System {
        const WITH: &[Start] = &[Start::With];
        let starts: [&'static [Start]; 2] = match world {
            World::Newcomer => [&[Start::Without], WITH],
            World::Restarted => [&[Start::Without, Start::With], WITH],
            World::Reloaded => [&[Start::Reloaded], WITH],
            World::GivenUp => [&[Start::GivingUp], WITH],
            World::Left => [&[Start::With, Start::Without], WITH],
        };
        System { starts, faults, broken }
    }

    pub fn lacks(&self, guard: Broken) -> bool {
        self.broken == Some(guard)
    }

    pub fn kind(&self, number: u8, keyward: &Keyward) -> Start {
        self.starts[usize::from(number)][usize::from(keyward.starts) - 1]
    }

    /// Whether others may take an entry away: by time, or because whoever wrote it is gone.
    fn may_evict(&self, state: &State, entry: &Registered) -> bool {
        let keyward = &state.keywards[usize::from(entry.of)];
        let is_new = match keyward.rejoining {
            Rejoining::No => false,
            Rejoining::Inserted(id) | Rejoining::EpochEnded(id) => id == entry.id,
        };
        let is_renewed = keyward.runs && (is_new || keyward.id == entry.id && keyward.may_write);
        !is_renewed && (self.lacks(Broken::EvictedEarly) || !state.has_unreserved(entry.of))
    }
}

// A Keyward steps whenever it likes, so one that is stopped is one that makes no step; that its lease is over is all that remains.
impl Model for System {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let keyward = Keyward {
            starts: 0,
            runs: false,
            reserves: false,
            wants: (false, false),
            id: 0,
            is_change_lost: false,
            may_write: false,
            declared: Declared::No,
            rejoining: Rejoining::No,
            enforcing: Enforcing::Idle,
            reload: Reload::None,
            has_decided: false,
            unsent: None,
            is_acknowledged: false,
        };
        vec![State {
            register: Vec::new(),
            next_id: 1,
            epoch: 1,
            enforced_in: None,
            documents: [false; 2],
            reserved_for: None,
            network: Vec::new(),
            keywards: [keyward.clone(), keyward],
            faults: self.faults,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for number in 0..2_u8 {
            let keyward = &state.keywards[usize::from(number)];
            if !keyward.runs {
                if usize::from(keyward.starts) < self.starts[usize::from(number)].len() {
                    actions.push(Action::Start(number));
                }
                continue;
            }
            actions.extend([
                Action::Declare(number),
                Action::Write(number),
                Action::Enforce(number),
                Action::Reload(number),
                Action::Rejoin(number),
                Action::Stop(number),
            ]);
            if !keyward.may_write {
                actions.push(Action::Renew(number));
            }
            if state.faults > 0 {
                actions.push(Action::Kill(number));
                if keyward.may_write {
                    actions.push(Action::LeaseEnds(number));
                }
                actions.push(Action::ChangeIsLate(number));
            }
        }
        for (index, message) in state.network.iter().enumerate() {
            if index > 0 && state.network[index - 1] == *message {
                continue;
            }
            actions.push(Action::Arrive(*message));
            let is_awaited = match message {
                Message::Insert { of, start, .. } => {
                    let keyward = &state.keywards[usize::from(*of)];
                    keyward.runs && keyward.starts == *start
                }
                Message::List { .. } | Message::Enforce { .. } => false,
            };
            if !is_awaited {
                actions.push(Action::Lose(*message));
            }
        }
        let evictable = state.register.iter().filter(|entry| self.may_evict(state, entry));
        actions.extend(evictable.map(|entry| Action::Evict(entry.id)));
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        let is_done = match action {
            Action::Start(number) => self.start(&mut state, number),
            Action::Declare(number) => self.declare(&mut state, number),
            Action::Write(number) => self.write(&mut state, number),
            Action::Enforce(number) => self.enforce(&mut state, number),
            Action::Reload(number) => self.reload(&mut state, number),
            Action::Rejoin(number) => self.rejoin(&mut state, number),
            Action::Renew(number) => self.renew(&mut state, number),
            Action::Stop(number) => self.stop(&mut state, number),
            Action::Kill(number) => {
                state.faults -= 1;
                self.kill(&mut state, number)
            }
            Action::LeaseEnds(number) => {
                state.faults -= 1;
                state.keywards[usize::from(number)].may_write = false;
                true
            }
            Action::ChangeIsLate(number) => {
                state.faults -= 1;
                self.change_is_late(&mut state, number)
            }
            Action::Arrive(message) => {
                state.network.retain(|one| *one != message);
                self.arrive(&mut state, message);
                true
            }
            Action::Lose(message) => {
                state.network.retain(|one| *one != message);
                true
            }
            Action::Evict(id) => {
                state.register.retain(|entry| entry.id != id);
                true
            }
        };
        is_done.then_some(state)
    }

    fn properties(&self) -> Vec<Property<System>> {
        vec![
            Property::always(SOUND, |_, state: &State| !state.is_enforced() || is_sound(state)),
            Property::always(STAYS, |_, state: &State| {
                (0..2).all(|number| !state.keywards[number].is_acknowledged || state.documents[number])
            }),
            Property::sometimes(ENFORCED, |_, state: &State| {
                state.is_enforced() && state.faults == 0 && state.documents.contains(&true)
            }),
        ]
    }
}

fn is_sound(state: &State) -> bool {
    let holders: Vec<u8> = (0..2).filter(|number| state.documents[usize::from(*number)]).collect();
    let is_reserved = holders.iter().all(|holder| state.reserved_for == Some(*holder));
    let nobody_goes_past = (0..2_u8).all(|number| {
        let keyward = &state.keywards[usize::from(number)];
        let forwards = keyward.runs && keyward.may_write && keyward.declared == Declared::Yes;
        let sends = keyward.may_write && keyward.unsent == Some(false);
        !state.has_unreserved(number) && !sends && (!forwards || keyward.reserves)
    });
    holders.len() <= 1 && is_reserved && nobody_goes_past
}
