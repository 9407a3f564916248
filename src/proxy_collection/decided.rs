//! Reads that wait for transactions that are prepared and undecided; all others pass them by and see what was there before.
//!
//! The server does so for a read after a cluster time, however early that is, for a linearizable one, and for a snapshot. But only
//! for what the first reply holds: a `getMore` passes prepared transactions by, whatever its `find` asked for
//! (`testbed/tests/router/transactions.rs`). So what is read here, and by a linearizable look for owners, comes in one reply.

use bson::{RawDocumentBuf, Timestamp, cstr, rawdoc};

use super::writing::PATIENCE_MS;
use super::{KEYS_MAX, ProxyCollection, Reservation, StoreError, find_keys};
use crate::constraint::Key;

/// So many documents are asked for in a first reply: more than there are. It ends at 16 MB, too.
pub(super) const ALL_AT_ONCE: i32 = 1_000_000;

/// Any cluster time does.
const LONG_AGO: Timestamp = Timestamp { time: 1, increment: 0 };

impl ProxyCollection {
    /// Waits until no transaction is prepared and undecided that has written to the protected collection before now: each document is
    /// read once, by one command, of which only a number comes back.
    ///
    /// # Errors
    /// [`StoreError`] if the cluster gave no answer.
    pub async fn wait_for_prepared(&self) -> Result<(), StoreError> {
        let mut read = RawDocumentBuf::new();
        // What no index holds, so that the documents themselves are read.
        for path in self.constraint.paths().take(1) {
            read.append(
                bson::raw::CString::try_from(path).map_err(|_| StoreError::Unexpected("a path"))?,
                rawdoc! { "$exists": true },
            );
        }
        let command = rawdoc! {
            "count": self.protected.name(), "query": read, "hint": { "_id": 1 }, "readConcern": self.concern(),
        };
        self.database.run_raw_command(command).await?;
        Ok(())
    }

    /// Reads the reservations of `keys`, in no order, once transactions that have written in their places are decided.
    ///
    /// # Errors
    /// [`StoreError`] if that takes longer than a second, or the cluster gave no sure answer.
    pub async fn read_decided(&self, keys: &[&Key]) -> Result<Vec<(Key, Reservation)>, StoreError> {
        let mut decided = Vec::with_capacity(keys.len());
        for keys in keys.chunks(KEYS_MAX) {
            let mut command = find_keys(self.reservations.name(), keys.iter().copied());
            command.append(cstr!("readConcern"), self.concern());
            command.append(cstr!("batchSize"), ALL_AT_ONCE);
            command.append(cstr!("maxTimeMS"), PATIENCE_MS);
            for document in &self.find(command).await?.documents {
                decided.extend(self.entry(document)?.read.ok());
            }
        }
        Ok(decided)
    }

    /// After the latest time that this process was told.
    fn concern(&self) -> RawDocumentBuf {
        rawdoc! { "level": "local", "afterClusterTime": self.times().operation.unwrap_or(LONG_AGO) }
    }
}
