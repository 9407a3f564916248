//! Clients of bytes, without anything of a driver: they send what no driver would send of its own accord (transaction numbers,
//! repeated commands), and hide nothing of the replies.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use bson::{Bson, Document, RawDocument, doc};

use crate::relay::read_message;

const LONGEST_WAIT: Duration = Duration::from_secs(60);
const OP_MSG: i32 = 2013;
/// Where an OP_MSG's body begins: after the header, the flags, and the section's kind.
pub const BODY: usize = 21;

/// A connection to a server, a router or a Keyward.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects.
    pub fn open(address: &str) -> Connection {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Connection {
            stream,
            buffer: Vec::new(),
        }
    }

    /// Connects, and has it answer once, so that nothing of a measurement is the connecting.
    pub fn greeted(address: &str) -> Connection {
        let mut connection = Connection::open(address);
        connection.must_raw(&doc! { "hello": 1, "$db": "admin" });
        connection
    }

    /// Sends a command with its `$db`; the reply, whatever it says.
    ///
    /// # Panics
    /// If no reply comes.
    pub fn raw(&mut self, command: &Document) -> &RawDocument {
        self.exchange(command)
            .unwrap_or_else(|error| panic!("no reply to {command}: {error}"));
        RawDocument::from_bytes(&self.buffer[BODY..]).unwrap()
    }

    /// As [`Connection::raw`], for what has to succeed.
    pub fn must_raw(&mut self, command: &Document) -> &RawDocument {
        let reply = self.raw(command);
        let is_ok = reply.get_f64("ok").is_ok_and(|ok| ok == 1.0) && reply.get_array("writeErrors").is_err();
        assert!(is_ok, "{command}: {reply:?}");
        reply
    }

    /// For what has to be refused as a duplicate.
    pub fn must_be_duplicate(&mut self, command: &Document) {
        let reply = self.raw(command);
        assert!(reply.get_array("writeErrors").is_ok(), "{command}: {reply:?}");
    }

    /// Sends `command` and waits for its reply.
    pub fn run(&mut self, database: &str, command: &Document) -> Document {
        self.try_run(database, command)
            .unwrap_or_else(|error| panic!("no reply to {command}: {error}"))
    }

    /// The same, through what may be killed meanwhile.
    ///
    /// # Errors
    /// If no reply comes.
    pub fn try_run(&mut self, database: &str, command: &Document) -> io::Result<Document> {
        self.send(database, command)?;
        self.receive()
    }

    /// Sends `command`, and waits for nothing.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn send(&mut self, database: &str, command: &Document) -> io::Result<()> {
        let mut command = command.clone();
        command.insert("$db", database);
        self.write(&command)
    }

    /// Waits for the reply to what was sent.
    ///
    /// # Errors
    /// If no reply comes.
    pub fn receive(&mut self) -> io::Result<Document> {
        self.read()?;
        // A native index's error may cut a key in the middle of a character.
        let reply: bson::Utf8Lossy<Document> = bson::deserialize_from_slice(&self.buffer[BODY..]).unwrap();
        Ok(reply.0)
    }

    /// As [`Connection::run`], for what must succeed.
    pub fn must(&mut self, database: &str, command: &Document) -> Document {
        let reply = self.run(database, command);
        assert!(is_ok(&reply), "{command}: {reply}");
        reply
    }

    /// Every document of a small collection, by `_id`.
    pub fn all(&mut self, database: &str, collection: &str) -> Vec<Document> {
        let find = doc! { "find": collection, "sort": { "_id": 1 }, "batchSize": 10_000 };
        let reply = self.must(database, &find);
        let cursor = reply.get_document("cursor").unwrap();
        assert_eq!(cursor.get_i64("id").unwrap(), 0);
        let batch = cursor.get_array("firstBatch").unwrap();
        batch
            .iter()
            .map(|document| document.as_document().unwrap().clone())
            .collect()
    }

    /// Leaves the whole reply in the buffer.
    fn exchange(&mut self, command: &Document) -> io::Result<()> {
        self.write(command)?;
        self.read()
    }

    fn write(&mut self, command: &Document) -> io::Result<()> {
        let body = command.to_vec().unwrap();
        self.buffer.clear();
        for field in [i32::try_from(body.len() + BODY).unwrap(), 1, 0, OP_MSG, 0] {
            self.buffer.extend(field.to_le_bytes());
        }
        self.buffer.push(0);
        self.buffer.extend(body);
        self.stream.write_all(&self.buffer)
    }

    fn read(&mut self) -> io::Result<()> {
        self.buffer.resize(4, 0);
        self.stream.read_exact(&mut self.buffer)?;
        let length = i32::from_le_bytes(self.buffer[..].try_into().unwrap());
        self.buffer.resize(usize::try_from(length).unwrap(), 0);
        self.stream.read_exact(&mut self.buffer[4..])
    }
}

/// Whether the server carried the command out, be it with write errors.
pub fn is_ok(reply: &Document) -> bool {
    reply.get("ok") == Some(&Bson::Double(1.0))
}

/// Sends a command over a connection of its own.
///
/// # Errors
/// If no reply comes.
pub fn send(address: &str, database: &str, mut command: Document) -> io::Result<Document> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LONGEST_WAIT))?;
    command.insert("$db", database);
    let body = command.to_vec().unwrap();
    let mut message = Vec::new();
    for field in [i32::try_from(body.len() + BODY).unwrap(), 7, 0, OP_MSG, 0] {
        message.extend(field.to_le_bytes());
    }
    message.push(0);
    message.extend(body);
    stream.write_all(&message)?;
    let reply = read_message(&mut stream)?;
    Ok(Document::from_reader(&reply[BODY..]).unwrap())
}
