//! Checks that every reservation has its document.

use bson::RawBson;
use tokio::time::Instant;

use super::{Finding, FindingKind, PAGE, RecheckTimes, SUSPECTS_AT_ONCE, SUSPECTS_MAX, Verification};
use crate::constraint::Key;
use crate::extended_json::as_json;
use crate::proxy_collection::{Owner, Reservation, StoreError};
use crate::reservation::Scope;

/// The suspects that wait for their second read.
struct SuspectReservations {
    reservations: Vec<(Key, Reservation)>,
    unreadable: Vec<RawBson>,
    /// When none of them can be in flight any more.
    decided: Instant,
}

impl Verification<'_> {
    /// Walks the reservations.
    pub(super) async fn reservations(&mut self) -> Result<(), StoreError> {
        let mut after = None;
        let mut suspects = SuspectReservations {
            reservations: Vec::new(),
            unreadable: Vec::new(),
            decided: Instant::now(),
        };
        loop {
            let page = self.proxy.page(after.as_ref(), PAGE).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.id.clone());
            let count = page.len();
            self.tally.reservations += count as u64;
            let mut readable = Vec::with_capacity(count);
            for entry in page {
                match entry.read {
                    Ok(readable_one) => readable.push(readable_one),
                    Err(_) => suspects.unreadable.push(entry.id),
                }
            }
            self.suspect_reservations(readable, &mut suspects).await?;
            if suspects.reservations.len() + suspects.unreadable.len() >= SUSPECTS_MAX {
                self.recheck_reservations(&mut suspects).await?;
            }
            self.have_read(count).await;
        }
        self.recheck_reservations(&mut suspects).await
    }

    /// Adds those of a page whose owner doesn't hold the key, at one and the same moment, too.
    async fn suspect_reservations(
        &self,
        reservations: Vec<(Key, Reservation)>,
        suspects: &mut SuspectReservations,
    ) -> Result<(), StoreError> {
        let held = self.proxy.look_up(&pairs(&reservations), Scope::Route).await?;
        let mut held = held.into_iter();
        let mut missed = reservations;
        missed.retain(|_| !held.next().unwrap_or(true));
        for (key, reservation) in self.abandoned(missed).await? {
            let lease = self.proxy.lease().max(reservation.lease);
            suspects.decided = suspects.decided.max(Instant::now() + lease);
            suspects.reservations.push((key, reservation));
        }
        Ok(())
    }

    /// The reservations whose owners don't hold the keys at one moment, while the reservations are unchanged.
    async fn abandoned(&self, seen: Vec<(Key, Reservation)>) -> Result<Vec<(Key, Reservation)>, StoreError> {
        let mut abandoned = Vec::new();
        for seen in seen.chunks(SUSPECTS_AT_ONCE) {
            let moments = self
                .proxy
                .at_one_moment(&pairs(seen), &self.protected.shard_key, self.owner_of())
                .await?;
            for ((key, reservation), moment) in seen.iter().zip(moments) {
                let there = moment.entry.and_then(|entry| entry.read.ok());
                let is_same = there.is_some_and(|(_, there)| there.is_same_write(reservation));
                let mut owners = moment.owners.iter();
                if is_same && !owners.any(|holder| holder.has_same_id_as(&reservation.owner)) {
                    abandoned.push((key.clone(), reservation.clone()));
                }
            }
        }
        Ok(abandoned)
    }

    /// Reads all suspects once more, after their leases, and reports what is wrong still.
    async fn recheck_reservations(&mut self, suspects: &mut SuspectReservations) -> Result<(), StoreError> {
        let mut times = RecheckTimes::until(suspects.decided);
        while !suspects.reservations.is_empty() && times.next().await {
            suspects.reservations = self.abandoned(std::mem::take(&mut suspects.reservations)).await?;
        }
        for id in std::mem::take(&mut suspects.unreadable) {
            if let Some(reason) = self.proxy.unreadable(&id).await? {
                let found = Finding {
                    reservation: Some(as_json(&id)),
                    reason: Some(reason.to_string()),
                    ..Finding::new(FindingKind::Unreadable, &self.proxy.constraint, None)
                };
                self.note(&found);
            }
        }
        for seen in std::mem::take(&mut suspects.reservations).chunks(SUSPECTS_AT_ONCE) {
            self.report_abandoned(seen).await?;
        }
        Ok(())
    }

    async fn report_abandoned(&mut self, seen: &[(Key, Reservation)]) -> Result<(), StoreError> {
        // By a read that a deposed primary can't answer. A document that holds the key and isn't the owner is a finding of
        // the walk over the documents.
        let held = self.proxy.look_up(&pairs(seen), Scope::Linearizable).await?;
        let is_reported = |key: &Key| self.unreserved.contains_key(key);
        let abandoned: Vec<(Key, Reservation)> = seen
            .iter()
            .zip(held)
            .filter(|((key, _), held)| !held && !is_reported(key))
            .map(|(seen, _)| seen.clone())
            .collect();
        let freed = match self.settings.repair {
            true => self.free(&abandoned).await?,
            false => vec![false; abandoned.len()],
        };
        for ((key, reservation), repaired) in abandoned.iter().zip(freed) {
            let found = Finding {
                reservation: Some(as_json(&reservation.owner.id)),
                repaired,
                ..Finding::new(FindingKind::Abandoned, &self.proxy.constraint, Some(key))
            };
            self.note(&found);
        }
        Ok(())
    }
}

/// The keys, each with the owner that its reservation names.
fn pairs(reservations: &[(Key, Reservation)]) -> Vec<(&Key, &Owner)> {
    let pairs = reservations.iter();
    pairs.map(|(key, reservation)| (key, &reservation.owner)).collect()
}
