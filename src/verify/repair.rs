//! Repairs what is safe to repair, by the means that writes and the sweeper have, so that it doesn't get into their way.

use std::borrow::Cow;
use std::time::Duration;

use super::Verification;
use crate::claims::{Candidate, ConstrainedKey, InFlight};
use crate::constraint::Key;
use crate::prepare::{Outcome, take_in};
use crate::proxy_collection::{Owner, Read, Reservation, StoreError, TakenOver};
use crate::reservation::{Scope, Token};
use crate::sweep;

/// How long to leave a reservation whose lease may still run.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

impl Verification<'_> {
    /// Reserves a document's key, as backfill does.
    pub(super) async fn reserve(&self, key: &Key, owner: &Owner) -> Result<Outcome, StoreError> {
        let under_way = InFlight::default().begin();
        let attempt = under_way.attempt();
        let token = Token {
            attempt,
            position: 0,
            operation: None,
        };
        let keys = vec![ConstrainedKey {
            constraint: self.position,
            key: key.clone(),
        }];
        let candidate = Candidate::of_keys(token, Cow::Borrowed(&[]), owner.clone(), keys);
        let outcomes = take_in(self.protected, self.settings.lease, attempt, vec![candidate]).await?;
        let outcome = outcomes.into_iter().next().map(|(_, outcome)| outcome);
        outcome.ok_or(StoreError::Unexpected("an attempt at a key"))
    }

    /// Writes the reservation of a document anew, with the place where it lies, unless it has been changed.
    pub(super) async fn redirect(&self, key: &Key, owner: &Owner, seen: &Reservation) -> Result<Outcome, StoreError> {
        // A namesake of it may be on its way to the place that the reservation names.
        loop {
            match self.proxy.read_alone(key).await? {
                Some(read) if !read.reservation.is_same_write(seen) => return Ok(Outcome::Gone),
                Some(read) if self.is_over(seen, &read) => break,
                Some(_) => tokio::time::sleep(LOOK_AGAIN).await,
                None => return Ok(Outcome::Gone),
            }
        }
        let under_way = InFlight::default().begin();
        let token = Token {
            attempt: under_way.attempt(),
            position: 0,
            operation: None,
        };
        if self.proxy.take_over(key, seen, owner, token).await? != TakenOver::Done {
            return Ok(Outcome::Gone);
        }
        // It may have gone meanwhile, and with it only the reservation that it had.
        let there = self.proxy.look_up_owners(&[(key, owner)], Scope::Everywhere).await?;
        if there == [true] {
            return Ok(Outcome::Reserved);
        }
        self.proxy.release(&[(key, token)]).await?;
        Ok(Outcome::Gone)
    }

    /// Deletes reservations as the sweeper does; which of them are gone.
    pub(super) async fn free(&self, abandoned: &[(Key, Reservation)]) -> Result<Vec<bool>, StoreError> {
        let seen = abandoned.iter().map(|(key, reservation)| (key, reservation)).collect();
        sweep::free(self.protected, self.proxy, seen).await?;
        let keys: Vec<&Key> = abandoned.iter().map(|(key, _)| key).collect();
        let left = self.proxy.read(&keys).await?;
        let is_gone = |((_, seen), read): (&(Key, Reservation), Option<Read>)| {
            read.is_none_or(|read| !read.reservation.is_same_write(seen))
        };
        Ok(abandoned.iter().zip(left).map(is_gone).collect())
    }
}
