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
mod event;
mod token;

pub use attempt::{Attempt, Ended, NotHeld};
pub use event::{Age, ConflictingReservation, Effect, Event, Scope};
pub use token::{RetryId, Token, WriteId};
