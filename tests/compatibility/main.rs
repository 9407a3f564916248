//! Drivers and whatever else speaks the wire protocol: none can tell Keyward from a `mongos`.

#![allow(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

mod drivers_on_protected;
mod every_driver;
mod fuzzed;
mod load_balanced;
mod published;
mod transparent;
