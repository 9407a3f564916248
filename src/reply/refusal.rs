//! Composes Keyward's errors for commands, or for single statements, that it refuses while it plans or carries them out.
//!
//! The refusals of the classifier, before that, are in [`crate::classify`]. Each error states the reason in the server's form, and the
//! way out.

use crate::counted::Counted;
use crate::namespace::Namespace;
use crate::raw::Malformed;
use crate::reply::{BulkFault, Times};
use crate::server::code;
use crate::server::reply::{RETRYABLE_WRITE_ERROR, TRANSIENT_TRANSACTION_ERROR, append_label, command_error};

/// Why Keyward refused a command before any part of it took effect, unless the variant states otherwise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteRefusal {
    /// A part of the message that must be BSON isn't.
    #[error("{0}")]
    Malformed(Malformed),
    /// A field that the server requires is missing.
    #[error("BSON field '{0}' is missing but a required field")]
    MissingField(String),
    /// A field has a type that the server refuses.
    #[error("BSON field '{0}' is of the wrong type")]
    WrongType(&'static str),
    /// It isn't a command that drivers send, and it is too large to probe the server for its error.
    #[error(
        "Keyward doesn't know all fields of this command, or their types, and can't ask the server about one so large; send \
         fewer statements at a time"
    )]
    Unasked,
    /// The server accepts 1 to 100,000 documents.
    #[error("Write batch sizes must be between 1 and 100000. Got {0} operations.")]
    BatchSize(usize),
    /// The client numbers its statements, but gives fewer or more numbers than statements.
    #[error(
        "Number of statement ids must match the number of batch entries. Got {numbers} statement ids but {statements} \
         operations."
    )]
    StatementNumbers {
        /// How many numbers it gives.
        numbers: usize,
        /// How many statements there are.
        statements: usize,
    },
    /// The client numbers its statements in two ways.
    #[error("May not specify both stmtId and stmtIds in write command.")]
    NumberedTwice,
    /// A statement of a retryable write has a negative number.
    #[error(
        "Keyward carries out no retryable write with a negative statement number, because a server doesn't recognise its retry; number \
         the statements from 0 on"
    )]
    NegativeNumber,
    /// The fields beside the operations are too large for so many operations.
    #[error(
        "Keyward would send the fields beside this command's {operations} operations (comment, let) with each of them, {bytes} bytes in \
         all and more than 2 GiB; send fewer operations in a command, or a smaller comment or let"
    )]
    TooManyCopies {
        /// The bytes of all copies of these fields.
        bytes: usize,
        /// How many operations there are.
        operations: usize,
    },
    /// The fault of a `bulkWrite`.
    #[error("{0}")]
    Bulk(BulkFault),
    /// One statement would change too many documents in one transaction; it has no effect.
    #[error(
        "Keyward changes at most {} of {namespace} with one statement \
         (limits.max_documents_per_statement), because its unique constraints are kept by one transaction; update fewer \
         documents at a time",
        Counted(*.documents_max, "document")
    )]
    TooMany {
        /// The protected collection.
        namespace: Namespace,
        /// The limit.
        documents_max: usize,
    },
    /// The keys of the documents of one statement, or of one insert in a client's transaction, are too large.
    #[error(
        "the keys of the documents of this statement take more than {} MiB of memory under the unique constraints of {namespace}, because each \
         element of an array is a key, and a key of several fields repeats their values; write fewer documents at a time",
        bytes_max >> 20
    )]
    TooManyKeys {
        /// The protected collection.
        namespace: Namespace,
        /// The limit.
        bytes_max: usize,
    },
    /// One retryable statement is too large together with the values that it is to replace; it has no effect.
    #[error(
        "Keyward can't keep the unique constraints of {namespace} with this retryable statement: together with the value that \
         it replaces it exceeds 16 MB; send it without retryWrites, or in a transaction"
    )]
    TooLarge {
        /// The protected collection.
        namespace: Namespace,
    },
    /// Look-ups can miss documents of this collection.
    #[error(
        "Keyward can't keep the unique constraints of {namespace}, because it is clustered and has a default collation; end them with \
         dropIndexes"
    )]
    Clustered {
        /// The protected collection.
        namespace: Namespace,
    },
    /// After an update, Keyward doesn't see a document that the update can't have deleted.
    #[error(
        "after this update Keyward can't find a document of {namespace} again, so nothing was changed; leave the type of its _id as it is"
    )]
    OutOfSight {
        /// The protected collection.
        namespace: Namespace,
    },
    /// Keyward has already forwarded a commit of the client's transaction.
    #[error("the commit of this transaction has passed through Keyward; nothing can be written in it any more")]
    Committed,
    /// The client's transaction must not be committed; it has no effect.
    #[error("Transaction with {{ txnNumber: {number} }} has been aborted.")]
    NoSuchTransaction {
        /// `txnNumber`.
        number: i64,
    },
    /// A commit came for a transaction that began elsewhere, or came again after the constraints have changed. It is unknown whether each shard has
    /// ended the transaction or committed it.
    #[error(
        "Keyward lets no commit through of a transaction that it hasn't seen begin and that may be open on a shard: {0}; try again"
    )]
    UnendedTransaction(String),
    /// The command's session is of another kind than those of drivers: its transaction or statement could be mistaken for one of another
    /// session.
    #[error(
        "Keyward carries out no transaction and no retryable write in a session whose lsid has other fields than id, or that is one of \
         Keyward's own; use a session as drivers start it"
    )]
    OtherSession,
    /// The server's error for a write concern on a statement of a transaction.
    #[error("writeConcern is not allowed within a multi-statement transaction")]
    WriteConcernInTransaction,
    /// A transaction conflicted with another one, or with a stale reservation that Keyward has removed; it has no effect.
    #[error(
        "WriteConflict error: this operation conflicted with another operation. Please retry your operation or multi-document transaction."
    )]
    Conflict,
    /// Another Keyward may presume this one gone, or isn't known to have learned where this one is about to write; nothing was
    /// written.
    #[error(
        "Keyward writes nothing here as long as the cluster's register of Keywards doesn't say that it may: {reason}; try again"
    )]
    Unregistered {
        /// The missing condition.
        reason: String,
        /// The label that lets the driver try again, if it may.
        label: Option<&'static str>,
    },
    /// The cluster doesn't say whether a Keyward has constraints in the database that a client drops.
    #[error("Keyward drops no database as long as it can't find out whether constraints hold there: {0}; try again")]
    UnknownConstraints(String),
    /// The cluster gave no sure answer whether a key could be reserved; parts of the command may have taken effect.
    #[error(
        "Keyward couldn't reserve a key of unique constraint {constraint} on {namespace}: the cluster gave no sure answer; try again"
    )]
    Unsure {
        /// The protected collection.
        namespace: Namespace,
        /// The constraint's name.
        constraint: String,
        /// Whether the driver may resend the same operation.
        retryable: bool,
    },
    /// The client's `maxTimeMS` is invalid.
    #[error("{0}")]
    MaxTime(String),
    /// The client's `maxTimeMS` passed; parts of the command may have taken effect.
    #[error("operation exceeded time limit")]
    TimeLimit,
}

impl WriteRefusal {
    /// The refusal of a part that Keyward no longer sends: it waited so long that this Keyward may not write any more.
    pub fn outlasted(is_retryable: bool) -> WriteRefusal {
        WriteRefusal::Unregistered {
            reason: "its entry couldn't be renewed while this write waited".to_owned(),
            label: is_retryable.then_some(RETRYABLE_WRITE_ERROR),
        }
    }

    /// Whether Keyward reports it as an error of one statement. Otherwise it fails the whole command, and the results of the other
    /// statements are missing. That is safe only if there are no such results, or if the driver resends the command.
    pub fn is_of_one_statement(&self, has_results: bool) -> bool {
        match self {
            WriteRefusal::TooMany { .. }
            | WriteRefusal::TooManyKeys { .. }
            | WriteRefusal::TooLarge { .. }
            | WriteRefusal::OutOfSight { .. } => true,
            WriteRefusal::Unsure { retryable, .. } => has_results && !retryable,
            WriteRefusal::Unregistered { label, .. } => has_results && label.is_none(),
            _ => false,
        }
    }

    pub(super) fn code(&self) -> i32 {
        match self {
            WriteRefusal::Malformed(_) => code::INVALID_BSON,
            WriteRefusal::MissingField(_) => code::MISSING_FIELD,
            WriteRefusal::WrongType(_) => code::TYPE_MISMATCH,
            WriteRefusal::Unasked => code::FAILED_TO_PARSE,
            WriteRefusal::MaxTime(_) => code::BAD_VALUE,
            WriteRefusal::BatchSize(_) | WriteRefusal::StatementNumbers { .. } => code::INVALID_LENGTH,
            WriteRefusal::Bulk(fault) => fault.code(),
            // The error of a mongos that can't reach a shard: drivers retry.
            WriteRefusal::Unsure { .. }
            | WriteRefusal::Unregistered { .. }
            | WriteRefusal::UnknownConstraints(_)
            | WriteRefusal::UnendedTransaction(_) => code::HOST_UNREACHABLE,
            WriteRefusal::TooMany { .. } | WriteRefusal::TooManyKeys { .. } => code::EXCEEDED_MEMORY_LIMIT,
            WriteRefusal::TooLarge { .. } => code::BSON_OBJECT_TOO_LARGE,
            WriteRefusal::Committed => code::TRANSACTION_COMMITTED,
            WriteRefusal::NoSuchTransaction { .. } => code::NO_SUCH_TRANSACTION,
            // A server that checks logins refuses a session within another one with this code.
            WriteRefusal::OtherSession
            | WriteRefusal::WriteConcernInTransaction
            | WriteRefusal::NumberedTwice
            | WriteRefusal::NegativeNumber => code::INVALID_OPTIONS,
            WriteRefusal::Conflict => code::WRITE_CONFLICT,
            WriteRefusal::TimeLimit => code::MAX_TIME_MS_EXPIRED,
            WriteRefusal::TooManyCopies { .. } | WriteRefusal::Clustered { .. } | WriteRefusal::OutOfSight { .. } => {
                code::COMMAND_NOT_SUPPORTED
            }
        }
    }

    /// The reply's body, in the server's form.
    pub fn body(&self, times: &Times) -> Vec<u8> {
        let mut reply = command_error(self.to_string().as_bytes(), self.code());
        let label = match self {
            // Of a commit, only the commit may be sent again: the transaction may be committed.
            WriteRefusal::Unsure { retryable: true, .. } | WriteRefusal::UnendedTransaction(_) => {
                Some(RETRYABLE_WRITE_ERROR)
            }
            WriteRefusal::Conflict | WriteRefusal::NoSuchTransaction { .. } => Some(TRANSIENT_TRANSACTION_ERROR),
            WriteRefusal::Unregistered { label, .. } => *label,
            _ => None,
        };
        if let Some(label) = label {
            append_label(&mut reply, label);
        }
        times.append_to(&mut reply);
        reply.finish()
    }
}
