//! Whole workloads, many of them, over a store in memory in which everything goes wrong that can: the protocol code of
//! production under a clock and a die of its own. One seed is one run, to the last byte of its log.

#![expect(clippy::cast_possible_truncation, reason = "what is counted here is small")]

mod checker;
mod clients;
mod cluster;
mod delivery;
mod faults;
mod history;
mod plan;
mod queue;
mod random;
mod runs;
mod size;
mod watch;
mod workload;

use crate::under_test::rules::{Broken, Mode, Rules};
use runs::{finds, holds};

const COMPENSATING: Rules = Rules::of(Mode::Compensating);
const STRICT: Rules = Rules::of(Mode::Strict);

#[test]
fn compensating_holds() {
    holds(COMPENSATING);
}

#[test]
fn strict_holds() {
    holds(STRICT);
}

/// A seed is a run: nothing in it comes from anywhere else.
#[test]
fn a_seed_replays_to_the_byte() {
    for rules in [COMPENSATING, STRICT] {
        for seed in 0..20 {
            let told = || workload::run(rules, seed, true).told();
            let first = told();
            assert!(first.len() > 10_000);
            assert_eq!(first, told());
        }
    }
}

#[test]
fn compensating_rests_on_the_lease() {
    finds(COMPENSATING.without_the_lease());
}

macro_rules! guards {
    ($($name:ident: $rules:ident, $guard:ident;)*) => {$(
        #[test]
        fn $name() {
            finds($rules.without(Broken::$guard));
        }
    )*};
}

guards! {
    cluster_time_is_an_order: COMPENSATING, AgeByClusterTime;
    the_time_of_one_shard_says_nothing_of_another: COMPENSATING, TimeOfOneShard;
    a_takeover_compares_the_token: COMPENSATING, TakeoverWithoutToken;
    a_takeover_compares_when_it_was_written: COMPENSATING, TakeoverWithoutAt;
    a_deposed_primary_is_not_asked: COMPENSATING, LookNotLinearizable;
    the_owner_is_looked_for: COMPENSATING, LookWithoutOwner;
    old_keys_are_given_up_after_the_write: COMPENSATING, ReleaseBeforeWrite;
    a_release_names_its_token: COMPENSATING, ReleaseWithoutToken;
    a_release_is_not_left_behind: COMPENSATING, ReleaseLeftBehind;
    a_release_without_an_answer_ends_the_attempt: COMPENSATING, ReleaseBelieved;
    what_is_deleted_is_what_was_seen: COMPENSATING, DeleteWithoutToken;
    a_majority_has_every_reservation: COMPENSATING, WithoutMajority;
    a_majority_has_every_write_before_it_counts: COMPENSATING, AnswerBeforeMajority;
    a_majority_has_what_a_retry_is_told_of: COMPENSATING, AskBeforeMajority;
    strict_mode_looks_after_its_snapshot: STRICT, LookBeforeSnapshot;
    strict_mode_looks: STRICT, WithoutLook;
    strict_mode_leaves_a_placeholder: STRICT, WithoutPlaceholder;
}
