//! The register of Keywards under a model checker: two Keywards, a collection, a constraint, a key. What is modelled is said
//! in docs/correctness.md. Whether an entry lacks a constraint is answered by [`keyward::fleet::Entry`]; the order of the steps
//! of `src/fleet/`, `src/reload.rs` and `src/prepare/` is written down here a second time.

mod cluster;
mod keyward_steps;
mod system;

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Path};
use system::{Action, Broken, ENFORCED, SOUND, System, World};

fn told(path: Path<cluster::State, Action>) -> String {
    let actions = path.into_actions();
    actions.iter().map(|action| format!("    {action:?}\n")).collect()
}

/// Looks at every state; none may break a property. How many there are stands in docs/correctness.md.
fn holds(world: World, faults: u8) {
    let started = Instant::now();
    let system = System::of(world, faults, None);
    let checker = system.checker().threads(2);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    for (name, path) in checker.discoveries() {
        assert!(name == ENFORCED, "not so: {name}\n{}", told(path));
    }
    checker.assert_any_discovery(ENFORCED);
    let row = format!("| register: {world:?} | {faults} | {} |", checker.unique_state_count());
    println!("{row} {:.1?}", started.elapsed());
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/correctness.md");
    let text = std::fs::read_to_string(document).unwrap_or_default();
    assert!(text.contains(&row), "docs/correctness.md doesn't say {row}");
}

/// Looks until it finds a way to `enforced` where it isn't so.
fn fails(world: World, faults: u8, broken: Broken) {
    let started = Instant::now();
    let checker = System::of(world, faults, Some(broken)).checker().threads(2);
    let found = HasDiscoveries::AnyOf([SOUND].into());
    let checker = checker.finish_when(found).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{world:?}, {broken:?}: {states} states, {:.1?}", started.elapsed());
    let path = checker.discovery(SOUND).map(told);
    println!("{}", path.unwrap_or_else(|| panic!("no counterexample was found")));
}

macro_rules! sound {
    ($($name:ident: $world:ident, $faults:literal;)*) => {$(
        #[test]
        fn $name() {
            holds(World::$world, $faults);
        }
    )*};
}

sound! {
    newcomer: Newcomer, 2;
    restarted: Restarted, 2;
    reloaded: Reloaded, 2;
    given_up: GivenUp, 2;
    left: Left, 2;
}

macro_rules! guards {
    ($($name:ident: $world:ident, $broken:ident, $faults:literal;)*) => {$(
        #[test]
        fn $name() {
            fails(World::$world, $faults, Broken::$broken);
        }
    )*};
}

guards! {
    the_register_is_read: Restarted, RegisterUnread, 0;
    the_epoch_is_ended_before_the_first_write: Newcomer, ForwardsFirst, 0;
    the_entry_is_written_before_the_epoch_is_ended: Newcomer, EpochEndedFirst, 0;
    the_epoch_is_read_before_the_register: Newcomer, RegisterBeforeEpoch, 0;
    enforced_is_of_an_epoch: Newcomer, EpochIgnored, 0;
    what_was_decided_without_it_is_waited_for: Reloaded, ListedUndrained, 0;
    what_a_dead_keyward_sent_is_waited_for: Newcomer, EvictedEarly, 1;
    who_is_past_its_lease_writes_nothing: Newcomer, LeaseUnlooked, 1;
    what_has_waited_is_looked_at_once_more: Newcomer, SentUnlooked, 1;
    a_new_entry_has_what_is_being_declared: Newcomer, NotedUnderAnOldEntry, 1;
    an_entry_whose_change_is_late_is_replaced: Reloaded, EntryKeptAfterLateChange, 1;
}
