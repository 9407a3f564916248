//! What Keyward reads itself, to decide over writes: whatever the cluster's default read concern is, it reads what a write sees.
//! So each of its reads states a read concern of its own, and what a moved chunk has left behind is nobody's owner.

#![expect(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

mod orphans;
pub mod recorder;
mod stated;
mod undone;

/// Both strategies, as a constraint's YAML names them.
const STRATEGIES: [&str; 2] = ["compensating", "transaction"];
