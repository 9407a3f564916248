//! Runs attempts at keys against the proxy collections.
//!
//! A [`Candidate`] is a document on its way to its keys. [`advance_attempts`] runs the effects that its attempt asks for, until the
//! document may be written, waits for a conflicting attempt, or its attempt has ended. [`crate::reservation`] alone decides.

mod candidate;
mod document;
mod effects;
mod takeover_check;
mod writes_under_way;

pub use candidate::{Candidate, anticipate};
pub use document::{ConstrainedKey, KeysOfDocument, keys_of, keys_of_new, keys_under, owner_of, with_id};
pub use effects::{advance_attempts, run_releases};
pub use takeover_check::TakeoverCheck;
pub use writes_under_way::{WriteGuard, WritesUnderWay, unregistered_token};
