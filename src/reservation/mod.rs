//! The uniqueness protocol, pure: events in, effects out.
//!
//! An [`Attempt`] takes one document's keys, lets the write through once all of them are held, and gives them back when
//! the write definitely didn't happen. It knows no BSON, no clock and no socket: keys are positions in a list, and
//! whoever drives it carries the effects out against the cluster ([`crate::write`]), a model checker or a simulation.
//! What it guarantees rests on three things that the driver must provide: a reservation is written once per key
//! (unique `_id`, majority), every later change of it is a compare-and-swap on its [`Token`], and one of the following.
//! - Compensating: a forwarded write ends before the lease that began with the reservation.
//! - Strict, where nothing is assumed about time: a forwarded write takes effect only if every key's reservation has the
//!   attempt's token at that very moment ([`Event::Lost`] otherwise), and a takeover from an absent owner only if the
//!   owner is absent at that very moment ([`Event::OwnerHolds`] otherwise, [`Event::Busy`] while its write is under way).

mod attempt;
mod claim;
mod token;

pub use attempt::{Attempt, Ended, NotHeld};
pub use claim::{Age, ConflictingReservation, Scope};
pub use token::{AttemptId, Operation, Token};

/// What the driver of an attempt must do next. A key is its position in the list that the attempt began with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Insert the reservation of this key under the attempt's token, majority: [`Event::Reserved`] or [`Event::Taken`].
    Reserve(usize),
    /// Read the reservation that stands in the way: [`Event::Found`] or [`Event::Vacant`].
    Read(usize),
    /// Look whether the rival's owner holds the key: [`Event::OwnerHolds`] or [`Event::OwnerAbsent`].
    LookUp {
        /// The key in question.
        key: usize,
        /// How far the look reaches, and how sure it has to be.
        scope: Scope,
    },
    /// Replace the very reservation that was read, `rival`'s, by the attempt's own: [`Event::TookOver`] or
    /// [`Event::Changed`]. An attempt that begins anew writes a new reservation under its old token, and must not lose it.
    TakeOver {
        /// The key in question.
        key: usize,
        /// The token that the reservation must still have.
        conflicting: Token,
        /// Whether that rests on its owner being absent; where it doesn't, the owner is the attempt's own document.
        from_absent: bool,
    },
    /// Delete the reservation of this key if it has the attempt's token. Nothing waits for it, but [`Event::Failed`] ends
    /// an attempt that would claim the key again: a release that arrives late would take the new reservation away.
    Release(usize),
    /// Every key that `rival` is contesting is undecided: send [`Event::WaitOver`] once it may have changed.
    Wait {
        /// Whose outcome to wait for.
        conflicting: Token,
    },
    /// Every key is held: forward the write, then [`Event::Applied`], [`Event::NotApplied`], [`Event::InDoubt`] or
    /// [`Event::Lost`].
    Forward,
}

/// What happened, as far as the driver can be sure of it.
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
    /// As far as the look reached, no owner holds the key.
    OwnerAbsent(usize),
    /// The reservation is the attempt's now, majority.
    TookOver(usize),
    /// The reservation changed since it was read.
    Changed(usize),
    /// A write that is under way keeps the key from being reserved or taken over: more will be known when that has ended.
    Busy(usize),
    /// The cluster gave no sure answer about this key: it may or may not be reserved under the attempt's token.
    Failed(usize),
    /// The rival's outcome may be known now.
    WaitOver,
    /// The write didn't take effect and never will, because a key's reservation wasn't the attempt's any more.
    Lost,
    /// The write took effect.
    Applied,
    /// The write didn't take effect and never will.
    NotApplied,
    /// Nobody knows whether the write took effect, or still will.
    InDoubt,
}
