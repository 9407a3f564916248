//! Knows the server's dialect: its error codes, what a code proves, the fields of its replies, its clock,
//! and the names of Keyward's own sessions there.
//!
//! Keyward reads replies in two forms. The replies on a client's connection are bytes ([`reply`]); the driver decodes the
//! replies to Keyward's own user ([`driver`]). This module sends nothing and doesn't decide how Keyward handles a reply.

pub mod clock;
pub mod code;
pub mod cursor;
pub mod definite;
pub mod driver;
pub mod own_session;
pub mod reply;
mod type_name;

pub use type_name::type_name;
