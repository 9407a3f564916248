//! The list of clients' constraints under a model checker: two Keywards, a collection, an index that clients create and drop. What is
//! modelled is said in docs/correctness.md. The list is changed by [`keyward::client_constraints`]; the order of the steps of
//! `src/indexes/`, `src/reload.rs` and `src/fleet/` is written down here a second time.

mod client_steps;
mod cluster;
mod keyward_steps;
mod system;

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Path};
use system::{Action, Broken, ENDED, REACHED, SOUND, System, World};

fn told(path: Path<cluster::State, Action>) -> String {
    let actions = path.into_actions();
    actions.iter().map(|action| format!("    {action:?}\n")).collect()
}

/// Looks at every state; none may break a property. How many there are stands in docs/correctness.md.
fn holds(world: World, faults: u8) {
    let started = Instant::now();
    let checker = System::of(world, faults, None).checker().threads(2);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    for (name, path) in checker.discoveries() {
        assert!(name == REACHED, "not so: {name}\n{}", told(path));
    }
    checker.assert_any_discovery(REACHED);
    let row = format!("| list: {world:?} | {faults} | {} |", checker.unique_state_count());
    println!("{row} {:.1?}", started.elapsed());
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/correctness.md");
    let text = std::fs::read_to_string(document).unwrap_or_default();
    assert!(text.contains(&row), "docs/correctness.md doesn't say {row}");
}

/// Looks until it finds a way to a state in which the property doesn't hold.
fn fails(world: World, faults: u8, broken: Broken, property: &'static str) {
    let started = Instant::now();
    let checker = System::of(world, faults, Some(broken)).checker().threads(2);
    let found = HasDiscoveries::AnyOf([property].into());
    let checker = checker.finish_when(found).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{world:?}, {broken:?}: {states} states, {:.1?}", started.elapsed());
    let path = checker.discovery(property).map(told);
    println!("{}", path.unwrap_or_else(|| panic!("no counterexample was found")));
}

macro_rules! sound {
    ($($(#[$ignored:meta])? $name:ident: $world:ident, $faults:literal;)*) => {$(
        #[test]
        $(#[$ignored])?
        fn $name() {
            holds(World::$world, $faults);
        }
    )*};
}

sound! {
    created: Created, 1;
    created_twice: CreatedTwice, 0;
    dropped: Dropped, 0;
    #[ignore = "takes a minute"]
    created_twice_with_a_fault: CreatedTwice, 1;
    #[ignore = "takes a minute"]
    dropped_with_a_fault: Dropped, 1;
    #[ignore = "takes a minute"]
    created_again: Again, 0;
    #[ignore = "takes a minute"]
    created_again_elsewhere: AgainElsewhere, 0;
}

macro_rules! guards {
    ($($name:ident: $world:ident, $broken:ident, $faults:literal, $property:ident;)*) => {$(
        #[test]
        fn $name() {
            fails(World::$world, $faults, Broken::$broken, $property);
        }
    )*};
}

guards! {
    the_list_is_read_before_the_first_write: Created, ListUnread, 0, SOUND;
    what_was_decided_before_is_waited_for: Created, Undrained, 0, SOUND;
    a_build_begins_with_a_new_epoch: Again, BegunUnsuspended, 0, SOUND;
    only_a_build_that_has_begun_is_recorded: AgainElsewhere, RecordedUnbegun, 0, SOUND;
    the_list_is_read_again_before_a_constraint_ends: Again, EndedUnlooked, 0, SOUND;
    the_entry_loses_a_constraint_before_the_catalog: Dropped, CatalogFirst, 0, SOUND;
    a_drop_is_answered_once_all_have_ended_it: Dropped, DropUnawaited, 0, ENDED;
}
