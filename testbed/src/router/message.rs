//! Turns bytes on a socket into requests and replies into bytes: OP_MSG both ways, and legacy OP_QUERY for the first
//! `hello` of a connection.
//!
//! Lengths are checked before anything is allocated for them, checksums are verified and answered with checksums.
//! Compressed messages are not read: the router never offers a compressor.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::raw::{Doc, Malformed};

/// The longest message that the server takes, header included, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 48_000_000;
const HEADER_BYTES: usize = 16;
const OP_REPLY: i32 = 1;
const OP_QUERY: i32 = 2004;
const OP_MSG: i32 = 2013;
const CHECKSUM_PRESENT: u32 = 1;
const MORE_TO_COME: u32 = 1 << 1;
const EXHAUST_ALLOWED: u32 = 1 << 16;

/// Why a message can't be answered: the connection is closed, as the server does.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The socket failed or ended in the middle of a message.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The length in the header is no message's.
    #[error("a message length of {0} bytes")]
    Length(i32),
    /// An opcode that is not spoken here.
    #[error("opcode {0}")]
    Opcode(i32),
    /// A required flag bit that is not known.
    #[error("unknown required flag bits 0x{0:x}")]
    Flags(u32),
    /// The CRC-32C at the end doesn't fit the message.
    #[error("wrong checksum")]
    Checksum,
    /// A document that is none.
    #[error("malformed document: {0}")]
    Document(#[from] Malformed),
    /// The fail point closes the connection.
    #[error("a fail point")]
    Injected,
    /// The client doesn't know that it comes from a load balancer.
    #[error("a client without load balancing")]
    NotLoadBalanced,
    /// Not closed for: the request is answered with an error.
    #[error("request {id}: {message} ({code})")]
    Refused {
        /// The request's id.
        id: i32,
        /// The server's code.
        code: i32,
        /// The server's text.
        message: String,
    },
}

/// How the reply must be framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// OP_MSG; its reply carries a checksum if the request did.
    Message {
        /// The request had a checksum.
        checksum: bool,
    },
    /// OP_QUERY, answered with OP_REPLY.
    LegacyQuery,
}

/// One request as it came.
#[derive(Debug)]
pub struct Request {
    /// The client's request id.
    pub id: i32,
    /// How to frame the reply.
    pub framing: Framing,
    /// The client wants no reply.
    pub more_to_come: bool,
    /// The client takes a stream of replies.
    pub exhaust_allowed: bool,
    /// The command's body.
    pub body: Bytes,
    /// Its document sequences.
    pub sequences: Vec<Sequence>,
}

/// A document sequence: the documents of one array field, outside the body.
#[derive(Debug, Clone)]
pub struct Sequence {
    /// The field's name.
    pub name: String,
    /// Each document's bytes.
    pub documents: Vec<Bytes>,
}

/// Reads one whole message, header included; `None` where the peer closed between messages.
///
/// # Errors
/// [`FrameError`] if the connection must be closed.
pub async fn read_frame<R: AsyncRead + Unpin>(
    stream: &mut R,
    buffer: &mut BytesMut,
) -> Result<Option<Bytes>, FrameError> {
    loop {
        if buffer.len() >= HEADER_BYTES {
            let length = i32::from_le_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
            let size = usize::try_from(length).unwrap_or(0);
            if size <= HEADER_BYTES || size > MESSAGE_BYTES_MAX {
                return Err(FrameError::Length(length));
            }
            if buffer.len() >= size {
                return Ok(Some(buffer.split_to(size).freeze()));
            }
            buffer.reserve(size - buffer.len());
        }
        if stream.read_buf(buffer).await? == 0 {
            return match buffer.is_empty() {
                true => Ok(None),
                false => Err(FrameError::Io(io::ErrorKind::UnexpectedEof.into())),
            };
        }
    }
}

/// Parses a client's message.
///
/// # Errors
/// [`FrameError`] if the connection must be closed.
pub fn parse_request(frame: Bytes) -> Result<Request, FrameError> {
    let mut header = frame.slice(4..HEADER_BYTES);
    let id = header.get_i32_le();
    let _response_to = header.get_i32_le();
    match header.get_i32_le() {
        OP_MSG => parse_message(id, frame),
        OP_QUERY => parse_query(id, frame.slice(HEADER_BYTES..)),
        opcode => Err(FrameError::Opcode(opcode)),
    }
}

fn parse_message(id: i32, frame: Bytes) -> Result<Request, FrameError> {
    let mut rest = frame.slice(HEADER_BYTES..);
    if rest.len() < 5 {
        return Err(FrameError::Length(frame.len() as i32));
    }
    let flags = rest.get_u32_le();
    if flags & 0xffff & !(CHECKSUM_PRESENT | MORE_TO_COME) != 0 {
        return Err(FrameError::Flags(flags));
    }
    let checksum = flags & CHECKSUM_PRESENT != 0;
    if checksum {
        verify_checksum(&frame)?;
        rest.truncate(rest.len() - 4);
    }
    let (body, sequences) =
        parse_sections(rest).map_err(|(code, message)| FrameError::Refused { id, code, message })?;
    Ok(Request {
        id,
        framing: Framing::Message { checksum },
        more_to_come: flags & MORE_TO_COME != 0,
        exhaust_allowed: flags & EXHAUST_ALLOWED != 0,
        body,
        sequences,
    })
}

/// The sections of a message, or the server's code and text for what is wrong with them (measured on 6.0.5).
fn parse_sections(mut rest: Bytes) -> Result<(Bytes, Vec<Sequence>), (i32, String)> {
    let mut body: Option<Bytes> = None;
    let mut sequences: Vec<Sequence> = Vec::new();
    while !rest.is_empty() {
        match rest.get_u8() {
            0 if body.is_some() => return Err((40430, "Multiple body sections in message".to_owned())),
            0 => body = Some(split_document(&mut rest).map_err(invalid_bson)?),
            1 => {
                let sequence = split_sequence(&mut rest)?;
                if sequences.iter().any(|other| other.name == sequence.name) {
                    return Err((40431, format!("Duplicate document sequence: {}", sequence.name)));
                }
                sequences.push(sequence);
            }
            kind => return Err((40432, format!("Unknown section kind {kind}"))),
        }
    }
    let body = body.ok_or_else(|| (40587, "OP_MSG messages must have a body".to_owned()))?;
    for sequence in &sequences {
        let in_body = Doc::new(&body).and_then(|body| body.get(&sequence.name));
        if in_body.map_err(invalid_bson)?.is_some() {
            return Err((
                40433,
                format!("Duplicate field between body and document sequence {}", sequence.name),
            ));
        }
    }
    Ok((body, sequences))
}

fn invalid_bson(malformed: Malformed) -> (i32, String) {
    (22, malformed.to_string())
}

fn verify_checksum(frame: &Bytes) -> Result<(), FrameError> {
    let (message, checksum) = frame.split_at(frame.len() - 4);
    match crc32c::crc32c(message).to_le_bytes() == checksum {
        true => Ok(()),
        false => Err(FrameError::Checksum),
    }
}

fn parse_query(id: i32, mut rest: Bytes) -> Result<Request, FrameError> {
    rest.advance(4.min(rest.len()));
    let name_end = rest.iter().position(|byte| *byte == 0).ok_or(Malformed::Unterminated)?;
    rest.advance(name_end + 1);
    if rest.len() < 8 {
        return Err(Malformed::Length(rest.len() as i64).into());
    }
    rest.advance(8);
    Ok(Request {
        id,
        framing: Framing::LegacyQuery,
        more_to_come: false,
        exhaust_allowed: false,
        body: split_document(&mut rest)?,
        sequences: Vec::new(),
    })
}

fn split_document(rest: &mut Bytes) -> Result<Bytes, Malformed> {
    let (document, _) = Doc::split(rest)?;
    let size = document.bytes().len();
    Ok(rest.split_to(size))
}

fn split_sequence(rest: &mut Bytes) -> Result<Sequence, (i32, String)> {
    let size = rest.first_chunk::<4>().map_or(0, |size| i32::from_le_bytes(*size));
    if size < 5 || size as usize > rest.len() {
        return Err((
            15,
            format!("a document sequence of {size} bytes doesn't fit the message"),
        ));
    }
    let mut section = rest.split_to(size as usize);
    section.advance(4);
    let name_end = section.iter().position(|byte| *byte == 0);
    let name_end = name_end.ok_or_else(|| invalid_bson(Malformed::Unterminated))?;
    let name = String::from_utf8_lossy(&section.split_to(name_end)).into_owned();
    section.advance(1);
    let mut documents = Vec::new();
    while !section.is_empty() {
        documents.push(split_document(&mut section).map_err(invalid_bson)?);
    }
    Ok(Sequence { name, documents })
}

/// The document of a server's OP_MSG reply.
///
/// # Errors
/// [`FrameError`] if it is no OP_MSG with one body.
pub fn parse_reply(frame: Bytes) -> Result<Bytes, FrameError> {
    parse_message(0, frame).map(|reply| reply.body)
}

/// A command for a shard: its body and, apart from it, the documents of one array field.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The body, complete.
    pub body: Vec<u8>,
    /// The document sequence.
    pub sequence: Option<Sequence>,
}

impl Outgoing {
    /// The message's bytes.
    pub fn encode(&self, id: i32) -> Vec<u8> {
        let mut message = start_message(id, 0, OP_MSG, self.body.len() + 64);
        message.extend_from_slice(&0_u32.to_le_bytes());
        message.push(0);
        message.extend_from_slice(&self.body);
        if let Some(sequence) = &self.sequence {
            let size: usize = sequence.documents.iter().map(Bytes::len).sum();
            let section = 4 + sequence.name.len() + 1 + size;
            message.push(1);
            message.extend_from_slice(&(section as i32).to_le_bytes());
            message.extend_from_slice(sequence.name.as_bytes());
            message.push(0);
            for document in &sequence.documents {
                message.extend_from_slice(document);
            }
        }
        finish_message(message)
    }
}

/// Frames `body` as the reply to `response_to`; `more_to_come` announces a further reply without a request.
pub fn encode_reply(id: i32, response_to: i32, framing: Framing, more_to_come: bool, body: &[u8]) -> Vec<u8> {
    let Framing::Message { checksum } = framing else {
        return encode_legacy_reply(id, response_to, body);
    };
    let mut message = start_message(id, response_to, OP_MSG, body.len() + 32);
    let flags = u32::from(checksum) * CHECKSUM_PRESENT + u32::from(more_to_come) * MORE_TO_COME;
    message.extend_from_slice(&flags.to_le_bytes());
    message.push(0);
    message.extend_from_slice(body);
    if !checksum {
        return finish_message(message);
    }
    message.extend_from_slice(&[0; 4]);
    let mut message = finish_message(message);
    let end = message.len() - 4;
    let sum = crc32c::crc32c(&message[..end]);
    message[end..].copy_from_slice(&sum.to_le_bytes());
    message
}

fn encode_legacy_reply(id: i32, response_to: i32, body: &[u8]) -> Vec<u8> {
    let mut message = start_message(id, response_to, OP_REPLY, body.len() + 48);
    // Flags (AwaitCapable, as the server sends), cursor id, starting from, number returned.
    message.extend_from_slice(&8_i32.to_le_bytes());
    message.extend_from_slice(&[0; 12]);
    message.extend_from_slice(&1_i32.to_le_bytes());
    message.extend_from_slice(body);
    finish_message(message)
}

fn start_message(id: i32, response_to: i32, opcode: i32, capacity: usize) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER_BYTES + capacity);
    message.extend_from_slice(&[0; 4]);
    message.extend_from_slice(&id.to_le_bytes());
    message.extend_from_slice(&response_to.to_le_bytes());
    message.extend_from_slice(&opcode.to_le_bytes());
    message
}

fn finish_message(mut message: Vec<u8>) -> Vec<u8> {
    let length = (message.len() as i32).to_le_bytes();
    message[..4].copy_from_slice(&length);
    message
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    #[test]
    fn a_command_with_a_sequence_survives_encoding() {
        let document = Bytes::from(doc! { "_id": 1 }.to_vec().unwrap());
        let outgoing = Outgoing {
            body: doc! { "insert": "c", "$db": "t" }.to_vec().unwrap(),
            sequence: Some(Sequence {
                name: "documents".into(),
                documents: vec![document.clone(), document.clone()],
            }),
        };
        let request = parse_request(outgoing.encode(7).into()).unwrap();
        assert_eq!((request.id, request.more_to_come), (7, false));
        assert_eq!(request.body, outgoing.body);
        assert_eq!(request.sequences[0].name, "documents");
        assert_eq!(request.sequences[0].documents, vec![document.clone(), document]);
    }

    #[test]
    fn a_reply_with_a_checksum_is_verified() {
        let body = doc! { "ok": 1.0 }.to_vec().unwrap();
        let mut reply = encode_reply(1, 2, Framing::Message { checksum: true }, false, &body);
        assert_eq!(parse_reply(reply.clone().into()).unwrap(), body);
        reply[25] ^= 1;
        assert!(matches!(parse_reply(reply.into()), Err(FrameError::Checksum)));
    }

    #[test]
    fn no_truncation_or_flipped_byte_panics() {
        let outgoing = Outgoing {
            body: doc! { "ping": 1, "$db": "admin" }.to_vec().unwrap(),
            sequence: Some(Sequence {
                name: "documents".into(),
                documents: vec![],
            }),
        };
        let bytes = outgoing.encode(1);
        for end in HEADER_BYTES..bytes.len() {
            let _ = parse_request(bytes[..end].to_vec().into());
        }
        for position in HEADER_BYTES..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut broken = bytes.clone();
                broken[position] = value;
                let _ = parse_request(broken.into());
            }
        }
    }
}
