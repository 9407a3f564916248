//! The next step of a client's `createIndexes` or `dropIndexes`, as `src/indexes` carries it out. False: there is none now.

use super::cluster::{Client, Command, Declared, State, WRITER, object_id};
use super::system::{Broken, System};

impl System {
    pub fn client(&self, state: &mut State, client: usize) -> bool {
        let command = self.commands[client];
        let (Command::Create(through) | Command::Drop(through)) = command;
        if !state.keywards[usize::from(through)].runs {
            return false;
        }
        let before = state.clients[client];
        let next = match (command, before) {
            (Command::Create(through), Client::NotSent) => publish(state, through),
            (Command::Create(through), Client::Awaits(id)) => await_built(state, through, id),
            (Command::Drop(_), Client::NotSent) => {
                let Some(entry) = state.list.entry else { return false };
                state.list.change(|list| list.remove(object_id(entry.id)));
                Client::AwaitsEnd(state.list.version)
            }
            (Command::Drop(through), Client::AwaitsEnd(version)) => {
                if !self.lacks(Broken::DropUnawaited) && !has_ended(state, through, version) {
                    return false;
                }
                let could_write = state.keywards[usize::from(WRITER)].declared == Declared::Yes;
                Client::Dropped(version, could_write)
            }
            _ => return false,
        };
        state.clients[client] = next;
        next != before
    }

    /// The Keyward is gone, and its client with it: nobody waits for the answer.
    pub fn lose_clients(&self, state: &mut State, number: u8) {
        for (client, command) in state.clients.iter_mut().zip(&self.commands) {
            let (Command::Create(through) | Command::Drop(through)) = *command;
            if through == number && matches!(client, Client::Awaits(_) | Client::AwaitsEnd(_)) {
                *client = Client::Failed;
            }
        }
    }
}

fn publish(state: &mut State, through: u8) -> Client {
    let builder = state.keywards[usize::from(through)].id;
    match state.list.entry {
        Some(same) => Client::Awaits(same.id),
        None => {
            let id = state.new_id();
            state.list.add(id, builder);
            Client::Awaits(id)
        }
    }
}

fn await_built(state: &State, through: u8, id: u8) -> Client {
    let enforces = state.keywards[usize::from(through)].reserves.is_some();
    match state.list.entry.filter(|entry| entry.id == id) {
        None => Client::Failed,
        Some(entry) if entry.builder.is_none() && enforces => Client::Created(id),
        Some(_) => Client::Awaits(id),
    }
}

/// Whether every Keyward that may write to the collection has ended what was taken out of the list.
fn has_ended(state: &State, through: u8, version: u8) -> bool {
    let is_behind = state
        .register
        .iter()
        .any(|entry| entry.writes && entry.applied < version);
    !is_behind && state.keywards[usize::from(through)].reserves.is_none()
}
