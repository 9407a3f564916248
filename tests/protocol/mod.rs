//! The protocol at work, for the model and the simulation alike: what Keyward does around [`keyward::reservation`] for one
//! operation, what is sent, and what the cluster does with it. Who drives it says in `size.rs` how large the world is.

pub mod network;
pub mod rules;
pub mod store;
pub mod task;
pub mod words;
