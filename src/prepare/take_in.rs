//! Reserves keys for documents that are there already.
//!
//! Documents may change meanwhile: what was reserved is looked at again, and given back if its document doesn't hold it
//! any more. Killed at any point it leaves reservations whose documents are there, or that the sweeper finds.

use std::time::Duration;

use crate::catalog::Protected;
use crate::claims::{Candidate, ConstrainedKey, give_back, owner_of, settle};
use crate::proxy_collection::{Owner, StoreError};
use crate::raw::Doc;
use crate::reservation::{AttemptId, Ended, Event, NotHeld, Scope};

/// How long to wait before claiming again what somebody else has in flight.
const BACK_OFF: Duration = Duration::from_millis(100);

/// What became of one key of a document.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It is reserved for the document.
    Reserved,
    /// The document doesn't hold it any more.
    Gone,
    /// Another document holds it.
    Duplicate(Owner),
}

/// Reserves what `candidates` are about, each of one key, under tokens of `attempt`; says of each what became of it.
///
/// # Errors
/// [`StoreError`] if the cluster gave no sure answer about some key.
pub async fn take_in<'a>(
    protected: &Protected,
    lease: Duration,
    attempt: AttemptId,
    candidates: Vec<Candidate<'a>>,
) -> Result<Vec<(Candidate<'a>, Outcome)>, StoreError> {
    let mut pending = candidates;
    let mut outcomes = Vec::with_capacity(pending.len());
    while !pending.is_empty() {
        let awaited = settle(protected, lease, &mut pending).await;
        look_again(protected, lease, &mut pending).await?;
        let mut left = Vec::new();
        for candidate in pending {
            match candidate.attempt.ended() {
                None => left.push(candidate),
                Some(Ended::NotHeld(NotHeld::Unsure(_))) => return Err(StoreError::Unsure),
                Some(Ended::NotHeld(NotHeld::Duplicate(key))) => {
                    let outcome = duplicate(protected, &candidate, key).await?;
                    outcomes.push((candidate, outcome));
                }
                Some(Ended::NotApplied) => outcomes.push((candidate, Outcome::Gone)),
                Some(Ended::Applied | Ended::InDoubt) => outcomes.push((candidate, Outcome::Reserved)),
            }
        }
        pending = left;
        if awaited.iter().any(|rival| rival.attempt != attempt) {
            tokio::time::sleep(BACK_OFF).await;
        }
        pending
            .iter_mut()
            .for_each(|candidate| candidate.step(&Event::WaitOver));
    }
    Ok(outcomes)
}

/// Looks again whether the documents still hold what was just reserved for them, and gives back what they don't.
async fn look_again(protected: &Protected, lease: Duration, pending: &mut [Candidate<'_>]) -> Result<(), StoreError> {
    let held: Vec<&Candidate<'_>> = pending
        .iter()
        .filter(|candidate| candidate.attempt.may_forward())
        .collect();
    let Some(first) = held.first() else { return Ok(()) };
    let proxy = &protected.constraints[first.keys[0].constraint];
    let claims: Vec<_> = held
        .iter()
        .map(|candidate| (&candidate.keys[0].key, &candidate.owner))
        .collect();
    let still_there = proxy.look_up(&claims, Scope::Everywhere).await?;
    let held = pending.iter_mut().filter(|candidate| candidate.attempt.may_forward());
    for (candidate, still_there) in held.zip(still_there) {
        candidate.step(match still_there {
            true => &Event::Applied,
            false => &Event::NotApplied,
        });
    }
    give_back(protected, lease, pending).await;
    Ok(())
}

/// Whose the key is. It may be reserved for the very document already: by an earlier start, say. The reservation's route may
/// be that of a namesake on another shard which is gone, or an old one of the document itself, changed past Keyward.
async fn duplicate(protected: &Protected, candidate: &Candidate<'_>, key: usize) -> Result<Outcome, StoreError> {
    let Some(rival) = candidate.rivals.get(&key) else {
        return Err(StoreError::Unexpected("a reservation"));
    };
    if candidate.is_its_own_rival(key) {
        return Ok(Outcome::Reserved);
    }
    if !rival.owner.is_namesake_of(&candidate.owner) {
        return Ok(Outcome::Duplicate(rival.owner.clone()));
    }
    let ConstrainedKey { constraint, key } = &candidate.keys[key];
    let proxy = &protected.constraints[*constraint];
    for namesake in proxy.namesakes(&candidate.owner.id, &protected.shard_key).await? {
        let malformed = |_| StoreError::Unexpected("a document");
        let namesake = Doc::new(namesake.as_bytes()).map_err(malformed)?;
        let owner = owner_of(protected, namesake).map_err(malformed)?;
        if owner != candidate.owner && proxy.constraint.keys(namesake).unwrap_or_default().contains(key) {
            return Ok(Outcome::Duplicate(owner));
        }
    }
    Ok(Outcome::Reserved)
}
