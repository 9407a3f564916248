//! One document's attempt at its keys: claim them all, let the write through, give back what a refused write left.
//!
//! It first reserves all keys at once. If a rival turns out to be in flight, it gives everything back, waits, and
//! claims again one key at a time in the order of the list, holding what comes before: whoever waits holds only keys
//! that sort before the one waited for, so no two attempts can wait for each other. What a crash leaves at each
//! point is said at the state; recovery is always the same: whoever meets a reservation looks for its owner.

use std::collections::BTreeSet;

use super::{Effect, Event, Scope, Token, claim::Claim};

/// One document's attempt at its keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attempt {
    token: Token,
    pace: Pace,
    /// The keys that it took, or tried to take, from an earlier try of the same operation, or from itself after it might have been
    /// forwarded. It never gives them back: that try's write may still be on its way under the same statement number, and its
    /// document needs the reservation; the lease settles it. What it finds of itself before, it wrote without hearing of it.
    inherited: BTreeSet<usize>,
    /// Whether it might have been forwarded, now or at an earlier start.
    let_through: bool,
    /// A key about which no sure answer came, of a release perhaps. That may still come, and would hit whatever stands there
    /// under the same token: the attempt doesn't begin again.
    failed: Option<usize>,
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
        Attempt::claiming(token, BTreeSet::new(), vec![Claim::Unclaimed; keys]).settled()
    }

    /// As [`Attempt::begin`], but reads what stands in the way first: cheaper where a key is probably taken. What it finds it
    /// treats as it would after a reservation that was refused.
    pub fn begin_looking(token: Token, keys: usize) -> (Attempt, Vec<Effect>) {
        match keys {
            0 => Attempt::begin(token, 0),
            _ => {
                let attempt = Attempt::claiming(token, BTreeSet::new(), vec![Claim::Reading; keys]);
                (attempt, (0..keys).map(Effect::Read).collect())
            }
        }
    }

    /// As [`Attempt::begin`], but first looks whether the document that was found to hold the first key a while ago still does:
    /// cheaper where the same key is refused again. Only the first key's violation is the one to report, whatever the others'.
    pub fn begin_recalling(token: Token, keys: usize) -> (Attempt, Vec<Effect>) {
        let mut claims = vec![Claim::Unclaimed; keys];
        let Some(first) = claims.first_mut() else {
            return Attempt::begin(token, 0);
        };
        *first = Claim::Recalling;
        let look = Effect::LookUp {
            key: 0,
            scope: Scope::Route,
        };
        (Attempt::claiming(token, BTreeSet::new(), claims), vec![look])
    }

    /// Gives everything back and begins anew, under the same token, at the same `keys` keys; the releases come first.
    ///
    /// Of those that have ended only one that met a duplicate does; and none does of which something failed.
    pub fn begin_again(self, keys: usize) -> (Attempt, Vec<Effect>) {
        match self.state {
            State::Ended(Ended::NotHeld(NotHeld::Duplicate(_))) => {}
            State::Ended(_) => return (self, Vec::new()),
            State::Claiming(_) | State::Waiting(_) | State::Forwarding(_) => {}
        }
        if let Some(key) = self.failed {
            return self.give_up(NotHeld::Unsure(key));
        }
        let mut effects = self.clone().withdraw();
        let anew = Attempt {
            let_through: self.let_through,
            ..Attempt::claiming(self.token, self.inherited, vec![Claim::Unclaimed; keys])
        };
        let (attempt, more) = anew.settled();
        effects.extend(more);
        (attempt, effects)
    }

    fn claiming(token: Token, inherited: BTreeSet<usize>, claims: Vec<Claim>) -> Attempt {
        Attempt {
            token,
            pace: Pace::AllAtOnce,
            inherited,
            let_through: false,
            failed: None,
            state: State::Claiming(claims),
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
        match &self.state {
            State::Claiming(claims) | State::Waiting(claims) | State::Forwarding(claims) => self.releases(claims),
            State::Ended(_) => Vec::new(),
        }
    }

    /// Takes in what happened; gives the effects that it asks for next.
    pub fn step(mut self, event: &Event) -> (Attempt, Vec<Effect>) {
        if let Event::Failed(key) = event {
            self.failed = Some(*key);
        }
        match (&self.state, event) {
            (State::Claiming(_), _) => self.step_claim(event),
            (State::Waiting(claims), Event::WaitOver) => {
                let claims = claims.clone();
                self.with(State::Claiming(claims)).settled()
            }
            (State::Waiting(claims), Event::Failed(key)) if *key < claims.len() => self.give_up(NotHeld::Unsure(*key)),
            (State::Forwarding(_), Event::Applied) => (self.with(State::Ended(Ended::Applied)), Vec::new()),
            (State::Forwarding(claims), Event::NotApplied) => {
                let releases = self.releases(claims);
                (self.with(State::Ended(Ended::NotApplied)), releases)
            }
            (State::Forwarding(_), Event::InDoubt) => (self.with(State::Ended(Ended::InDoubt)), Vec::new()),
            (State::Forwarding(claims), Event::Lost) => {
                let keys = claims.len();
                self.begin_again(keys)
            }
            (State::Waiting(_) | State::Forwarding(_) | State::Ended(_), _) => (self, Vec::new()),
        }
    }

    fn with(self, state: State) -> Attempt {
        Attempt { state, ..self }
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
        if let Some(Effect::TakeOver {
            from_absent: false,
            conflicting,
            ..
        }) = effect
            && (conflicting != self.token || self.let_through)
        {
            self.inherited.insert(key);
        }
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
        if let Some(key) = claims.iter().position(|claim| matches!(claim, Claim::Unsure)) {
            return self.give_up(NotHeld::Unsure(key));
        }
        let contested = claims.iter().find_map(|claim| match claim {
            Claim::Contested { conflicting } => Some(*conflicting),
            _ => None,
        });
        match contested {
            Some(conflicting) => self.wait_for(conflicting),
            None => self.claim_more(),
        }
    }

    fn give_up(self, why: NotHeld) -> (Attempt, Vec<Effect>) {
        let releases = self.clone().withdraw();
        (self.with(State::Ended(Ended::NotHeld(why))), releases)
    }

    /// Waits for `rival`. The first time everything else is given back; one by one, what is held comes before the
    /// contested key, and is kept.
    fn wait_for(self, conflicting: Token) -> (Attempt, Vec<Effect>) {
        let State::Claiming(claims) = &self.state else {
            return (self, Vec::new());
        };
        let (mut effects, mut claims) = match self.pace {
            Pace::AllAtOnce => (self.releases(claims), vec![Claim::Unclaimed; claims.len()]),
            Pace::OneByOne => (Vec::new(), claims.clone()),
        };
        for claim in &mut claims {
            if matches!(claim, Claim::Contested { .. }) {
                *claim = Claim::Unclaimed;
            }
        }
        effects.push(Effect::Wait { conflicting });
        let waiting = Attempt {
            pace: Pace::OneByOne,
            state: State::Waiting(claims),
            ..self
        };
        (waiting, effects)
    }

    /// Reserves what isn't claimed yet, or lets the write through.
    fn claim_more(mut self) -> (Attempt, Vec<Effect>) {
        let State::Claiming(claims) = &mut self.state else {
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
        if effects.is_empty() {
            let claims = std::mem::take(claims);
            // Otherwise a document could be written whose key another document holds.
            assert!(
                claims.iter().all(|claim| *claim == Claim::Held),
                "a write goes on without one of its keys: {claims:?}"
            );
            self.let_through = true;
            return (self.with(State::Forwarding(claims)), vec![Effect::Forward]);
        }
        (self, effects)
    }

    /// Releases for every key that is the attempt's, or may be, and isn't adopted.
    fn releases(&self, claims: &[Claim]) -> Vec<Effect> {
        let is_ours = |claim: &Claim| {
            matches!(
                claim,
                Claim::Held | Claim::Unsure | Claim::Reserving | Claim::TakingOver { .. }
            )
        };
        let keys = (0..claims.len()).filter(|key| is_ours(&claims[*key]) && !self.inherited.contains(key));
        keys.map(Effect::Release).collect()
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
        Claim::Contested { conflicting } if conflicting.attempt == me.attempt && conflicting.position < me.position => {
            Some(*conflicting)
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests;
