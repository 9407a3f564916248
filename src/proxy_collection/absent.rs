//! Takes over, sweeps and releases reservations whose owners don't hold their keys.
//!
//! The strategy decides how Keyward proves that an absent owner never comes. This file makes that choice.
//!
//! In compensating mode the lease is the proof: a write ends before its lease does, and the lease is over. In strict mode a
//! transaction is the proof ([`super::placeholder`]), which needs no clock.

use bson::rawdoc;

use super::filter::{seen_filter, seen_filters};
use super::placeholder::TakenOver;
use super::writing::PATIENCE_MS;
use super::{Owner, ProxyCollection, Reservation, ReservationVersion, StoreError};
use crate::constraint::{Key, Strategy};
use crate::reservation::Scope;
use crate::traces::{ProxyRequest, asking};

impl ProxyCollection {
    /// Replaces the reservation of `key` with one for `owner`, if it still is the one that was `seen`. The caller has proved that its owner
    /// is absent, or is that owner.
    ///
    /// The token alone doesn't prove that: an attempt that begins again reserves under its old token again.
    ///
    /// # Errors
    /// [`StoreError`] if it is unknown whether it was replaced.
    pub async fn take_over(
        &self,
        key: &Key,
        seen: &Reservation,
        owner: &Owner,
        version: impl Into<ReservationVersion>,
    ) -> Result<TakenOver, StoreError> {
        if self.is_gone() {
            return Err(StoreError::Unsure);
        }
        let update = rawdoc! { "q": seen_filter(key, seen), "u": self.reservation(key, owner, version) };
        let command = rawdoc! {
            "update": self.reservations.name(), "updates": [update],
            "writeConcern": { "w": "majority" }, "maxTimeMS": PATIENCE_MS,
        };
        let written = self.finder.write(command);
        match asking(ProxyRequest::TakeOver, &self.constraint, 1, written).await {
            Ok(1) => Ok(TakenOver::Done),
            Ok(_) => Ok(TakenOver::Changed),
            Err(StoreError::Busy) => Ok(TakenOver::Busy),
            Err(error) => Err(error),
        }
    }

    /// Replaces the reservation of `key` if it still is the `seen` one, which is past its lease and has an absent owner.
    ///
    /// # Errors
    /// [`StoreError`] if it is unknown whether it was replaced.
    pub async fn take_over_absent(
        &self,
        strategy: Strategy,
        key: &Key,
        seen: &Reservation,
        owner: &Owner,
        version: impl Into<ReservationVersion>,
    ) -> Result<TakenOver, StoreError> {
        match strategy {
            Strategy::Compensating => self.take_over(key, seen, owner, version).await,
            Strategy::Strict => {
                let settled = self.settle_absent(key, seen, Some((owner, version.into())));
                asking(ProxyRequest::TakeOver, &self.constraint, 1, settled).await
            }
        }
    }

    /// Deletes and counts each suspect whose owner doesn't hold the key, and returns their number. All suspects are past their lease.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster gave no sure answer. A reservation that stays is settled by the next write that meets it.
    pub async fn sweep(&self, strategy: Strategy, suspects: Vec<(&Key, &Reservation)>) -> Result<u64, StoreError> {
        let abandoned = self.unheld(suspects, Scope::Linearizable).await?;
        if abandoned.is_empty() {
            return Ok(0);
        }
        match strategy {
            Strategy::Strict => self.delete_absent(&abandoned).await,
            Strategy::Compensating => {
                let swept = self.delete(seen_filters(&abandoned));
                asking(ProxyRequest::Release, &self.constraint, abandoned.len(), swept).await?;
                let count = abandoned.len() as u64;
                self.metrics.swept.inc_by(count);
                Ok(count)
            }
        }
    }

    /// Deletes and counts reservations one by one, each in a way that keeps its owner from coming later. Returns how many.
    async fn delete_absent(&self, abandoned: &[(&Key, &Reservation)]) -> Result<u64, StoreError> {
        let mut count = 0;
        for (key, seen) in abandoned {
            match self.settle_absent(key, seen, None).await {
                Ok(TakenOver::Done) => {
                    self.metrics.swept.inc();
                    count += 1;
                }
                // Another attempt is changing it; the next sweep reads it again.
                Ok(_) => {}
                // One that nothing proves absent must not keep the sweep from the others.
                Err(
                    error @ (StoreError::Unroutable
                    | StoreError::OrphanInTheWay
                    | StoreError::Refused(_)
                    | StoreError::Unexpected(_)),
                ) => {
                    tracing::warn!(%error, constraint = self.constraint.name(), _id = %seen.owner, "not swept");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    /// Waits for a release, and logs a failure. The reservations then stay until the next write that meets them, or a sweep.
    pub async fn log_failed_release(&self, released: impl Future<Output = Result<(), StoreError>>) {
        if let Err(error) = released.await {
            tracing::warn!(%error, constraint = self.constraint.name(), "could not release");
        }
    }
}
