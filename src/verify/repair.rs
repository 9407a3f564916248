//! Repairs findings where that is safe. It uses the operations of writes and of the sweeper, so it may run beside them.

use std::time::Duration;

use super::Verification;
use super::documents::Fault;
use crate::claims::{Candidate, ConstrainedKey, WritesUnderWay};
use crate::constraint::Key;
use crate::prepare::{BackfillOutcome, backfill_documents, is_defined_as_here};
use crate::proxy_collection::{Owner, Reservation, StoreError, TakenOver};
use crate::reservation::Token;
use crate::sweep::delete_abandoned;

/// How long to leave a reservation whose lease may still run.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// The result of a repair.
pub(super) enum Repaired {
    /// It is as it must be, or what was wrong is gone.
    Yes,
    /// It isn't safe.
    No,
    /// Another document holds the key, too.
    Duplicate(Owner),
}

impl Verification<'_> {
    /// Repairs what is the matter with the key of `owner`.
    pub(super) async fn repair(&self, key: &Key, owner: &Owner, fault: &Fault) -> Result<Repaired, StoreError> {
        match fault {
            Fault::Missing | Fault::Foreign(_) => self.reserve(key, owner).await,
            Fault::Misrouted(reservation) => self.redirect(key, owner, reservation).await,
            Fault::Duplicate(_, true) => Ok(Repaired::No),
            Fault::Duplicate(_, false) => {
                // No other document may get the key.
                self.reserve(key, owner).await?;
                Ok(Repaired::No)
            }
        }
    }

    /// Reserves a document's key, as backfill does.
    async fn reserve(&self, key: &Key, owner: &Owner) -> Result<Repaired, StoreError> {
        let guard = WritesUnderWay::default().begin();
        let attempt = guard.id();
        let key = ConstrainedKey {
            constraint: self.position,
            key: key.clone(),
        };
        let candidate = Candidate::of_held_key(Token::of(attempt), owner.clone(), key);
        let outcomes = backfill_documents(self.protected, attempt, vec![candidate]).await?;
        match outcomes.into_iter().next() {
            Some((_, BackfillOutcome::Reserved | BackfillOutcome::Gone)) => Ok(Repaired::Yes),
            Some((_, BackfillOutcome::Duplicate(other))) => Ok(Repaired::Duplicate(other)),
            None => Err(StoreError::Unexpected("an attempt at a key")),
        }
    }

    /// Writes the reservation of a document again, with the document's place. It doesn't if the reservation has changed since it was
    /// `seen`. It also doesn't if another document with the same `_id` may still come to the place that it names.
    async fn redirect(&self, key: &Key, owner: &Owner, seen: &Reservation) -> Result<Repaired, StoreError> {
        loop {
            match self.proxy.read(&[key]).await?.pop().flatten() {
                Some(there) if !there.is_same_write(seen) => return Ok(Repaired::No),
                Some(_) if self.proxy.is_over(seen) => break,
                Some(_) => tokio::time::sleep(LOOK_AGAIN).await,
                None => return Ok(Repaired::No),
            }
        }
        if !is_defined_as_here(self.protected, self.proxy).await? {
            return Ok(Repaired::No);
        }
        let guard = WritesUnderWay::default().begin();
        let token = Token::of(guard.id());
        // The strategy's proof that a write can't come any more.
        let strategy = self.protected.strategy();
        let taken = self.proxy.take_over_absent(strategy, key, seen, owner, token).await?;
        if taken != TakenOver::Done {
            return Ok(Repaired::No);
        }
        // It may have gone meanwhile, and with it only the reservation that it had.
        self.proxy.release_unheld(&[(key, owner, token)]).await?;
        Ok(Repaired::Yes)
    }

    /// Deletes reservations as the sweeper does; which of them are gone.
    pub(super) async fn free(&self, abandoned: &[(Key, Reservation)]) -> Result<Vec<bool>, StoreError> {
        let seen = abandoned.iter().map(|(key, reservation)| (key, reservation)).collect();
        delete_abandoned(self.protected, self.proxy, seen).await?;
        let keys: Vec<&Key> = abandoned.iter().map(|(key, _)| key).collect();
        let left = self.proxy.read(&keys).await?;
        let is_gone = |((_, seen), there): (&(Key, Reservation), Option<Reservation>)| {
            there.is_none_or(|there| !there.is_same_write(seen))
        };
        Ok(abandoned.iter().zip(left).map(is_gone).collect())
    }
}
