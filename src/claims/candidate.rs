//! Holds one document of a write, its keys and its attempt at them.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use tokio::time::Instant;

use super::document::{ConstrainedKey, keys_of_new, keys_under, owner_of, with_id};
use crate::catalog::Protected;
use crate::constraint::{Key, KeyError};
use crate::proxy_collection::{Owner, Reservation, ReservationVersion};
use crate::raw::Doc;
use crate::reservation::{Attempt, Effect, Event, Token};

/// One document that wants its keys.
#[derive(Debug)]
pub struct Candidate<'a> {
    /// Its position in the client's command.
    pub position: usize,
    /// The document to insert, with an `_id`; empty if the document isn't inserted: a statement changes it, or it exists already.
    pub document: Cow<'a, [u8]>,
    /// The owner of the keys.
    pub owner: Owner,
    /// The keys by constraint, then in index order. It is the one order in which every attempt takes its keys, and the order in which
    /// the server reports violations.
    pub keys: Vec<ConstrainedKey>,
    /// The state of its attempt.
    pub attempt: Attempt,
    /// How often its keys were released.
    pub generation: u32,
    /// Whether a write by which its document comes to hold the keys may be on its way.
    pub in_flight: bool,
    /// The effects that the attempt asks for next.
    pub effects: Vec<Effect>,
    /// The earliest time at which one of its reservations can have been written: its lease runs from then.
    pub since: Option<Instant>,
    /// How often it had all its keys, but too late to write with.
    pub times_late: u32,
    /// The reservations that stand in its way, or did when its key was refused before, by key.
    pub conflicting: HashMap<usize, Reservation>,
}

impl<'a> Candidate<'a> {
    /// Computes the owner and the keys of `document`, and begins its attempt.
    ///
    /// # Errors
    /// [`KeyError`] if the document can't be indexed under the collection's constraints.
    pub fn new(protected: &Protected, token: Token, document: &'a [u8]) -> Result<Self, KeyError> {
        let document = with_id(document, token)?;
        let doc = Doc::new(&document)?;
        let keys = keys_of_new(protected, doc)?;
        let owner = owner_of(protected, doc)?;
        Ok(Candidate::of_keys(token, document, owner, keys))
    }

    /// One attempt for each key that a document, which exists already, holds under the constraint at position `constraint`.
    ///
    /// # Errors
    /// [`KeyError`], as for [`Candidate::new`].
    pub fn one_for_each_key(
        protected: &Protected,
        constraint: usize,
        token: Token,
        doc: Doc<'_>,
    ) -> Result<Vec<Self>, KeyError> {
        let owner = owner_of(protected, doc)?;
        let keys = keys_under(protected, constraint, doc)?.into_iter();
        let keys = keys.map(|key| ConstrainedKey { constraint, key });
        Ok(keys
            .map(|key| Candidate::of_held_key(token, owner.clone(), key))
            .collect())
    }

    /// An attempt at a key that a document holds already: no write of it is on its way.
    pub fn of_held_key(token: Token, owner: Owner, key: ConstrainedKey) -> Self {
        Candidate {
            in_flight: false,
            ..Candidate::of_keys(token, Cow::Borrowed(&[]), owner, vec![key])
        }
    }

    /// An attempt at keys that a document is to get by a write.
    pub fn of_keys(token: Token, document: Cow<'a, [u8]>, owner: Owner, keys: Vec<ConstrainedKey>) -> Self {
        let (attempt, effects) = Attempt::begin(token, keys.len());
        Candidate {
            position: token.position as usize,
            document,
            owner,
            keys,
            attempt,
            generation: 0,
            in_flight: true,
            effects,
            since: None,
            times_late: 0,
            conflicting: HashMap::new(),
        }
    }

    /// Begins otherwise, before anything is done.
    fn begin(&mut self, begin: impl Fn(Token, usize) -> (Attempt, Vec<Effect>)) {
        (self.attempt, self.effects) = begin(self.attempt.token(), self.keys.len());
    }

    /// Begins by looking up whether its own document holds keys under these constraints without reservations
    /// ([`Attempt::begin_unreserved`]).
    pub fn check_unreserved(&mut self, unenforced: &[usize]) {
        let is_meant = |key: &ConstrainedKey| unenforced.contains(&key.constraint);
        let keys: Vec<usize> = (0..self.keys.len()).filter(|key| is_meant(&self.keys[*key])).collect();
        if keys.is_empty() {
            return;
        }
        self.begin(|token, count| Attempt::begin_unreserved(token, count, &keys));
        let presumed = Reservation::presumed(self.owner.clone());
        self.conflicting = keys.into_iter().map(|key| (key, presumed.clone())).collect();
    }

    /// The reservation of its first key, if another document held that lately.
    fn recalled(&self, protected: &Protected) -> Option<Reservation> {
        let ConstrainedKey { constraint, key } = self.keys.first()?;
        let remembered = protected.constraints[*constraint].recent_owners.take(key)?;
        (remembered.owner != self.owner).then_some(remembered)
    }

    /// Its keys under the constraint at position `constraint`.
    pub fn keys_under(&self, constraint: usize) -> impl Iterator<Item = &Key> {
        let own = self.keys.iter().filter(move |key| key.constraint == constraint);
        own.map(|key| &key.key)
    }

    /// Whether the reservation in the way of the key at `key` is for this very document.
    pub fn conflicts_with_itself(&self, key: usize) -> bool {
        self.conflicting
            .get(&key)
            .is_some_and(|conflicting| conflicting.owner == self.owner)
    }

    /// Notes the reservation that conflicts at `key`. If it is the one met before, the time when Keyward first met it stays.
    pub fn meet(&mut self, key: usize, mut conflicting: Reservation) {
        if let Some(before) = self
            .conflicting
            .get(&key)
            .filter(|before| before.is_same_write(&conflicting))
        {
            conflicting.seen = before.seen;
        }
        self.conflicting.insert(key, conflicting);
    }

    /// The version of the reservations that it writes.
    pub fn version(&self) -> ReservationVersion {
        ReservationVersion {
            token: self.attempt.token(),
            generation: self.generation,
            in_flight: self.in_flight,
        }
    }

    /// Feeds one event to the attempt. Once it waits without keys, the lease of its next ones is still to begin.
    pub fn step(&mut self, event: &Event) {
        let effects = self.attempt.step(event);
        if self.attempt.ended().is_some() {
            self.keep_only_releases();
        }
        if self.attempt.waits_with_nothing() {
            self.since = None;
        }
        self.ask(effects);
    }

    /// Asks for the release of everything and begins anew, unless the attempt has ended; the releases come first.
    pub fn restart(&mut self) {
        self.keep_only_releases();
        let effects = self.attempt.begin_again(self.keys.len());
        self.ask(effects);
        self.since = None;
    }

    /// Asks for the release of everything, and claims nothing more.
    pub fn withdraw(&mut self) {
        self.keep_only_releases();
        self.ask(self.attempt.withdraw());
    }

    /// Adds `effects`. A release that is open already isn't asked for again: nothing is reserved before it is done, so there
    /// is nothing that a second one could release.
    fn ask(&mut self, effects: Vec<Effect>) {
        let is_release = |effect: &Effect| matches!(effect, Effect::Release(_));
        // Most effects are asked for one by one, and there may be a hundred thousand open.
        if !effects.iter().any(is_release) {
            return self.effects.extend(effects);
        }
        let open: HashSet<Effect> = self.effects.iter().filter(|one| is_release(one)).cloned().collect();
        self.effects
            .extend(effects.into_iter().filter(|effect| !open.contains(effect)));
    }

    /// Drops all effects but releases: the attempt claims nothing more.
    fn keep_only_releases(&mut self) {
        self.effects.retain(|effect| matches!(effect, Effect::Release(_)));
    }
}

/// Chooses how all attempts of a command begin, by what their keys are likely to meet. Under the `unenforced` constraints existing
/// documents may have no reservations yet.
///
/// The first document that wants a key must reserve it first, so all begin in the same way.
pub fn anticipate(protected: &Protected, unenforced: &[usize], candidates: &mut [Candidate<'_>]) {
    if !unenforced.is_empty() {
        for candidate in candidates {
            candidate.check_unreserved(unenforced);
        }
        return;
    }
    if let [alone] = candidates
        && let Some(held) = alone.recalled(protected)
    {
        alone.begin(Attempt::begin_recalling);
        alone.conflicting.insert(0, held);
        return;
    }
    let is_likely_taken = |key: &ConstrainedKey| {
        protected.constraints[key.constraint]
            .conflict_predictor
            .is_likely_taken()
    };
    if candidates
        .iter()
        .flat_map(|candidate| &candidate.keys)
        .any(is_likely_taken)
    {
        for candidate in candidates {
            candidate.begin(Attempt::begin_reading);
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::RawBson;

    use super::*;
    use crate::constraint::{Constraint, IndexSpec};
    use crate::namespace::Namespace;
    use crate::reservation::WriteId;

    /// A candidate with the keys 1 and 2, both held.
    fn candidate() -> Candidate<'static> {
        let spec = IndexSpec {
            key: bson::doc! { "n": 1 },
            ..Default::default()
        };
        let constraint = Constraint::new(Namespace::new("shop", "users"), spec).unwrap();
        let document = bson::doc! { "n": [1, 2] }.to_vec().unwrap();
        let keys = constraint.keys(Doc::new(&document).unwrap()).unwrap();
        let keys = keys.into_iter().map(|key| ConstrainedKey { constraint: 0, key });
        let token = Token {
            write: WriteId([1; 16]),
            position: 0,
            retry_id: None,
        };
        let owner = Owner {
            id: RawBson::Int32(1),
            route: None,
        };
        let mut candidate = Candidate::of_keys(token, Cow::Borrowed(&[]), owner, keys.collect());
        candidate.effects.clear();
        candidate.step(&Event::Reserved(0));
        candidate.step(&Event::Reserved(1));
        assert!(candidate.attempt.may_forward());
        candidate.effects.clear();
        candidate
    }

    /// If each step cost more with more keys, this would take hours.
    #[test]
    fn a_document_may_have_a_hundred_thousand_keys() {
        const KEYS: usize = 100_000;
        let key = candidate().keys.remove(0);
        let (token, owner) = (candidate().attempt.token(), candidate().owner);
        let mut many = Candidate::of_keys(token, Cow::Borrowed(&[]), owner, vec![key; KEYS]);
        many.effects.clear();
        (0..KEYS).for_each(|key| many.step(&Event::Taken(key)));
        assert_eq!(std::mem::take(&mut many.effects).len(), KEYS);
        (0..KEYS).for_each(|key| many.step(&Event::Vacant(key)));
        (0..KEYS).for_each(|key| many.step(&Event::Reserved(key)));
        assert!(many.attempt.may_forward());
        many.withdraw();
        many.withdraw();
        assert_eq!(many.effects.len(), KEYS);
    }

    #[test]
    fn the_lease_of_keys_that_it_gave_back_to_wait_counts_no_more() {
        let mut candidate = candidate();
        candidate.since = Some(Instant::now());
        candidate.restart();
        candidate.since = Some(Instant::now());
        candidate.step(&Event::Reserved(0));
        assert!(candidate.since.is_some());
        candidate.step(&Event::Busy(1));
        assert!(candidate.attempt.waits_with_nothing() && candidate.since.is_none());
        // Then it takes its keys one by one, and keeps them.
        for event in [Event::WaitOver, Event::Reserved(0)] {
            candidate.step(&event);
        }
        candidate.since = Some(Instant::now());
        candidate.step(&Event::Busy(1));
        assert!(candidate.attempt.is_waiting() && candidate.since.is_some());
    }

    #[test]
    fn a_release_that_is_open_is_not_asked_for_again() {
        let release = [Effect::Release(0), Effect::Release(1)];
        let claim = [Effect::Reserve(0), Effect::Reserve(1)];
        let ways: [fn(&mut Candidate<'_>); 4] = [
            // Too late to be written, and then behind one that isn't ready.
            |candidate| {
                candidate.restart();
                candidate.restart();
            },
            // Overtaken in its transaction, and behind one that was, too.
            |candidate| {
                candidate.step(&Event::Superseded);
                candidate.restart();
            },
            |candidate| {
                candidate.step(&Event::Superseded);
                candidate.withdraw();
            },
            |candidate| {
                candidate.restart();
                candidate.withdraw();
            },
        ];
        for (way, begins_anew) in ways.into_iter().zip([true, true, false, false]) {
            let mut candidate = candidate();
            way(&mut candidate);
            let then: &[Effect] = if begins_anew { &claim } else { &[] };
            assert_eq!(candidate.effects, [&release, then].concat());
        }
    }
}
