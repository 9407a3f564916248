//! One key of an attempt: from "reserve it" to "held", "a document holds it" or "somebody else is at it".
//!
//! A claim never concludes that an owner is gone from a look that could have missed it: a miss on the owner's own shard
//! is confirmed on all shards, and before a takeover by a read that a deposed primary can't answer. It never takes a
//! key from a rival whose lease may still run.

use super::{Effect, Event, Token};

/// A reservation that stands in an attempt's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConflictingReservation {
    /// Who wrote it.
    pub token: Token,
    /// Whether its owner is the very document that the attempt is about (`_id` and route alike).
    pub same_owner: bool,
    /// Whether it says where its owner lives, so that one shard can be asked first.
    pub has_route: bool,
    /// Whether its lease may still run.
    pub age: Age,
}

/// How old a reservation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Age {
    /// Its lease may still run: an owner that isn't there may yet come.
    InLease,
    /// Its lease has run out: an owner that isn't there won't come.
    Expired,
}

/// How far a look for an owner reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// The shard that the owner's route names: finding it there is proof, missing it isn't.
    Route,
    /// Every shard.
    Everywhere,
    /// Every shard, linearizable: only a primary that a majority still follows can answer.
    Linearizable,
}

/// Where one key stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Claim {
    /// Nothing is written and nothing is under way.
    Unclaimed,
    /// Whoever held it when it was refused before is being looked for.
    Recalling,
    /// The reservation is being written.
    Reserving,
    /// The key is taken; the reservation that has it is being read.
    Reading,
    /// The rival's owner is being looked for.
    LookingUp {
        conflicting: ConflictingReservation,
        scope: Scope,
    },
    /// The rival's reservation is being replaced.
    TakingOver { conflicting: Token },
    /// The reservation is the attempt's.
    Held,
    /// The rival may still be at it.
    Contested { conflicting: Token },
    /// A document holds the key.
    Duplicate,
    /// The cluster gave no sure answer; the reservation may be there under the attempt's token.
    Unsure,
}

impl Claim {
    /// Whether an effect of this claim is still under way.
    pub(super) fn is_busy(self) -> bool {
        matches!(
            self,
            Claim::Recalling | Claim::Reserving | Claim::Reading | Claim::LookingUp { .. } | Claim::TakingOver { .. }
        )
    }

    /// The next state and what to do, after `event` about the key at position `key`. An event that this state doesn't
    /// wait for (a late duplicate) changes nothing.
    pub(super) fn step(self, key: usize, me: Token, event: &Event) -> (Claim, Option<Effect>) {
        match (self, event) {
            (Claim::Reserving, Event::Reserved(_)) => (Claim::Held, None),
            (Claim::Reserving, Event::Taken(_)) => (Claim::Reading, Some(Effect::Read(key))),
            (Claim::Reserving, Event::Busy(_)) => (
                Claim::Contested {
                    conflicting: Token::UNSEEN,
                },
                None,
            ),
            (Claim::Reading, Event::Vacant(_)) => (Claim::Reserving, Some(Effect::Reserve(key))),
            (Claim::Reading, Event::Found(_, conflicting)) => Self::confront(key, me, *conflicting),
            (Claim::Recalling | Claim::LookingUp { .. }, Event::OwnerHolds(_)) => (Claim::Duplicate, None),
            // Of the reservation nothing is known: there may be none by now, or anybody's.
            (Claim::Recalling, Event::OwnerAbsent(_)) => (Claim::Reserving, Some(Effect::Reserve(key))),
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
        // Under the attempt's own token it may be old, and a release of it may still be on its way: written anew it has
        // its whole lease.
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
        let look = |scope| {
            (
                Claim::LookingUp { conflicting, scope },
                Some(Effect::LookUp { key, scope }),
            )
        };
        match (scope, conflicting.age) {
            (Scope::Route | Scope::Everywhere, Age::Expired) => look(Scope::Linearizable),
            (Scope::Route, Age::InLease) => look(Scope::Everywhere),
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
