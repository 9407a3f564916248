//! Reads and writes the 16 bytes that every message starts with.
//!
//! A header's length is checked against the limits before any memory is allocated for the message. The op code is kept as
//! a number, because an unknown op code is refused only when the whole message has arrived.

use super::{MESSAGE_BYTES_MAX, Rejection};

/// The kinds of message that the protocol numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpCode(pub i32);

impl OpCode {
    /// A legacy reply, sent only to an OP_QUERY.
    pub const REPLY: OpCode = OpCode(1);
    /// A legacy query, of which only the handshake is left.
    pub const QUERY: OpCode = OpCode(2004);
    /// A legacy cursor read, answered with an error.
    pub const GET_MORE: OpCode = OpCode(2005);
    /// Another message in compressed form.
    pub const COMPRESSED: OpCode = OpCode(2012);
    /// A command or its reply.
    pub const MSG: OpCode = OpCode(2013);
}

/// A message's header; `length` counts the header too and is within the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the whole message.
    pub length: usize,
    /// The sender's number for this message.
    pub request_id: i32,
    /// The number of the message that this one answers.
    pub response_to: i32,
    /// The kind of the message.
    pub op_code: OpCode,
}

impl Header {
    /// Bytes of a header.
    pub const SIZE: usize = 16;

    /// Reads the header at the start of `bytes`; `None` while there are fewer than 16 bytes.
    ///
    /// # Errors
    /// [`Rejection::Length`] if the message would be shorter than a header or longer than the limit.
    pub fn read(bytes: &[u8]) -> Result<Option<Header>, Rejection> {
        let Some(head) = bytes.first_chunk::<{ Self::SIZE }>() else {
            return Ok(None);
        };
        let field = |at: usize| i32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let length = usize::try_from(field(0))
            .ok()
            .filter(|length| (Self::SIZE..=MESSAGE_BYTES_MAX).contains(length))
            .ok_or(Rejection::Length(field(0)))?;
        Ok(Some(Header {
            length,
            request_id: field(4),
            response_to: field(8),
            op_code: OpCode(field(12)),
        }))
    }

    /// The header as it stands on the wire.
    pub fn bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let length = i32::try_from(self.length).expect("a message is never longer than 48 MB");
        for (slot, value) in bytes
            .chunks_exact_mut(4)
            .zip([length, self.request_id, self.response_to, self.op_code.0])
        {
            slot.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        let header = Header {
            length: 26,
            request_id: 7,
            response_to: -3,
            op_code: OpCode::MSG,
        };
        let bytes = header.bytes();
        assert_eq!(bytes, *b"\x1a\0\0\0\x07\0\0\0\xfd\xff\xff\xff\xdd\x07\0\0");
        assert_eq!(Header::read(&bytes), Ok(Some(header)));
        assert_eq!(Header::read(&bytes[..15]), Ok(None));
    }

    #[test]
    fn refuses_lengths_outside_the_limits() {
        for length in [-1, 0, 1, 15, 48_000_001, i32::MAX, i32::MIN] {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&length.to_le_bytes());
            assert_eq!(Header::read(&bytes), Err(Rejection::Length(length)));
        }
        for length in [16, 48_000_000] {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&i32::to_le_bytes(length));
            assert!(Header::read(&bytes).is_ok());
        }
    }
}
