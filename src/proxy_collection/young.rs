//! Finds the reservations that were written lately: the only ones that anybody may have to wait for.

use std::time::Duration;

use bson::{Timestamp, rawdoc};

use super::{ProxyCollection, Reservation, StoreError};
use crate::constraint::Key;

impl ProxyCollection {
    /// Reservations written less than `span` ago, at most `limit` of them, in no order. By the deployment's own time, which
    /// may stand still while nothing is written: rather too many than too few.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster gave no sure answer, or a document isn't a reservation.
    pub async fn young(&self, span: Duration, limit: i64) -> Result<Vec<(Key, Reservation)>, StoreError> {
        let Some((_, _, any)) = self.page(None, 1).await?.pop() else {
            return Ok(Vec::new());
        };
        let seconds = u32::try_from(span.as_secs() + 1).unwrap_or(u32::MAX);
        let since = Timestamp {
            time: any.now.time.saturating_sub(seconds),
            increment: 0,
        };
        let command =
            rawdoc! { "find": self.reservations.name(), "filter": { "at": { "$gte": since } }, "limit": limit };
        let found = self.reads(&self.find(command).await?)?;
        Ok(found
            .into_iter()
            .map(|(_, key, read)| (key, read.reservation))
            .collect())
    }
}
