//! Records and reads the results of retryable statements that ran in Keyward's own transactions: in `keyward.results` of the
//! protected collection's database.
//!
//! The server remembers that such a transaction committed, but not its statement's reply. The transaction also ran under
//! another session than the client's. So Keyward writes the reply in the same transaction. Its key consists of the parts that a
//! driver's retry shares with its first try. The record expires when no retry can come any more.
//!
//! The result of a `findAndModify` may be as large as a document can be. A record with it would be larger, so Keyward stores
//! such a result in parts beside the record.

use std::time::SystemTime;

use bson::spec::{BinarySubtype, ElementType};
use bson::{RawDocumentBuf, cstr};

use crate::catalog::Protected;
use crate::raw::{Builder, Doc, Malformed};
use crate::reservation::RetryId;
use crate::server::code::{DUPLICATE_KEY, INCOMPLETE_TRANSACTION_HISTORY};
use crate::server::reply::{command_error, write_errors};
use crate::server::{clock::millis, cursor};
use crate::upstream::Connection;
use crate::wire::OutSequence;
use crate::write::txn::{ErrorReply, Failure, Transaction};

/// The collection's name, in the protected collection's database.
pub const COLLECTION: &str = "keyward.results";

/// The size limit of a document.
const DOCUMENT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The most bytes of a reply in one part.
const PART_BYTES_MAX: usize = DOCUMENT_BYTES_MAX / 2;

/// The record of one statement's result.
#[derive(Debug)]
pub struct Recorded<'a> {
    database: &'a str,
    id: RawDocumentBuf,
}

impl<'a> Recorded<'a> {
    /// The record of the statement with this retry id.
    pub fn new(protected: &'a Protected, retry_id: RetryId) -> Self {
        Recorded {
            database: &protected.namespace.database,
            id: id_of(retry_id),
        }
    }

    /// The reply to a first try, if that committed.
    pub async fn find(
        &self,
        transaction: &mut Transaction,
        upstream: &mut Connection,
    ) -> Result<Option<Vec<u8>>, Failure> {
        let Some(record) = self.read(self.id.as_bytes(), transaction, upstream).await? else {
            return Ok(None);
        };
        let record = Doc::new(&record)?;
        let reply = record.nested("reply")?.map(|reply| reply.bytes().to_vec());
        let mut whole = Vec::new();
        for part in 0..record.whole_number("parts")?.unwrap_or(0) {
            let id = self.part(part);
            // The parts expire with the record, but not all at once.
            let Some(part) = self.read(id.as_bytes(), transaction, upstream).await? else {
                return Err(Failure::InDoubt(incomplete()));
            };
            let bytes = Doc::new(&part)?.get("reply")?;
            // A binary: int32 length, subtype, the bytes.
            whole.extend_from_slice(bytes.and_then(|bytes| bytes.value.get(5..)).unwrap_or_default());
        }
        Ok(if whole.is_empty() { reply } else { Some(whole) })
    }

    async fn read(
        &self,
        id: &[u8],
        transaction: &mut Transaction,
        upstream: &mut Connection,
    ) -> Result<Option<Vec<u8>>, Failure> {
        let mut command = Builder::new();
        command.string("find", COLLECTION.as_bytes());
        command.open(ElementType::EmbeddedDocument, b"filter");
        command.append(ElementType::EmbeddedDocument, b"_id", id).close();
        command.int32("limit", 1).boolean("singleBatch", true);
        let found = transaction.run(upstream, self.database, command, None).await?;
        let record = cursor::batch(Doc::new(&found)?)?.into_iter().next();
        Ok(record.map(|record| record.bytes().to_vec()))
    }

    /// The `_id` of a part of the reply.
    fn part(&self, part: i64) -> RawDocumentBuf {
        let mut id = self.id.clone();
        id.append(cstr!("part"), part);
        id
    }

    /// The record, and parts of the reply if they are needed.
    fn documents(&self, reply: &[u8], at: i64) -> Result<Vec<Vec<u8>>, Malformed> {
        let document = |id: &[u8]| {
            let mut document = Builder::new();
            document.append(ElementType::EmbeddedDocument, b"_id", id);
            document.append(ElementType::DateTime, b"at", &at.to_le_bytes());
            document
        };
        let mut record = document(self.id.as_bytes());
        record.append(ElementType::EmbeddedDocument, b"reply", reply);
        let record = record.finish();
        if record.len() <= DOCUMENT_BYTES_MAX {
            return Ok(vec![record]);
        }
        let mut without = Builder::new();
        without.elements_where(Doc::new(reply)?, |element| element.name != b"value")?;
        let parts = reply.chunks(PART_BYTES_MAX);
        let mut record = document(self.id.as_bytes());
        record.append(ElementType::EmbeddedDocument, b"reply", &without.finish());
        record.int64("parts", parts.len() as i64);
        let mut documents = vec![record.finish()];
        for (position, bytes) in (0..).zip(parts) {
            let mut part = document(self.part(position).as_bytes());
            part.binary(b"reply", BinarySubtype::Generic, bytes);
            documents.push(part.finish());
        }
        Ok(documents)
    }

    /// Writes `reply`; returns false if another try has written its reply.
    pub async fn write(
        &self,
        reply: &[u8],
        transaction: &mut Transaction,
        upstream: &mut Connection,
    ) -> Result<bool, Failure> {
        let documents = self.documents(&of_the_statement(reply)?, answered_at(Doc::new(reply)?)?)?;
        let mut command = Builder::new();
        command.string("insert", COLLECTION.as_bytes());
        let sequence = OutSequence::of("documents", documents.iter().map(Vec::as_slice));
        let outcome = transaction
            .run(upstream, self.database, command, Some(sequence))
            .await?;
        let errors = write_errors(Doc::new(&outcome)?)?;
        let Some(error) = errors.first() else {
            return Ok(true);
        };
        if error.code == DUPLICATE_KEY {
            return Ok(false);
        }
        Err(Failure::ErrorReply(ErrorReply::of_part(error.body)?))
    }
}

/// The error if a part of the reply is missing, as the server has it for a pre-image or post-image that it no longer has.
fn incomplete() -> ErrorReply {
    let errmsg = b"Keyward: an earlier try of this statement took effect, but keyward.results no longer has the whole reply; read the document";
    ErrorReply {
        body: command_error(errmsg, INCOMPLETE_TRANSACTION_HISTORY).finish(),
    }
}

/// The `_id` of the record of the statement with this retry id.
pub fn id_of(retry_id: RetryId) -> RawDocumentBuf {
    let mut id = RawDocumentBuf::new();
    let session = bson::Binary {
        subtype: bson::spec::BinarySubtype::Generic,
        bytes: retry_id.session.to_vec(),
    };
    id.append(cstr!("session"), session);
    id.append(cstr!("txnNumber"), retry_id.txn_number);
    id.append(cstr!("statement"), retry_id.statement);
    id
}

/// The start of a record's life, in milliseconds since 1970, by the clock of the server that sent `reply`: that clock also ends
/// it.
fn answered_at(reply: Doc<'_>) -> Result<i64, Malformed> {
    // A timestamp: four bytes of a counter, then the seconds.
    let seconds = reply
        .get("operationTime")?
        .and_then(|time| time.value.get(4..)?.try_into().ok());
    Ok(seconds.map_or_else(now, |seconds| i64::from(u32::from_le_bytes(seconds)) * 1000))
}

fn now() -> i64 {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    millis(now)
}

/// The fields of the commit's reply: the time of the statement's effect, and whether enough members have it.
const OF_THE_COMMIT: [&[u8]; 5] = [
    b"$clusterTime",
    b"operationTime",
    b"recoveryToken",
    b"writeConcernError",
    b"errorLabels",
];

/// The part of a statement's reply about the statement itself.
fn of_the_statement(reply: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut without = Builder::new();
    without.elements_where(Doc::new(reply)?, |element| !OF_THE_COMMIT.contains(&element.name))?;
    Ok(without.finish())
}

/// A statement's reply with the parts of the commit's reply that a client sees: its times, because the statement took effect
/// then, and its `writeConcernError`.
pub fn as_committed(reply: &[u8], commit: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut with = Builder::from_document(&of_the_statement(reply)?);
    with.elements_where(Doc::new(commit)?, |element| {
        matches!(element.name, b"$clusterTime" | b"operationTime" | b"writeConcernError")
    })?;
    Ok(with.finish())
}
