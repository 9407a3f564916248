//! Lists the server's error codes, under the server's names.

/// `BadValue`
pub const BAD_VALUE: i32 = 2;
/// `HostUnreachable`
pub const HOST_UNREACHABLE: i32 = 6;
/// `HostNotFound`
pub const HOST_NOT_FOUND: i32 = 7;
/// `FailedToParse`
pub const FAILED_TO_PARSE: i32 = 9;
/// `Unauthorized`
pub const UNAUTHORIZED: i32 = 13;
/// `TypeMismatch`
pub const TYPE_MISMATCH: i32 = 14;
/// `Overflow`
pub const OVERFLOW: i32 = 15;
/// `InvalidLength`
pub const INVALID_LENGTH: i32 = 16;
/// `AuthenticationFailed`
pub const AUTHENTICATION_FAILED: i32 = 18;
/// `IllegalOperation`
pub const ILLEGAL_OPERATION: i32 = 20;
/// `InvalidBSON`
pub const INVALID_BSON: i32 = 22;
/// `NamespaceNotFound`
pub const NAMESPACE_NOT_FOUND: i32 = 26;
/// `IndexNotFound`
pub const INDEX_NOT_FOUND: i32 = 27;
/// `PathNotViable`
pub const PATH_NOT_VIABLE: i32 = 28;
/// `NoSuchSession`
pub const NO_SUCH_SESSION: i32 = 33;
/// `ConflictingUpdateOperators`
pub const CONFLICTING_UPDATE_OPERATORS: i32 = 40;
/// `CursorNotFound`
pub const CURSOR_NOT_FOUND: i32 = 43;
/// `NamespaceExists`
pub const NAMESPACE_EXISTS: i32 = 48;
/// `MaxTimeMSExpired`
pub const MAX_TIME_MS_EXPIRED: i32 = 50;
/// `DollarPrefixedFieldName`
pub const DOLLAR_PREFIXED_FIELD_NAME: i32 = 52;
/// `InvalidIdField`
pub const INVALID_ID_FIELD: i32 = 53;
/// `NotSingleValueField`
pub const NOT_SINGLE_VALUE_FIELD: i32 = 54;
/// `InvalidDBRef`
pub const INVALID_DB_REF: i32 = 55;
/// `EmptyFieldName`
pub const EMPTY_FIELD_NAME: i32 = 56;
/// `DottedFieldName`
pub const DOTTED_FIELD_NAME: i32 = 57;
/// `CommandNotFound`
pub const COMMAND_NOT_FOUND: i32 = 59;
/// `ShardKeyNotFound`
pub const SHARD_KEY_NOT_FOUND: i32 = 61;
/// `ImmutableField`
pub const IMMUTABLE_FIELD: i32 = 66;
/// `CannotCreateIndex`
pub const CANNOT_CREATE_INDEX: i32 = 67;
/// `InvalidOptions`
pub const INVALID_OPTIONS: i32 = 72;
/// `InvalidNamespace`
pub const INVALID_NAMESPACE: i32 = 73;
/// `IndexOptionsConflict`
pub const INDEX_OPTIONS_CONFLICT: i32 = 85;
/// `IndexKeySpecsConflict`
pub const INDEX_KEY_SPECS_CONFLICT: i32 = 86;
/// `NetworkTimeout`
pub const NETWORK_TIMEOUT: i32 = 89;
/// `ShutdownInProgress`
pub const SHUTDOWN_IN_PROGRESS: i32 = 91;
/// `WriteConflict`
pub const WRITE_CONFLICT: i32 = 112;
/// `CommandNotSupported`
pub const COMMAND_NOT_SUPPORTED: i32 = 115;
/// `DocumentValidationFailure`
pub const DOCUMENT_VALIDATION_FAILURE: i32 = 121;
/// `FailedToSatisfyReadPreference`
pub const FAILED_TO_SATISFY_READ_PREFERENCE: i32 = 133;
/// `SSLHandshakeFailed`
pub const SSL_HANDSHAKE_FAILED: i32 = 141;
/// `ExceededMemoryLimit`
pub const EXCEEDED_MEMORY_LIMIT: i32 = 146;
/// `CommandNotSupportedOnView`
pub const COMMAND_NOT_SUPPORTED_ON_VIEW: i32 = 166;
/// `CannotIndexParallelArrays`
pub const CANNOT_INDEX_PARALLEL_ARRAYS: i32 = 171;
/// `PrimarySteppedDown`
pub const PRIMARY_STEPPED_DOWN: i32 = 189;
/// `InvalidIndexSpecificationOption`
pub const INVALID_INDEX_SPECIFICATION_OPTION: i32 = 197;
/// `QueryFeatureNotAllowed`
pub const QUERY_FEATURE_NOT_ALLOWED: i32 = 224;
/// `TransactionTooOld`
pub const TRANSACTION_TOO_OLD: i32 = 225;
/// `NoSuchTransaction`
pub const NO_SUCH_TRANSACTION: i32 = 251;
/// `TransactionCommitted`
pub const TRANSACTION_COMMITTED: i32 = 256;
/// `ExceededTimeLimit`
pub const EXCEEDED_TIME_LIMIT: i32 = 262;
/// `PreparedTransactionInProgress`
pub const PREPARED_TRANSACTION_IN_PROGRESS: i32 = 267;
/// `IndexBuildAborted`
pub const INDEX_BUILD_ABORTED: i32 = 276;
/// `ChangeStreamFatalError`
pub const CHANGE_STREAM_FATAL_ERROR: i32 = 280;
/// `APIVersionError`
pub const API_VERSION_ERROR: i32 = 322;
/// `APIStrictError`
pub const API_STRICT_ERROR: i32 = 323;
/// `APIDeprecationError`
pub const API_DEPRECATION_ERROR: i32 = 324;
/// `UnsupportedOpQueryCommand`
pub const UNSUPPORTED_OP_QUERY_COMMAND: i32 = 352;
/// `CollectionUUIDMismatch`
pub const COLLECTION_UUID_MISMATCH: i32 = 361;
/// `SocketException`
pub const SOCKET_EXCEPTION: i32 = 9001;
/// `LegacyNotPrimary`
pub const LEGACY_NOT_PRIMARY: i32 = 10_058;
/// `NotWritablePrimary`
pub const NOT_WRITABLE_PRIMARY: i32 = 10_107;
/// `BSONObjectTooLarge`
pub const BSON_OBJECT_TOO_LARGE: i32 = 10_334;
/// `DuplicateKey`
pub const DUPLICATE_KEY: i32 = 11_000;
/// `InterruptedAtShutdown`
pub const INTERRUPTED_AT_SHUTDOWN: i32 = 11_600;
/// `Interrupted`
pub const INTERRUPTED: i32 = 11_601;
/// `InterruptedDueToReplStateChange`
pub const INTERRUPTED_DUE_TO_REPL_STATE_CHANGE: i32 = 11_602;
/// `NotPrimaryNoSecondaryOk`
pub const NOT_PRIMARY_NO_SECONDARY_OK: i32 = 13_435;
/// `NotPrimaryOrSecondary`
pub const NOT_PRIMARY_OR_SECONDARY: i32 = 13_436;
/// A field occurs twice in a command; the server has no name for this code.
pub const DUPLICATE_FIELD: i32 = 40_413;
/// A command lacks a field; the server has no name for this code.
pub const MISSING_FIELD: i32 = 40_414;
/// A command has an unknown field; the server has no name for this code.
pub const UNKNOWN_FIELD: i32 = 40_415;
/// The first try of a retried `findAndModify` without `upsert` inserted a document.
pub const FIRST_TRY_INSERTED: i32 = 40_608;
