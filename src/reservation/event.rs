//! Lists the effects that an attempt asks for, and the events that its executor reports.

use super::token::Token;

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

/// A reservation that conflicts with an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConflictingReservation {
    /// The token of the attempt that wrote it.
    pub token: Token,
    /// Whether its owner is the attempt's own document (same `_id` and same route).
    pub same_owner: bool,
    /// Whether it has its owner's route, so that the owner's shard can be asked first.
    pub has_route: bool,
    /// Whether its lease may still run.
    pub age: Age,
}

/// How old a reservation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Age {
    /// Its lease may still run: if the owner doesn't exist, it may still be written.
    InLease,
    /// Its lease has run out: if the owner doesn't exist, it won't be written any more.
    Expired,
}

/// How far the look-up of an owner reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// The shard that the owner's route names. An owner found there is proof; a miss proves nothing.
    Route,
    /// Every shard.
    Everywhere,
    /// Every shard, linearizable: only a primary that a majority still follows can answer.
    Linearizable,
}
