//! What the client is told: the only place that writes text a client sees.
//!
//! A reply that Keyward composes has the fields, codes and order of the server's own; a refusal names the constraint or
//! the collection, and the way out.

mod refusal;
mod times;
mod write_reply;

pub use refusal::Refusal;
pub use times::Times;
pub use write_reply::{WriteError, WriteReply};
