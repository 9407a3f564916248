//! Reserves keys for documents that are there already.
//!
//! Documents may change meanwhile. What is reserved for one that doesn't hold the key any more is in nobody's way: no write of
//! its owner's is on its way, so whoever wants the key takes it over at once, or the sweeper deletes it.

use std::time::Duration;

use crate::catalog::Protected;
use crate::claims::{Candidate, ConstrainedKey, owner_of, settle};
use crate::proxy_collection::{Owner, StoreError};
use crate::raw::Doc;
use crate::reservation::{AttemptId, Ended, Event, NotHeld, Scope};

/// How long to wait before claiming again what somebody else has in flight.
const BACK_OFF: Duration = Duration::from_millis(100);

/// What became of one key of a document.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It is reserved for the document, which held it when it was read.
    Reserved,
    /// The document doesn't hold it any more, and another has it.
    Gone,
    /// Another document holds it.
    Duplicate(Owner),
}

/// Reserves what `candidates` are about, each of one key of the same constraint, under tokens of `attempt`; says of each what
/// became of it.
///
/// # Errors
/// [`StoreError`] if the cluster gave no sure answer about some key.
pub async fn backfill_documents<'a>(
    protected: &Protected,
    lease: Duration,
    attempt: AttemptId,
    candidates: Vec<Candidate<'a>>,
) -> Result<Vec<(Candidate<'a>, Outcome)>, StoreError> {
    let mut pending = candidates;
    let mut outcomes = Vec::with_capacity(pending.len());
    while !pending.is_empty() {
        let awaited = settle(protected, lease, &mut pending).await;
        let (mut left, mut duplicates) = (Vec::new(), Vec::new());
        for candidate in pending {
            match candidate.attempt.ended() {
                // Its document is there: nothing is to be forwarded.
                None if candidate.attempt.may_forward() => outcomes.push((candidate, Outcome::Reserved)),
                None => left.push(candidate),
                // It may be reserved for the very document already: by an earlier start, say.
                Some(Ended::NotHeld(NotHeld::Duplicate(key))) => match candidate.conflicts_with_itself(key) {
                    true => outcomes.push((candidate, Outcome::Reserved)),
                    false => duplicates.push(candidate),
                },
                // That nobody is sure of the key: nothing is forwarded, so it can't have ended otherwise.
                Some(_) => return Err(StoreError::Unsure),
            }
        }
        let mut is_early = awaited.iter().any(|conflicting| conflicting.attempt != attempt);
        let held = are_held(protected, &duplicates).await?;
        for (mut candidate, is_held) in duplicates.into_iter().zip(held) {
            let outcome = match is_held {
                true => duplicate(protected, lease, &candidate).await?,
                false => Some(Outcome::Gone),
            };
            match outcome {
                Some(outcome) => outcomes.push((candidate, outcome)),
                None => {
                    is_early = true;
                    candidate.restart();
                    left.push(candidate);
                }
            }
        }
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

/// Whether the documents still hold the keys that others hold, too: they may have been given up since they were read.
async fn are_held(protected: &Protected, duplicates: &[Candidate<'_>]) -> Result<Vec<bool>, StoreError> {
    let Some(first) = duplicates.first() else {
        return Ok(Vec::new());
    };
    let claims: Vec<_> = duplicates
        .iter()
        .map(|candidate| (&candidate.keys[0].key, &candidate.owner))
        .collect();
    let proxy = &protected.constraints[first.keys[0].constraint];
    proxy.look_up(&claims, Scope::Linearizable).await
}

/// Whose the key is, if that can be said yet. The reservation may be of a document with the same `_id`: of one on another shard,
/// or of the very document, which was moved since it was read, or changed past Keyward.
async fn duplicate(
    protected: &Protected,
    lease: Duration,
    candidate: &Candidate<'_>,
) -> Result<Option<Outcome>, StoreError> {
    let Some(conflicting) = candidate.conflicting.get(&0) else {
        return Err(StoreError::Unexpected("a reservation"));
    };
    if !conflicting.owner.is_namesake_of(&candidate.owner) {
        return Ok(Some(Outcome::Duplicate(conflicting.owner.clone())));
    }
    let ConstrainedKey { constraint, key } = &candidate.keys[0];
    let proxy = &protected.constraints[*constraint];
    let mut holders = Vec::new();
    for same_id in proxy
        .documents_of_same_id(&candidate.owner.id, &protected.shard_key)
        .await?
    {
        let malformed = |_| StoreError::Unexpected("a document");
        let same_id = Doc::new(same_id.as_bytes()).map_err(malformed)?;
        if proxy.constraint.keys(same_id).unwrap_or_default().contains(key) {
            holders.push(owner_of(protected, same_id).map_err(malformed)?);
        }
    }
    let is_held = holders.contains(&candidate.owner);
    let other = holders.into_iter().find(|holder| *holder != candidate.owner);
    Ok(match other {
        _ if !is_held => Some(Outcome::Gone),
        Some(other) => Some(Outcome::Duplicate(other)),
        // A namesake may yet come to where the reservation says.
        None if conflicting.may_be_in_flight(lease) => None,
        None => Some(Outcome::Reserved),
    })
}
