//! Lists why Keyward refuses a command about indexes, in the server's form.

use crate::constraint::{Constraint, ConstraintName, SpecError};
use crate::namespace::Namespace;
use crate::prepare::PrepareError;
use crate::proxy_collection::StoreError;
use crate::server::code;
use crate::wire::ServerError;

/// Why Keyward doesn't carry out a command about indexes.
#[derive(Debug, thiserror::Error)]
pub enum IndexRefusal {
    /// The index can't be a constraint.
    #[error("{}{}", own_prefix(.0), .0)]
    Specification(SpecError),
    /// A constraint with another definition has the index's name.
    #[error(
        "An existing index has the same name as the requested index. When index names are not specified, they are auto generated \
         and can cause conflicts. Please refer to our documentation. Requested index: {name}; the existing index is a unique \
         constraint of Keyward's with another key or other options"
    )]
    SameName {
        /// The name.
        name: String,
    },
    /// A constraint with the same key and options has another name.
    #[error("Index already exists with a different name: {name}")]
    OtherName {
        /// The constraint's name.
        name: String,
    },
    /// Other Keywards wouldn't enforce the constraint.
    #[error(
        "Keyward: a unique constraint can't be made by createIndexes while these Keywards don't follow clients' constraints; upgrade \
         or stop them first, or grant their user the privileges in docs/security.md: {0}"
    )]
    NotFollowed(String),
    /// Keyward's own user lacks privileges.
    #[error(
        "Keyward: its own user lacks privileges for a constraint on {namespace}: {missing}; docs/security.md lists them"
    )]
    Privileges {
        /// The collection.
        namespace: Namespace,
        /// The lacking privileges, in words.
        missing: String,
    },
    /// The configuration file states the constraint.
    #[error(
        "Keyward: index {name} of {namespace} belongs to a unique constraint in Keyward's configuration file; remove it there first",
        name = .0.name, namespace = .0.namespace
    )]
    InFile(ConstraintName),
    /// The Keyward that was to build the constraint can't.
    #[error("Keyward: the unique constraint can't be made: {0}")]
    NotApplied(String),
    /// The index was dropped while the client waited for it.
    #[error("Index build failed: index {name} of {namespace} was dropped meanwhile", name = .0.name, namespace = .0.namespace)]
    Dropped(ConstraintName),
    /// Documents have the same key.
    #[error("Cannot convert the index to unique. Please resolve conflicting documents before running collMod again.")]
    CannotConvert,
    /// An operator ended the build.
    #[error("operation was interrupted")]
    Interrupted,
    /// The server dropped the index. But another client may have made it again, and this client may not look.
    #[error(
        "Keyward: the index was dropped, but its unique constraint on {0} stays: clients' constraints changed meanwhile, and without the \
         privilege listIndexes it isn't known whether the index was made again; send the command again as a user with this privilege"
    )]
    Unlisted(Namespace),
    /// The client's `maxTimeMS` passed.
    #[error("operation exceeded time limit")]
    TimeLimit,
    /// The client has closed its connection.
    #[error("operation was interrupted because a client disconnected")]
    ClientLeft,
    /// The constraints or the collection can't be prepared.
    #[error("Keyward: the unique constraint can't be prepared: {0}")]
    Prepare(#[from] PrepareError),
    /// The cluster doesn't answer Keyward's own user.
    #[error("Keyward: the cluster gave no sure answer about a unique constraint: {0}; send the command again")]
    Store(#[from] StoreError),
}

/// Marks Keyward's own reason, which a client could mistake for the server's.
fn own_prefix(error: &SpecError) -> &'static str {
    match error {
        SpecError::Refused { .. } => "",
        _ => "Keyward: ",
    }
}

impl IndexRefusal {
    /// The index of this constraint was dropped while the client waited for it.
    pub(super) fn dropped(constraint: &Constraint) -> IndexRefusal {
        IndexRefusal::Dropped(constraint.full_name())
    }

    /// The error for the client.
    pub fn error(&self) -> ServerError {
        let code = match self {
            IndexRefusal::Specification(SpecError::Refused { code, .. }) => *code,
            IndexRefusal::SameName { .. } => code::INDEX_KEY_SPECS_CONFLICT,
            IndexRefusal::OtherName { .. } => code::INDEX_OPTIONS_CONFLICT,
            IndexRefusal::InFile(_) => code::INVALID_OPTIONS,
            IndexRefusal::Dropped(_) => code::INDEX_BUILD_ABORTED,
            IndexRefusal::CannotConvert => code::CANNOT_CONVERT_INDEX_TO_UNIQUE,
            IndexRefusal::Interrupted => code::INTERRUPTED,
            IndexRefusal::Unlisted(_) => code::UNAUTHORIZED,
            IndexRefusal::TimeLimit => code::MAX_TIME_MS_EXPIRED,
            IndexRefusal::ClientLeft => code::CLIENT_DISCONNECT,
            IndexRefusal::Store(_) | IndexRefusal::Prepare(PrepareError::Store(_)) => code::HOST_UNREACHABLE,
            _ => code::CANNOT_CREATE_INDEX,
        };
        ServerError::new(code, self.to_string())
    }
}
