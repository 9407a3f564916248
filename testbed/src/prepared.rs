//! A transaction that is prepared on one shard and undecided, as one is whose coordinator waits for another shard.

use bson::{Binary, Bson, Document, doc, spec::BinarySubtype};

use crate::{Error, ReplicaSet};

/// A prepared transaction; dropping this aborts it unless it was committed.
#[derive(Debug)]
pub struct Prepared<'s> {
    shard: &'s ReplicaSet,
    /// The fields of its commands.
    transaction: Document,
    at: Bson,
}

impl<'s> Prepared<'s> {
    /// Inserts `document` in a transaction, directly on `shard`, and prepares it.
    ///
    /// # Errors
    /// [`Error::Command`] if the shard refuses.
    pub fn insert(
        shard: &'s ReplicaSet,
        database: &str,
        collection: &str,
        document: Document,
    ) -> Result<Prepared<'s>, Error> {
        let id = Binary {
            subtype: BinarySubtype::Uuid,
            bytes: rand::random::<[u8; 16]>().to_vec(),
        };
        let transaction = doc! { "lsid": { "id": id }, "txnNumber": 1_i64, "autocommit": false };
        let mut insert = doc! { "insert": collection, "documents": [document], "startTransaction": true };
        insert.extend(transaction.clone());
        shard.run(database, insert)?;
        let mut prepare = doc! { "prepareTransaction": 1, "writeConcern": { "w": "majority" } };
        prepare.extend(transaction.clone());
        let at = shard.run("admin", prepare)?.get("prepareTimestamp").cloned();
        Ok(Prepared {
            shard,
            transaction,
            at: at.unwrap_or(Bson::Null),
        })
    }

    /// Commits it.
    ///
    /// # Errors
    /// [`Error::Command`] if the shard refuses.
    pub fn commit(self) -> Result<(), Error> {
        self.end(doc! { "commitTransaction": 1, "commitTimestamp": self.at.clone() })
    }

    fn end(&self, mut command: Document) -> Result<(), Error> {
        command.extend(self.transaction.clone());
        command.insert("writeConcern", doc! { "w": "majority" });
        self.shard.run("admin", command).map(drop)
    }

    /// Whether a read of the collection waits on the shard until a prepared transaction is decided.
    ///
    /// # Errors
    /// [`Error::Command`] if the shard doesn't say.
    pub fn is_waited_for(shard: &ReplicaSet, namespace: &str) -> Result<bool, Error> {
        let reads = doc! { "ns": namespace, "prepareReadConflicts": { "$gt": 0 } };
        let pipeline = vec![doc! { "$currentOp": {} }, doc! { "$match": reads }];
        let reply = shard.run("admin", doc! { "aggregate": 1, "pipeline": pipeline, "cursor": {} })?;
        let found = reply
            .get_document("cursor")
            .and_then(|cursor| cursor.get_array("firstBatch"));
        Ok(found.is_ok_and(|found| !found.is_empty()))
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        // One that was committed isn't aborted by that.
        let _ = self.end(doc! { "abortTransaction": 1 });
    }
}
