//! Everything together as a [`Model`]: the worlds, what can be taken away, and what must hold.

use stateright::{Model, Property};

use super::cluster::{
    Client, Command, Declared, Enforcing, Following, Keyward, List, Message, Registered, State, WRITER, Write,
};

/// While the constraint is called enforced, and while the list calls it built.
pub const SOUND: &str = "enforced or built: the document is reserved for, and no Keyward writes without reserving";
pub const ENDED: &str = "a constraint whose end was answered is reserved for by no Keyward that wrote before";
/// What the model must find, so that the properties above aren't true of nothing.
pub const REACHED: &str = "all commands are answered as in a world without faults";

/// The clients' commands about the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum World {
    /// One client creates the index.
    Created,
    /// Two clients create it at once, through two Keywards.
    CreatedTwice,
    /// It is created through one Keyward, and dropped through the other one.
    Dropped,
    /// It is created, dropped through the other Keyward, and created again, perhaps before all have followed.
    Again,
    /// The same, and created again through the Keyward through which it was dropped.
    AgainElsewhere,
}

/// What is taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    ListUnread,
    Undrained,
    BegunUnsuspended,
    RecordedUnbegun,
    EndedUnlooked,
    CatalogFirst,
    DropUnawaited,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Start(u8),
    Declare(u8),
    Write(u8),
    Follow(u8),
    Keep(u8),
    Client(usize),
    Kill(u8),
    Arrive(Message),
    /// What a Keyward sent that was killed never arrives.
    Lose(Message),
    /// Others remove the entry of a Keyward that was killed.
    Evict(u8),
}

#[derive(Debug, Clone)]
pub struct System {
    pub commands: Vec<Command>,
    faults: u8,
    broken: Option<Broken>,
}

impl System {
    pub fn of(world: World, faults: u8, broken: Option<Broken>) -> System {
        let commands = match world {
            World::Created => vec![Command::Create(0)],
            World::CreatedTwice => vec![Command::Create(0), Command::Create(1)],
            World::Dropped => vec![Command::Create(0), Command::Drop(1)],
            World::Again => vec![Command::Create(0), Command::Drop(1), Command::Create(0)],
            World::AgainElsewhere => vec![Command::Create(0), Command::Drop(1), Command::Create(1)],
        };
        System {
            commands,
            faults,
            broken,
        }
    }

    pub fn lacks(&self, guard: Broken) -> bool {
        self.broken == Some(guard)
    }

    /// By time: what its Keyward sent has arrived or is lost.
    fn may_evict(&self, state: &State, entry: &Registered) -> bool {
        let keyward = &state.keywards[usize::from(entry.of)];
        let is_its = keyward.runs && keyward.id == entry.id;
        !is_its && (entry.of != WRITER || !state.has_unreserved())
    }
}

impl Model for System {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let list = List {
            version: 0,
            entry: None,
        };
        let keyward = Keyward {
            runs: false,
            starts: 0,
            id: 0,
            applied: list,
            reserves: None,
            following: Following::No,
            begun: None,
            enforcing: Enforcing::Idle,
            seen_enforced: None,
            declared: Declared::No,
            write: Write::None,
        };
        let mut state = State {
            list,
            register: Vec::new(),
            next_id: 0,
            epoch: 0,
            enforced_in: None,
            is_document_there: false,
            is_document_reserved: false,
            network: Vec::new(),
            keywards: [keyward.clone(), keyward],
            clients: vec![Client::NotSent; self.commands.len()],
            faults: self.faults,
        };
        self.start(&mut state, 0);
        self.start(&mut state, 1);
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for number in 0..2_u8 {
            let keyward = &state.keywards[usize::from(number)];
            if !keyward.runs {
                actions.push(Action::Start(number));
                continue;
            }
            actions.extend([Action::Follow(number), Action::Keep(number)]);
            if number == WRITER {
                actions.extend([Action::Declare(number), Action::Write(number)]);
            }
            if state.faults > 0 {
                actions.push(Action::Kill(number));
            }
        }
        actions.extend((0..self.commands.len()).map(Action::Client));
        for message in &state.network {
            actions.push(Action::Arrive(*message));
            let is_awaited = match message {
                Message::Insert { .. } => state.keywards[usize::from(WRITER)].runs,
                Message::Enforce { .. } => false,
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
            Action::Declare(number) => self.declare(&mut state, number),
            Action::Write(number) => self.write(&mut state, number),
            Action::Follow(number) => self.follow(&mut state, number),
            Action::Keep(number) => self.keep(&mut state, number),
            Action::Client(client) => self.client(&mut state, client),
            Action::Start(number) => {
                self.start(&mut state, number);
                true
            }
            Action::Kill(number) => {
                state.faults -= 1;
                self.kill(&mut state, number);
                true
            }
            Action::Arrive(message) => {
                state.network.retain(|one| *one != message);
                match message {
                    Message::Insert { .. } => state.is_document_there = true,
                    Message::Enforce { epoch } => self.note_enforced(&mut state, epoch),
                }
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
            Property::always(SOUND, |_, state: &State| {
                let is_built = state.list.entry.is_some_and(|entry| entry.builder.is_none());
                !(state.is_enforced() || is_built) || is_sound(state)
            }),
            Property::always(ENDED, |_, state: &State| {
                let is_ended = |client: &Client| *client == Client::Dropped(state.list.version, true);
                let writer = &state.keywards[usize::from(WRITER)];
                !state.clients.iter().any(is_ended) || !writer.runs || writer.reserves.is_none()
            }),
            Property::sometimes(REACHED, |system: &System, state: &State| {
                let is_reached = |(client, command): (&Client, &Command)| match command {
                    Command::Create(_) => matches!(client, Client::Created(_)),
                    Command::Drop(_) => matches!(client, Client::Dropped(..)),
                };
                let is_used = state.is_document_there && state.faults == 0;
                is_used && state.clients.iter().zip(&system.commands).all(is_reached)
            }),
        ]
    }
}

fn is_sound(state: &State) -> bool {
    let writer = &state.keywards[usize::from(WRITER)];
    let writes = writer.runs && writer.declared == Declared::Yes;
    let is_reserved = !state.is_document_there || state.is_document_reserved;
    is_reserved && !state.has_unreserved() && (!writes || writer.reserves.is_some())
}
