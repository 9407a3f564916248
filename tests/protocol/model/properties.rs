//! The invariants, as properties of every state.

use stateright::{Model, Property};

use crate::model::size::{IDS, KEYS};
use crate::model::state::State;
use crate::model::system::System;
use crate::under_test::words::{Id, Key, OpId, Outcome};

pub const UNIQUE: &str = "no two documents hold one key";
pub const TRUE_DUPLICATE: &str = "a duplicate is reported only of a key that was held during the call";
pub const QUIET: &str = "once it is quiet and swept, exactly the keys of documents are reserved, by them";
pub const ONCE: &str = "acknowledged: it took effect once; refused: it didn't; anything else: once at most";
pub const GOES_ON: &str = "it is quiet, or something can go on";

pub fn all() -> Vec<Property<System>> {
    vec![
        Property::always(UNIQUE, |_, state: &State| is_unique(state)),
        Property::always(TRUE_DUPLICATE, |_, state: &State| !state.wrong_duplicate),
        Property::always(QUIET, |system: &System, state: &State| {
            !state.is_quiet(system) || is_swept_clean(state)
        }),
        Property::always(ONCE, |_, state: &State| has_its_effects(state)),
        Property::always(GOES_ON, |system: &System, state: &State| {
            let mut actions = Vec::new();
            system.actions(state, &mut actions);
            state.is_quiet(system) || !actions.is_empty()
        }),
    ]
}

fn holders(state: &State, key: Key) -> impl Iterator<Item = usize> {
    (0..IDS).filter(move |id| state.store.documents[*id].is_some_and(|keys| keys.has(key)))
}

fn keys() -> impl Iterator<Item = Key> {
    0..Key::try_from(KEYS).unwrap_or(Key::MAX)
}

fn is_unique(state: &State) -> bool {
    keys().all(|key| holders(state, key).count() <= 1)
}

/// A reservation that nobody's document holds is what the sweeper deletes; what it can't bring about is the one that is missing.
fn is_swept_clean(state: &State) -> bool {
    let is_reserved = |key: Key, id: usize| {
        state.store.reservations[key as usize].is_some_and(|there| there.owner == Id::try_from(id).unwrap_or(Id::MAX))
    };
    keys().all(|key| holders(state, key).all(|id| is_reserved(key, id)))
}

fn has_its_effects(state: &State) -> bool {
    let is_once = state.store.effects.iter().all(|(_, count)| *count <= 1);
    let of_clients = state.clients.iter().enumerate().flat_map(|(client, own)| {
        let client = u8::try_from(client).unwrap_or(u8::MAX);
        own.outcomes.iter().enumerate().map(move |(index, outcome)| {
            let index = u8::try_from(index).unwrap_or(u8::MAX);
            (OpId { client, index }, *outcome)
        })
    });
    let mut of_clients = of_clients;
    is_once
        && !state.wrong_refusal
        && of_clients.all(|(op, (outcome, was_sent_again))| match outcome {
            Outcome::Applied => state.store.effects_of(op) == 1,
            // The first try may still come, as it may on a server without Keyward.
            _ if was_sent_again => true,
            _ => !outcome.is_refusal() || state.store.effects_of(op) == 0,
        })
}
