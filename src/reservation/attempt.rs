//! One document's attempt at its keys: claim them all, let the write through, give back what a refused write left.
//!
//! It first reserves all keys at once. If a rival turns out to be in flight, it gives everything back, waits, and
//! claims again one key at a time in the order of the list, holding what comes before: whoever waits holds only keys
//! that sort before the one waited for, so no two attempts can wait for each other. What a crash leaves at each
//! point is said at the state; recovery is always the same: whoever meets a reservation looks for its owner.

use super::{
    Effect, Event, Token,
    claim::{Claim, Origin},
};

/// One document's attempt at its keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attempt {
    token: Token,
    pace: Pace,
    state: State,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ended {
    /// The write took effect; its keys stay reserved.
    Applied,
    /// The write was refused by the server; its keys are given back.
    NotApplied,
    /// Unknown; its keys stay reserved until somebody settles them.
    InDoubt,
    /// It was never forwarded.
    NotHeld(NotHeld),
}

/// Why an attempt's write was never forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotHeld {
    /// A document holds the key at this position.
    Duplicate(usize),
    /// The cluster gave no sure answer about the key at this position.
    Unsure(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Pace {
    /// Reserve every key in one go.
    AllAtOnce,
    /// Reserve a key once every key before it is held.
    OneByOne,
}

/// One variant for each point at which an attempt waits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    /// A crash leaves reservations without an owner; they are taken over after their lease.
    Claiming(Vec<Claim>),
    /// As above, for the keys before the contested one; usually none.
    Waiting(Vec<Claim>),
    /// A crash leaves reservations, and perhaps their owner: a conflict finds out which.
    Forwarding(Vec<Claim>),
    /// A crash before the releases arrive leaves reservations without an owner, as above.
    Ended(Ended),
}

impl Attempt {
    /// Begins an attempt at `keys` keys (positions `0..keys` of a list that the driver keeps sorted, so that every
    /// attempt takes keys in one order). Without keys the write may be forwarded at once.
    pub fn begin(token: Token, keys: usize) -> (Attempt, Vec<Effect>) {
        let attempt = Attempt {
            token,
            pace: Pace::AllAtOnce,
            state: State::Claiming(vec![Claim::Unclaimed; keys]),
        };
        attempt.settled()
    }

    /// As [`Attempt::begin`], but reads what stands in the way first: cheaper where a key is probably taken. What it finds it
    /// treats as it would after a reservation that was refused.
    pub fn begin_looking(token: Token, keys: usize) -> (Attempt, Vec<Effect>) {
        let attempt = Attempt {
            token,
            pace: Pace::AllAtOnce,
            state: State::Claiming(vec![Claim::Reading; keys]),
        };
        match keys {
            0 => attempt.settled(),
            _ => (attempt, (0..keys).map(Effect::Read).collect()),
        }
    }

    /// The token that this attempt writes.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Whether every key is held and the write may be forwarded.
    pub fn may_forward(&self) -> bool {
        matches!(self.state, State::Forwarding(_))
    }

    /// Whether it waits for a rival's outcome.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting(_))
    }

    /// Whether it waits for a rival's outcome without holding anything that others may wait for.
    pub fn waits_with_nothing(&self) -> bool {
        matches!(&self.state, State::Waiting(claims) if claims.iter().all(|claim| *claim == Claim::Unclaimed))
    }

    /// How it ended, once it has.
    pub fn ended(&self) -> Option<Ended> {
        match self.state {
            State::Ended(ended) => Some(ended),
            _ => None,
        }
    }

    /// Gives back every key of an attempt that hasn't been forwarded yet, as when an ordered batch fails before it.
    pub fn withdraw(self) -> Vec<Effect> {
        match self.state {
            State::Claiming(claims) | State::Waiting(claims) | State::Forwarding(claims) => releases(&claims),
            State::Ended(_) => Vec::new(),
        }
    }

    /// Takes in what happened; gives the effects that it asks for next.
    pub fn step(self, event: &Event) -> (Attempt, Vec<Effect>) {
        let Attempt { token, pace, state } = self;
        match state {
            State::Claiming(claims) => Attempt {
                token,
                pace,
                state: State::Claiming(claims),
            }
            .step_claim(event),
            State::Waiting(claims) => match event {
                Event::WaitOver => Attempt {
                    token,
                    pace,
                    state: State::Claiming(claims),
                }
                .settled(),
                Event::Failed(key) if *key < claims.len() => Attempt {
                    token,
                    pace,
                    state: State::Waiting(claims),
                }
                .give_up(NotHeld::Unsure(*key)),
                _ => (
                    Attempt {
                        token,
                        pace,
                        state: State::Waiting(claims),
                    },
                    Vec::new(),
                ),
            },
            State::Forwarding(claims) => {
                let (ended, effects) = match event {
                    Event::Applied => (Ended::Applied, Vec::new()),
                    Event::NotApplied => (Ended::NotApplied, releases(&claims)),
                    Event::InDoubt => (Ended::InDoubt, Vec::new()),
                    Event::Lost => {
                        let mut effects = releases(&claims);
                        let (attempt, more) = Attempt::begin(token, claims.len());
                        effects.extend(more);
                        return (attempt, effects);
                    }
                    _ => {
                        return (
                            Attempt {
                                token,
                                pace,
                                state: State::Forwarding(claims),
                            },
                            Vec::new(),
                        );
                    }
                };
                (
                    Attempt {
                        token,
                        pace,
                        state: State::Ended(ended),
                    },
                    effects,
                )
            }
            State::Ended(ended) => (
                Attempt {
                    token,
                    pace,
                    state: State::Ended(ended),
                },
                Vec::new(),
            ),
        }
    }

    fn step_claim(mut self, event: &Event) -> (Attempt, Vec<Effect>) {
        let State::Claiming(claims) = &mut self.state else {
            return (self, Vec::new());
        };
        let Some(key) = event.key().filter(|key| *key < claims.len()) else {
            return (self, Vec::new());
        };
        let (claim, effect) = claims[key].step(key, self.token, event);
        claims[key] = claim;
        match effect {
            Some(effect) => (self, vec![effect]),
            None => self.settled(),
        }
    }

    /// Decides what comes next once no claim is busy any more.
    fn settled(mut self) -> (Attempt, Vec<Effect>) {
        let State::Claiming(claims) = &mut self.state else {
            return (self, Vec::new());
        };
        if claims.iter().any(|claim| claim.is_busy()) {
            return (self, Vec::new());
        }
        if let Some(key) = claims.iter().position(|claim| *claim == Claim::Duplicate) {
            return match contested_by_earlier_sibling(&claims[..key], self.token) {
                Some(sibling) => self.wait_for(sibling),
                None => self.give_up(NotHeld::Duplicate(key)),
            };
        }
        if let Some(key) = claims.iter().position(|claim| matches!(claim, Claim::Unsure(_))) {
            return self.give_up(NotHeld::Unsure(key));
        }
        let contested = claims.iter().find_map(|claim| match claim {
            Claim::Contested { rival } => Some(*rival),
            _ => None,
        });
        match contested {
            Some(rival) => self.wait_for(rival),
            None => self.claim_more(),
        }
    }

    fn give_up(self, why: NotHeld) -> (Attempt, Vec<Effect>) {
        let ended = Attempt {
            token: self.token,
            pace: self.pace,
            state: State::Ended(Ended::NotHeld(why)),
        };
        (ended, self.withdraw())
    }

    /// Waits for `rival`. The first time everything else is given back; one by one, what is held comes before the
    /// contested key, and is kept.
    fn wait_for(self, rival: Token) -> (Attempt, Vec<Effect>) {
        let State::Claiming(mut claims) = self.state else {
            return (self, Vec::new());
        };
        let mut effects = Vec::new();
        if self.pace == Pace::AllAtOnce {
            effects = releases(&claims);
            claims.fill(Claim::Unclaimed);
        }
        for claim in &mut claims {
            if matches!(claim, Claim::Contested { .. }) {
                *claim = Claim::Unclaimed;
            }
        }
        effects.push(Effect::Wait { rival });
        let waiting = Attempt {
            token: self.token,
            pace: Pace::OneByOne,
            state: State::Waiting(claims),
        };
        (waiting, effects)
    }

    /// Reserves what isn't claimed yet, or lets the write through.
    fn claim_more(self) -> (Attempt, Vec<Effect>) {
        let State::Claiming(mut claims) = self.state else {
            return (self, Vec::new());
        };
        let most = match self.pace {
            Pace::AllAtOnce => claims.len(),
            Pace::OneByOne => 1,
        };
        let mut effects = Vec::new();
        for (key, claim) in claims.iter_mut().enumerate() {
            if *claim == Claim::Unclaimed && effects.len() < most {
                *claim = Claim::Reserving;
                effects.push(Effect::Reserve(key));
            }
        }
        let state = match effects.is_empty() {
            true => {
                effects.push(Effect::Forward);
                State::Forwarding(claims)
            }
            false => State::Claiming(claims),
        };
        (
            Attempt {
                token: self.token,
                pace: self.pace,
                state,
            },
            effects,
        )
    }
}

impl Event {
    fn key(&self) -> Option<usize> {
        match self {
            Event::Reserved(key)
            | Event::Taken(key)
            | Event::Found(key, _)
            | Event::Vacant(key)
            | Event::OwnerHolds(key)
            | Event::OwnerAbsent(key)
            | Event::TookOver(key)
            | Event::Changed(key)
            | Event::Busy(key)
            | Event::Failed(key) => Some(*key),
            Event::WaitOver | Event::Lost | Event::Applied | Event::NotApplied | Event::InDoubt => None,
        }
    }
}

/// The document before this one in the same command that contests a key, if there is one: it is decided first, and what is
/// reported is the first violation in order. For anybody else's outcome an attempt that is lost anyway doesn't wait.
fn contested_by_earlier_sibling(claims: &[Claim], me: Token) -> Option<Token> {
    claims.iter().find_map(|claim| match claim {
        Claim::Contested { rival } if rival.attempt == me.attempt && rival.position < me.position => Some(*rival),
        _ => None,
    })
}

/// Releases for every key that is the attempt's, or may be. An adopted key stays: the first try's write may still be on
/// its way under the same statement number, and its document needs the reservation; the lease settles it.
fn releases(claims: &[Claim]) -> Vec<Effect> {
    let ours = |claim: &Claim| {
        matches!(
            claim,
            Claim::Held(Origin::Own)
                | Claim::Unsure(Origin::Own)
                | Claim::Reserving
                | Claim::TakingOver {
                    origin: Origin::Own,
                    ..
                }
        )
    };
    claims
        .iter()
        .enumerate()
        .filter(|(_, claim)| ours(claim))
        .map(|(key, _)| Effect::Release(key))
        .collect()
}

#[cfg(test)]
mod tests;
