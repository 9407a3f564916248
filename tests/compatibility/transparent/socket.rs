//! A client that speaks bytes: whole messages out, whole messages in.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use bson::{Document, doc};
use keyward::raw::Doc;
use keyward::wire::{Compressor, Draft, Flags, Header, OpCode, OpMsg, OpReply, decompress};

/// Long enough for a loaded machine, short enough to fail a test.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Socket {
    pub stream: TcpStream,
    last_id: i32,
}

/// A message as it came, and what is in it.
#[derive(Debug, Clone)]
pub struct Received {
    pub header: Header,
    /// The op code of the message that was packed, if one was.
    pub op_code: OpCode,
    pub compressor: Option<Compressor>,
    pub flags: u32,
    body: Vec<u8>,
}

impl Socket {
    pub fn open(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        Self::from(stream)
    }

    pub fn from(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Socket { stream, last_id: 1000 }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends a command and gives its request id.
    pub fn send_command(&mut self, command: &Document, flags: u32) -> i32 {
        self.last_id += 1;
        let bytes = message(command, flags, self.last_id);
        self.send(&bytes);
        self.last_id
    }

    pub fn command(&mut self, command: &Document) -> Document {
        let id = self.send_command(command, 0);
        let reply = self.receive().expect("a reply");
        assert_eq!(reply.header.response_to, id);
        reply.document()
    }

    /// The next whole message; `None` once the peer has closed.
    pub fn receive_bytes(&mut self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; Header::SIZE];
        match self.stream.read(&mut bytes[..1]) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
            Err(error) => panic!("no message: {error}"),
        }
        self.stream.read_exact(&mut bytes[1..]).ok()?;
        let header = Header::read(&bytes).unwrap().unwrap();
        bytes.resize(header.length, 0);
        self.stream.read_exact(&mut bytes[Header::SIZE..]).ok()?;
        Some(bytes)
    }

    pub fn receive(&mut self) -> Option<Received> {
        self.receive_bytes().map(Received::new)
    }

    /// Whether the peer closes without sending anything more.
    pub fn is_closed(&mut self) -> bool {
        self.receive_bytes().is_none()
    }
}

impl Received {
    pub fn new(bytes: Vec<u8>) -> Self {
        let header = Header::read(&bytes).unwrap().unwrap();
        let mut unpacked = Vec::new();
        let compressor = (header.op_code == OpCode::COMPRESSED).then(|| decompress(&bytes, &mut unpacked).unwrap());
        let message = if compressor.is_some() { &unpacked } else { &bytes };
        let op_code = Header::read(message).unwrap().unwrap().op_code;
        let (flags, body) = match op_code {
            OpCode::MSG => {
                let parsed = OpMsg::parse_whole(message).unwrap();
                (parsed.flags.0, parsed.body)
            }
            _ => {
                let parsed = OpReply::parse(message).unwrap();
                (parsed.flags as u32, parsed.document)
            }
        };
        let body = body.bytes().to_vec();
        Received {
            header,
            op_code,
            compressor,
            flags,
            body,
        }
    }

    pub fn document(&self) -> Document {
        Document::from_reader(&self.body[..]).unwrap()
    }

    /// The error code; can be read even where the reply repeats broken text of the request.
    pub fn code(&self) -> Option<i64> {
        let code = Doc::new(&self.body).unwrap().get("code").unwrap()?;
        code.as_whole_number()
    }
}

/// An OP_MSG of a body alone.
pub fn message(body: &Document, flags: u32, request_id: i32) -> Vec<u8> {
    let bytes = body.to_vec().unwrap();
    let draft = Draft {
        flags: Flags(flags),
        ..Draft::of_body(&bytes)
    };
    draft.frame(request_id, 0).unwrap().to_vec()
}

pub fn ping() -> Document {
    doc! { "ping": 1, "$db": "admin" }
}
