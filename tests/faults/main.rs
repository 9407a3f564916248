//! Each step of a write at which something can break, and everything breaking at once: in the end documents and reservations agree.

#![allow(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

mod every_path;
mod nemesis;
