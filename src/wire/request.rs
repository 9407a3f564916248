//! Unpacks and parses one message of a client, and composes its reply in the same form.
//!
//! The [`Envelope`] outlives the parse, because a rejected request is also answered in the request's form.

use super::compressed::Prefix;
use super::rejection::ERROR_TEXT_BYTES_MAX;
use super::{
    Compressor, Draft, Flags, Header, OpCode, OpMsg, OpQuery, OpReply, Rejection, ServerError, TooLong, compress,
    decompress,
};
use crate::raw::Builder;
use crate::server::reply;

/// The form of a request, which its reply must have, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    /// The client's number for the request.
    pub request_id: i32,
    /// The op code, of the packed message if it came compressed.
    pub op_code: OpCode,
    /// The flags of an OP_MSG, none for others.
    pub flags: Flags,
    /// How it was packed.
    pub compressor: Option<Compressor>,
}

/// A request as its op code has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// OP_MSG.
    Msg(OpMsg<'a>),
    /// OP_QUERY, a command of the handshake.
    Query(OpQuery<'a>),
}

/// A client's message: its form and what is in it.
#[derive(Debug)]
pub struct Request<'a> {
    /// Its form.
    pub envelope: Envelope,
    /// The unpacked message, header included.
    pub unpacked: &'a [u8],
    /// Its structure, or why it is rejected.
    pub parsed: Result<Message<'a>, Rejection>,
}

impl<'a> Request<'a> {
    /// Reads a whole message; a compressed one is unpacked into `scratch`, or is there already, unpacked by `unpacked_by`.
    ///
    /// # Errors
    /// The [`Rejection`] of a message that can't be unpacked: the form of its reply is unknown.
    pub fn read(
        message: &'a [u8],
        unpacked_by: Option<Compressor>,
        scratch: &'a mut Vec<u8>,
    ) -> Result<Self, Rejection> {
        let outer = Header::read(message)?.ok_or(Rejection::TooShort)?;
        if outer.op_code != OpCode::COMPRESSED {
            return Ok(Self::read_unpacked(message, outer, None));
        }
        let compressor = match unpacked_by {
            Some(compressor) => compressor,
            None => decompress(message, scratch)?,
        };
        let inner = Header::read(scratch)?.ok_or(Rejection::TooShort)?;
        Ok(Self::read_unpacked(scratch, inner, Some(compressor)))
    }

    fn read_unpacked(message: &'a [u8], header: Header, compressor: Option<Compressor>) -> Self {
        let parsed = match header.op_code {
            OpCode::MSG => match OpMsg::parse(message) {
                Ok(parsed) => Ok(Message::Msg(parsed)),
                // The server would report the first fault that the whole parse finds.
                Err(rejection) => Err(OpMsg::parse_whole(message).err().unwrap_or(rejection)),
            },
            OpCode::QUERY => OpQuery::parse(message).map(Message::Query),
            OpCode::GET_MORE => Err(OpQuery::namespace(message)
                .map_or_else(|too_short| too_short, |_| Rejection::LegacyRead("OP_GET_MORE"))),
            OpCode(0) if message.len() >= Header::SIZE + 4 => Err(Rejection::NothingAsked),
            OpCode(other) => Err(Rejection::OpCode(other)),
        };
        Request {
            envelope: Envelope {
                compressor,
                ..Envelope::of(message, header)
            },
            unpacked: message,
            parsed,
        }
    }
}

impl Envelope {
    /// The form of a whole message that Keyward must not unpack. If the message is packed, its flags are unknown, and its reply isn't
    /// packed. A driver reads such a reply, too.
    ///
    /// # Errors
    /// The [`Rejection`] of a message in which another packed one is stated, or whose form can't be read.
    pub fn without_unpacking(message: &[u8]) -> Result<Envelope, Rejection> {
        let outer = Header::read(message)?.ok_or(Rejection::TooShort)?;
        if outer.op_code != OpCode::COMPRESSED {
            return Ok(Envelope::of(message, outer));
        }
        let op_code = Prefix::read(message).ok_or(Rejection::Compression)?.op_code;
        match op_code {
            OpCode::COMPRESSED => Err(Rejection::NestedCompression),
            _ => Ok(Envelope {
                op_code,
                ..Envelope::of(message, outer)
            }),
        }
    }

    /// The form of a message that came as `message`.
    fn of(message: &[u8], header: Header) -> Envelope {
        let flags = match header.op_code {
            OpCode::MSG => Flags::of(message).unwrap_or_default(),
            _ => Flags::default(),
        };
        Envelope {
            request_id: header.request_id,
            op_code: header.op_code,
            flags,
            compressor: None,
        }
    }

    /// Whether the client waits for a reply.
    pub fn wants_reply(&self) -> bool {
        !self.flags.has(Flags::MORE_TO_COME)
    }

    /// The whole reply with the document `body`, in the form of the request; `reply_id` is the reply's own number.
    ///
    /// # Errors
    /// [`TooLong`] if no message can hold it.
    pub fn reply(&self, body: &[u8], reply_id: i32) -> Result<Vec<u8>, TooLong> {
        let message = match self.op_code {
            OpCode::MSG => {
                let draft = Draft {
                    flags: Flags(self.flags.0 & Flags::CHECKSUM_PRESENT),
                    ..Draft::of_body(body)
                };
                draft.frame(reply_id, self.request_id)?.to_vec()
            }
            _ => OpReply::message(OpReply::AWAIT_CAPABLE, body, reply_id, self.request_id),
        };
        Ok(self.packed(message))
    }

    /// The whole reply with `error`.
    pub fn error(&self, rejection: &Rejection, error: &ServerError, reply_id: i32) -> Vec<u8> {
        match rejection {
            Rejection::LegacyRead(_) => {
                let mut body = Builder::new();
                body.string("$err", error.message.as_bytes())
                    .int32("code", error.code)
                    .double("ok", 0.0);
                let message = OpReply::message(OpReply::QUERY_FAILURE, &body.finish(), reply_id, self.request_id);
                self.packed(message)
            }
            _ => self
                .reply(&error.body(), reply_id)
                .expect("an error's text is far from the limit"),
        }
    }

    /// Packs the reply as the request was packed, where that is possible.
    fn packed(&self, message: Vec<u8>) -> Vec<u8> {
        self.compressor
            .and_then(|compressor| compress(&message, compressor))
            .unwrap_or(message)
    }
}

impl ServerError {
    /// An error with the server's name for its code. Too long a `message` is cut.
    pub fn new(code: i32, mut message: String) -> ServerError {
        if message.len() > ERROR_TEXT_BYTES_MAX {
            let end = (0..=ERROR_TEXT_BYTES_MAX).rfind(|end| message.is_char_boundary(*end));
            message.truncate(end.unwrap_or(0));
        }
        ServerError { code, message }
    }

    /// The reply's body, fields in the server's order.
    pub fn body(&self) -> Vec<u8> {
        reply::command_error(self.message.as_bytes(), self.code).finish()
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;
    use crate::server::code;
    use crate::wire::{MESSAGE_BYTES_MAX, Treatment};

    /// As text, each byte of the name becomes three.
    #[test]
    fn a_name_that_fills_the_message_gets_an_error() {
        let name = vec![0xff; MESSAGE_BYTES_MAX / 2 - 1000];
        let size = 4 + name.len() as i32 + 1;
        let sequence = [&[1][..], &size.to_le_bytes(), &name, &[0]].concat();
        let body = doc! { "ping": 1, "$db": "x" }.to_vec().unwrap();
        let sections = [&[0][..], &body, &sequence, &sequence].concat();
        let header = Header {
            length: Header::SIZE + 4 + sections.len(),
            request_id: 7,
            response_to: 0,
            op_code: OpCode::MSG,
        };
        let message = [&header.bytes()[..], &[0; 4], &sections].concat();
        let request = Request::read(&message, None, &mut Vec::new()).unwrap().envelope;
        let rejection = OpMsg::parse(&message).unwrap_err();
        let Treatment::Answer(error) = rejection.treatment() else {
            panic!("{:?}", rejection.treatment());
        };
        assert_eq!(error.code, code::DUPLICATE_SEQUENCE);
        let reply = request.error(&rejection, &error, 1);
        assert!(reply.len() < 2 * ERROR_TEXT_BYTES_MAX);
        assert!(error.message.starts_with("Duplicate document sequence: \u{fffd}"));
    }
}
