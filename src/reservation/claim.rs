//! Follows one key of an attempt: from "reserve it" to "held", "a document holds it" or "another attempt contests it".
//!
//! If a read finds no owner, the claim reads again: first on all shards, then linearizably, which a deposed primary
//! can't answer. It never takes over a conflicting reservation whose lease may still run.

use std::ops::Deref;

use super::event::{Age, ConflictingReservation, Effect, Event, Scope};
use super::token::Token;

/// The state of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Claim {
    /// Nothing is written and nothing is under way.
    Unclaimed,
    /// A document that may hold the key is being looked up, before anything is reserved.
    Checking,
    /// The reservation is being written.
    Reserving,
    /// The key is taken; the reservation that has it is being read.
    Reading,
    /// The owner of the conflicting reservation is being looked up.
    LookingUp {
        conflicting: ConflictingReservation,
        scope: Scope,
    },
    /// The conflicting reservation is being replaced.
    TakingOver { conflicting: Token },
    /// The reservation is the attempt's.
    Held,
    /// The conflicting reservation's write may still take effect.
    Contested { conflicting: Token },
    /// A document holds the key.
    Duplicate,
    /// The cluster gave no sure answer; a reservation may exist under the attempt's token.
    Unsure,
}

impl Claim {
    /// Whether an effect of this claim is still under way.
    pub(super) fn is_busy(self) -> bool {
        matches!(
            self,
            Claim::Checking | Claim::Reserving | Claim::Reading | Claim::LookingUp { .. } | Claim::TakingOver { .. }
        )
    }

    /// The next state and effect, after `event` about the key at position `key`. An event that this state doesn't wait
    /// for (a late duplicate) changes nothing.
    pub(super) fn step(self, key: usize, me: Token, event: &Event) -> (Claim, Option<Effect>) {
        match (self, event) {
            (Claim::Reserving, Event::Reserved(_)) => (Claim::Held, None),
            (Claim::Reserving, Event::Taken(_)) => (Claim::Reading, Some(Effect::Read(key))),
            (Claim::Reserving, Event::Busy(_)) => (
                Claim::Contested {
                    conflicting: Token::UNKNOWN,
                },
                None,
            ),
            (Claim::Reading, Event::Vacant(_)) => (Claim::Reserving, Some(Effect::Reserve(key))),
            (Claim::Reading, Event::Found(_, conflicting)) => Self::confront(key, me, *conflicting),
            (Claim::Checking | Claim::LookingUp { .. }, Event::OwnerHolds(_)) => (Claim::Duplicate, None),
            // The reservation isn't known: it may be gone by now, or be another attempt's.
            (Claim::Checking, Event::OwnerAbsent(_)) => (Claim::Reserving, Some(Effect::Reserve(key))),
            (Claim::LookingUp { conflicting, scope }, Event::OwnerAbsent(_)) => {
                Self::owner_missed(key, conflicting, scope)
            }
            (Claim::TakingOver { .. }, Event::TookOver(_)) => (Claim::Held, None),
            (Claim::TakingOver { .. }, Event::Changed(_)) => (Claim::Reading, Some(Effect::Read(key))),
            (Claim::TakingOver { .. }, Event::OwnerHolds(_)) => (Claim::Duplicate, None),
            (Claim::TakingOver { conflicting }, Event::Busy(_)) => (Claim::Contested { conflicting }, None),
            (claim, Event::Failed(_)) if claim.is_busy() => (Claim::Unsure, None),
            (claim, _) => (claim, None),
        }
    }

    fn confront(key: usize, me: Token, conflicting: ConflictingReservation) -> (Claim, Option<Effect>) {
        // A reservation under the attempt's own token may be old, and its release may still be on its way. A takeover
        // writes it anew, with a whole lease.
        if conflicting.token == me || conflicting.same_owner && me.is_retry_of(conflicting.token) {
            return Self::take_over(key, conflicting.token, false);
        }
        let scope = match conflicting.has_route {
            true => Scope::Route,
            false => Scope::Everywhere,
        };
        (
            Claim::LookingUp { conflicting, scope },
            Some(Effect::LookUp { key, scope }),
        )
    }

    fn owner_missed(key: usize, conflicting: ConflictingReservation, scope: Scope) -> (Claim, Option<Effect>) {
        let look_up = |scope| {
            (
                Claim::LookingUp { conflicting, scope },
                Some(Effect::LookUp { key, scope }),
            )
        };
        match (scope, conflicting.age) {
            (Scope::Route | Scope::Everywhere, Age::Expired) => look_up(Scope::Linearizable),
            (Scope::Route, Age::InLease) => look_up(Scope::Everywhere),
            (Scope::Everywhere | Scope::Linearizable, Age::InLease) => (
                Claim::Contested {
                    conflicting: conflicting.token,
                },
                None,
            ),
            (Scope::Linearizable, Age::Expired) => Self::take_over(key, conflicting.token, true),
        }
    }

    fn take_over(key: usize, conflicting: Token, from_absent: bool) -> (Claim, Option<Effect>) {
        let effect = Effect::TakeOver {
            key,
            conflicting,
            from_absent,
        };
        (Claim::TakingOver { conflicting }, Some(effect))
    }
}

/// The states of all keys of an attempt. It counts the busy ones: a document may have a hundred thousand keys, and each has events of
/// its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Claims {
    list: Vec<Claim>,
    busy: usize,
}

impl Claims {
    /// The keys in these states.
    pub(super) fn new(list: Vec<Claim>) -> Claims {
        let busy = list.iter().filter(|claim| claim.is_busy()).count();
        Claims { list, busy }
    }

    /// Changes the state of the key at position `key`.
    pub(super) fn set(&mut self, key: usize, claim: Claim) {
        let before = std::mem::replace(&mut self.list[key], claim);
        self.busy = self.busy + usize::from(claim.is_busy()) - usize::from(before.is_busy());
    }

    /// Whether an effect of one of the keys is still under way.
    pub(super) fn are_busy(&self) -> bool {
        self.busy > 0
    }
}

impl Deref for Claims {
    type Target = [Claim];

    fn deref(&self) -> &[Claim] {
        &self.list
    }
}
