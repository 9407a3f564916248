//! Sharding a collection and moving its chunks, by the commands that an administrator gives `mongos`.

use bson::{Bson, Document, doc};

use super::Cluster;
use crate::Error;
use crate::deadline::wait_for;

/// The server's code for a shard that is sending or receiving another chunk.
const CONFLICTING_OPERATION_IN_PROGRESS: i32 = 117;

impl Cluster {
    /// Shards `namespace` (`database.collection`) by `key`; `unique` makes the shard key's index unique.
    ///
    /// # Errors
    /// [`Error::Command`] if the router refuses.
    pub fn shard_collection(&self, namespace: &str, key: Document, unique: bool) -> Result<(), Error> {
        let (database, _) = namespace.split_once('.').unwrap_or((namespace, ""));
        self.run("admin", doc! { "enableSharding": database })?;
        self.run(
            "admin",
            doc! { "shardCollection": namespace, "key": key, "unique": unique },
        )?;
        Ok(())
    }

    /// Splits a chunk of `namespace`, so that one begins at `middle` (the shard key's fields with their values).
    ///
    /// # Errors
    /// [`Error::Command`] if the router refuses, for example because a chunk begins there already.
    pub fn split(&self, namespace: &str, middle: Document) -> Result<(), Error> {
        self.run("admin", doc! { "split": namespace, "middle": middle })
            .map(drop)
    }

    /// Moves the chunk of `namespace` that `find` (a query by shard key) falls into to the shard called `shard`; waits while
    /// another move keeps a shard busy, as each takes part in one at a time.
    ///
    /// # Errors
    /// [`Error::Command`] if the router refuses, or the move fails.
    pub fn move_chunk(&self, namespace: &str, find: Document, shard: &str) -> Result<(), Error> {
        let command = doc! { "moveChunk": namespace, "find": find, "to": shard };
        let mut moved = Ok(());
        wait_for("the end of another move", || {
            moved = self.run("admin", command.clone()).map(drop);
            !matches!(&moved, Err(Error::Command(refused)) if refused.code() == Some(CONFLICTING_OPERATION_IN_PROGRESS))
        })?;
        moved
    }

    /// Shards `namespace` by ranges of the number `field`, one chunk for each shard in their order: below `limits[0]` on the
    /// first, from there below `limits[1]` on the second, and so on.
    ///
    /// # Errors
    /// [`Error::Command`] if the router refuses.
    pub fn shard_by_ranges(
        &self,
        namespace: &str,
        field: &str,
        limits: &[impl Into<Bson> + Clone],
    ) -> Result<(), Error> {
        self.shard_collection(namespace, doc! { field: 1 }, false)?;
        for limit in limits {
            self.split(namespace, doc! { field: limit.clone() })?;
        }
        let first = doc! { field: Bson::MinKey };
        let lowest = std::iter::once(first).chain(limits.iter().map(|limit| doc! { field: limit.clone() }));
        for (lowest, shard) in lowest.zip(self.shards()) {
            self.move_chunk(namespace, lowest, shard.name())?;
        }
        Ok(())
    }
}
