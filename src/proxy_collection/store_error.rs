//! Defines the error of a command of Keyward's own user that got no definite answer.

use std::time::Duration;

use crate::constraint::ConstraintName;
use crate::server::driver;
use crate::upstream::WIRE_VERSION_MIN;

/// Why the cluster gave no definite answer. A change may have taken effect, or may yet, unless the variant or its error code proves
/// otherwise.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The driver failed, or the server refused.
    #[error("{}", driver::in_words(.0))]
    Driver(#[from] mongodb::error::Error),
    /// No answer came in time. It is unknown whether the command took effect, or still will.
    #[error("no answer within {} s", .0.as_secs_f32())]
    TimedOut(Duration),
    /// It is unknown whether a key is reserved, and for which owner.
    #[error("the cluster gave no sure answer about a reservation")]
    Unsure,
    /// The constraint has another definition or strategy in the cluster by now, or is being removed there.
    #[error("the constraint was changed or removed in the cluster")]
    Redefined,
    /// Other Keywards may presume this one gone by now.
    #[error("this Keyward may not write any more, because its entry in the register of Keywards may be gone")]
    Outlasted,
    /// Keyward is shutting down.
    #[error("shutting down")]
    Closed,
    /// An open transaction has written to a reservation that was to be changed.
    #[error("a transaction that is still open holds it up")]
    Busy,
    /// The reservation doesn't say on which shard its owner would be, as the collection is sharded now. So Keyward can't
    /// prove that the owner never comes.
    #[error(
        "a reservation without the values of the present shard key can't be taken over; delete it if its owner isn't there"
    )]
    Unroutable,
    /// The shard of an absent owner has a document with the owner's `_id`, but no router shows it. So Keyward can't write to it, which would
    /// prove that the owner never comes.
    #[error(
        "a reservation can't be taken over while its absent owner's shard has an orphaned document with the owner's _id; \
         cleanupOrphaned on that shard's primary waits until it is deleted"
    )]
    OrphanInTheWay,
    /// The server's version doesn't report which statements of a retry it had carried out before (`retriedStmtIds`).
    #[error(
        "a server speaks wire version {0}; Keyward needs {WIRE_VERSION_MIN} (MongoDB 6.0) or newer, since older routers don't say \
         which statements of a retry were carried out before"
    )]
    TooOld(i32),
    /// The reply to a repeated write doesn't name the statement (`retriedStmtIds`), whatever version the server states.
    #[error(
        "the reply to a repeated write has no retriedStmtIds, without which a retry could release keys that its first try has used; \
         connect Keyward to a mongos or a replica set of MongoDB 6.0 or newer, with nothing in between that changes replies"
    )]
    Forgetful,
    /// Clients have made a constraint that this Keyward doesn't reserve for.
    #[error("this Keyward hasn't applied the constraints that clients made there")]
    Unfollowed,
    /// The keys of documents that were written past Keyward couldn't be reserved.
    #[error("keys of documents that were written past Keyward couldn't be reserved")]
    Unrepaired,
    /// A client made a constraint, and this Keyward can't know of it.
    #[error(
        "a client made the constraint {0}, and Keyward's user may not read keyward.clientConstraints; grant that \
         privilege (docs/security.md), and restart this Keyward"
    )]
    OfClient(ConstraintName),
    /// The server answered a write with this error, for example because a shard is unreachable.
    #[error("the server refused a write on reservations: {0}")]
    Refused(String),
    /// A reply, or a document of a proxy collection, doesn't have the expected form.
    #[error("{0} is not what it must be")]
    Unexpected(&'static str),
}

impl StoreError {
    /// Whether there was no answer in time. Another try may have one.
    pub fn is_late(&self) -> bool {
        match self {
            StoreError::TimedOut(_) => true,
            StoreError::Driver(error) => driver::is_time_up(error),
            _ => false,
        }
    }
}
