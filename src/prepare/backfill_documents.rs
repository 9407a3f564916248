//! Reserves the keys of one batch of existing documents.
//!
//! Documents may change meanwhile. A reservation whose document no longer holds the key blocks no write. The backfill
//! has no write of its owner in flight, so another write takes the key over at once, or the sweeper deletes it.
//!
//! A document's own reservation that exists already gets another token. So a command that judged it earlier, and is delayed,
//! can't delete it or take it over when the document relies on it.

use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};

use super::is_defined_as_here;
use crate::catalog::Protected;
use crate::claims::{Candidate, ConstrainedKey, TakeoverCheck, advance_attempts, owner_of};
use crate::constraint::{Key, Strategy};
use crate::proxy_collection::{Owner, ProxyCollection, Reservation, StoreError, TakenOver};
use crate::raw::Doc;
use crate::reservation::{Ended, Event, NotHeld, Scope, WriteId};

/// How long to wait before claiming a key again that another attempt has in flight.
const BACK_OFF: Duration = Duration::from_millis(100);

/// The outcome for one key of a document.
#[derive(Debug, Clone, PartialEq)]
pub enum BackfillOutcome {
    /// The key is reserved for the document, which held it when it was read.
    Reserved,
    /// The document no longer holds the key, and another document has it.
    Gone,
    /// Another document holds the key.
    Duplicate(Owner),
}

/// Takeovers that were judged by the definition of a constraint. This process may have stood still since.
struct OfDefinition<'a>(&'a Protected);

impl TakeoverCheck for OfDefinition<'_> {
    fn is_defined<'c>(&'c self, proxy: &'c ProxyCollection) -> BoxFuture<'c, Result<bool, StoreError>> {
        is_defined_as_here(self.0, proxy).boxed()
    }

    /// A process that doesn't serve clients has no permit.
    fn may_write(&self) -> bool {
        true
    }
}

/// Reserves the keys of `candidates` under tokens of `write`, and returns the outcome of each. Each candidate has one
/// key, and all keys are of the same constraint.
///
/// # Errors
/// [`StoreError`] if the cluster gave no definite answer about some key.
pub async fn backfill_documents<'a>(
    protected: &Protected,
    write: WriteId,
    candidates: Vec<Candidate<'a>>,
) -> Result<Vec<(Candidate<'a>, BackfillOutcome)>, StoreError> {
    let mut pending = candidates;
    let mut outcomes = Vec::with_capacity(pending.len());
    while !pending.is_empty() {
        let awaited = advance_attempts(protected, &mut pending, &OfDefinition(protected)).await;
        let (mut left, mut duplicates, mut own) = (Vec::new(), Vec::new(), Vec::new());
        for candidate in pending {
            match candidate.attempt.ended() {
                // The document exists already, so nothing is forwarded.
                None if candidate.attempt.may_forward() => outcomes.push((candidate, BackfillOutcome::Reserved)),
                None => left.push(candidate),
                // The key may already be reserved for this very document, for example by an earlier start.
                Some(Ended::NotHeld(NotHeld::Duplicate(key))) => match candidate.conflicts_with_itself(key) {
                    true => own.push(candidate),
                    false => duplicates.push(candidate),
                },
                // The state of the key is unknown. Nothing is forwarded, so the attempt has no other end.
                Some(_) => return Err(StoreError::Unsure),
            }
        }
        // These have changed since they were read.
        let mut changed = Vec::new();
        let renewed = are_renewed(protected, &own).await?;
        for (candidate, is_renewed) in own.into_iter().zip(renewed) {
            match is_renewed {
                true => outcomes.push((candidate, BackfillOutcome::Reserved)),
                false => changed.push(candidate),
            }
        }
        let held = are_held(protected, &duplicates).await?;
        for (candidate, is_held) in duplicates.into_iter().zip(held) {
            let outcome = match is_held {
                true => duplicate(protected, &candidate).await?,
                false => Some(BackfillOutcome::Gone),
            };
            match outcome {
                Some(outcome) => outcomes.push((candidate, outcome)),
                None => changed.push(candidate),
            }
        }
        let is_early = !changed.is_empty() || awaited.iter().any(|conflicting| conflicting.write != write);
        changed.iter_mut().for_each(Candidate::restart);
        left.append(&mut changed);
        pending = left;
        if is_early {
            tokio::time::sleep(BACK_OFF).await;
        }
        pending
            .iter_mut()
            .for_each(|candidate| candidate.step(&Event::WaitOver));
    }
    Ok(outcomes)
}

/// Gives the reservation that each candidate found for its own document another token. Returns which of them have one.
async fn are_renewed(protected: &Protected, own: &[Candidate<'_>]) -> Result<Vec<bool>, StoreError> {
    let Some(first) = own.first() else {
        return Ok(Vec::new());
    };
    let found = |candidate: &'_ Candidate<'_>| candidate.conflicting.get(&0).cloned();
    let found: Option<Vec<Reservation>> = own.iter().map(found).collect();
    let found = found.ok_or(StoreError::Unexpected("a reservation"))?;
    let keys = own.iter().map(|candidate| &candidate.keys[0].key);
    let seen: Vec<_> = keys.zip(&found).collect();
    let proxy = &protected.constraints[first.keys[0].constraint];
    proxy.renew(&seen).await
}

/// Whether each document still holds its duplicate key: it may have given the key up since it was read.
async fn are_held(protected: &Protected, duplicates: &[Candidate<'_>]) -> Result<Vec<bool>, StoreError> {
    let Some(first) = duplicates.first() else {
        return Ok(Vec::new());
    };
    let pairs: Vec<_> = duplicates
        .iter()
        .map(|candidate| (&candidate.keys[0].key, &candidate.owner))
        .collect();
    let proxy = &protected.constraints[first.keys[0].constraint];
    proxy.look_up(&pairs, Scope::Linearizable).await
}

/// Makes a reservation name the present shard key, if its owner is the only document that holds the key.
async fn rerouted(
    protected: &Protected,
    proxy: &ProxyCollection,
    key: &Key,
    seen: &Reservation,
) -> Result<(), StoreError> {
    let route_of = |document: Doc<'_>| owner_of(protected, document).ok();
    if proxy
        .renew_routes(&[(key, seen)], &protected.shard_key, route_of)
        .await?
        > 0
    {
        return Ok(());
    }
    let there = proxy.read(&[key]).await?.pop().flatten();
    let is_unchanged = there.is_some_and(|there| there.is_same_write(seen) && there.owner == seen.owner);
    match is_unchanged {
        true => Err(StoreError::Unroutable),
        false => Ok(()),
    }
}

/// Determines the holder of the key, or none if that is not decided yet. The conflicting reservation may belong to a
/// document with the same `_id` on another shard. It may also belong to this very document, if that was moved since it
/// was read, or was changed without Keyward.
async fn duplicate(protected: &Protected, candidate: &Candidate<'_>) -> Result<Option<BackfillOutcome>, StoreError> {
    let Some(conflicting) = candidate.conflicting.get(&0) else {
        return Err(StoreError::Unexpected("a reservation"));
    };
    if !conflicting.owner.has_same_id_as(&candidate.owner) {
        return Ok(Some(BackfillOutcome::Duplicate(conflicting.owner.clone())));
    }
    let ConstrainedKey { constraint, key } = &candidate.keys[0];
    let proxy = &protected.constraints[*constraint];
    let mut owners = Vec::new();
    for same_id in proxy
        .documents_of_same_id(&candidate.owner.id, &protected.shard_key)
        .await?
    {
        let malformed = |_| StoreError::Unexpected("a document");
        let same_id = Doc::new(same_id.as_bytes()).map_err(malformed)?;
        if proxy.constraint.keys_of_stored(same_id).may_have(key) {
            owners.push(owner_of(protected, same_id).map_err(malformed)?);
        }
    }
    let is_held = owners.contains(&candidate.owner);
    let other = owners.into_iter().find(|holder| *holder != candidate.owner);
    Ok(match other {
        _ if !is_held => Some(BackfillOutcome::Gone),
        Some(other) => Some(BackfillOutcome::Duplicate(other)),
        // A document with the same `_id` may still arrive at the place that the reservation names.
        None if proxy.may_be_in_flight(conflicting) => None,
        // The attempt that wrote it may still release it: its own document is at another place. In strict mode its insert may still commit,
        // however long the lease is over. So this takeover needs the proof of every other one.
        None => {
            if !is_defined_as_here(protected, proxy).await? {
                return Err(StoreError::Redefined);
            }
            let (strategy, owner) = (protected.strategy(), &candidate.owner);
            // Nothing can be proved of an owner by a former shard key.
            if strategy == Strategy::Strict && !conflicting.owner.has_route_by(&protected.shard_key) {
                return rerouted(protected, proxy, key, conflicting).await.map(|()| None);
            }
            let taken = proxy.take_over_absent(strategy, key, conflicting, owner, candidate.version());
            match taken.await? {
                TakenOver::Done => Some(BackfillOutcome::Reserved),
                TakenOver::OwnerHolds => Some(BackfillOutcome::Duplicate(conflicting.owner.clone())),
                TakenOver::Changed | TakenOver::Busy => None,
            }
        }
    })
}
