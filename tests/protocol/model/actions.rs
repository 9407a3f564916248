//! Everything that can happen next.

use keyward::reservation::Scope;

use crate::model::size::KEYS;
use crate::model::state::State;
use crate::model::system::{System, keyward};
use crate::under_test::network::{Message, Request};
use crate::under_test::rules::Broken;
use crate::under_test::store::Reservation;
use crate::under_test::words::{Id, Key, OpId, TaskId};

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
    /// The server ends it for having waited too long, and says so.
    IsEnded(Message),
    /// It comes twice: the second time later, and with nobody waiting for the reply.
    Duplicate(Message),
    /// The server ends a transaction whose Keyward is gone.
    Vanish(Message),
    LeaseEnds {
        key: Key,
    },
    /// The sweeper finds a reservation whose lease is over and whose owner isn't there: what follows from it is on its way.
    Sweep {
        key: Key,
    },
    /// The backfill reads a document, and sends the reservation of a key that it holds.
    Backfill {
        id: Id,
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

pub fn actions(system: &System, state: &State, actions: &mut Vec<Action>) {
    for (number, client) in state.clients.iter().enumerate() {
        let client_number = u8::try_from(number).unwrap_or(u8::MAX);
        match &client.call {
            None if client.outcomes.len() < system.programs[number].len() => {
                actions.push(Action::Call { client: client_number });
            }
            // A client that won't send it again only stops listening: the same as a late answer.
            Some(call) if state.faults > 0 && call.try_number == 0 => {
                let index = u8::try_from(client.outcomes.len()).unwrap_or(u8::MAX);
                if system
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
        if let Some((conflicting, keys)) = task.waits_for() {
            let is_undecided = |key: &Key| {
                state.store.reservations[*key as usize].is_some_and(|there| {
                    there.token == conflicting && !there.is_over && !state.store.holds(there.owner, *key)
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
            Request::Write(write) => system.rules.is_strict() && state.store.is_locked_for(write),
            _ => false,
        };
        if !is_blocked {
            actions.push(Action::Arrive(message.clone()));
        }
        let is_open = matches!(&message.request, Request::Write(write) if write.phase.is_open());
        // Anything else that never arrives is like one that hasn't arrived yet.
        if message.to.is_none() && is_open {
            actions.push(Action::Vanish(message.clone()));
        }
        if message.to.is_some() && state.faults > 0 {
            actions.push(Action::TimeOut(message.clone()));
        }
        if message.to.is_some() && state.faults > 0 && message.request.may_be_ended() {
            actions.push(Action::IsEnded(message.clone()));
        }
        if message.to.is_some() && state.faults > 0 && message.request.is_write() && message.request.may_come_twice() {
            actions.push(Action::Duplicate(message.clone()));
        }
        let is_linearizable = !system.rules.lacks(Broken::LookNotLinearizable);
        if let Request::LookUp { key, owner, scope } = &message.request
            && (state.is_deposed || state.faults > 0)
            && !(*scope == Scope::Linearizable && is_linearizable)
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
            there.is_over && (!state.store.holds(there.owner, key) || system.rules.lacks(Broken::LookWithoutOwner))
        };
        let is_at_it = state
            .network
            .iter()
            .any(|message| message.to.is_none() && message.request.deletes(key));
        if !is_at_it && state.store.reservations[key as usize].is_some_and(is_stale) {
            actions.push(Action::Sweep { key });
        }
    }
    if let Some(id) = state.to_backfill {
        let held = state.store.documents[id as usize];
        actions.extend(
            held.iter()
                .flat_map(|keys| keys.iter())
                .map(|key| Action::Backfill { id, key }),
        );
    }
    if state.faults > 0 {
        for number in 0..2 {
            if state.tasks.iter().any(|task| keyward(task.id) == number) {
                actions.push(Action::KeywardDies { keyward: number });
            }
        }
        if system.rules.lacks(Broken::WithoutMajority) {
            let keys = 0..Key::try_from(KEYS).unwrap_or(Key::MAX);
            let there = keys.filter(|key| state.store.reservations[*key as usize].is_some());
            actions.extend(there.map(|key| Action::RollBack { key }));
        }
    }
}
