//! Lists the server's error codes, under the server's names.

use std::borrow::Cow;

/// Gives each code a constant, and [`name`] the server's name for it. A code for which the server has no name has a description
/// instead.
macro_rules! codes {
    ($($(#[$description:meta])* $constant:ident = $code:literal $($name:literal)?;)*) => {
        $(
            $(#[$description])*
            $(#[doc = concat!("`", $name, "`")])?
            pub const $constant: i32 = $code;
        )*

        /// The server's name for `code`: `Location` and the number, if it has no other.
        pub fn name(code: i32) -> Cow<'static, str> {
            match code {
                $($($code => Cow::Borrowed($name),)?)*
                _ => Cow::Owned(format!("Location{code}")),
            }
        }
    };
}

codes! {
    BAD_VALUE = 2 "BadValue";
    HOST_UNREACHABLE = 6 "HostUnreachable";
    HOST_NOT_FOUND = 7 "HostNotFound";
    FAILED_TO_PARSE = 9 "FailedToParse";
    UNAUTHORIZED = 13 "Unauthorized";
    TYPE_MISMATCH = 14 "TypeMismatch";
    OVERFLOW = 15 "Overflow";
    INVALID_LENGTH = 16 "InvalidLength";
    AUTHENTICATION_FAILED = 18 "AuthenticationFailed";
    ILLEGAL_OPERATION = 20 "IllegalOperation";
    INVALID_BSON = 22 "InvalidBSON";
    NAMESPACE_NOT_FOUND = 26 "NamespaceNotFound";
    INDEX_NOT_FOUND = 27 "IndexNotFound";
    PATH_NOT_VIABLE = 28 "PathNotViable";
    CONFLICTING_UPDATE_OPERATORS = 40 "ConflictingUpdateOperators";
    CURSOR_NOT_FOUND = 43 "CursorNotFound";
    NAMESPACE_EXISTS = 48 "NamespaceExists";
    MAX_TIME_MS_EXPIRED = 50 "MaxTimeMSExpired";
    DOLLAR_PREFIXED_FIELD_NAME = 52 "DollarPrefixedFieldName";
    INVALID_ID_FIELD = 53 "InvalidIdField";
    NOT_SINGLE_VALUE_FIELD = 54 "NotSingleValueField";
    INVALID_DB_REF = 55 "InvalidDBRef";
    EMPTY_FIELD_NAME = 56 "EmptyFieldName";
    DOTTED_FIELD_NAME = 57 "DottedFieldName";
    COMMAND_NOT_FOUND = 59 "CommandNotFound";
    SHARD_KEY_NOT_FOUND = 61 "ShardKeyNotFound";
    WRITE_CONCERN_FAILED = 64 "WriteConcernFailed";
    IMMUTABLE_FIELD = 66 "ImmutableField";
    CANNOT_CREATE_INDEX = 67 "CannotCreateIndex";
    SHARD_NOT_FOUND = 70 "ShardNotFound";
    INVALID_OPTIONS = 72 "InvalidOptions";
    INVALID_NAMESPACE = 73 "InvalidNamespace";
    INDEX_OPTIONS_CONFLICT = 85 "IndexOptionsConflict";
    INDEX_KEY_SPECS_CONFLICT = 86 "IndexKeySpecsConflict";
    NETWORK_TIMEOUT = 89 "NetworkTimeout";
    SHUTDOWN_IN_PROGRESS = 91 "ShutdownInProgress";
    WRITE_CONFLICT = 112 "WriteConflict";
    COMMAND_NOT_SUPPORTED = 115 "CommandNotSupported";
    DOCUMENT_VALIDATION_FAILURE = 121 "DocumentValidationFailure";
    FAILED_TO_SATISFY_READ_PREFERENCE = 133 "FailedToSatisfyReadPreference";
    SSL_HANDSHAKE_FAILED = 141 "SSLHandshakeFailed";
    EXCEEDED_MEMORY_LIMIT = 146 "ExceededMemoryLimit";
    MAX_STALENESS_OUT_OF_RANGE = 160 "MaxStalenessOutOfRange";
    INCOMPATIBLE_COLLATION_VERSION = 161 "IncompatibleCollationVersion";
    COMMAND_NOT_SUPPORTED_ON_VIEW = 166 "CommandNotSupportedOnView";
    CANNOT_INDEX_PARALLEL_ARRAYS = 171 "CannotIndexParallelArrays";
    PRIMARY_STEPPED_DOWN = 189 "PrimarySteppedDown";
    INVALID_INDEX_SPECIFICATION_OPTION = 197 "InvalidIndexSpecificationOption";
    CLUSTER_TIME_FAILS_RATE_LIMITER = 205 "ClusterTimeFailsRateLimiter";
    NO_SUCH_SESSION = 206 "NoSuchSession";
    INCOMPLETE_TRANSACTION_HISTORY = 217 "IncompleteTransactionHistory";
    QUERY_FEATURE_NOT_ALLOWED = 224 "QueryFeatureNotAllowed";
    TRANSACTION_TOO_OLD = 225 "TransactionTooOld";
    NO_SUCH_TRANSACTION = 251 "NoSuchTransaction";
    TRANSACTION_COMMITTED = 256 "TransactionCommitted";
    EXCEEDED_TIME_LIMIT = 262 "ExceededTimeLimit";
    OPERATION_NOT_SUPPORTED_IN_TRANSACTION = 263 "OperationNotSupportedInTransaction";
    PREPARED_TRANSACTION_IN_PROGRESS = 267 "PreparedTransactionInProgress";
    INDEX_BUILD_ABORTED = 276 "IndexBuildAborted";
    CLIENT_DISCONNECT = 279 "ClientDisconnect";
    TRANSACTION_EXCEEDED_LIFETIME_LIMIT_SECONDS = 290 "TransactionExceededLifetimeLimitSeconds";
    API_VERSION_ERROR = 322 "APIVersionError";
    API_STRICT_ERROR = 323 "APIStrictError";
    API_DEPRECATION_ERROR = 324 "APIDeprecationError";
    UNSUPPORTED_OP_QUERY_COMMAND = 352 "UnsupportedOpQueryCommand";
    CANNOT_CONVERT_INDEX_TO_UNIQUE = 359 "CannotConvertIndexToUnique";
    COLLECTION_UUID_MISMATCH = 361 "CollectionUUIDMismatch";
    REAUTHENTICATION_REQUIRED = 391 "ReauthenticationRequired";
    SOCKET_EXCEPTION = 9001 "SocketException";
    LEGACY_NOT_PRIMARY = 10_058 "LegacyNotPrimary";
    NOT_WRITABLE_PRIMARY = 10_107 "NotWritablePrimary";
    BSON_OBJECT_TOO_LARGE = 10_334 "BSONObjectTooLarge";
    DUPLICATE_KEY = 11_000 "DuplicateKey";
    INTERRUPTED_AT_SHUTDOWN = 11_600 "InterruptedAtShutdown";
    INTERRUPTED = 11_601 "Interrupted";
    INTERRUPTED_DUE_TO_REPL_STATE_CHANGE = 11_602 "InterruptedDueToReplStateChange";
    /// An index has more than 32 fields.
    TOO_MANY_KEY_FIELDS = 13_103;
    MERGE_STAGE_NO_MATCHING_DOCUMENT = 13_113 "MergeStageNoMatchingDocument";
    STALE_CONFIG = 13_388 "StaleConfig";
    NOT_PRIMARY_NO_SECONDARY_OK = 13_435 "NotPrimaryNoSecondaryOk";
    NOT_PRIMARY_OR_SECONDARY = 13_436 "NotPrimaryOrSecondary";
    /// A field's name is also a position in an array.
    AMBIGUOUS_FIELD = 16_746;
    /// A unique index is hashed.
    UNIQUE_HASHED_INDEX = 16_764;
    /// A field occurs twice in a command.
    DUPLICATE_FIELD = 40_413;
    /// A command lacks a field.
    MISSING_FIELD = 40_414;
    /// A command has an unknown field.
    UNKNOWN_FIELD = 40_415;
    /// A message has two bodies.
    TWO_BODIES = 40_430;
    /// Two document sequences of a message have the same name.
    DUPLICATE_SEQUENCE = 40_431;
    /// A section of a message is of an unknown kind.
    UNKNOWN_SECTION_KIND = 40_432;
    /// A document sequence and a field of the body have the same name.
    SEQUENCE_IN_BODY = 40_433;
    /// A message has no body.
    NO_BODY = 40_587;
    /// The first try of a retried `findAndModify` without `upsert` inserted a document.
    FIRST_TRY_INSERTED = 40_608;
    CLIENT_MARKED_KILLED = 46_841 "ClientMarkedKilled";
    /// A field's number is too small or too large.
    OUT_OF_BOUNDS = 51_024;
    /// A document of `$merge` has no value in a field to match by.
    MERGE_KEY_MISSING = 51_132;
    /// A document of `$merge` has an array in a field to match by.
    MERGE_KEY_IS_ARRAY = 51_185;
    /// A message is too short for its checksum.
    NO_ROOM_FOR_CHECKSUM = 51_252;
    CONFIG_SERVER_UNREACHABLE = 56_846 "ConfigServerUnreachable";
    /// A command has `apiStrict` or `apiDeprecationErrors`, but no `apiVersion`.
    API_PARAMETERS_WITHOUT_VERSION = 4_886_600;
    /// A filter has `$near` where the server does not allow it.
    NEAR_NOT_ALLOWED = 5_626_500;
    /// A read has a legacy op code.
    LEGACY_READ = 5_739_101;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_without_a_name_is_a_location() {
        assert_eq!(name(DUPLICATE_KEY), "DuplicateKey");
        assert_eq!(name(DUPLICATE_FIELD), "Location40413");
    }
}
