//! A client of bytes: it sends what no driver would send of its own accord (transaction numbers, repeated commands), and
//! hides nothing of the replies.

use std::io::{Read, Write};
use std::net::TcpStream;

use bson::{Bson, Document, doc};

/// A connection to a server, a router or a Keyward.
pub struct Connection {
    stream: TcpStream,
}

impl Connection {
    pub fn open(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Connection { stream }
    }

    /// Sends `command` and waits for its reply.
    pub fn run(&mut self, database: &str, command: &Document) -> Document {
        let mut command = command.clone();
        command.insert("$db", database);
        let mut message = vec![0; 21];
        message.extend_from_slice(&command.to_vec().unwrap());
        let length = i32::try_from(message.len()).unwrap().to_le_bytes();
        message[..4].copy_from_slice(&length);
        message[12..16].copy_from_slice(&2013_i32.to_le_bytes());
        self.stream.write_all(&message).unwrap();
        let mut length = [0; 4];
        self.stream
            .read_exact(&mut length)
            .unwrap_or_else(|error| panic!("no reply to {command}: {error}"));
        let mut reply = vec![0; i32::from_le_bytes(length) as usize - 4];
        self.stream.read_exact(&mut reply).unwrap();
        // The rest of the header, the flags, and the kind of the only section.
        // A native index's error may cut a key in the middle of a character.
        let reply: bson::Utf8Lossy<Document> = bson::deserialize_from_slice(&reply[17..]).unwrap();
        reply.0
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
}

/// Whether the server carried the command out, be it with write errors.
pub fn is_ok(reply: &Document) -> bool {
    reply.get("ok") == Some(&Bson::Double(1.0))
}
