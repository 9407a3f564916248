//! What a client sees of the connection itself: `hello` in all its forms, checksums, unacknowledged writes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bson::{Document, doc};
use testbed::Cluster;
use testbed::command::Connection;

const OP_MSG: i32 = 2013;
const OP_QUERY: i32 = 2004;
const EXHAUST_ALLOWED: u32 = 1 << 16;
const MORE_TO_COME: u32 = 2;

struct Reply {
    response_to: i32,
    opcode: i32,
    flags: u32,
    body: Document,
}

struct Socket(TcpStream);

impl Socket {
    fn open() -> Self {
        let stream = TcpStream::connect(Cluster::shared().router_address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Socket(stream)
    }

    fn send(&mut self, id: i32, opcode: i32, payload: &[u8]) {
        let mut message = Vec::new();
        for field in [payload.len() as i32 + 16, id, 0, opcode] {
            message.extend(field.to_le_bytes());
        }
        message.extend(payload);
        self.0.write_all(&message).unwrap();
    }

    fn send_message(&mut self, id: i32, flags: u32, command: &Document) {
        let mut payload = flags.to_le_bytes().to_vec();
        payload.push(0);
        payload.extend(command.to_vec().unwrap());
        self.send(id, OP_MSG, &payload);
    }

    fn reply(&mut self) -> Reply {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).unwrap();
        let mut rest = vec![0; i32::from_le_bytes(length) as usize - 4];
        self.0.read_exact(&mut rest).unwrap();
        let field = |at: usize| i32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
        let opcode = field(8);
        // OP_REPLY has 20 bytes before its document, OP_MSG flags and a section's kind.
        let body = if opcode == OP_MSG { 17 } else { 32 };
        Reply {
            response_to: field(4),
            opcode,
            flags: field(12) as u32,
            body: Document::from_reader(&rest[body..]).unwrap(),
        }
    }
}

#[test]
fn it_looks_like_a_mongos() {
    let mut connection = Connection::open(&Cluster::shared().router_address()).unwrap();
    let hello = connection.run("admin", doc! { "hello": 1, "helloOk": true }).unwrap();
    assert_eq!(hello.get_str("msg").unwrap(), "isdbgrid");
    assert!(hello.get_bool("isWritablePrimary").unwrap() && hello.get_bool("helloOk").unwrap());
    assert!(!hello.contains_key("setName") && !hello.contains_key("hosts") && !hello.contains_key("compression"));
    let master = connection
        .run("admin", doc! { "isMaster": 1, "compression": ["zlib"] })
        .unwrap();
    assert!(master.get_bool("ismaster").unwrap());
    assert!(master.contains_key("$clusterTime") && master.contains_key("operationTime"));
    assert_eq!(
        connection
            .run("admin", doc! { "isdbgrid": 1 })
            .unwrap()
            .get_i32("isdbgrid")
            .unwrap(),
        1
    );
}

#[test]
fn a_legacy_hello_is_answered_and_nothing_else_legacy() {
    let mut socket = Socket::open();
    let mut query = |id, command: Document| {
        let mut payload = 0_i32.to_le_bytes().to_vec();
        payload.extend(b"admin.$cmd\0");
        payload.extend(0_i32.to_le_bytes());
        payload.extend((-1_i32).to_le_bytes());
        payload.extend(command.to_vec().unwrap());
        socket.send(id, OP_QUERY, &payload);
        socket.reply()
    };
    let hello = query(1, doc! { "isMaster": 1, "helloOk": true });
    assert_eq!((hello.opcode, hello.response_to, hello.flags), (1, 1, 8));
    assert_eq!(hello.body.get_str("msg").unwrap(), "isdbgrid");
    assert_eq!(query(2, doc! { "ping": 1 }).body.get_i32("code").unwrap(), 352);
}

#[test]
fn a_hello_waits_and_streams() {
    let mut socket = Socket::open();
    socket.send_message(1, 0, &doc! { "hello": 1, "$db": "admin" });
    let version = socket.reply().body.get_document("topologyVersion").unwrap().clone();
    let waiting = doc! { "hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 50, "$db": "admin" };
    let started = Instant::now();
    socket.send_message(2, 0, &waiting);
    assert_eq!(socket.reply().flags, 0);
    assert!(started.elapsed() >= Duration::from_millis(50));
    socket.send_message(3, EXHAUST_ALLOWED, &waiting);
    for _ in 0..3 {
        let reply = socket.reply();
        assert_eq!(reply.flags, MORE_TO_COME);
        assert_eq!(reply.body.get_str("msg").unwrap(), "isdbgrid");
    }
}

#[test]
fn an_unacknowledged_write_has_no_reply_and_keeps_its_order() {
    let mut socket = Socket::open();
    for id in 0..10 {
        let insert = doc! {
            "insert": "c", "documents": [{ "_id": id }], "writeConcern": { "w": 0 }, "$db": "unacknowledged",
        };
        socket.send_message(id, MORE_TO_COME, &insert);
    }
    socket.send_message(100, 0, &doc! { "count": "c", "$db": "unacknowledged" });
    let reply = socket.reply();
    assert_eq!((reply.response_to, reply.body.get_i32("n").unwrap()), (100, 10));
}
