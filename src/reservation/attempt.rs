//! Runs one document's attempt at its keys: claim them all, let the write through, release them if it is refused.
//!
//! The attempt first reserves all keys at once. If a conflicting reservation is in flight, it releases all its keys and
//! waits. Then it claims the keys one at a time, in the order of the list. If it waits for a key again, it holds only
//! keys that sort before that key. So no two attempts can wait for each other.
//!
//! Each state documents what a crash leaves behind. Recovery is always the same: an attempt that meets a reservation
//! looks its owner up.

use std::collections::BTreeSet;

use super::claim::{Claim, Claims};
use super::{Effect, Event, Scope, Token};

/// One document's attempt at its keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attempt {
    token: Token,
    pace: ClaimPace,
    /// The keys that the attempt took over, or tried to, from an earlier try of the same statement. If the
    /// attempt may have been forwarded before, its own earlier reservations count, too.
    ///
    /// It never releases them. The earlier try's write may still be on its way under the same statement number, and its
    /// document needs the reservation; the lease settles it. A reservation under the attempt's own token that it finds
    /// before it was forwarded isn't inherited: the attempt wrote it and got no answer.
    inherited: BTreeSet<usize>,
    /// Whether it might have been forwarded, now or at an earlier start.
    may_have_been_forwarded: bool,
    /// A key without a sure answer from the cluster, perhaps to a release. Such a release may still arrive, and would
    /// delete a newer reservation under the same token. So the attempt doesn't begin again.
    failed: Option<usize>,
    state: AttemptState,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ended {
    /// The write took effect; its keys stay reserved.
    Applied,
    /// The server refused the write. Its keys are released, except those that it had inherited.
    NotApplied,
    /// The outcome is unknown; its keys stay reserved until a takeover or a sweep settles them.
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
enum ClaimPace {
    /// Reserve every key in one go.
    AllAtOnce,
    /// Reserve a key once every key before it is held.
    OneByOne,
}

/// The points at which an attempt waits, one variant each.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum AttemptState {
    /// A crash leaves reservations without an owner; they are taken over after their lease.
    Claiming(Claims),
    /// A crash leaves the reservations of the keys before the contested one, usually none. They are taken over after their lease.
    Waiting(Claims),
    /// A crash leaves reservations, and perhaps their owner. A later conflict finds out whether the owner exists.
    Forwarding(Claims),
    /// A crash before the releases arrive leaves reservations without an owner, as above.
    Ended(Ended),
}

impl Attempt {
    /// Begins an attempt at `keys` keys. Without keys the write may be forwarded at once.
    ///
    /// A key is a position in `0..keys` of a list. The executor keeps the list sorted, so that all attempts take keys in
    /// one order.
    pub fn begin(token: Token, keys: usize) -> (Attempt, Vec<Effect>) {
        let mut attempt = Attempt::claiming(token, vec![Claim::Unclaimed; keys]);
        let effects = attempt.next_effects();
        (attempt, effects)
    }

    /// Works as [`Attempt::begin`], but first reads the existing reservations, which is cheaper if a key is probably taken.
    /// The attempt treats them as after a refused reservation.
    pub fn begin_reading(token: Token, keys: usize) -> (Attempt, Vec<Effect>) {
        match keys {
            0 => Attempt::begin(token, 0),
            _ => {
                let attempt = Attempt::claiming(token, vec![Claim::Reading; keys]);
                (attempt, (0..keys).map(Effect::Read).collect())
            }
        }
    }

    /// Works as [`Attempt::begin`], but first checks whether the first key's recent owner still holds it.
    ///
    /// This is cheaper if the same key is refused again. It checks only the first key, because its violation is
    /// reported whatever the other keys' results are.
    pub fn begin_recalling(token: Token, keys: usize) -> (Attempt, Vec<Effect>) {
        Attempt::begin_looking_up(token, keys, &[0], Scope::Route)
    }

    /// Works as [`Attempt::begin`], but first checks whether the attempt's own document holds one of the keys at `unreserved`
    /// without a reservation. A document may do so while its constraint is being built.
    ///
    /// Otherwise the attempt could reserve that key and let an insert through that the document's `_id` is in the way of. If
    /// another client deletes the document meanwhile, it takes the attempt's reservation for the document's and releases it.
    /// Then the insert would take effect without its key. After the check, only a Keyward that lacks the constraint can make such
    /// a document. This doesn't help an insert that is on its way until that Keyward has ended and the backfill has passed.
    pub fn begin_unreserved(token: Token, keys: usize, unreserved: &[usize]) -> (Attempt, Vec<Effect>) {
        Attempt::begin_looking_up(token, keys, unreserved, Scope::Linearizable)
    }

    fn begin_looking_up(token: Token, keys: usize, looked_up: &[usize], scope: Scope) -> (Attempt, Vec<Effect>) {
        let looked_up = looked_up.iter().copied().filter(|key| *key < keys);
        let looked_up: BTreeSet<usize> = looked_up.collect();
        if looked_up.is_empty() {
            return Attempt::begin(token, keys);
        }
        let claim = |key| match looked_up.contains(&key) {
            true => Claim::Checking,
            false => Claim::Unclaimed,
        };
        let attempt = Attempt::claiming(token, (0..keys).map(claim).collect());
        let look_up = |key: &usize| Effect::LookUp { key: *key, scope };
        (attempt, looked_up.iter().map(look_up).collect())
    }

    /// Releases all keys and begins again, under the same token, at the same `keys` keys; the releases come first.
    ///
    /// If the attempt has ended, it begins again only if it ended with a duplicate. If an effect failed, it gives up.
    pub fn begin_again(&mut self, keys: usize) -> Vec<Effect> {
        match self.state {
            AttemptState::Ended(Ended::NotHeld(NotHeld::Duplicate(_))) => {}
            AttemptState::Ended(_) => return Vec::new(),
            AttemptState::Claiming(_) | AttemptState::Waiting(_) | AttemptState::Forwarding(_) => {}
        }
        if let Some(key) = self.failed {
            return self.give_up(NotHeld::Unsure(key));
        }
        let mut effects = self.withdraw();
        self.pace = ClaimPace::AllAtOnce;
        self.state = AttemptState::Claiming(Claims::new(vec![Claim::Unclaimed; keys]));
        effects.extend(self.next_effects());
        effects
    }

    fn claiming(token: Token, claims: Vec<Claim>) -> Attempt {
        Attempt {
            token,
            pace: ClaimPace::AllAtOnce,
            inherited: BTreeSet::new(),
            may_have_been_forwarded: false,
            failed: None,
            state: AttemptState::Claiming(Claims::new(claims)),
        }
    }

    /// The token that this attempt writes.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Whether every key is held and the write may be forwarded.
    pub fn may_forward(&self) -> bool {
        matches!(self.state, AttemptState::Forwarding(_))
    }

    /// Whether it waits for the outcome of a conflicting reservation.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, AttemptState::Waiting(_))
    }

    /// Whether it waits for the outcome of a conflicting reservation, and holds no key that others may wait for.
    pub fn waits_with_nothing(&self) -> bool {
        matches!(&self.state, AttemptState::Waiting(claims) if claims.iter().all(|claim| *claim == Claim::Unclaimed))
    }

    /// The token of an attempt that has ended. Its reservations may be released by the token alone.
    ///
    /// # Panics
    /// If it hasn't ended.
    pub fn ended_token(&self) -> Token {
        assert!(
            self.ended().is_some(),
            "an attempt that may reserve again is released by its token: a late delete could hit its new reservation"
        );
        self.token()
    }

    /// How it ended; `None` if it hasn't.
    pub fn ended(&self) -> Option<Ended> {
        match self.state {
            AttemptState::Ended(ended) => Some(ended),
            _ => None,
        }
    }

    /// A release of every key that the attempt holds, or may hold, and hasn't inherited: for one that isn't to be forwarded, as when an
    /// ordered batch fails before it.
    pub fn withdraw(&self) -> Vec<Effect> {
        let claims = match &self.state {
            AttemptState::Claiming(claims) | AttemptState::Waiting(claims) | AttemptState::Forwarding(claims) => claims,
            AttemptState::Ended(_) => return Vec::new(),
        };
        let is_ours = |claim: &Claim| {
            matches!(
                claim,
                Claim::Held | Claim::Unsure | Claim::Reserving | Claim::TakingOver { .. }
            )
        };
        let keys = (0..claims.len()).filter(|key| is_ours(&claims[*key]) && !self.inherited.contains(key));
        keys.map(Effect::Release).collect()
    }

    /// Applies `event`, and returns the next effects.
    pub fn step(&mut self, event: &Event) -> Vec<Effect> {
        if let Event::Failed(key) = event {
            self.failed = Some(*key);
        }
        match (&mut self.state, event) {
            (AttemptState::Claiming(_), _) => self.step_claim(event),
            (AttemptState::Waiting(claims), Event::WaitOver) => {
                self.state = AttemptState::Claiming(std::mem::take(claims));
                self.next_effects()
            }
            (AttemptState::Waiting(claims), Event::Failed(key)) if *key < claims.len() => {
                self.give_up(NotHeld::Unsure(*key))
            }
            (AttemptState::Forwarding(_), Event::Applied) => {
                self.state = AttemptState::Ended(Ended::Applied);
                Vec::new()
            }
            (AttemptState::Forwarding(_), Event::NotApplied) => self.end(Ended::NotApplied),
            (AttemptState::Forwarding(_), Event::InDoubt) => {
                self.state = AttemptState::Ended(Ended::InDoubt);
                Vec::new()
            }
            (AttemptState::Forwarding(claims), Event::Superseded) => {
                let keys = claims.len();
                self.begin_again(keys)
            }
            (AttemptState::Waiting(_) | AttemptState::Forwarding(_) | AttemptState::Ended(_), _) => Vec::new(),
        }
    }

    fn step_claim(&mut self, event: &Event) -> Vec<Effect> {
        let AttemptState::Claiming(claims) = &mut self.state else {
            return Vec::new();
        };
        let Some(key) = event.key().filter(|key| *key < claims.len()) else {
            return Vec::new();
        };
        let (claim, effect) = claims[key].step(key, self.token, event);
        claims.set(key, claim);
        if let Some(Effect::TakeOver {
            from_absent: false,
            conflicting,
            ..
        }) = effect
            && (conflicting != self.token || self.may_have_been_forwarded)
        {
            self.inherited.insert(key);
        }
        match effect {
            Some(effect) => vec![effect],
            None => self.next_effects(),
        }
    }

    /// Decides the next effects once no claim is busy any more.
    fn next_effects(&mut self) -> Vec<Effect> {
        let AttemptState::Claiming(claims) = &self.state else {
            return Vec::new();
        };
        if claims.are_busy() {
            return Vec::new();
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

    fn give_up(&mut self, why: NotHeld) -> Vec<Effect> {
        self.end(Ended::NotHeld(why))
    }

    /// Ends without the write: its keys are released.
    fn end(&mut self, how: Ended) -> Vec<Effect> {
        let releases = self.withdraw();
        self.state = AttemptState::Ended(how);
        releases
    }

    /// Waits for `conflicting`. The first time, the attempt releases all its keys. After that it claims keys one by
    /// one: the keys that it holds sort before the contested key, and it keeps them.
    fn wait_for(&mut self, conflicting: Token) -> Vec<Effect> {
        let mut effects = match self.pace {
            ClaimPace::AllAtOnce => self.withdraw(),
            ClaimPace::OneByOne => Vec::new(),
        };
        let AttemptState::Claiming(claims) = &self.state else {
            return Vec::new();
        };
        let keeps = |claim: &Claim| self.pace == ClaimPace::OneByOne && !matches!(claim, Claim::Contested { .. });
        let kept = claims.iter().map(|claim| match keeps(claim) {
            true => *claim,
            false => Claim::Unclaimed,
        });
        let kept = Claims::new(kept.collect());
        effects.push(Effect::Wait { conflicting });
        self.pace = ClaimPace::OneByOne;
        self.state = AttemptState::Waiting(kept);
        effects
    }

    /// Reserves keys that aren't claimed yet, or lets the write through.
    fn claim_more(&mut self) -> Vec<Effect> {
        let AttemptState::Claiming(claims) = &mut self.state else {
            return Vec::new();
        };
        let most = match self.pace {
            ClaimPace::AllAtOnce => claims.len(),
            ClaimPace::OneByOne => 1,
        };
        let unclaimed = (0..claims.len()).filter(|key| claims[*key] == Claim::Unclaimed);
        let unclaimed: Vec<usize> = unclaimed.take(most).collect();
        if unclaimed.is_empty() {
            // Otherwise a document could be written whose key another document holds.
            assert!(
                claims.iter().all(|claim| *claim == Claim::Held),
                "a write goes on without one of its keys: {claims:?}"
            );
            self.may_have_been_forwarded = true;
            self.state = AttemptState::Forwarding(std::mem::take(claims));
            return vec![Effect::Forward];
        }
        for key in &unclaimed {
            claims.set(*key, Claim::Reserving);
        }
        unclaimed.into_iter().map(Effect::Reserve).collect()
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
            Event::WaitOver | Event::Superseded | Event::Applied | Event::NotApplied | Event::InDoubt => None,
        }
    }
}

/// An earlier document of the same command that contests a key, if there is one.
///
/// That document must be decided first, because the first violation in order is reported. The attempt itself has
/// already met a duplicate, so it doesn't wait for any other outcome.
fn contested_by_earlier_sibling(claims: &[Claim], me: Token) -> Option<Token> {
    claims.iter().find_map(|claim| match claim {
        Claim::Contested { conflicting } if conflicting.write == me.write && conflicting.position < me.position => {
            Some(*conflicting)
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests;
