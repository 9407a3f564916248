//! Codes of which it is certain that nothing was done, and nothing will be. In doubt a write is in doubt.

/// Top-level codes with which the server turns a command down before it does anything of it. Any other top-level failure
/// may come after a part was done.
pub const REFUSED_BEFORE_EXECUTION: [i64; 20] = [
    2,     // BadValue
    9,     // FailedToParse
    13,    // Unauthorized
    14,    // TypeMismatch
    16,    // InvalidLength
    18,    // AuthenticationFailed
    20,    // IllegalOperation
    26,    // NamespaceNotFound
    33,    // NoSuchSession
    59,    // CommandNotFound
    72,    // InvalidOptions
    73,    // InvalidNamespace
    115,   // CommandNotSupported
    166,   // CommandNotSupportedOnView
    322,   // APIVersionError
    323,   // APIStrictError
    324,   // APIDeprecationError
    40413, // duplicate field
    40414, // missing field
    40415, // unknown field
];

/// Whether a write error of this code says that its document isn't there and won't come.
///
/// With any other the server, or the router, may have lost track of it midway: a router passes on whatever code the lost
/// connection to a shard gave it, and the next version may know another.
pub fn is_refused(code: i64) -> bool {
    match code {
        // Assertions about the document itself: an index's, the storage's. Among them stand a few older codes.
        10_000.. => !LOST_TRACK.contains(&code),
        _ => REFUSED_DOCUMENT.contains(&code),
    }
}

/// Codes below 10000 with which the server refuses a single document.
const REFUSED_DOCUMENT: [i64; 24] = [
    2,   // BadValue
    9,   // FailedToParse
    13,  // Unauthorized
    14,  // TypeMismatch
    20,  // IllegalOperation
    22,  // InvalidBSON
    26,  // NamespaceNotFound
    28,  // PathNotViable
    40,  // ConflictingUpdateOperators
    52,  // DollarPrefixedFieldName
    53,  // InvalidIdField
    54,  // NotSingleValueField
    55,  // InvalidDBRef
    56,  // EmptyFieldName
    57,  // DottedFieldName
    61,  // ShardKeyNotFound
    66,  // ImmutableField
    67,  // CannotCreateIndex
    72,  // InvalidOptions
    73,  // InvalidNamespace
    112, // WriteConflict
    121, // DocumentValidationFailure
    166, // CommandNotSupportedOnView
    171, // CannotIndexParallelArrays
];

/// Codes from 10000 on that say nothing about the document.
const LOST_TRACK: [i64; 7] = [
    10058, // LegacyNotPrimary
    10107, // NotWritablePrimary
    11600, // InterruptedAtShutdown
    11601, // Interrupted
    11602, // InterruptedDueToReplStateChange
    13435, // NotPrimaryNoSecondaryOk
    13436, // NotPrimaryOrSecondary
];
