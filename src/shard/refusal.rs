//! Lists why `keyward shard` stops, and what to do.

use crate::constraint::{ConstraintName, SpecError};
use crate::indexes::IndexRefusal;
use crate::namespace::Namespace;
use crate::prepare::PrepareError;
use crate::proxy_collection::StoreError;

/// Why a collection isn't sharded, or not to the end.
#[derive(Debug, thiserror::Error)]
pub enum ShardRefusal {
    /// The deployment is a replica set.
    #[error("the deployment isn't a sharded cluster")]
    ReplicaSet,
    /// Keyward's user can't read the list of clients' constraints.
    #[error("the user in `upstream` may not read keyward.clientConstraints; docs/security.md lists the privileges")]
    MayNotRead,
    /// The user lacks a privilege.
    #[error(
        "the user in `upstream` lacks {action} on {namespace}; grant it, or name a configuration file with another user by `--config`"
    )]
    MayNot {
        /// The server's name of the action.
        action: &'static str,
        /// The collection.
        namespace: Namespace,
    },
    /// The collection doesn't exist.
    #[error("{0} doesn't exist; create it first")]
    NoCollection(Namespace),
    /// The server shards no capped collection.
    #[error("{0} is capped, and the server shards no such collection")]
    Capped(Namespace),
    /// The collection is sharded already.
    #[error("{namespace} is sharded by {key} already; to change that, send reshardCollection through a Keyward")]
    OtherKey {
        /// The collection.
        namespace: Namespace,
        /// Its shard key.
        key: String,
    },
    /// A constraint on the collection is strict.
    #[error(
        "unique constraint {0} is strict, and its reservations couldn't be taken over once the collection is sharded; change the strategy \
         with `keyward constraints strategy`, and back afterwards"
    )]
    Strict(ConstraintName),
    /// An index has an option that a constraint's index can't have.
    #[error(
        "unique index {name} has the option {option}, which Keyward can't take over; make it anew without that option, and another index with \
         the option that isn't unique"
    )]
    Option {
        /// The index.
        name: String,
        /// The option.
        option: String,
    },
    /// An index can't be a constraint.
    #[error("unique index {name} can't be a constraint of Keyward's: {error}")]
    Specification {
        /// The index.
        name: String,
        /// Why.
        error: SpecError,
    },
    /// The server shows an index without a key.
    #[error("unique index {0} has no key pattern that Keyward can read")]
    Unreadable(String),
    /// No Keyward is there to enforce the constraints.
    #[error(
        "no Keyward that enforces clients' constraints is running; start one, let the applications use it, and run this again"
    )]
    NoKeyward,
    /// The constraints don't hold.
    #[error("the unique constraints can't be made, and nothing is changed: {0}")]
    NotBuilt(String),
    /// A constraint has ended since it was made, or another Keyward doesn't enforce it.
    #[error("unique constraint {0} isn't enforced any more, or was dropped; run this again")]
    Ended(ConstraintName),
    /// Somebody else has dropped an index.
    #[error("index {0} was dropped meanwhile; run this again")]
    Gone(String),
    /// Documents and reservations contradict each other, and the unique indexes are still there.
    #[error(
        "{0} findings: something writes past Keyward. The server still keeps the indexes unique. Let every application use Keyward, run \
         `keyward verify --repair`, and then run this again"
    )]
    WrittenPast(u64),
    /// The same after the indexes were replaced.
    #[error(
        "{namespace} is sharded, but there are {findings} findings: something writes past Keyward, and nothing keeps its documents unique. \
         Let every application use Keyward, and run `keyward verify --repair`"
    )]
    WrittenPastSince {
        /// The collection.
        namespace: Namespace,
        /// How many.
        findings: u64,
    },
    /// The constraints can't be made.
    #[error(transparent)]
    Index(#[from] IndexRefusal),
    /// The constraints can't be prepared.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The deployment doesn't do as it is asked.
    #[error("the cluster: {0}; run this again")]
    Store(#[from] StoreError),
}

impl From<mongodb::error::Error> for ShardRefusal {
    fn from(error: mongodb::error::Error) -> ShardRefusal {
        ShardRefusal::Store(error.into())
    }
}
