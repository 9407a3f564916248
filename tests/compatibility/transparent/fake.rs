//! An upstream that the test writes the script of: it answers the handshakes that Keyward's monitoring sends, and hands
//! every other connection to the test.

use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use bson::{Document, doc};

use crate::transparent::socket::{Received, Socket, message};

pub struct FakeMongos {
    pub address: String,
    connections: Receiver<(Socket, Vec<u8>)>,
}

/// The handshake reply of a `mongos`, small but sufficient for a driver.
pub fn mongos_hello() -> Document {
    doc! {
        "ismaster": true, "msg": "isdbgrid", "maxBsonObjectSize": 16_777_216, "maxMessageSizeBytes": 48_000_000,
        "maxWriteBatchSize": 100_000, "minWireVersion": 0, "maxWireVersion": 17, "ok": 1.0,
    }
}

impl FakeMongos {
    pub fn start() -> Self {
        Self::of_version(17)
    }

    /// One that speaks no newer version of the wire protocol.
    pub fn of_version(max: i32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (hand_over, connections) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let hand_over = hand_over.clone();
                std::thread::spawn(move || sort(stream, max, &hand_over));
            }
        });
        FakeMongos { address, connections }
    }

    pub fn uri(&self) -> String {
        format!("mongodb://{}/", self.address)
    }

    /// Whether a connection of a client has come, waiting a moment for it.
    pub fn has_accepted(&self) -> bool {
        self.connections.recv_timeout(Duration::from_millis(20)).is_ok()
    }

    /// The next connection that is not Keyward's own monitoring, and its first message.
    pub fn accept(&self) -> (Socket, Vec<u8>) {
        self.connections
            .recv_timeout(Duration::from_secs(20))
            .expect("Keyward connects")
    }
}

/// Answers monitoring until the connection ends, or hands the connection over at its first message.
fn sort(stream: TcpStream, max: i32, hand_over: &Sender<(Socket, Vec<u8>)>) {
    stream.set_nonblocking(false).unwrap();
    let mut socket = Socket::from(stream);
    // Monitoring waits as long as it likes between two handshakes.
    socket.stream.set_read_timeout(None).unwrap();
    while let Some(bytes) = socket.receive_bytes() {
        if !is_monitoring(&bytes) {
            socket.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let _ = hand_over.send((socket, bytes));
            return;
        }
        let header = Received::new_header(&bytes);
        let mut hello = mongos_hello();
        hello.insert("maxWireVersion", max);
        // A router that has been asked something before; Keyward asks no further then.
        hello.insert("operationTime", bson::Timestamp { time: 1, increment: 1 });
        let mut reply = match header.op_code {
            keyward::wire::OpCode::QUERY => {
                let body = hello.to_vec().unwrap();
                keyward::wire::OpReply::message(8, &body, 1, header.request_id)
            }
            _ => message(&hello, 0, 1),
        };
        reply[8..12].copy_from_slice(&header.request_id.to_le_bytes());
        socket.send(&reply);
    }
}

/// Keyward's own client says who it is; what it sends later on such a connection is a handshake, too.
fn is_monitoring(bytes: &[u8]) -> bool {
    let has = |needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
    has(b"keyward\0") || (has(b"\x10hello\0") || has(b"ismaster\0") || has(b"isMaster\0")) && !has(b"fromClient\0")
}

impl Received {
    fn new_header(bytes: &[u8]) -> keyward::wire::Header {
        keyward::wire::Header::read(bytes).unwrap().unwrap()
    }
}
