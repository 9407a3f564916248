//! Lists why `keyward shard` stops, and what to do.

use crate::constraint::{ConstraintName, SpecError};
use crate::counted::Counted;
use crate::indexes::IndexRefusal;
use crate::namespace::Namespace;
use crate::prepare::PrepareError;
use crate::proxy_collection::StoreError;

/// Why a collection isn't sharded, or not to the end.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message names each field")]
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
    MayNot { action: &'static str, namespace: Namespace },
    /// The collection doesn't exist.
    #[error("{0} doesn't exist; create it first")]
    NoCollection(Namespace),
    /// The server shards no capped collection.
    #[error("{0} is capped, and the server shards no such collection")]
    Capped(Namespace),
    /// The collection is sharded already.
    #[error("{namespace} is sharded by {key} already; to change that, send reshardCollection through a Keyward")]
    OtherKey { namespace: Namespace, key: String },
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
    Option { name: String, option: String },
    /// An index can't be a constraint.
    #[error("unique index {name} can't be a constraint of Keyward's: {error}")]
    Specification { name: String, error: SpecError },
    /// The server shows an index without a key.
    #[error("unique index {0} has no key pattern that Keyward can read")]
    Unreadable(String),
    /// No Keyward is there to enforce the constraints.
    #[error(
        "no Keyward that enforces clients' constraints is running; start one, let the applications use it, and run this again"
    )]
    NoKeyward,
    /// A constraint of another name has the same key and options.
    #[error(
        "unique constraint {constraint} has the key and the options of unique index {name}; give it the index's name in the file of every \
         Keyward, reload them, and run this again"
    )]
    OtherName { name: String, constraint: String },
    /// Keywards reserve for a constraint that this file lacks.
    #[error(
        "Keywards enforce unique constraint {0}, which this configuration file doesn't state; name the Keywards' file by `--config`"
    )]
    NotInFile(ConstraintName),
    /// No Keyward reserves for a constraint of this file.
    #[error(
        "this configuration file states unique constraint {0}, and no running Keyward enforces it; see its `/readyz`, or \
         name the Keywards' file by `--config`"
    )]
    OnlyInFile(ConstraintName),
    /// A server has no two such indexes without `unique`.
    #[error("index {other} has the key and the options of unique index {name}; drop {other}, and run this again")]
    PlainToo { name: String, other: String },
    /// Another index has the name of one that was to be made anew.
    #[error(
        "index {name} isn't the index that was to be replaced: its key or its options differ from those of {meanwhile}, which serves queries \
         meanwhile; drop one of the two, and run this again"
    )]
    OtherIndex { name: String, meanwhile: String },
    /// The constraints don't hold.
    #[error("the unique constraints can't be made, and the indexes are unchanged: {0}")]
    NotBuilt(String),
    /// A constraint has ended since it was made, or another Keyward doesn't enforce it.
    #[error("unique constraint {0} isn't enforced, or was dropped; run this again")]
    Ended(ConstraintName),
    /// The collection has another identity than before.
    #[error("{0} was dropped, or made anew, meanwhile; run this again")]
    MadeAnew(Namespace),
    /// Documents and reservations contradict each other before an index is replaced.
    #[error(
        "{}: something writes past Keyward. No index is replaced by this run. Let every application use Keyward, run \
         `keyward verify --repair`, and then run this again",
        Counted(*.0, "finding")
    )]
    WrittenPast(u64),
    /// The server refuses the shard key.
    #[error(
        "the server didn't shard {namespace}: {reason}. Keyward keeps the fields of the replaced indexes unique; run this again, or with another \
         shard key"
    )]
    NotSharded { namespace: Namespace, reason: String },
    /// Documents and reservations contradict each other after the collection was sharded.
    #[error(
        "{namespace} is sharded, with {}: something writes past Keyward, and nothing keeps its documents unique. Let every application use \
         Keyward, and run `keyward verify --repair`",
        Counted(*findings, "finding")
    )]
    WrittenPastSince { namespace: Namespace, findings: u64 },
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

/// A unique index of this name can't be a constraint on this collection.
pub(super) fn index_error(name: &str, refusal: IndexRefusal) -> ShardRefusal {
    match refusal {
        IndexRefusal::Specification(error) => ShardRefusal::Specification {
            name: name.to_owned(),
            error,
        },
        IndexRefusal::OtherName { name: constraint } => ShardRefusal::OtherName {
            name: name.to_owned(),
            constraint,
        },
        other => other.into(),
    }
}
