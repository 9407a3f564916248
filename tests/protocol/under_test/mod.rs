//! The protocol at work, for the model and the simulation alike: what Keyward does around [`keyward::reservation`] for one
//! operation, what is sent, and what the cluster does with it. How large that is, is a parameter of its [`store::Store`].

pub mod network;
pub mod rules;
pub mod store;
pub mod task;
pub mod words;
