//! The testbed itself: its clusters and replica sets, its program, and the stand-in router.

#![allow(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

mod cluster;
mod drivers;
mod replica_set;
mod router;
mod up;
