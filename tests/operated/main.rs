//! Keyward in an operator's hands: restarted under load, its configuration changed while clients write.

#![allow(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

#[path = "../conflicts/forwarder.rs"]
mod forwarder;
mod left_out;
mod prepared;
mod process;
mod reload;
mod restart;
mod rolled;
#[path = "../support/scripts.rs"]
mod scripts;
