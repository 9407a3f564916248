//! Composes Keyward's replies to writes, and its refusals.
//!
//! A reply that Keyward composes has the fields, codes and order of the server's own. A refusal names the constraint or the
//! collection, and the way out.

mod bulk;
mod bulk_fault;
mod concern_error;
mod failure;
mod refusal;
mod times;
mod write_reply;

pub use bulk::BulkReply;
pub use bulk_fault::BulkFault;
pub use concern_error::ConcernError;
pub use failure::{CommandTerms, loses_results};
pub use refusal::WriteRefusal;
pub use times::{Times, timestamp_of};
pub use write_reply::{WriteError, WriteReply};
