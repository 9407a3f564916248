//! What a client meets through Keyward is what it meets without it: the same bytes, the same treatment of broken
//! messages, and real drivers that do what they always do.

#![allow(clippy::unwrap_used)]

mod draining;
mod drivers;
mod fake;
mod forwarding;
mod hello;
mod lifecycle;
mod limits;
mod proxy;
mod socket;
mod treatment;
