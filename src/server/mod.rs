//! The server's dialect: its error codes, what a code proves, and the fields of its replies.
//!
//! Keyward reads replies in two forms. The replies on a client's connection are bytes ([`reply`]); the replies to Keyward's
//! own user come from the driver ([`driver`]). Nothing here sends anything, or decides what Keyward does about a reply.

pub mod certain;
pub mod code;
pub mod cursor;
pub mod driver;
pub mod reply;
