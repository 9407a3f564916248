//! The uniqueness protocol under a model checker: [`keyward::reservation`], the very code that runs in production, against
//! a small cluster in which everything that can happen does. What is modelled is said in docs/correctness.md.

mod network;
mod properties;
mod rules;
mod runs;
mod store;
mod system;
mod task;
mod words;

use std::time::Duration;

use rules::{Broken, Mode, Rules};
use runs::{World, check};

/// `KEYWARD_EXPERIMENT="world mode lease guard faults seconds"`
#[test]
fn experiment() {
    let Ok(asked) = std::env::var("KEYWARD_EXPERIMENT") else { return };
    let words: Vec<&str> = asked.split(' ').collect();
    let worlds = [World::Rivals, World::Crossing, World::Change, World::Exchange, World::Moved];
    let guards = [
        Broken::TakeoverWithoutToken,
        Broken::TakeoverWithoutAt,
        Broken::LookWithoutFence,
        Broken::LookWithoutOwner,
        Broken::ReleaseBeforeWrite,
        Broken::ReleaseWithoutToken,
        Broken::DeleteWithoutToken,
        Broken::WithoutMajority,
        Broken::WithoutSnapshot,
        Broken::WithoutPlaceholder,
    ];
    let world = worlds.into_iter().find(|world| format!("{world:?}") == words[0]).unwrap_or(World::Rivals);
    let mode = if words[1] == "strict" { Mode::Strict } else { Mode::Compensating };
    let mut rules = Rules::of(mode);
    if words[2] == "off" {
        rules = rules.without_the_lease();
    }
    if let Some(guard) = guards.into_iter().find(|guard| format!("{guard:?}") == words[3]) {
        rules = rules.without(guard);
    }
    let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(0);
    check(world, rules, u8::try_from(number(4)).unwrap_or(0), Duration::from_secs(number(5)));
}
