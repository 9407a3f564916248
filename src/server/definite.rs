//! Decides what an error code proves: that a command or a document definitely had no effect, that the server may accept it
//! later or elsewhere, or that its transaction is over.
//!
//! A code that isn't listed proves nothing: the write is then in doubt. The next version of the server may have other codes. There is
//! one exception: a write error of 10,000 or more proves that its document was refused, unless `LOST_TRACK` lists the code.

use super::code;

/// Whether a command that failed as a whole with this code had no effect, and will have none. After any other such failure, a
/// part of the command may have taken effect.
pub fn refused_before_execution(code: i32) -> bool {
    REFUSED_BEFORE_EXECUTION.contains(&code)
}

/// Whether a transaction may be open still after one of its statements failed as a whole with this code. After any other code the server has
/// aborted it. With codes of 10,000 and more, a server also refuses commands that it can't parse: an unknown stage of a pipeline, for example.
pub fn may_leave_transaction_open(code: i32) -> bool {
    let may_be_of_parser = code >= 10_000 && code != code::DUPLICATE_KEY;
    may_be_of_parser || refused_before_execution(code) || MAY_LEAVE_TRANSACTION_OPEN.contains(&code)
}

/// Whether a write error with this code proves that its document doesn't exist and never will.
///
/// With any other code, the server or the router may have lost track of the document midway: a router passes on the code of its
/// lost connection to a shard.
pub fn refused_document(code: i32) -> bool {
    match code {
        // Assertions about the document itself, of an index or the storage. A few older codes are among them.
        10_000.. => !LOST_TRACK.contains(&code),
        _ => REFUSED_DOCUMENT.contains(&code),
    }
}

/// Whether the code reports that the server isn't the primary, or won't be for long: another try on the same connection would
/// fail, too.
pub fn of_another_primary(code: i32) -> bool {
    ANOTHER_PRIMARY.contains(&code)
}

/// Whether a server, or a router on its behalf, uses the code while the server is unreachable, shutting down, or not primary.
pub fn may_pass(code: i32) -> bool {
    NOT_NOW.contains(&code)
}

/// Whether a `getMore` with this code ended the transaction, or met one that isn't open: committed, aborted, about to commit, or
/// forgotten.
pub fn of_closed_transaction(code: i32) -> bool {
    matches!(code, code::CURSOR_NOT_FOUND | code::NO_SUCH_TRANSACTION) || of_decided_transaction(code)
}

/// Whether a `getMore` with this code met a transaction that is committed, about to commit, or past.
pub fn of_decided_transaction(code: i32) -> bool {
    matches!(
        code,
        code::TRANSACTION_COMMITTED | code::PREPARED_TRANSACTION_IN_PROGRESS | code::TRANSACTION_TOO_OLD
    )
}

/// After [`code::TRANSACTION_TOO_OLD`], an earlier try of the same statement may have taken effect. This one never does.
const REFUSED_BEFORE_EXECUTION: [i32; 25] = [
    code::BAD_VALUE,
    code::FAILED_TO_PARSE,
    code::UNAUTHORIZED,
    code::TYPE_MISMATCH,
    code::INVALID_LENGTH,
    code::AUTHENTICATION_FAILED,
    code::ILLEGAL_OPERATION,
    code::NAMESPACE_NOT_FOUND,
    code::NO_SUCH_SESSION,
    code::COMMAND_NOT_FOUND,
    code::INVALID_OPTIONS,
    code::INVALID_NAMESPACE,
    code::COMMAND_NOT_SUPPORTED,
    code::MAX_STALENESS_OUT_OF_RANGE,
    code::COMMAND_NOT_SUPPORTED_ON_VIEW,
    code::CLUSTER_TIME_FAILS_RATE_LIMITER,
    code::TRANSACTION_TOO_OLD,
    code::API_VERSION_ERROR,
    code::API_STRICT_ERROR,
    code::API_DEPRECATION_ERROR,
    code::REAUTHENTICATION_REQUIRED,
    code::DUPLICATE_FIELD,
    code::MISSING_FIELD,
    code::UNKNOWN_FIELD,
    code::API_PARAMETERS_WITHOUT_VERSION,
];

/// A server uses these for a message that it can't read, and for a command that it refuses to run in any transaction. With the last one it may
/// end a command at its beginning.
const MAY_LEAVE_TRANSACTION_OPEN: [i32; 4] = [
    code::OVERFLOW,
    code::INVALID_BSON,
    code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
    code::MAX_TIME_MS_EXPIRED,
];

/// Codes below 10000 with which the server refuses a single document.
const REFUSED_DOCUMENT: [i32; 27] = [
    code::BAD_VALUE,
    code::FAILED_TO_PARSE,
    code::UNAUTHORIZED,
    code::TYPE_MISMATCH,
    code::OVERFLOW,
    code::ILLEGAL_OPERATION,
    code::INVALID_BSON,
    code::NAMESPACE_NOT_FOUND,
    code::PATH_NOT_VIABLE,
    code::CONFLICTING_UPDATE_OPERATORS,
    code::DOLLAR_PREFIXED_FIELD_NAME,
    code::INVALID_ID_FIELD,
    code::NOT_SINGLE_VALUE_FIELD,
    code::INVALID_DB_REF,
    code::EMPTY_FIELD_NAME,
    code::DOTTED_FIELD_NAME,
    code::SHARD_KEY_NOT_FOUND,
    code::IMMUTABLE_FIELD,
    code::CANNOT_CREATE_INDEX,
    code::INVALID_OPTIONS,
    code::INVALID_NAMESPACE,
    code::WRITE_CONFLICT,
    code::DOCUMENT_VALIDATION_FAILURE,
    code::COMMAND_NOT_SUPPORTED_ON_VIEW,
    code::CANNOT_INDEX_PARALLEL_ARRAYS,
    code::TRANSACTION_TOO_OLD,
    code::COLLECTION_UUID_MISMATCH,
];

/// Codes from 10000 on that prove nothing about the document.
const LOST_TRACK: [i32; 10] = [
    code::LEGACY_NOT_PRIMARY,
    code::NOT_WRITABLE_PRIMARY,
    code::INTERRUPTED_AT_SHUTDOWN,
    code::INTERRUPTED,
    code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
    code::STALE_CONFIG,
    code::NOT_PRIMARY_NO_SECONDARY_OK,
    code::NOT_PRIMARY_OR_SECONDARY,
    code::CLIENT_MARKED_KILLED,
    code::CONFIG_SERVER_UNREACHABLE,
];

const ANOTHER_PRIMARY: [i32; 8] = [
    code::SHUTDOWN_IN_PROGRESS,
    code::PRIMARY_STEPPED_DOWN,
    code::LEGACY_NOT_PRIMARY,
    code::NOT_WRITABLE_PRIMARY,
    code::INTERRUPTED_AT_SHUTDOWN,
    code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
    code::NOT_PRIMARY_NO_SECONDARY_OK,
    code::NOT_PRIMARY_OR_SECONDARY,
];

const NOT_NOW: [i32; 12] = [
    code::HOST_UNREACHABLE,
    code::HOST_NOT_FOUND,
    code::NETWORK_TIMEOUT,
    code::SHUTDOWN_IN_PROGRESS,
    code::FAILED_TO_SATISFY_READ_PREFERENCE,
    code::PRIMARY_STEPPED_DOWN,
    code::SOCKET_EXCEPTION,
    code::NOT_WRITABLE_PRIMARY,
    code::INTERRUPTED_AT_SHUTDOWN,
    code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
    code::NOT_PRIMARY_NO_SECONDARY_OK,
    code::NOT_PRIMARY_OR_SECONDARY,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_that_has_expired_refuses_a_command_as_a_missing_one_does() {
        assert!(refused_before_execution(code::UNAUTHORIZED));
        assert!(refused_before_execution(code::REAUTHENTICATION_REQUIRED));
    }

    /// The server may have carried the write out before it was interrupted.
    #[test]
    fn an_interruption_proves_nothing_about_a_document() {
        for interruption in [
            code::MAX_TIME_MS_EXPIRED,
            code::EXCEEDED_TIME_LIMIT,
            code::INTERRUPTED_AT_SHUTDOWN,
            code::INTERRUPTED,
            code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
            code::STALE_CONFIG,
            code::CLIENT_MARKED_KILLED,
            code::CONFIG_SERVER_UNREACHABLE,
        ] {
            assert!(!refused_document(interruption), "{interruption}");
            assert!(!refused_before_execution(interruption), "{interruption}");
        }
        assert!(refused_document(code::DUPLICATE_KEY));
    }
}
