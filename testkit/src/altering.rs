//! A TCP relay that changes messages between a client and a server: for a server that answers otherwise than any that can be run here.

use std::collections::HashMap;
use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use bson::{Document, doc};

use crate::relay::read_message;

const OP_REPLY: i32 = 1;
const OP_MSG: i32 = 2013;

/// Changes the body of a request.
type OfRequest = dyn Fn(&mut Document) + Send + Sync;
/// Changes the body of a reply; gets the request's, too.
type OfReply = dyn Fn(&Document, &mut Document) + Send + Sync;

/// A running relay.
pub struct Altering {
    /// Where it listens.
    pub address: String,
}

/// What the two directions of a connection share: the requests by their numbers.
type Requests = Arc<Mutex<HashMap<i32, Document>>>;

impl Altering {
    /// Passes everything on to `target`, changed so.
    pub fn start(
        target: String,
        request: impl Fn(&mut Document) + Send + Sync + 'static,
        reply: impl Fn(&Document, &mut Document) + Send + Sync + 'static,
    ) -> Altering {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (request, reply): (Arc<OfRequest>, Arc<OfReply>) = (Arc::new(request), Arc::new(reply));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if let Ok(server) = TcpStream::connect(&target) {
                    connect(client.unwrap(), server, request.clone(), reply.clone());
                }
            }
        });
        Altering { address }
    }

    /// The same without a change of requests.
    pub fn replies(target: String, reply: impl Fn(&Document, &mut Document) + Send + Sync + 'static) -> Altering {
        Altering::start(target, |_| {}, reply)
    }

    /// The connection string for its clients.
    pub fn uri(&self) -> String {
        format!("mongodb://{}/", self.address)
    }
}

fn connect(client: TcpStream, server: TcpStream, request: Arc<OfRequest>, reply: Arc<OfReply>) {
    let asked: Requests = Arc::default();
    let (from, to, noted) = (client.try_clone().unwrap(), server.try_clone().unwrap(), asked.clone());
    std::thread::spawn(move || {
        pass(&from, &to, |message| {
            let Some(mut body) = body_of(message) else {
                return message.to_vec();
            };
            request(&mut body);
            noted.lock().unwrap().insert(number(message, 4), body.clone());
            with_body(message, &body)
        });
    });
    std::thread::spawn(move || {
        pass(&server, &client, |message| {
            let Some(mut body) = body_of(message) else {
                return message.to_vec();
            };
            // One that isn't known is a legacy one, which only asks who is there; or the reply is one of several.
            let request = asked.lock().unwrap().remove(&number(message, 8));
            reply(&request.unwrap_or_else(|| doc! { "hello": 1 }), &mut body);
            with_body(message, &body)
        });
    });
}

fn number(message: &[u8], at: usize) -> i32 {
    i32::from_le_bytes(message[at..at + 4].try_into().unwrap())
}

/// Where the body of a message begins, if it is one that can be changed.
fn body_at(message: &[u8]) -> Option<usize> {
    match number(message, 12) {
        OP_MSG if message[20] == 0 => Some(21),
        OP_REPLY => Some(36),
        _ => None,
    }
}

fn body_of(message: &[u8]) -> Option<Document> {
    let at = body_at(message)?;
    Document::from_reader(&message[at..]).ok()
}

fn with_body(message: &[u8], body: &Document) -> Vec<u8> {
    let at = body_at(message).unwrap();
    let old = usize::try_from(number(message, at)).unwrap();
    let mut changed = [&message[..at], &body.to_vec().unwrap(), &message[at + old..]].concat();
    let length = i32::try_from(changed.len()).unwrap();
    changed[..4].copy_from_slice(&length.to_le_bytes());
    changed
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, change: impl Fn(&[u8]) -> Vec<u8>) {
    while let Ok(message) = read_message(&mut from) {
        if to.write_all(&change(&message)).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
