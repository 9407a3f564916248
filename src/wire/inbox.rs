//! Cuts the bytes that arrive on one stream into messages, and holds them until they are consumed.
//!
//! The buffer grows as a message arrives, never at once to the size that its header states. A large buffer is freed once
//! it is empty. The owner reads from a stream into [`Inbox::space`]. Bytes leave only by [`Inbox::consume`] or
//! [`Inbox::take`], so a cancelled read loses nothing.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{Header, Rejection};

/// The buffer that an idle connection keeps in each direction: one for its client, one for its server.
const IDLE_BYTES: usize = 1024;
/// The most that is read at once while nothing has arrived yet.
const READ_BYTES_MAX: usize = 128 * 1024;
/// A buffer that has grown past this is freed once it is empty.
const KEPT_BYTES_MAX: usize = 32 * 1024;

/// Arrived bytes.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: BytesMut,
}

impl Inbox {
    /// All that has arrived and wasn't consumed.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The first message's header, once it has arrived.
    ///
    /// # Errors
    /// [`Rejection::Length`]; the rest of the stream can't be read.
    pub fn header(&self) -> Result<Option<Header>, Rejection> {
        Header::read(&self.bytes)
    }

    /// The first message, once all of it has arrived.
    ///
    /// # Errors
    /// [`Rejection::Length`]; the rest of the stream can't be read.
    pub fn message(&self) -> Result<Option<&[u8]>, Rejection> {
        Ok(self.header()?.and_then(|header| self.bytes.get(..header.length)))
    }

    /// The bytes that it has room for, those included that have arrived.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// The capacity that [`Inbox::space`] will bring about, or a little less.
    pub fn capacity_for(&self, wanted: usize) -> usize {
        self.bytes.capacity().max(self.bytes.len() + self.growth(wanted))
    }

    /// The bytes to make room for behind what has arrived; none if there is room enough.
    fn growth(&self, wanted: usize) -> usize {
        if self.bytes.capacity() - self.bytes.len() >= wanted.clamp(1, IDLE_BYTES / 2) {
            return 0;
        }
        wanted.clamp(IDLE_BYTES, self.bytes.len().max(READ_BYTES_MAX))
    }

    /// Where the next bytes go, with room for up to `wanted` of them, or for a little if the number is unknown.
    ///
    /// Grows at most to twice the arrived bytes: a large length in a header costs no memory until the bytes arrive.
    pub fn space(&mut self, wanted: usize) -> &mut (impl BufMut + use<>) {
        let growth = self.growth(wanted);
        if growth > 0 {
            self.bytes.reserve(growth);
        }
        &mut self.bytes
    }

    /// Takes the first `count` bytes out. If they are many, the rest moves, because it would keep all of their buffer in memory.
    pub fn take(&mut self, count: usize) -> Bytes {
        let taken = self.bytes.split_to(count).freeze();
        if count > KEPT_BYTES_MAX {
            self.bytes = BytesMut::from(&self.bytes[..]);
        }
        taken
    }

    /// Drops the first `count` bytes.
    pub fn consume(&mut self, count: usize) {
        self.bytes.advance(count);
        if self.bytes.is_empty() && self.bytes.capacity() > KEPT_BYTES_MAX {
            self.bytes = BytesMut::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::OpCode;

    fn message(length: usize) -> Vec<u8> {
        let header = Header {
            length,
            request_id: 1,
            response_to: 0,
            op_code: OpCode::MSG,
        };
        let mut message = header.bytes().to_vec();
        message.resize(length, 0xab);
        message
    }

    #[test]
    fn cuts_a_stream_into_messages_however_it_arrives() {
        let lengths = [16, 17, 40, 9000, 16, 300_000];
        let stream: Vec<u8> = lengths.iter().flat_map(|length| message(*length)).collect();
        for step in [1, 15, 16, 17, 4096, 1 << 20] {
            let mut inbox = Inbox::default();
            let mut seen = Vec::new();
            for arrived in stream.chunks(step) {
                inbox.space(arrived.len()).put_slice(arrived);
                while let Some(message) = inbox.message().unwrap() {
                    let length = message.len();
                    seen.push(length);
                    inbox.consume(length);
                }
            }
            assert_eq!(seen, lengths, "in steps of {step}");
            assert!(inbox.bytes().is_empty());
        }
    }

    #[test]
    fn grows_by_what_arrives_and_not_by_what_is_stated() {
        let mut inbox = Inbox::default();
        inbox.space(0).put_slice(&message(48_000_000)[..1000]);
        inbox.space(47_999_000);
        assert!(inbox.bytes.capacity() < 256 * 1024);
    }

    #[test]
    fn keeps_no_part_of_a_large_buffer_that_was_taken() {
        let mut inbox = Inbox::default();
        let small = message(20);
        inbox
            .space(200_000)
            .put_slice(&[message(100_000), small.clone()].concat());
        assert_eq!(inbox.take(100_000), message(100_000));
        assert_eq!(inbox.bytes(), small);
        assert!(inbox.capacity() < IDLE_BYTES, "{}", inbox.capacity());
        inbox.take(small.len());
        assert!(inbox.bytes().is_empty());
    }

    #[test]
    fn gives_a_large_buffer_back() {
        let mut inbox = Inbox::default();
        inbox.space(1_000_000).put_slice(&message(1_000_000));
        inbox.consume(1_000_000);
        assert_eq!(inbox.bytes.capacity(), 0);
    }
}
