//! Keyward: unique constraints across every shard of MongoDB.
//!
//! The modules stand in the order in which a message passes through them.

pub mod raw;
pub mod namespace;
pub mod wire;

pub mod constraint;
pub mod reservation;
