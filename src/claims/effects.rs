//! Runs the effects of many attempts against the proxy collections.
//!
//! One command carries the effects of many documents: all reservations for one proxy collection in one insert, all reads in
//! one find, and so on; then every attempt gets its events. It decides nothing: [`crate::reservation`] does.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::{BoxFuture, FutureExt, join_all, ready};
use tokio::time::Instant;

use super::{Candidate, ConstrainedKey, TakeoverCheck};
use crate::catalog::Protected;
use crate::constraint::Key;
use crate::proxy_collection::{
    Owner, ProxyCollection, Reservation, ReservationVersion, Reserved, StoreError, TakenOver,
};
use crate::reservation::{Age, ConflictingReservation, Effect, Event, Scope, Token};

/// One key of one candidate, each by its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Slot {
    candidate: usize,
    key: usize,
}

/// The effects of one round that one command can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EffectKind {
    Release,
    Reserve,
    Read,
    LookUp(Scope),
    /// Takes over a reservation. With `from_absent` it is another attempt's, past its lease. Otherwise it is an earlier try's, or the
    /// attempt's own.
    TakeOver {
        from_absent: bool,
    },
}

/// For rounds of releases only.
struct NoTakeover;

impl TakeoverCheck for NoTakeover {
    fn is_defined<'c>(&'c self, _: &'c ProxyCollection) -> BoxFuture<'c, Result<bool, StoreError>> {
        ready(Ok(false)).boxed()
    }

    fn may_write(&self) -> bool {
        false
    }
}

/// The answer for a slot: an event, and the reservation that was read, if any.
type Answer = (Slot, Event, Option<Reservation>);

/// Runs every candidate's effects until each may be forwarded, waits for a conflicting attempt, or has ended. Takeovers are sent only
/// while the `check` confirms them.
///
/// Returns the tokens that candidates wait for, one for each waiting candidate.
pub async fn advance_attempts(
    protected: &Protected,
    candidates: &mut [Candidate<'_>],
    check: &dyn TakeoverCheck,
) -> Vec<Token> {
    let mut awaited = Vec::new();
    loop {
        // A reservation must be released before its key can be claimed again.
        run_releases(protected, candidates).await;
        let round = take_effects(protected, candidates, &mut awaited);
        if round.is_empty() {
            return awaited;
        }
        let asked = Instant::now();
        for (slot, event, read) in run(protected, candidates, round, check).await {
            let candidate = &mut candidates[slot.candidate];
            count(protected, candidate, slot.key, &event);
            if matches!(event, Event::Reserved(_) | Event::TookOver(_)) {
                candidate.since = Some(candidate.since.map_or(asked, |since| since.min(asked)));
            }
            if let Some(read) = read {
                candidate.meet(slot.key, read);
            }
            if let (Event::OwnerHolds(_), Some(held)) = (&event, candidate.conflicting.get(&slot.key)) {
                let ConstrainedKey { constraint, key } = &candidate.keys[slot.key];
                protected.constraints[*constraint].recent_owners.note(key, held);
            }
            candidate.step(&event);
        }
    }
}

/// Counts `event` in the metrics of the constraint of the candidate's key.
fn count(protected: &Protected, candidate: &Candidate<'_>, key: usize, event: &Event) {
    let ProxyCollection {
        metrics,
        conflict_predictor,
        ..
    } = &protected.constraints[candidate.keys[key].constraint];
    match event {
        Event::Reserved(_) => {
            metrics.reservations.inc();
            conflict_predictor.note(false);
        }
        Event::OwnerHolds(_) => conflict_predictor.note(true),
        Event::TookOver(_) => {
            metrics.reservations.inc();
            metrics.takeovers.inc();
        }
        _ => {}
    }
}

/// Counts a wait for a conflicting reservation of one of the candidate's keys.
fn count_wait(protected: &Protected, candidate: &Candidate<'_>, conflicting: Token) {
    let in_the_way = candidate
        .conflicting
        .iter()
        .find(|(_, reservation)| reservation.token == conflicting);
    if let Some((key, _)) = in_the_way {
        let constraint = candidate.keys[*key].constraint;
        protected.constraints[constraint].metrics.conflicts_waited.inc();
    }
}

/// Carries out the releases that candidates ask for. Their other effects stay to be run.
pub async fn run_releases(protected: &Protected, candidates: &mut [Candidate<'_>]) {
    let mut releases = Round::new();
    for (index, candidate) in candidates.iter_mut().enumerate() {
        for effect in candidate
            .effects
            .extract_if(.., |effect| matches!(effect, Effect::Release(_)))
        {
            if let Effect::Release(key) = effect {
                let constraint = candidate.keys[key].constraint;
                releases
                    .entry((constraint, EffectKind::Release))
                    .or_default()
                    .push(Slot { candidate: index, key });
            }
        }
    }
    // Most writes release nothing, and this is called several times for each.
    if releases.is_empty() {
        return;
    }
    let mut released: BTreeSet<usize> = releases.values().flatten().map(|slot| slot.candidate).collect();
    for (slot, event, _) in run(protected, candidates, releases, &NoTakeover).await {
        // It has failed, and is tried again at most: nothing more is reserved.
        released.remove(&slot.candidate);
        candidates[slot.candidate].step(&event);
    }
    for index in released {
        candidates[index].generation += 1;
    }
}

/// Slots by constraint and kind.
type Round = BTreeMap<(usize, EffectKind), Vec<Slot>>;

/// Sorts the candidates' effects by the commands that can carry them.
fn take_effects(protected: &Protected, candidates: &mut [Candidate<'_>], awaited: &mut Vec<Token>) -> Round {
    let mut round = Round::new();
    for (index, candidate) in candidates.iter_mut().enumerate() {
        let effects = std::mem::take(&mut candidate.effects);
        let is_release = |effect: &Effect| matches!(effect, Effect::Release(_));
        // Otherwise a late delete could take away the reservation that is written anew under the same token.
        assert!(
            effects.iter().all(is_release) || !effects.iter().any(is_release),
            "keys are claimed while a release of them is open: {effects:?}"
        );
        for effect in effects {
            let (kind, key) = match effect {
                Effect::Reserve(key) => (EffectKind::Reserve, key),
                Effect::Read(key) => (EffectKind::Read, key),
                Effect::LookUp { key, scope } => (EffectKind::LookUp(scope), key),
                Effect::TakeOver {
                    key,
                    conflicting,
                    from_absent,
                } => {
                    let read = candidate.conflicting.get(&key).map(|read| read.token);
                    // Otherwise Keyward would take over a reservation about whose owner nothing was decided.
                    assert_eq!(
                        read,
                        Some(conflicting),
                        "a takeover follows the read of the conflicting reservation"
                    );
                    (EffectKind::TakeOver { from_absent }, key)
                }
                Effect::Release(key) => (EffectKind::Release, key),
                Effect::Wait { conflicting } => {
                    count_wait(protected, candidate, conflicting);
                    awaited.push(conflicting);
                    continue;
                }
                Effect::Forward => continue,
            };
            let constraint = candidate.keys[key].constraint;
            round
                .entry((constraint, kind))
                .or_default()
                .push(Slot { candidate: index, key });
        }
    }
    round
}

/// Runs all groups of a round at the same time.
async fn run(
    protected: &Protected,
    candidates: &[Candidate<'_>],
    round: Round,
    check: &dyn TakeoverCheck,
) -> Vec<Answer> {
    let groups = round.into_iter().map(|((constraint, kind), slots)| {
        let group = SlotGroup {
            protected,
            candidates,
            constraint,
        };
        match kind {
            EffectKind::Reserve => group.reserve(slots).boxed(),
            EffectKind::Read => group.read(slots).boxed(),
            EffectKind::LookUp(scope) => group.look_up(slots, scope).boxed(),
            EffectKind::TakeOver { from_absent } => group.take_over(slots, from_absent, check).boxed(),
            EffectKind::Release => group.release(slots).boxed(),
        }
    });
    let groups: Vec<BoxFuture<'_, Vec<Answer>>> = groups.collect();
    join_all(groups).await.into_iter().flatten().collect()
}

/// Slots of one constraint that ask for the same kind of thing.
#[derive(Clone, Copy)]
struct SlotGroup<'c, 'd> {
    protected: &'c Protected,
    candidates: &'c [Candidate<'d>],
    constraint: usize,
}

impl SlotGroup<'_, '_> {
    fn proxy(&self) -> &ProxyCollection {
        &self.protected.constraints[self.constraint]
    }

    fn key(&self, slot: Slot) -> &Key {
        &self.candidates[slot.candidate].keys[slot.key].key
    }

    fn owner(&self, slot: Slot) -> &Owner {
        &self.candidates[slot.candidate].owner
    }

    fn version(&self, slot: Slot) -> ReservationVersion {
        self.candidates[slot.candidate].version()
    }

    async fn reserve(self, slots: Vec<Slot>) -> Vec<Answer> {
        let wanted = |slot: &Slot| (self.key(*slot), self.owner(*slot), self.version(*slot));
        let wanted: Vec<_> = slots.iter().map(wanted).collect();
        let outcomes = self.proxy().reserve(&wanted).await;
        self.answer(slots, outcomes, |key, reserved| match reserved {
            Reserved::Written => Event::Reserved(key),
            Reserved::Taken => Event::Taken(key),
            Reserved::Unsure | Reserved::Gone => Event::Failed(key),
            Reserved::Busy => Event::Busy(key),
        })
    }

    async fn read(self, slots: Vec<Slot>) -> Vec<Answer> {
        let keys: Vec<_> = slots.iter().map(|slot| self.key(*slot)).collect();
        let reads = match self.proxy().read(&keys).await {
            Ok(reads) => reads,
            Err(error) => return self.failed(slots, &error),
        };
        let answer = |(slot, read): (Slot, Option<Reservation>)| {
            let event = match &read {
                Some(read) => Event::Found(slot.key, self.conflicting(slot, read)),
                None => Event::Vacant(slot.key),
            };
            (slot, event, read)
        };
        slots.into_iter().zip(reads).map(answer).collect()
    }

    async fn look_up(self, slots: Vec<Slot>, scope: Scope) -> Vec<Answer> {
        let pair = |slot: &Slot| {
            Some((
                self.key(*slot),
                &self.candidates[slot.candidate].conflicting.get(&slot.key)?.owner,
            ))
        };
        let pairs: Vec<_> = slots.iter().filter_map(pair).collect();
        assert_eq!(
            pairs.len(),
            slots.len(),
            "a look-up follows the read of the conflicting reservation"
        );
        let held = self.proxy().look_up(&pairs, scope).await;
        self.answer(slots, held, |key, held| match held {
            true => Event::OwnerHolds(key),
            false => Event::OwnerAbsent(key),
        })
    }

    async fn take_over(self, slots: Vec<Slot>, from_absent: bool, check: &dyn TakeoverCheck) -> Vec<Answer> {
        match check.is_defined(self.proxy()).await {
            Ok(true) => {}
            Ok(false) => return self.failed(slots, &StoreError::Redefined),
            Err(error) => return self.failed(slots, &error),
        }
        let mut answers = Vec::with_capacity(slots.len());
        for slot in slots {
            if !check.may_write() {
                answers.extend(self.failed(vec![slot], &StoreError::Outlasted));
                continue;
            }
            let conflicting = &self.candidates[slot.candidate].conflicting[&slot.key];
            let (key, owner, version) = (self.key(slot), self.owner(slot), self.version(slot));
            let strategy = self.protected.strategy();
            let outcome = match from_absent {
                true => {
                    let proxy = self.proxy();
                    proxy.take_over_absent(strategy, key, conflicting, owner, version).await
                }
                false => self.proxy().take_over(key, conflicting, owner, version).await,
            };
            let outcome = outcome.map(|outcome| vec![outcome]);
            answers.extend(self.answer(vec![slot], outcome, |key, outcome| match outcome {
                TakenOver::Done => Event::TookOver(key),
                TakenOver::Changed => Event::Changed(key),
                TakenOver::OwnerHolds => Event::OwnerHolds(key),
                TakenOver::Busy => Event::Busy(key),
            }));
        }
        answers
    }

    /// Releases the keys that documents don't hold. A document that is older than the constraint may hold its key without a
    /// reservation. A second insert of it is refused. But its reservation is the one that the document lacked, and a backfill may
    /// rely on it by now. So Keyward first reads the document, on the shard of its route only: on another shard it is another
    /// document.
    ///
    /// A document that seems to hold its key may have lost it in a transaction that is committed on the key's shard already. Then
    /// a linearizable read waits until its own shard has committed, too.
    async fn release(self, slots: Vec<Slot>) -> Vec<Answer> {
        let distinct: BTreeSet<Slot> = slots.iter().copied().collect();
        // Otherwise the second delete could hit what another attempt has reserved since.
        assert_eq!(distinct.len(), slots.len(), "a key is released twice");
        let (held, mut failed) = self.release_unheld(slots, Scope::Route).await;
        failed.extend(self.release_unheld(held, Scope::Linearizable).await.1);
        failed
    }

    /// The slots whose documents hold their keys, and those that it failed for.
    async fn release_unheld(&self, slots: Vec<Slot>, scope: Scope) -> (Vec<Slot>, Vec<Answer>) {
        let released = async {
            let pairs: Vec<_> = slots.iter().map(|slot| (self.key(*slot), self.owner(*slot))).collect();
            let mut held = self.proxy().look_up(&pairs, scope).await?.into_iter();
            let (held, unheld): (Vec<Slot>, Vec<Slot>) = slots.iter().partition(|_| held.next().unwrap_or(true));
            let keys: Vec<_> = unheld
                .iter()
                .map(|slot| (self.key(*slot), self.version(*slot)))
                .collect();
            self.proxy().release_by_version(&keys).await?;
            Ok::<_, StoreError>(held)
        };
        match released.await {
            Ok(held) => (held, Vec::new()),
            Err(error) => {
                // A reservation that remains is settled after its lease. Only an attempt that would claim it again gets the error.
                let constraint = self.proxy().constraint.name();
                tracing::warn!(%error, constraint, count = slots.len(), "could not release");
                let failed = slots.into_iter().map(|slot| (slot, Event::Failed(slot.key), None));
                (Vec::new(), failed.collect())
            }
        }
    }

    fn conflicting(&self, slot: Slot, read: &Reservation) -> ConflictingReservation {
        let before = self.candidates[slot.candidate].conflicting.get(&slot.key);
        // It may have been there for longer than this read says.
        let first_seen = before.filter(|before| before.is_same_write(read)).unwrap_or(read);
        ConflictingReservation {
            token: read.token,
            same_owner: read.owner == *self.owner(slot),
            has_route: read.owner.route.is_some(),
            age: match self.proxy().is_over(first_seen) {
                true => Age::Expired,
                false => Age::InLease,
            },
        }
    }

    fn answer<T>(
        &self,
        slots: Vec<Slot>,
        outcomes: Result<Vec<T>, StoreError>,
        event: impl Fn(usize, T) -> Event,
    ) -> Vec<Answer> {
        match outcomes {
            Ok(outcomes) => {
                let answers = slots.into_iter().zip(outcomes);
                answers
                    .map(|(slot, outcome)| (slot, event(slot.key, outcome), None))
                    .collect()
            }
            Err(error) => self.failed(slots, &error),
        }
    }

    fn failed(&self, slots: Vec<Slot>, error: &StoreError) -> Vec<Answer> {
        tracing::warn!(%error, constraint = self.proxy().constraint.name(), "the cluster gave no sure answer");
        slots
            .into_iter()
            .map(|slot| (slot, Event::Failed(slot.key), None))
            .collect()
    }
}
