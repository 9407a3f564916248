//! Finds the reservations that were written recently: a write may have to wait for these only.

use std::time::Duration;

use bson::{Timestamp, rawdoc};

use super::{ProxyCollection, Reservation, StoreError};
use crate::constraint::Key;

impl ProxyCollection {
    /// Reads reservations that aren't known to be older than `span`, at most `limit` of them, in no order.
    ///
    /// A process that hasn't run for that long knows no reservation to be older.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster gave no sure answer.
    pub async fn recent(&self, span: Duration, limit: i64) -> Result<Vec<(Key, Reservation)>, StoreError> {
        let long_ago = Timestamp { time: 0, increment: 0 };
        let known = self.watch.known_for(span).unwrap_or(long_ago);
        let command =
            rawdoc! { "find": self.reservations.name(), "filter": { "at": { "$gt": known } }, "limit": limit };
        let found = self.find(command).await?;
        let mut recent = Vec::with_capacity(found.documents.len());
        for document in &found.documents {
            // Other documents are skipped: no write waits for them.
            if let Ok(reservation) = self.entry(document)?.read {
                recent.push(reservation);
            }
        }
        Ok(recent)
    }
}
