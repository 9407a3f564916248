//! Keyward in an operator's hands: restarted under load, its configuration changed while clients write.

#![allow(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

mod backfilled_once;
mod fleet_started;
mod left_at_work;
mod left_out;
mod on_violation;
mod outlasted;
mod prepared;
mod reinserted;
mod rejoined;
pub mod reload;
mod restart;
mod revoked;
mod rolled;
mod rolled_on_shards;
mod starting;
