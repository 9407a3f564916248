//! Finds the reservations that were written lately: the only ones that anybody may have to wait for.

use std::time::Duration;

use bson::{Timestamp, rawdoc};

use super::{ProxyCollection, Reservation, StoreError, now_of};
use crate::constraint::Key;

impl ProxyCollection {
    /// Reservations written less than `span` ago, at most `limit` of them, in no order. By the deployment's own time, which
    /// may stand still while nothing is written: rather too many than too few.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster gave no sure answer.
    pub async fn young(&self, span: Duration, limit: i64) -> Result<Vec<(Key, Reservation)>, StoreError> {
        let any = self
            .find(rawdoc! { "find": self.reservations.name(), "limit": 1, "singleBatch": true })
            .await?;
        if any.documents.is_empty() {
            return Ok(Vec::new());
        }
        let seconds = u32::try_from(span.as_secs() + 1).unwrap_or(u32::MAX);
        let since = Timestamp {
            time: now_of(&any)?.time.saturating_sub(seconds),
            increment: 0,
        };
        let command =
            rawdoc! { "find": self.reservations.name(), "filter": { "at": { "$gte": since } }, "limit": limit };
        let found = self.find(command).await?;
        let now = now_of(&found)?;
        let mut young = Vec::with_capacity(found.documents.len());
        for document in &found.documents {
            // What isn't a reservation is in nobody's way.
            if let Ok((key, read)) = self.entry(document, now)?.read {
                young.push((key, read.reservation));
            }
        }
        Ok(young)
    }
}
