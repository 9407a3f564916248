//! Makes reads that wait: until prepared transactions are decided, or until a majority has all earlier writes.
//!
//! All other reads ignore prepared, undecided transactions and see the state before them.
//!
//! The server waits in three kinds of reads: a read after a cluster time, however early, a linearizable read, and a snapshot
//! read. It waits only for the first reply: a `getMore` ignores prepared transactions, whatever its `find` asked for
//! (`testbed/tests/router/transactions.rs`). So these reads, and linearizable look-ups of owners, get everything in one
//! reply.

use std::time::Duration;

use bson::{RawDocumentBuf, Timestamp, cstr, rawdoc};

use super::find::ALL_AT_ONCE;
use super::owner::ABSENT_FIELD;
use super::reading::find_keys;
use super::time_out::within;
use super::writing::PATIENCE_MS;
use super::{KEYS_MAX, ProxyCollection, Reservation, StoreError};
use crate::constraint::Key;

/// How long to wait for an answer beyond the server's time limit.
const ANSWER: Duration = Duration::from_secs(5);

/// How long to wait before asking a deployment anew that states no cluster time.
const NO_TIME_YET: Duration = Duration::from_millis(100);

/// Stands in for an unknown cluster time: after any cluster time, the read waits.
const LONG_AGO: Timestamp = Timestamp { time: 1, increment: 0 };

impl ProxyCollection {
    /// Waits until every prepared transaction that has written to the protected collection before now is decided.
    ///
    /// One command reads each document once, and only a number comes back.
    pub async fn wait_for_prepared(&self) -> Result<(), StoreError> {
        let mut read = RawDocumentBuf::new();
        // The index of the hint doesn't hold this field, so the server reads the documents themselves.
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

    /// A moment by which a majority has every write to the protected collection from before now. The server may take `limit` for it.
    ///
    /// The read reaches each shard with documents of the collection, and each waits for a majority of its own.
    ///
    /// # Errors
    /// [`StoreError`]; [`StoreError::is_late`] if a shard's majority can't be reached in time.
    pub async fn confirmed_moment(&self, limit: Duration) -> Result<Timestamp, StoreError> {
        let max_time = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
        // No field is read: a value may be text that isn't UTF-8, at which the driver fails.
        let command = rawdoc! {
            "find": self.protected.name(), "projection": { "_id": 0, &*ABSENT_FIELD: 1 }, "limit": 1, "singleBatch": true,
            "readConcern": { "level": "linearizable" }, "maxTimeMS": max_time,
        };
        let confirmed = async {
            loop {
                let reply = self.database.run_raw_command(command.clone()).await?;
                // A deployment without keys for signatures states no time yet.
                match reply.get_timestamp("operationTime") {
                    Ok(moment) => return Ok::<_, StoreError>(moment),
                    Err(_) => tokio::time::sleep(NO_TIME_YET).await,
                }
            }
        };
        within(limit + ANSWER, confirmed).await
    }

    /// Reads the reservations of `keys`, in no order, after prepared transactions that have written under these keys are
    /// decided.
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
            for document in &self.find(command).await? {
                decided.extend(self.entry(document)?.read.ok());
            }
        }
        Ok(decided)
    }

    /// The read concern: after the latest `operationTime` that this process knows.
    fn concern(&self) -> RawDocumentBuf {
        rawdoc! { "level": "local", "afterClusterTime": self.times().operation.unwrap_or(LONG_AGO) }
    }
}
