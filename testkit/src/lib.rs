//! What Keyward's tests and benchmarks share.
//!
//! - [`keyward`]: a running Keyward in a process of its own.
//! - [`relay`]: a TCP relay that holds, tears and loses messages.
//! - [`altering`]: a TCP relay that changes them.
//! - [`agreement`]: documents and reservations, read from the shards directly, agree.
//! - [`spread`]: a collection on two shards.
//! - [`replies`]: commands, and replies that can be compared.
//! - [`wire`]: clients of bytes, without anything of a driver.
//! - [`plain_words`]: no debug output where people read.
//! - [`scripts`], [`certificates`]: real drivers' scripts, and certificates.
//! - [`counted`]: the instructions that Keyward takes for an operation.
//! - [`given`]: the environment variables that a run is given (tests/README.md lists them all).

#![allow(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

pub mod agreement;
pub mod altering;
pub mod certificates;
pub mod counted;
pub mod given;
pub mod keyward;
pub mod plain_words;
pub mod relay;
pub mod replies;
pub mod scripts;
pub mod spread;
pub mod wire;

pub use agreement::{assert_documents_and_reservations_agree, index_values, keys_held_and_reserved, on_each_shard};
pub use keyward::{Keyward, Refused};
pub use replies::{assert_same_answer, comparable, in_one_order, natively_unique, run};
pub use spread::{shard_clustered_and_collated_on_two, shard_collated_on_two, shard_on_two, spread_on_two};
