//! The results of retryable statements that ran in Keyward's own transactions, in `keyward.results` of the protected
//! collection's database.
//!
//! The server remembers that such a transaction committed, but not what its statement's reply was, and it knows the
//! transaction by another session than the client's. So the reply is written in the same transaction, under what a
//! driver's retry has in common with its first try, and expires when no retry can come any more.

use std::time::SystemTime;

use bson::{RawDocumentBuf, cstr, spec::ElementType};

use super::transaction::{Failure, Transaction};
use crate::catalog::Protected;
use crate::raw::{Builder, Doc, Malformed};
use crate::reservation::Operation;
use crate::server::{cursor, reply::has_write_errors};
use crate::upstream::Connection;
use crate::wire::OutSequence;

/// The collection's name, in the protected collection's database.
pub const COLLECTION: &str = "keyward.results";

/// Where one operation's result is, or will be.
#[derive(Debug)]
pub struct Recorded<'a> {
    database: &'a str,
    id: RawDocumentBuf,
}

impl<'a> Recorded<'a> {
    /// The record of `operation`.
    pub fn new(protected: &'a Protected, operation: Operation) -> Self {
        Recorded {
            database: &protected.namespace.database,
            id: id_of(operation),
        }
    }

    /// The reply that a first try got, if it committed.
    ///
    /// # Errors
    /// [`Failure`]; the transaction is over then.
    pub async fn find(
        &self,
        transaction: &mut Transaction,
        upstream: &mut Connection,
    ) -> Result<Option<Vec<u8>>, Failure> {
        let mut command = Builder::new();
        command.string("find", COLLECTION.as_bytes());
        command.open(ElementType::EmbeddedDocument, b"filter");
        command
            .append(ElementType::EmbeddedDocument, b"_id", self.id.as_bytes())
            .close();
        command.int32("limit", 1).boolean("singleBatch", true);
        let found = transaction.run(upstream, self.database, command, None).await?;
        let record = cursor::batch(Doc::new(&found)?)?.into_iter().next();
        let reply = record.map(|record| record.nested("reply")).transpose()?.flatten();
        Ok(reply.map(|reply| reply.bytes().to_vec()))
    }

    /// Writes `reply` down; false if another try has done so.
    ///
    /// # Errors
    /// [`Failure`]; the transaction is over then.
    pub async fn write(
        &self,
        reply: &[u8],
        transaction: &mut Transaction,
        upstream: &mut Connection,
    ) -> Result<bool, Failure> {
        let mut record = Builder::new();
        record.append(ElementType::EmbeddedDocument, b"_id", self.id.as_bytes());
        record.append(ElementType::EmbeddedDocument, b"reply", &of_the_statement(reply)?);
        record.append(ElementType::DateTime, b"at", &told_at(Doc::new(reply)?)?.to_le_bytes());
        let record = record.finish();
        let mut command = Builder::new();
        command.string("insert", COLLECTION.as_bytes());
        let sequence = OutSequence {
            name: b"documents",
            documents: vec![&record],
        };
        let outcome = transaction
            .run(upstream, self.database, command, Some(sequence))
            .await?;
        Ok(!has_write_errors(Doc::new(&outcome)?)?)
    }
}

/// The `_id` of an operation's record.
pub fn id_of(operation: Operation) -> RawDocumentBuf {
    let mut id = RawDocumentBuf::new();
    let session = bson::Binary {
        subtype: bson::spec::BinarySubtype::Generic,
        bytes: operation.session.to_vec(),
    };
    id.append(cstr!("session"), session);
    id.append(cstr!("txnNumber"), operation.txn_number);
    id.append(cstr!("statement"), operation.statement);
    id
}

/// Milliseconds since 1970, from which a record's life is counted: by the server that told `reply`, whose clock ends it.
fn told_at(reply: Doc<'_>) -> Result<i64, Malformed> {
    // A timestamp: the seconds stand behind four bytes of counting.
    let seconds = reply
        .get("operationTime")?
        .and_then(|time| time.value.get(4..)?.try_into().ok());
    Ok(seconds.map_or_else(now, |seconds| i64::from(u32::from_le_bytes(seconds)) * 1000))
}

fn now() -> i64 {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

/// What is the commit's to say: when the statement took effect, and whether as many have it as are to.
const OF_THE_COMMIT: [&[u8]; 5] = [
    b"$clusterTime",
    b"operationTime",
    b"recoveryToken",
    b"writeConcernError",
    b"errorLabels",
];

/// What a statement's reply says of the statement itself.
fn of_the_statement(reply: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut without = Builder::new();
    for element in Doc::new(reply)?.elements() {
        let element = element?;
        if !OF_THE_COMMIT.contains(&element.name) {
            without.element(&element);
        }
    }
    Ok(without.finish())
}

/// A statement's reply with the times of the commit's, which is when it took effect.
///
/// # Errors
/// [`Malformed`] if either isn't BSON.
pub fn with_times_of(reply: &[u8], commit: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut with = Builder::from_document(&of_the_statement(reply)?);
    for element in Doc::new(commit)?.elements() {
        let element = element?;
        if matches!(element.name, b"$clusterTime" | b"operationTime") {
            with.element(&element);
        }
    }
    Ok(with.finish())
}
