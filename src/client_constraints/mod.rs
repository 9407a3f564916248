//! Keeps the constraints that clients make with `createIndexes`: one list in the cluster, which all Keywards follow.
//!
//! A client's `createIndexes` adds an entry to the list, with the Keyward that builds the constraint. Every Keyward reads the list once
//! a second, and applies a new one as it applies another configuration: it reserves for a new constraint, waits until nothing is
//! under way that was decided before, and says so in the register. Then the builder backfills the documents. If no document violates
//! the constraint, the builder takes its own name out of the entry: from then on the constraint holds, and the client gets its reply.
//! If documents violate it, the builder removes the entry and notes why. If the builder is gone from the register, another Keyward
//! becomes the builder.
//!
//! The list is one document with a version. Every change is a compare-and-set on the version, so none is lost. A Keyward that misses a
//! change does no harm: its entry in the register lacks the constraint, so the constraint isn't called enforced while this Keyward
//! may write to the collection.

mod entry;
mod list;
mod reply;
mod shared;
mod store;
mod under_way;

pub use entry::{BuildState, ClientConstraint};
pub use list::{ClientConstraints, EndedBuild};
pub use reply::reply_of_violated;
pub use shared::{SharedList, is_current};
pub use store::{COLLECTION, ClientConstraintStore, FoundList};
pub use under_way::{BuildPhase, BuildUnderWay, DocumentProgress, builds_under_way};
