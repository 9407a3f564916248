//! The uniqueness protocol under a model checker: [`keyward::reservation`], the very code that runs in production, against
//! a small cluster in which everything that can happen does. What is modelled is said in docs/correctness.md.

mod actions;
mod properties;
mod rest;
mod runs;
mod size;
mod state;
mod system;

use crate::under_test::rules::{Broken, Mode, Rules};
use rest::comes_to_rest;
use runs::{World, fails, holds};

const COMPENSATING: Mode = Mode::Compensating;
const STRICT: Mode = Mode::Strict;

macro_rules! safe {
    ($($name:ident: $world:ident, $mode:ident, $faults:literal;)*) => {$(
        #[test]
        fn $name() {
            holds(World::$world, Rules::of($mode), $faults);
        }
    )*};
}

safe! {
    same_key_compensating: SameKey, COMPENSATING, 1;
    overlap_compensating: Overlap, COMPENSATING, 0;
    change_compensating: Change, COMPENSATING, 0;
    exchange_compensating: Exchange, COMPENSATING, 0;
    moved_compensating: Moved, COMPENSATING, 0;
    upsert_compensating: Upsert, COMPENSATING, 0;
    plain_upsert_compensating: PlainUpsert, COMPENSATING, 0;
    upsert_met_compensating: UpsertMet, COMPENSATING, 0;
    backfilled_compensating: Backfilled, COMPENSATING, 0;
    renewed_compensating: Renewed, COMPENSATING, 0;
    recalled_compensating: Recalled, COMPENSATING, 0;
    unreserved_compensating: Unreserved, COMPENSATING, 0;
    unreserved_strict: Unreserved, STRICT, 0;
    same_key_strict: SameKey, STRICT, 0;
    overlap_strict: Overlap, STRICT, 0;
    change_strict: Change, STRICT, 1;
    exchange_strict: Exchange, STRICT, 1;
    moved_strict: Moved, STRICT, 0;
    upsert_strict: Upsert, STRICT, 0;
    backfilled_strict: Backfilled, STRICT, 1;
    renewed_strict: Renewed, STRICT, 0;
    recalled_strict: Recalled, STRICT, 1;
}

/// The worlds that are small enough to be remembered whole; with a fault, that is two of strict mode.
#[test]
fn every_state_can_come_to_rest() {
    let (compensating, strict) = (Rules::of(COMPENSATING), Rules::of(STRICT));
    for world in [
        World::SameKey,
        World::Change,
        World::Exchange,
        World::Moved,
        World::Upsert,
        World::PlainUpsert,
        World::UpsertMet,
        World::Backfilled,
        World::Renewed,
        World::Unreserved,
        World::Recalled,
    ] {
        comes_to_rest(world, compensating, 0);
        comes_to_rest(world, strict, 0);
    }
    comes_to_rest(World::Change, strict, 1);
    comes_to_rest(World::Exchange, strict, 1);
}

/// Too much for every day: `cargo test --test protocol model -- --ignored`.
#[test]
#[ignore = "takes many minutes"]
fn crossing() {
    holds(World::Crossing, Rules::of(COMPENSATING), 0);
    holds(World::Crossing, Rules::of(STRICT), 0);
}

#[test]
fn compensating_rests_on_the_lease() {
    fails(World::SameKey, Rules::of(COMPENSATING).without_the_lease(), 0);
}

macro_rules! guards {
    ($($name:ident: $world:ident, $mode:ident, $guard:ident, $faults:literal;)*) => {$(
        #[test]
        fn $name() {
            fails(World::$world, Rules::of($mode).without(Broken::$guard), $faults);
        }
    )*};
}

guards! {
    a_takeover_compares_the_token: SameKey, COMPENSATING, TakeoverWithoutToken, 0;
    a_takeover_compares_when_it_was_written: SameKey, COMPENSATING, TakeoverWithoutAt, 0;
    a_deposed_primary_is_not_asked: SameKey, COMPENSATING, LookNotLinearizable, 1;
    the_owner_is_looked_for: SameKey, COMPENSATING, LookWithoutOwner, 0;
    a_backfilled_reservation_has_an_owner: Backfilled, COMPENSATING, LookWithoutOwner, 0;
    old_keys_are_given_up_after_the_write: Change, COMPENSATING, ReleaseBeforeWrite, 0;
    a_release_names_its_token: SameKey, COMPENSATING, ReleaseWithoutToken, 0;
    a_release_is_not_left_behind: SameKey, COMPENSATING, ReleaseLeftBehind, 1;
    a_release_without_an_answer_ends_the_attempt: SameKey, COMPENSATING, ReleaseBelieved, 1;
    what_is_deleted_is_what_was_seen: SameKey, COMPENSATING, DeleteWithoutToken, 0;
    a_majority_has_every_reservation: SameKey, COMPENSATING, WithoutMajority, 1;
    strict_mode_looks_after_its_snapshot: SameKey, STRICT, LookBeforeSnapshot, 0;
    strict_mode_looks: SameKey, STRICT, WithoutLook, 0;
    an_insert_checks_while_a_constraint_is_built: Unreserved, COMPENSATING, InsertWithoutCheck, 0;
    strict_mode_leaves_a_placeholder: SameKey, STRICT, WithoutPlaceholder, 0;
}
