//! MongoDB's wire protocol as values: bytes to messages and messages to bytes, without any input or output.
//!
//! It accepts exactly what the server accepts (measured on 6.0.5) and turns down the rest the way the server does; each
//! [`Rejection`] knows that way. A difference between the two would be a way around enforcement, so where Keyward reads
//! a message otherwise than a server might, it closes the connection. Documents are not decoded here.

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
pub use more_to_come::more_to_come;
pub use op_msg::{Flags, OpMsg, Sequence};
pub use op_query::{OpQuery, OpReply};
pub use rejection::{Rejection, ServerError, Treatment};
pub use request::{Envelope, Message, Request};

/// The most bytes one message may have, its header included (`maxMessageSizeBytes`).
pub const MESSAGE_BYTES_MAX: usize = 48_000_000;

/// How many bytes more than `maxBsonObjectSize` a reply's body may have (the server's own head room).
pub const BODY_BYTES_MAX: usize = 16 * 1024 * 1024 + 16 * 1024;
