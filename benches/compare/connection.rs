//! A client without anything of a driver: a command out, its reply in.

use std::io::{Read, Write};
use std::net::TcpStream;

use bson::{Document, RawDocument, doc};

pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub fn open(address: &str) -> Connection {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut connection = Connection {
            stream,
            buffer: Vec::new(),
        };
        connection.must(&doc! { "hello": 1, "$db": "admin" });
        connection
    }

    /// Sends a command with its `$db`; the reply, whatever it says.
    pub fn run(&mut self, command: &Document) -> &RawDocument {
        let body = command.to_vec().unwrap();
        self.buffer.clear();
        for field in [i32::try_from(body.len() + 21).unwrap(), 1, 0, 2013, 0] {
            self.buffer.extend(field.to_le_bytes());
        }
        self.buffer.push(0);
        self.buffer.extend(body);
        self.stream.write_all(&self.buffer).unwrap();
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).unwrap();
        self.buffer.resize(i32::from_le_bytes(length) as usize - 4, 0);
        self.stream.read_exact(&mut self.buffer).unwrap();
        RawDocument::from_bytes(&self.buffer[17..]).unwrap()
    }

    /// As [`Connection::run`], for what has to succeed.
    pub fn must(&mut self, command: &Document) -> &RawDocument {
        let reply = self.run(command);
        let is_ok = reply.get_f64("ok").is_ok_and(|ok| ok == 1.0) && reply.get_array("writeErrors").is_err();
        assert!(is_ok, "{command}: {reply:?}");
        reply
    }

    /// For what has to be refused as a duplicate.
    pub fn must_be_duplicate(&mut self, command: &Document) {
        let reply = self.run(command);
        assert!(reply.get_array("writeErrors").is_ok(), "{command}: {reply:?}");
    }
}
