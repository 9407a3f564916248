//! Tests an attempt at keys, event by event.

use proptest::prelude::*;

use super::*;
use crate::reservation::{Age, ConflictingReservation, RetryId, Scope, WriteId};

fn token(write: u8) -> Token {
    Token {
        write: WriteId([write; 16]),
        position: 0,
        retry_id: None,
    }
}

fn conflicting(age: Age) -> ConflictingReservation {
    ConflictingReservation {
        token: token(9),
        same_owner: false,
        has_route: true,
        age,
    }
}

impl Attempt {
    /// The attempt after `event`, with the next effects.
    fn after(mut self, event: &Event) -> (Attempt, Vec<Effect>) {
        let effects = self.step(event);
        (self, effects)
    }

    /// The attempt that begins again, with the next effects.
    fn begun_again(mut self, keys: usize) -> (Attempt, Vec<Effect>) {
        let effects = self.begin_again(keys);
        (self, effects)
    }
}

/// Feeds `events` to a new attempt at `keys` keys; returns it with the effects of the last step.
fn run(keys: usize, events: &[Event]) -> (Attempt, Vec<Effect>) {
    let mut state = Attempt::begin(token(1), keys);
    for event in events {
        state = state.0.after(event);
    }
    state
}

#[test]
fn without_conflict_it_reserves_everything_at_once_then_forwards() {
    let (_, effects) = run(2, &[]);
    assert_eq!(effects, [Effect::Reserve(0), Effect::Reserve(1)]);
    let (attempt, effects) = run(2, &[Event::Reserved(1), Event::Reserved(0)]);
    assert_eq!(effects, [Effect::Forward]);
    assert!(attempt.may_forward());
    let (attempt, effects) = attempt.after(&Event::Applied);
    assert_eq!((attempt.ended(), effects), (Some(Ended::Applied), vec![]));
}

#[test]
fn without_keys_it_forwards_at_once() {
    assert_eq!(run(0, &[]).1, [Effect::Forward]);
}

#[test]
fn one_that_looks_first_goes_on_as_after_a_reservation_that_was_refused() {
    let (reading, effects) = Attempt::begin_reading(token(1), 2);
    assert_eq!(effects, [Effect::Read(0), Effect::Read(1)]);
    let (refused, _) = run(2, &[Event::Taken(0), Event::Taken(1)]);
    assert_eq!(reading, refused);
    let (_, effects) = reading.after(&Event::Vacant(1));
    assert_eq!(effects, [Effect::Reserve(1)]);
    assert_eq!(Attempt::begin_reading(token(1), 0), run(0, &[]));
}

#[test]
fn one_that_recalls_a_holder_reports_it_or_begins_as_any_other() {
    let (recalling, effects) = Attempt::begin_recalling(token(1), 2);
    let scope = Scope::Route;
    assert_eq!(effects, [Effect::LookUp { key: 0, scope }]);
    let (ended, effects) = recalling.clone().after(&Event::OwnerHolds(0));
    assert_eq!(
        (ended.ended(), effects),
        (Some(Ended::NotHeld(NotHeld::Duplicate(0))), vec![])
    );
    let (reserving, effects) = recalling.after(&Event::OwnerAbsent(0));
    assert_eq!(effects, [Effect::Reserve(0)]);
    let (_, effects) = reserving.after(&Event::Reserved(0));
    assert_eq!(effects, [Effect::Reserve(1)]);
    assert_eq!(Attempt::begin_recalling(token(1), 0), run(0, &[]));
}

#[test]
fn one_that_checks_for_an_unreserved_document_reserves_each_key_after_its_check() {
    let (checking, effects) = Attempt::begin_unreserved(token(1), 3, &[0, 2]);
    let scope = Scope::Linearizable;
    assert_eq!(
        effects,
        [Effect::LookUp { key: 0, scope }, Effect::LookUp { key: 2, scope }]
    );
    let (checking, effects) = checking.after(&Event::OwnerAbsent(0));
    assert_eq!(effects, [Effect::Reserve(0)]);
    let (reserving, _) = checking.clone().after(&Event::OwnerAbsent(2));
    let (reserving, _) = reserving.after(&Event::Reserved(0));
    let (_, effects) = reserving.after(&Event::Reserved(2));
    assert_eq!(effects, [Effect::Reserve(1)]);

    let (ended, _) = checking.after(&Event::OwnerHolds(2));
    let (ended, effects) = ended.after(&Event::Reserved(0));
    assert_eq!(effects, [Effect::Release(0)]);
    assert_eq!(ended.ended(), Some(Ended::NotHeld(NotHeld::Duplicate(2))));
    assert_eq!(Attempt::begin_unreserved(token(1), 2, &[]), run(2, &[]));
}

#[test]
fn a_refused_write_gives_its_keys_back_and_one_in_doubt_keeps_them() {
    let held = [Event::Reserved(0), Event::Reserved(1)];
    let (attempt, _) = run(2, &held);
    let (ended, effects) = attempt.clone().after(&Event::NotApplied);
    assert_eq!(effects, [Effect::Release(0), Effect::Release(1)]);
    assert_eq!(ended.ended(), Some(Ended::NotApplied));
    let (ended, effects) = attempt.after(&Event::InDoubt);
    assert_eq!((ended.ended(), effects), (Some(Ended::InDoubt), vec![]));
}

#[test]
fn a_key_whose_owner_exists_is_a_duplicate_and_the_others_are_released() {
    let events = [
        Event::Reserved(0),
        Event::Taken(1),
        Event::Found(1, conflicting(Age::InLease)),
        Event::OwnerHolds(1),
    ];
    let (attempt, effects) = run(2, &events);
    assert_eq!(effects, [Effect::Release(0)]);
    assert_eq!(attempt.ended(), Some(Ended::NotHeld(NotHeld::Duplicate(1))));
}

#[test]
fn a_lost_attempt_waits_only_for_what_comes_before_it_in_the_same_command() {
    let me = Token {
        position: 5,
        ..token(1)
    };
    let contested_by = |token: Token| {
        let conflicting = ConflictingReservation {
            token,
            ..conflicting(Age::InLease)
        };
        let mut attempt = Attempt::begin(me, 2).0;
        for event in [
            Event::Taken(0),
            Event::Found(0, conflicting),
            Event::OwnerAbsent(0),
            Event::OwnerAbsent(0),
        ] {
            attempt = attempt.after(&event).0;
        }
        for event in [Event::Taken(1), Event::Found(1, conflicting), Event::OwnerHolds(1)] {
            attempt = attempt.after(&event).0;
        }
        attempt
    };
    let before = Token { position: 4, ..me };
    assert!(contested_by(before).is_waiting());
    let lost = Some(Ended::NotHeld(NotHeld::Duplicate(1)));
    assert_eq!(contested_by(Token { position: 6, ..me }).ended(), lost);
    assert_eq!(contested_by(token(9)).ended(), lost);
}

#[test]
fn a_miss_by_route_is_confirmed_everywhere_before_anything_is_concluded() {
    let events = [
        Event::Taken(0),
        Event::Found(0, conflicting(Age::InLease)),
        Event::OwnerAbsent(0),
    ];
    let (_, effects) = run(1, &events);
    assert_eq!(
        effects,
        [Effect::LookUp {
            key: 0,
            scope: Scope::Everywhere
        }]
    );
}

#[test]
fn a_reservation_in_its_lease_is_waited_for_holding_nothing() {
    let mut events = vec![
        Event::Reserved(0),
        Event::Taken(1),
        Event::Found(1, conflicting(Age::InLease)),
        Event::OwnerAbsent(1),
        Event::OwnerAbsent(1),
    ];
    let (attempt, effects) = run(2, &events);
    assert_eq!(effects, [Effect::Release(0), Effect::Wait { conflicting: token(9) }]);
    assert!(attempt.is_waiting());
    // After the wait it claims keys in order, one by one, and keeps those that it holds.
    events.push(Event::WaitOver);
    assert_eq!(run(2, &events).1, [Effect::Reserve(0)]);
    events.extend([Event::Reserved(0)]);
    assert_eq!(run(2, &events).1, [Effect::Reserve(1)]);
    events.extend([Event::Taken(1), Event::Found(1, conflicting(Age::InLease))]);
    events.extend([Event::OwnerAbsent(1), Event::OwnerAbsent(1)]);
    assert_eq!(run(2, &events).1, [Effect::Wait { conflicting: token(9) }]);
    events.extend([Event::WaitOver]);
    assert_eq!(run(2, &events).1, [Effect::Reserve(1)]);
}

#[test]
fn an_expired_reservation_is_taken_over_only_after_a_linearizable_look() {
    let mut events = vec![
        Event::Taken(0),
        Event::Found(0, conflicting(Age::Expired)),
        Event::OwnerAbsent(0),
    ];
    assert_eq!(
        run(1, &events).1,
        [Effect::LookUp {
            key: 0,
            scope: Scope::Linearizable
        }]
    );
    events.push(Event::OwnerAbsent(0));
    assert_eq!(
        run(1, &events).1,
        [Effect::TakeOver {
            key: 0,
            conflicting: token(9),
            from_absent: true
        }]
    );
    let and = |event| [events.as_slice(), &[event]].concat();
    assert_eq!(run(1, &and(Event::Changed(0))).1, [Effect::Read(0)]);
    assert_eq!(run(1, &and(Event::TookOver(0))).1, [Effect::Forward]);
    // The owner was written after the look-up, or is being written now.
    assert_eq!(
        run(1, &and(Event::OwnerHolds(0))).0.ended(),
        Some(Ended::NotHeld(NotHeld::Duplicate(0)))
    );
    assert_eq!(run(1, &and(Event::Busy(0))).1, [Effect::Wait { conflicting: token(9) }]);
}

#[test]
fn a_key_in_the_hands_of_an_open_transaction_is_waited_for() {
    let (waiting, effects) = run(2, &[Event::Busy(0), Event::Reserved(1)]);
    assert_eq!(
        effects,
        [
            Effect::Release(1),
            Effect::Wait {
                conflicting: Token::UNKNOWN
            }
        ]
    );
    assert!(waiting.is_waiting());
    assert_eq!(waiting.after(&Event::WaitOver).1, [Effect::Reserve(0)]);
}

#[test]
fn after_a_lost_key_an_attempt_releases_the_others_and_begins_anew() {
    let (attempt, _) = run(2, &[Event::Reserved(0), Event::Reserved(1)]);
    let (attempt, effects) = attempt.after(&Event::Superseded);
    let expected = [
        Effect::Release(0),
        Effect::Release(1),
        Effect::Reserve(0),
        Effect::Reserve(1),
    ];
    assert_eq!(effects, expected);
    assert!(!attempt.may_forward());
}

#[test]
fn a_drivers_retry_inherits_its_own_reservation_and_never_releases_it() {
    let retry_id = RetryId {
        session: [1; 16],
        txn_number: 4,
        statement: 0,
    };
    let first = Token {
        retry_id: Some(retry_id),
        ..token(9)
    };
    let me = Token {
        retry_id: Some(retry_id),
        ..token(1)
    };
    let found = ConflictingReservation {
        token: first,
        same_owner: true,
        ..conflicting(Age::InLease)
    };
    let (attempt, _) = Attempt::begin(me, 1);
    let (attempt, _) = attempt.after(&Event::Taken(0));
    let (attempt, effects) = attempt.after(&Event::Found(0, found));
    let inherit = Effect::TakeOver {
        key: 0,
        conflicting: first,
        from_absent: false,
    };
    assert_eq!(effects, [inherit]);
    assert_eq!(attempt.clone().after(&Event::Failed(0)).1, []);
    // If a takeover is carried out twice, its answer may be wrong. The inherited key stays reserved anyway.
    let (changed, _) = attempt.clone().after(&Event::Changed(0));
    assert_eq!(changed.after(&Event::Failed(0)).1, []);
    let (attempt, effects) = attempt.after(&Event::TookOver(0));
    assert_eq!(effects, [Effect::Forward]);
    assert_eq!(attempt.after(&Event::NotApplied).1, []);
}

#[test]
fn an_inherited_reservation_is_never_released_however_often_it_begins_anew() {
    let own = ConflictingReservation {
        token: token(1),
        ..conflicting(Age::InLease)
    };
    // The attempt might have been forwarded before.
    let (lost, _) = run(1, &[Event::Reserved(0), Event::Superseded]);
    let found = [Event::Taken(0), Event::Found(0, own), Event::TookOver(0)];
    let inherited = found.iter().fold(lost, |attempt, event| attempt.after(event).0);
    let (anew, effects) = inherited.clone().begun_again(1);
    assert_eq!(effects, [Effect::Reserve(0)]);
    // The reservation without an answer may be the new one or the inherited one, so it isn't released.
    assert_eq!(anew.clone().after(&Event::Failed(0)).1, []);
    assert_eq!(anew.after(&Event::Reserved(0)).0.withdraw(), []);
    let (anew, effects) = inherited.after(&Event::Superseded);
    assert_eq!(effects, [Effect::Reserve(0)]);
    assert_eq!(anew.after(&Event::Failed(0)).1, []);
}

#[test]
fn a_reservation_without_an_answer_is_released() {
    let own = ConflictingReservation {
        token: token(1),
        ..conflicting(Age::InLease)
    };
    let (found, _) = run(1, &[Event::Taken(0), Event::Found(0, own)]);
    assert_eq!(found.clone().after(&Event::Failed(0)).1, [Effect::Release(0)]);
    let (held, _) = found.after(&Event::TookOver(0));
    assert_eq!(held.withdraw(), [Effect::Release(0)]);
    assert_eq!(held.after(&Event::NotApplied).1, [Effect::Release(0)]);
}

#[test]
fn a_reservation_under_the_attempts_own_token_is_written_anew_before_it_counts() {
    let own = ConflictingReservation {
        token: token(1),
        ..conflicting(Age::InLease)
    };
    let events = [Event::Taken(0), Event::Found(0, own)];
    let (attempt, effects) = run(1, &events);
    let inherit = Effect::TakeOver {
        key: 0,
        conflicting: token(1),
        from_absent: false,
    };
    assert_eq!(effects, [inherit]);
    assert_eq!(attempt.after(&Event::TookOver(0)).1, [Effect::Forward]);
}

#[test]
fn a_release_that_failed_ends_an_attempt_that_would_claim_the_key_again() {
    let mut events = vec![
        Event::Reserved(0),
        Event::Taken(1),
        Event::Found(1, conflicting(Age::InLease)),
    ];
    events.extend([Event::OwnerAbsent(1), Event::OwnerAbsent(1), Event::Failed(0)]);
    assert_eq!(run(2, &events).0.ended(), Some(Ended::NotHeld(NotHeld::Unsure(0))));
}

#[test]
fn the_same_retry_id_for_another_document_is_in_conflict() {
    let retry_id = RetryId {
        session: [1; 16],
        txn_number: 4,
        statement: 0,
    };
    let me = Token {
        retry_id: Some(retry_id),
        ..token(1)
    };
    let other = ConflictingReservation {
        token: Token {
            retry_id: Some(retry_id),
            ..token(9)
        },
        ..conflicting(Age::InLease)
    };
    let (attempt, _) = Attempt::begin(me, 1);
    let (attempt, _) = attempt.after(&Event::Taken(0));
    let (_, effects) = attempt.after(&Event::Found(0, other));
    assert_eq!(
        effects,
        [Effect::LookUp {
            key: 0,
            scope: Scope::Route
        }]
    );
}

#[test]
fn an_unsure_answer_ends_the_attempt_and_releases_what_may_exist() {
    let (attempt, effects) = run(2, &[Event::Reserved(0), Event::Failed(1)]);
    assert_eq!(effects, [Effect::Release(0), Effect::Release(1)]);
    assert_eq!(attempt.ended(), Some(Ended::NotHeld(NotHeld::Unsure(1))));
}

#[test]
fn a_late_duplicate_of_an_event_changes_nothing() {
    let (attempt, _) = run(2, &[Event::Reserved(0)]);
    let (same, effects) = attempt.clone().after(&Event::Taken(0));
    assert_eq!((same, effects), (attempt, vec![]));
}

#[test]
fn an_attempt_with_an_unsure_release_does_not_begin_again() {
    let contested = [Event::Taken(1), Event::Found(1, conflicting(Age::InLease))];
    let waiting = [Event::OwnerAbsent(1), Event::OwnerAbsent(1)];
    let (unsure, _) = run(
        2,
        &[&[Event::Reserved(0)], &contested[..], &waiting, &[Event::Failed(0)]].concat(),
    );
    assert_eq!(unsure.clone().begun_again(2), (unsure, vec![]));
    // An attempt with a duplicate begins again in an ordered command, because earlier documents are decided first.
    let (duplicate, effects) = run(
        2,
        &[&[Event::Reserved(0)], &contested[..], &[Event::OwnerHolds(1)]].concat(),
    );
    assert_eq!(effects, [Effect::Release(0)]);
    let (anew, effects) = duplicate.clone().begun_again(2);
    assert_eq!(effects, [Effect::Reserve(0), Effect::Reserve(1)]);
    assert_eq!(anew.ended(), None);
    let (anew, effects) = duplicate.after(&Event::Failed(0)).0.begun_again(2);
    assert_eq!(
        (anew.ended(), effects),
        (Some(Ended::NotHeld(NotHeld::Unsure(0))), vec![])
    );
}

/// The possible answers to an effect.
fn answers(effect: &Effect) -> Vec<Event> {
    match *effect {
        Effect::Reserve(key) => vec![
            Event::Reserved(key),
            Event::Taken(key),
            Event::Busy(key),
            Event::Failed(key),
        ],
        Effect::Read(key) => vec![
            Event::Found(key, conflicting(Age::InLease)),
            Event::Found(key, conflicting(Age::Expired)),
            Event::Vacant(key),
            Event::Failed(key),
        ],
        Effect::LookUp { key, .. } => vec![Event::OwnerHolds(key), Event::OwnerAbsent(key), Event::Failed(key)],
        Effect::TakeOver { key, .. } => vec![Event::TookOver(key), Event::Changed(key), Event::Failed(key)],
        Effect::Wait { .. } => vec![Event::WaitOver],
        Effect::Forward => vec![Event::Superseded],
        Effect::Release(_) => vec![],
    }
}

proptest! {
    // Many cases are needed, because few reach the states that matter. Each costs little.
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// While a release under a token may still be on its way, no write is let through with that token. This holds for
    /// all answers, and however often the attempt begins again.
    #[test]
    fn no_write_is_let_through_after_a_release_that_was_not_answered(
        keys in 1..4_usize,
        choices in prop::collection::vec(any::<prop::sample::Index>(), 1..60),
    ) {
        let (mut attempt, mut asked) = Attempt::begin(token(1), keys);
        let mut unanswered = false;
        for choice in choices {
            let chosen = choice.index(8);
            if chosen == 7 {
                asked.retain(|effect| matches!(effect, Effect::Release(_)));
                let (anew, effects) = attempt.begun_again(keys);
                attempt = anew;
                asked.extend(effects);
            }
            // Releases come first; every third one gets no answer.
            if let Some(next) = asked.iter().position(|effect| matches!(effect, Effect::Release(_))) {
                let Effect::Release(key) = asked.remove(next) else { unreachable!() };
                if chosen % 3 == 0 {
                    unanswered = true;
                    let (after, effects) = attempt.after(&Event::Failed(key));
                    attempt = after;
                    asked.extend(effects);
                }
                continue;
            }
            prop_assert!(!(unanswered && attempt.may_forward()), "{attempt:?}");
            if asked.is_empty() {
                continue;
            }
            let answers = answers(&asked.remove(chosen % asked.len()));
            let (after, effects) = attempt.after(choice.get(&answers));
            attempt = after;
            asked.extend(effects);
        }
    }
}

#[test]
#[should_panic = "without one of its keys"]
fn a_write_never_goes_on_without_one_of_its_keys() {
    let contested = Claim::Contested {
        conflicting: Token::UNKNOWN,
    };
    let mut attempt = Attempt::claiming(Token::of(WriteId([1; 16])), vec![Claim::Held, contested]);
    drop(attempt.claim_more());
}
