//! Converts MongoDB's wire protocol: bytes to messages and messages to bytes, without any input or output.
//!
//! Keyward accepts exactly the messages that the server accepts (measured on 6.0.5). It rejects the others as the server
//! does; each [`Rejection`] knows how. If Keyward and the server read a message differently, a client could get around
//! enforcement. Keyward therefore closes the connection if a server might read a message differently. Documents are not
//! decoded here.

mod batch;
mod compressed;
mod frame;
mod header;
mod inbox;
mod more_to_come;
mod op_msg;
mod op_query;
mod rejection;
mod request;

pub use batch::{Batch, BatchItemError, Documents};
pub use compressed::{Compressor, compress, decompress, stated_bytes};
pub use frame::{Draft, Frame, OutSequence, TooLong};
pub use header::{Header, OpCode};
pub use inbox::Inbox;
pub use more_to_come::{begins_with, more_to_come};
pub use op_msg::{Flags, OpMsg, Sequence};
pub use op_query::{OpQuery, OpReply};
pub use rejection::{Rejection, ServerError, Treatment};
pub use request::{Envelope, Message, Request};

/// The most bytes one message may have, its header included (`maxMessageSizeBytes`).
pub const MESSAGE_BYTES_MAX: usize = 48_000_000;

/// How many bytes more than `maxBsonObjectSize` a reply's body may have (the server's own head room).
pub const BODY_BYTES_MAX: usize = 16 * 1024 * 1024 + 16 * 1024;
