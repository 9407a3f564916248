//! Composes an OP_MSG from a body and document sequences.
//!
//! Large parts are borrowed, so that a batch of 48 MB is not copied. Small parts are copied into one piece, so that many
//! small documents don't become many pieces. Lengths are checked against the limit, documents are not read.

use super::{Flags, Header, MESSAGE_BYTES_MAX, OpCode};

/// Parts of at least this size are borrowed. Copying a smaller part is cheaper than sending another piece.
const BORROW_BYTES_MIN: usize = 4096;

/// The content of an OP_MSG; [`Draft::frame`] makes it a message.
#[derive(Debug, Clone, Default)]
pub struct Draft<'a> {
    /// The flags; [`Flags::CHECKSUM_PRESENT`] makes the frame end with a checksum.
    pub flags: Flags,
    /// The body's bytes, one whole document.
    pub body: &'a [u8],
    /// The document sequences, two at most.
    pub sequences: Vec<OutSequence<'a>>,
}

/// A document sequence to send.
#[derive(Debug, Clone)]
pub struct OutSequence<'a> {
    /// The field whose value these documents are.
    pub name: &'a [u8],
    /// The documents' bytes, cut anywhere (whole documents or runs of them).
    pub documents: Vec<&'a [u8]>,
}

/// The message would be longer than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message of {0} bytes is too long")]
pub struct TooLong(pub usize);

impl<'a> OutSequence<'a> {
    /// The documents as the value of field `name`.
    pub fn of(name: &'a str, documents: impl IntoIterator<Item = &'a [u8]>) -> Self {
        OutSequence {
            name: name.as_bytes(),
            documents: documents.into_iter().collect(),
        }
    }
}

impl<'a> Draft<'a> {
    /// A message of a body, and of documents as the value of field `name`.
    pub fn with_documents(body: &'a [u8], name: &'a str, documents: impl IntoIterator<Item = &'a [u8]>) -> Self {
        Draft {
            sequences: vec![OutSequence::of(name, documents)],
            ..Draft::of_body(body)
        }
    }

    /// A message of a body alone.
    pub fn of_body(body: &'a [u8]) -> Self {
        Draft {
            body,
            ..Draft::default()
        }
    }

    /// The message with these ids.
    ///
    /// # Errors
    /// [`TooLong`] if it would pass the limit of 48 MB.
    pub fn frame(&self, request_id: i32, response_to: i32) -> Result<Frame<'a>, TooLong> {
        let has_checksum = self.flags.has(Flags::CHECKSUM_PRESENT);
        let header = Header {
            length: self.length(has_checksum)?,
            request_id,
            response_to,
            op_code: OpCode::MSG,
        };
        let mut frame = Frame::default();
        frame.copy(&header.bytes());
        frame.copy(&self.flags.0.to_le_bytes());
        frame.copy(&[0]);
        frame.append(self.body);
        for sequence in &self.sequences {
            let size = i32::try_from(sequence.size()).map_err(|_| TooLong(sequence.size()))?;
            frame.copy(&[1]);
            frame.copy(&size.to_le_bytes());
            frame.copy(sequence.name);
            frame.copy(&[0]);
            for documents in &sequence.documents {
                frame.append(documents);
            }
        }
        if has_checksum {
            let checksum = frame.pieces().fold(0, crc32c::crc32c_append);
            frame.copy(&checksum.to_le_bytes());
        }
        assert_eq!(
            frame.length(),
            header.length,
            "the receiver would take other bytes for the next message"
        );
        Ok(frame)
    }

    fn length(&self, has_checksum: bool) -> Result<usize, TooLong> {
        let sequences: usize = self.sequences.iter().map(|sequence| 1 + sequence.size()).sum();
        let checksum = if has_checksum { 4 } else { 0 };
        let length = Header::SIZE + 4 + 1 + self.body.len() + sequences + checksum;
        match length <= MESSAGE_BYTES_MAX {
            true => Ok(length),
            false => Err(TooLong(length)),
        }
    }
}

impl OutSequence<'_> {
    /// The section's size field: itself, the name with its zero byte, the documents.
    fn size(&self) -> usize {
        let documents: usize = self.documents.iter().map(|bytes| bytes.len()).sum();
        4 + self.name.len() + 1 + documents
    }
}

/// A whole message in pieces, to be written one after the other.
#[derive(Debug, Clone, Default)]
pub struct Frame<'a> {
    copied: Vec<u8>,
    parts: Vec<FramePart<'a>>,
}

#[derive(Debug, Clone, Copy)]
enum FramePart<'a> {
    /// Up to this position of `copied`, from where the last such part ended.
    CopiedUpTo(usize),
    Borrowed(&'a [u8]),
}

impl<'a> Frame<'a> {
    /// The pieces in order.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let mut start = 0;
        self.parts.iter().map(move |part| match *part {
            FramePart::CopiedUpTo(end) => {
                let piece = &self.copied[start..end];
                start = end;
                piece
            }
            FramePart::Borrowed(bytes) => bytes,
        })
    }

    /// Bytes of the whole message.
    pub fn length(&self) -> usize {
        self.pieces().map(<[u8]>::len).sum()
    }

    /// The message in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        self.pieces().collect::<Vec<_>>().concat()
    }

    fn append(&mut self, bytes: &'a [u8]) {
        match bytes.len() < BORROW_BYTES_MIN {
            true => self.copy(bytes),
            false => self.parts.push(FramePart::Borrowed(bytes)),
        }
    }

    fn copy(&mut self, bytes: &[u8]) {
        self.copied.extend_from_slice(bytes);
        let end = self.copied.len();
        match self.parts.last_mut() {
            Some(FramePart::CopiedUpTo(last)) => *last = end,
            _ => self.parts.push(FramePart::CopiedUpTo(end)),
        }
    }
}
