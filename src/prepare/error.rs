//! Lists why constraints can't be made to hold, and how to fix it.

use std::time::Duration;

use super::Reports;
use crate::constraint::{Constraint, ConstraintName, proxy_collection};
use crate::namespace::Namespace;
use crate::proxy_collection::StoreError;

/// How to get the whole report of violated constraints.
const WHOLE_REPORT: &str = "\n`keyward backfill --dry-run --report FILE` writes the whole report to a file, with up to 1000 keys of \
                            each constraint";

/// Why a constraint can't be made to hold.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message names each field")]
pub enum PrepareError {
    /// The cluster did not carry out a command.
    #[error("the cluster: {0}")]
    Store(#[from] StoreError),
    /// The cluster has another definition of the same constraint.
    #[error(
        "unique constraint {name} on {namespace} is defined otherwise in the cluster: here {here}, there {there}; give the \
         changed constraint another name, or end the old one with `keyward constraints remove`"
    )]
    OtherDefinition {
        namespace: Namespace,
        name: String,
        here: String,
        there: String,
    },
    /// An operator's command or another Keyward removes the constraint from the cluster just now.
    #[error(
        "unique constraint {0} is being removed from the cluster; take it out of the file, or, to make it anew, run \
         `keyward constraints remove {namespace} {name}` to the end first", namespace = .0.namespace, name = .0.name
    )]
    BeingRemoved(ConstraintName),
    /// The constraint has changed in the cluster while it was made to hold.
    #[error(
        "unique constraint {0} was removed from the cluster, or its strategy was changed, while Keyward made it \
         hold; load the configuration again"
    )]
    Changed(ConstraintName),
    /// Commands are in progress that were decided before a constraint was made anew with another definition.
    #[error(
        "commands that began before a constraint was made anew are still under way after {}: other Keywards don't count on this one \
         before they end; end them, or close their connections",
        humantime::format_duration(*.0)
    )]
    Redefined(Duration),
    /// Another constraint has its reservations in this one's proxy collection.
    #[error(
        "unique constraint {constraint} would have its reservations in {place}, where those of unique constraint \
         {other} lie; give it another name",
        place = proxy_collection(&.constraint.namespace, &.constraint.name)
    )]
    SamePlace { constraint: ConstraintName, other: String },
    /// Other Keywards use another strategy for the constraint's collection.
    #[error(
        "unique constraint {constraint} has strategy {there} in the cluster, but {here} here (one constraint with \
         `strategy: strict` decides for all of its collection), and a Keyward that trusts its lease would undo what one \
         that doesn't promises: write `strategy: {there}`; or, to change it, stop every Keyward, run \
         `keyward constraints strategy {namespace} {name} {here}`, and start",
        namespace = .constraint.namespace, name = .constraint.name
    )]
    OtherStrategy {
        constraint: ConstraintName,
        here: &'static str,
        there: String,
    },
    /// The existing reservations hold sort keys of another ICU4X, in which equal strings may look different.
    #[error(
        "unique constraint {constraint} has reservations with the sort keys of another version ({difference}); go on \
         with the Keyward that made them, or give the constraint another name, so that its reservations are made anew from \
         the documents"
    )]
    OtherSortKeys {
        constraint: ConstraintName,
        /// The versions that make sort keys here, and that made the existing ones.
        difference: String,
    },
    /// A proxy collection isn't as Keyward makes one: in it, equal keys could count as two, or different keys as one.
    #[error(
        "the proxy collection {0} isn't as Keyward makes one: it {1}; stop every Keyward that uses it, drop it, and start"
    )]
    NotOurs(Namespace, &'static str),
    /// The collection that records results is sharded so that Keyward can't write to it.
    #[error(
        "{0}, in which Keyward records the results of retryable writes, is sharded by {1}, and not by its _id; stop every Keyward \
         that uses it, drop it, and start"
    )]
    OtherResults(Namespace, String),
    /// A view, or a time series.
    #[error("{0} is a view or a time series, which can have no unique constraint")]
    NoCollection(Namespace),
    /// A capped collection.
    #[error(
        "{0} is capped: the server refuses writes to it in transactions, which unique constraints need; use a collection that isn't capped"
    )]
    Capped(Namespace),
    /// A clustered collection with a default collation.
    #[error(
        "{0} is clustered and has a default collation: with both, the server misses documents when it looks text _ids up byte by byte, as \
         Keyward does; use a collection with only one of the two"
    )]
    Clustered(Namespace),
    /// The constraint reads a field that Queryable Encryption encrypts.
    #[error(
        "unique constraint {constraint} reads field {field}, which Queryable Encryption encrypts, and encrypted values \
         can't be compared; take the constraint out of the configuration, or move the documents to a collection in which the \
         field isn't encrypted"
    )]
    Encrypted { constraint: ConstraintName, field: String },
    /// Upstream is a standalone server, which has neither transactions nor retryable writes.
    #[error("upstream is a single server that is no member of a replica set; make it one, or name a mongos")]
    Standalone,
    /// Upstream is one shard: Keyward would not see the other shards' documents.
    #[error("upstream is a shard of a cluster, and constraints would hold on it alone; name the cluster's mongos")]
    Shard,
    /// The collation of the constraint, or of its collection, can't be used.
    #[error("the collation of unique constraint {constraint}: {reason}")]
    Collation { constraint: ConstraintName, reason: String },
    /// Existing documents violate the constraint.
    #[error("{0}{way_out}", way_out = WHOLE_REPORT)]
    Duplicates(Reports),
    /// The existing documents aren't all backfilled yet.
    #[error("unique constraint {0} isn't enforced yet: start `keyward run` or `keyward backfill` first")]
    NotEnforced(ConstraintName),
}

impl PrepareError {
    /// Whether `constraint`, or its collection, is the reason, so that the same try fails again.
    pub fn is_about(&self, constraint: &Constraint) -> bool {
        let is_named = |name: &ConstraintName| *name == constraint.full_name();
        match self {
            PrepareError::OtherDefinition { namespace, name, .. } => {
                namespace == constraint.namespace() && name == constraint.name()
            }
            PrepareError::BeingRemoved(name)
            | PrepareError::SamePlace { constraint: name, .. }
            | PrepareError::OtherStrategy { constraint: name, .. }
            | PrepareError::OtherSortKeys { constraint: name, .. }
            | PrepareError::Encrypted { constraint: name, .. }
            | PrepareError::Collation { constraint: name, .. } => is_named(name),
            PrepareError::NotOurs(proxy, _) => *proxy == constraint.proxy_collection(),
            PrepareError::OtherResults(results, _) => results.database == constraint.namespace().database,
            PrepareError::NoCollection(namespace)
            | PrepareError::Capped(namespace)
            | PrepareError::Clustered(namespace) => namespace == constraint.namespace(),
            PrepareError::Store(_)
            | PrepareError::Changed(_)
            | PrepareError::Redefined(_)
            | PrepareError::Standalone
            | PrepareError::Shard
            | PrepareError::Duplicates(_)
            | PrepareError::NotEnforced(_) => false,
        }
    }
}

impl From<mongodb::error::Error> for PrepareError {
    fn from(error: mongodb::error::Error) -> Self {
        PrepareError::Store(error.into())
    }
}
