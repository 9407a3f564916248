//! What a command can fail with: an error of the router's own, or a shard's error reply to hand on as it is.
//!
//! Codes, names and labels are the server's (`error_codes.yml`); the router adds the labels that a `mongos` adds.

use std::borrow::Cow;

use bytes::Bytes;

use super::raw::Builder;
use super::reply::Reply;

/// The codes that the router itself gives or looks for.
#[allow(missing_docs)]
pub mod code {
    pub const INTERNAL_ERROR: i32 = 1;
    pub const BAD_VALUE: i32 = 2;
    pub const HOST_UNREACHABLE: i32 = 6;
    pub const FAILED_TO_PARSE: i32 = 9;
    pub const UNAUTHORIZED: i32 = 13;
    pub const TYPE_MISMATCH: i32 = 14;
    pub const INVALID_LENGTH: i32 = 16;
    pub const INVALID_BSON: i32 = 22;
    pub const NAMESPACE_NOT_FOUND: i32 = 26;
    pub const CURSOR_NOT_FOUND: i32 = 43;
    pub const MAX_TIME_MS_EXPIRED: i32 = 50;
    pub const COMMAND_NOT_FOUND: i32 = 59;
    pub const SHARD_KEY_NOT_FOUND: i32 = 61;
    pub const SHARD_NOT_FOUND: i32 = 70;
    pub const INVALID_OPTIONS: i32 = 72;
    pub const INVALID_NAMESPACE: i32 = 73;
    pub const COMMAND_NOT_SUPPORTED: i32 = 115;
    pub const CONFLICTING_OPERATION_IN_PROGRESS: i32 = 117;
    pub const NAMESPACE_NOT_SHARDED: i32 = 118;
    pub const FAILED_TO_SATISFY_READ_PREFERENCE: i32 = 133;
    pub const STALE_EPOCH: i32 = 150;
    pub const VIEW_NEEDS_ROUTER: i32 = 169;
    pub const TRANSACTION_TOO_OLD: i32 = 225;
    pub const STALE_DB_VERSION: i32 = 249;
    pub const NO_SUCH_TRANSACTION: i32 = 251;
    pub const OPERATION_NOT_SUPPORTED_IN_TRANSACTION: i32 = 263;
    pub const FAIL_POINT_SET_FAILED: i32 = 266;
    pub const WOULD_CHANGE_OWNING_SHARD: i32 = 283;
    pub const UNSUPPORTED_OP_QUERY_COMMAND: i32 = 352;
    pub const LOAD_BALANCER_SUPPORT_MISMATCH: i32 = 354;
    pub const MISSING_FIELD: i32 = 40414;
    pub const UNKNOWN_FIELD: i32 = 40415;
    pub const STALE_CONFIG: i32 = 13388;
}

/// An error of the router's own.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message} ({code})")]
pub struct ServerError {
    /// The server's number for it.
    pub code: i32,
    /// `errmsg`.
    pub message: String,
}

impl ServerError {
    /// An error with that code and text.
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        ServerError {
            code,
            message: message.into(),
        }
    }

    /// The reply that reports it.
    pub fn reply(&self, labels: &[&str]) -> Vec<u8> {
        let mut reply = Builder::new();
        append_labels(&mut reply, labels);
        reply.double("ok", 0.0).string("errmsg", self.message.as_bytes());
        reply.int32("code", self.code);
        reply.string("codeName", code_name(self.code).as_bytes());
        reply.finish()
    }
}

/// Appends `errorLabels`, if there is any.
pub fn append_labels(reply: &mut Builder, labels: &[&str]) {
    if labels.is_empty() {
        return;
    }
    reply.open(bson::spec::ElementType::Array, b"errorLabels");
    for (index, label) in labels.iter().enumerate() {
        reply.string(&index.to_string(), label.as_bytes());
    }
    reply.close();
}

/// Why a command has no result.
#[derive(Debug)]
pub enum Failure {
    /// The router's own error.
    Own(ServerError),
    /// A shard's error reply.
    Shard(Reply),
    /// A shard refused the routing version: refresh and try again. Holds its reply, or the write error.
    Stale(Bytes),
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        Failure::Own(error)
    }
}

impl From<super::raw::Malformed> for Failure {
    fn from(malformed: super::raw::Malformed) -> Self {
        Failure::Own(malformed.into())
    }
}

impl From<super::raw::Malformed> for ServerError {
    fn from(malformed: super::raw::Malformed) -> Self {
        ServerError::new(code::INVALID_BSON, malformed.to_string())
    }
}

impl Failure {
    /// The code, 0 where a shard gave none.
    pub fn code(&self) -> i32 {
        match self {
            Failure::Own(error) => error.code,
            Failure::Shard(reply) => reply.code(),
            Failure::Stale(_) => code::STALE_CONFIG,
        }
    }
}

/// Shorthand for an error of the router's own.
pub fn refuse<T>(code: i32, message: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Own(ServerError::new(code, message)))
}

/// Whether the shard's routing information and ours differ.
pub fn is_stale(code: i32) -> bool {
    matches!(code, code::STALE_CONFIG | code::STALE_EPOCH | code::STALE_DB_VERSION)
}

/// Whether the member that answered is no primary (any more): find the primary and try there.
pub fn is_not_primary(code: i32) -> bool {
    matches!(code, 91 | 189 | 10107 | 11600 | 11602 | 13435 | 13436)
}

/// Whether the server calls the error retryable (its category RetriableError).
pub fn is_retryable(code: i32) -> bool {
    is_not_primary(code) || matches!(code, 6 | 7 | 89 | 112 | 133 | 134 | 202 | 262 | 317 | 358 | 9001)
}

/// Whether an error inside a transaction means "run the whole transaction again".
pub fn is_transient_in_transaction(code: i32, is_commit: bool) -> bool {
    match code {
        112 | 24 | 267 | code::NO_SUCH_TRANSACTION | 246 | 239 => true,
        _ => is_stale(code) || (!is_commit && is_retryable(code)),
    }
}

/// The server's name for a code.
pub fn code_name(code: i32) -> Cow<'static, str> {
    let name = match code {
        1 => "InternalError",
        2 => "BadValue",
        6 => "HostUnreachable",
        7 => "HostNotFound",
        8 => "UnknownError",
        9 => "FailedToParse",
        13 => "Unauthorized",
        14 => "TypeMismatch",
        16 => "InvalidLength",
        17 => "ProtocolError",
        20 => "IllegalOperation",
        15 => "Overflow",
        24 => "LockTimeout",
        22 => "InvalidBSON",
        26 => "NamespaceNotFound",
        43 => "CursorNotFound",
        48 => "NamespaceExists",
        50 => "MaxTimeMSExpired",
        59 => "CommandNotFound",
        61 => "ShardKeyNotFound",
        64 => "WriteConcernFailed",
        70 => "ShardNotFound",
        72 => "InvalidOptions",
        73 => "InvalidNamespace",
        89 => "NetworkTimeout",
        91 => "ShutdownInProgress",
        100 => "UnsatisfiableWriteConcern",
        112 => "WriteConflict",
        115 => "CommandNotSupported",
        117 => "ConflictingOperationInProgress",
        118 => "NamespaceNotSharded",
        133 => "FailedToSatisfyReadPreference",
        134 => "ReadConcernMajorityNotAvailableYet",
        186 => "ClientMetadataCannotBeMutated",
        189 => "PrimarySteppedDown",
        225 => "TransactionTooOld",
        251 => "NoSuchTransaction",
        262 => "ExceededTimeLimit",
        263 => "OperationNotSupportedInTransaction",
        266 => "FailPointSetFailed",
        280 => "ChangeStreamFatalError",
        352 => "UnsupportedOpQueryCommand",
        9001 => "SocketException",
        10107 => "NotWritablePrimary",
        11000 => "DuplicateKey",
        11600 => "InterruptedAtShutdown",
        11601 => "Interrupted",
        11602 => "InterruptedDueToReplStateChange",
        13388 => "StaleConfig",
        13435 => "NotPrimaryNoSecondaryOk",
        13436 => "NotPrimaryOrSecondary",
        // A code without a name of its own.
        _ => return format!("Location{code}").into(),
    };
    name.into()
}
