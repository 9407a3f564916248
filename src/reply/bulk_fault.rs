//! Lists the faults of a `bulkWrite` that the server would refuse, or whose reply would be too large.

use crate::server::code;

/// The fault of a `bulkWrite`, because of which Keyward carried out none of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BulkFault {
    /// It was sent to another database than `admin`.
    #[error("bulkWrite may only be run against the admin database.")]
    NotAdmin,
    /// An operation has a field that the server doesn't know.
    #[error("BSON field '{0}' is an unknown field.")]
    UnknownField(String),
    /// An entry of `nsInfo` isn't `database.collection`.
    #[error("Invalid namespace specified for bulkWrite: '{0}'")]
    Namespace(String),
    /// An operation has a namespace that doesn't exist in `nsInfo`.
    #[error("BulkWrite ops entry {0} has an invalid nsInfo index.")]
    NamespaceIndex(usize),
    /// The command has both ways of numbering statements.
    #[error("May not specify both stmtId and stmtIds in bulkWrite command.")]
    TwoNumberings,
    /// The detailed results might not fit into one reply.
    #[error(
        "the results of this bulkWrite may not fit into one reply, and Keyward keeps no cursor for them because unique \
         constraints hold on some of its collections; send it in smaller parts, or without verboseResults"
    )]
    TooLong,
}

impl BulkFault {
    pub(super) fn code(&self) -> i32 {
        match self {
            BulkFault::NotAdmin => code::UNAUTHORIZED,
            BulkFault::UnknownField(_) => code::UNKNOWN_FIELD,
            BulkFault::Namespace(_) => code::INVALID_NAMESPACE,
            BulkFault::NamespaceIndex(_) => code::BAD_VALUE,
            BulkFault::TwoNumberings => code::INVALID_OPTIONS,
            BulkFault::TooLong => code::COMMAND_NOT_SUPPORTED,
        }
    }
}
