//! Implements the uniqueness protocol as pure functions: events in, effects out.
//!
//! An [`Attempt`] reserves one document's keys. It lets the write through once it holds all of them, and releases them
//! if the write definitely didn't happen. It uses no BSON, no clock and no socket: a key is a position in a list. An
//! executor carries out the effects: against the cluster ([`crate::claims`]), in a model checker or in a simulation.
//!
//! The executor must provide three things:
//! 1. A reservation is written once per key (unique `_id`, majority).
//! 2. Every later change of a reservation is a compare-and-swap on its [`Token`].
//! 3. One of these strategies:
//!    - Compensating: a forwarded write ends before the lease, which began with the reservation.
//!    - Strict, without assumptions about time. A forwarded write takes effect only if, at that moment, every key's
//!      reservation has the attempt's token; otherwise the executor reports [`Event::Superseded`]. A takeover from an absent
//!      owner takes effect only if the owner is absent at that moment. Otherwise the executor reports
//!      [`Event::OwnerHolds`], or [`Event::Busy`] while the owner's write is under way.

mod attempt;
mod claim;
mod token;

pub use attempt::{Attempt, Ended, NotHeld};
pub use claim::{Age, ConflictingReservation, Scope};
pub use token::{RetryId, Token, WriteId};

/// The next action of an attempt's executor. A key is its position in the list that the attempt began with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Insert the reservation of this key under the attempt's token, majority: [`Event::Reserved`] or [`Event::Taken`].
    Reserve(usize),
    /// Read the conflicting reservation: [`Event::Found`] or [`Event::Vacant`].
    Read(usize),
    /// Look up whether the owner of the conflicting reservation holds the key: [`Event::OwnerHolds`] or
    /// [`Event::OwnerAbsent`].
    LookUp {
        /// The key in question.
        key: usize,
        /// The shards to ask, and how sure the answer must be.
        scope: Scope,
    },
    /// Replace exactly the conflicting reservation that was read by the attempt's own: [`Event::TookOver`] or
    /// [`Event::Changed`]. If the other attempt begins again, it writes a new reservation under its old token. A
    /// takeover must not replace that newer reservation.
    TakeOver {
        /// The key in question.
        key: usize,
        /// The token that the reservation must still have.
        conflicting: Token,
        /// Whether the takeover relies on the owner's absence. If not, the owner is the attempt's own document.
        from_absent: bool,
    },
    /// Delete the reservation of this key if it has the attempt's token. No state waits for this.
    ///
    /// If [`Event::Failed`] follows, and the attempt would claim its keys again, it ends instead. Otherwise a late
    /// release could delete the new reservation.
    Release(usize),
    /// Wait for a conflicting reservation: send [`Event::WaitOver`] once its outcome may be known.
    Wait {
        /// The token of the conflicting reservation.
        conflicting: Token,
    },
    /// Every key is held: forward the write, then [`Event::Applied`], [`Event::NotApplied`], [`Event::InDoubt`] or
    /// [`Event::Superseded`].
    Forward,
}

/// An event that the executor is sure of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// The reservation is written, majority.
    Reserved(usize),
    /// Another reservation has the key.
    Taken(usize),
    /// The reservation that has the key.
    Found(usize, ConflictingReservation),
    /// No reservation has the key any more.
    Vacant(usize),
    /// A document holds the key.
    OwnerHolds(usize),
    /// No owner holds the key, as far as the look-up reached.
    OwnerAbsent(usize),
    /// The reservation is the attempt's now, majority.
    TookOver(usize),
    /// The reservation changed since it was read.
    Changed(usize),
    /// A write that is under way keeps the key from being reserved or taken over. The key is undecided until it has
    /// ended.
    Busy(usize),
    /// The cluster gave no sure answer about this key: it may or may not be reserved under the attempt's token.
    Failed(usize),
    /// The outcome of the conflicting reservation may be known now.
    WaitOver,
    /// The write didn't take effect and never will, because a key's reservation wasn't the attempt's any more.
    Superseded,
    /// The write took effect.
    Applied,
    /// The write didn't take effect and never will.
    NotApplied,
    /// It is unknown whether the write took effect, or still will.
    InDoubt,
}
