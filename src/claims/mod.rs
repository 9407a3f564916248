//! Runs attempts at keys against the proxy collections.
//!
//! A [`Candidate`] is a document on its way to its keys. [`settle`] runs the effects that its attempt asks for, until the
//! document may be written, waits for a conflicting attempt, or its attempt has ended. [`crate::reservation`] alone decides.

mod candidate;
mod in_flight;
mod settling;

pub use candidate::{Candidate, ConstrainedKey, anticipate, keys_of, keys_of_new, owner_of, with_id};
pub use in_flight::{AttemptUnderWay, InFlight};
pub use settling::{release_open, settle};
