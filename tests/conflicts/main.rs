//! Writes that want the same key: what is a duplicate (a native unique index is the judge), and what becomes of keys when things go
//! wrong while several want one.

#![allow(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

mod both;
mod compensating;
mod native_index;
mod resharded;
mod strategy;
mod strict;
mod trial;
