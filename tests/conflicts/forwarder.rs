//! A TCP forwarder that can lose a reply (the request gets through and is carried out, the answer never arrives), hold a
//! request back, and close a connection in the middle of a message.

#![allow(dead_code, reason = "every test binary uses its own part")]

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use bson::Document;

const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Passes messages on in both directions.
pub struct Forwarder {
    pub address: String,
    target: Arc<Mutex<String>>,
    tears: Arc<Tears>,
    victim: Arc<Mutex<Option<Victim>>>,
    hold: Arc<Mutex<Option<Hold>>>,
}

/// Which direction's next message only its first half gets through of, if any.
#[derive(Default)]
struct Tears {
    request: Mutex<Option<Tear>>,
    reply: Mutex<Option<Tear>>,
}

/// The message to be torn: the next one that holds these bytes, or just the next one.
struct Tear {
    bytes: Vec<u8>,
    torn: mpsc::Sender<()>,
}

/// The request to be held back: the next one that holds these bytes.
struct Hold {
    bytes: Vec<u8>,
    arrived: mpsc::Sender<()>,
    release: mpsc::Receiver<()>,
}

/// A request that is held back, or will be; dropping this lets it go.
pub struct Held {
    has_arrived: mpsc::Receiver<()>,
    _release: mpsc::Sender<()>,
}

impl Held {
    /// Waits until it has come.
    pub fn wait(&self) {
        wait_until(&self.has_arrived);
    }

    /// Whether it comes within `time`.
    pub fn arrives_within(&self, time: Duration) -> bool {
        self.has_arrived.recv_timeout(time).is_ok()
    }
}

/// The request whose reply is to be lost: the next one that holds these bytes.
struct Victim {
    bytes: Vec<u8>,
    lost: mpsc::Sender<()>,
}

/// The number of a request that was carried out, and whom to tell when its reply is lost.
type Doomed = (i32, mpsc::Sender<()>);

impl Forwarder {
    pub fn start(target: String) -> Forwarder {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let victim: Arc<Mutex<Option<Victim>>> = Arc::default();
        let hold: Arc<Mutex<Option<Hold>>> = Arc::default();
        let tears: Arc<Tears> = Arc::default();
        let target = Arc::new(Mutex::new(target));
        let (shared, shared_hold, shared_tears, current) =
            (victim.clone(), hold.clone(), tears.clone(), target.clone());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, victim, hold) = (client.unwrap(), shared.clone(), shared_hold.clone());
                let target = current.lock().unwrap().clone();
                // A target that is gone closes the client's connection, as it would itself.
                if let Ok(server) = TcpStream::connect(target) {
                    forward(client, server, victim, hold, shared_tears.clone());
                }
            }
        });
        Forwarder {
            address,
            target,
            tears,
            victim,
            hold,
        }
    }

    /// Connects new clients to `target` from now on.
    pub fn retarget(&self, target: String) {
        *self.target.lock().unwrap() = target;
    }

    /// Lets only a half of the next request through, and closes its connection; tells once it has.
    pub fn tear_request(&self) -> mpsc::Receiver<()> {
        self.tear_request_with(Vec::new())
    }

    /// The same for the next request that holds these bytes.
    pub fn tear_request_with(&self, bytes: Vec<u8>) -> mpsc::Receiver<()> {
        let (torn, is_torn) = mpsc::channel();
        *self.tears.request.lock().unwrap() = Some(Tear { bytes, torn });
        is_torn
    }

    /// Lets only a half of the next reply through, and closes its connection; tells once it has.
    pub fn tear_reply(&self) -> mpsc::Receiver<()> {
        let (torn, is_torn) = mpsc::channel();
        let bytes = Vec::new();
        *self.tears.reply.lock().unwrap() = Some(Tear { bytes, torn });
        is_torn
    }

    /// Holds the next request back that holds these bytes, and what comes after it on its connection.
    pub fn hold(&self, bytes: &[u8]) -> Held {
        let (arrived, has_arrived) = mpsc::channel();
        let (sender, release) = mpsc::channel();
        let bytes = bytes.to_vec();
        *self.hold.lock().unwrap() = Some(Hold {
            bytes,
            arrived,
            release,
        });
        Held {
            has_arrived,
            _release: sender,
        }
    }

    /// Loses the reply to the next `insert` into a collection of this name; tells once it has arrived here.
    pub fn lose_reply_to_insert(&self, collection: &str) -> mpsc::Receiver<()> {
        self.lose_reply_to(insert_into(collection))
    }

    /// Loses the reply to the next request that holds these bytes; tells once it has arrived here.
    pub fn lose_reply_to(&self, bytes: Vec<u8>) -> mpsc::Receiver<()> {
        let (lost, is_lost) = mpsc::channel();
        *self.victim.lock().unwrap() = Some(Victim { bytes, lost });
        is_lost
    }
}

/// What every `insert` into a collection of this name holds.
pub fn insert_into(collection: &str) -> Vec<u8> {
    let length = i32::try_from(collection.len() + 1).unwrap().to_le_bytes();
    [b"\x02insert\0", &length[..], collection.as_bytes(), b"\0"].concat()
}

/// Waits until a reply is lost.
pub fn wait_until(is_lost: &mpsc::Receiver<()>) {
    is_lost.recv_timeout(LONGEST_WAIT).expect("no such request came");
}

/// What becomes of a message.
pub enum Fate {
    Passed,
    /// Half of it is passed on; then the connection is closed.
    Torn,
    /// It isn't passed on, and the connection is closed.
    Lost,
}

fn forward(
    client: TcpStream,
    server: TcpStream,
    victim: Arc<Mutex<Option<Victim>>>,
    hold: Arc<Mutex<Option<Hold>>>,
    tears: Arc<Tears>,
) {
    let doomed: Arc<Mutex<Option<Doomed>>> = Arc::default();
    let (from, to, noted) = (client.try_clone().unwrap(), server.try_clone().unwrap(), doomed.clone());
    let torn = tears.clone();
    std::thread::spawn(move || {
        pass(&from, &to, |message| {
            let is_it = |hold: &mut Hold| message.windows(hold.bytes.len()).any(|bytes| bytes == hold.bytes);
            let held = hold.lock().unwrap().take_if(is_it);
            if let Some(hold) = held {
                let _ = hold.arrived.send(());
                let _ = hold.release.recv_timeout(LONGEST_WAIT);
            }
            let mut victim = victim.lock().unwrap();
            let matches = |victim: &Victim| message.windows(victim.bytes.len()).any(|bytes| bytes == victim.bytes);
            if victim.as_ref().is_some_and(matches) {
                let request_id = i32::from_le_bytes(message[4..8].try_into().unwrap());
                *noted.lock().unwrap() = victim.take().map(|victim| (request_id, victim.lost));
            }
            tear(&torn.request, message)
        })
    });
    std::thread::spawn(move || {
        pass(&server, &client, |message| {
            let answers = i32::from_le_bytes(message[8..12].try_into().unwrap());
            match &*doomed.lock().unwrap() {
                Some((request_id, lost)) if *request_id == answers => {
                    let _ = lost.send(());
                    Fate::Lost
                }
                _ => tear(&tears.reply, message),
            }
        })
    });
}

fn tear(asked: &Mutex<Option<Tear>>, message: &[u8]) -> Fate {
    let is_it =
        |tear: &mut Tear| tear.bytes.is_empty() || message.windows(tear.bytes.len()).any(|bytes| bytes == tear.bytes);
    match asked.lock().unwrap().take_if(is_it) {
        // Nobody waits for it any more: it was called off.
        Some(tear) if tear.torn.send(()).is_ok() => Fate::Torn,
        _ => Fate::Passed,
    }
}

/// Passes whole messages on until one isn't to be, or a side closes; then closes both.
pub fn pass(mut from: &TcpStream, mut to: &TcpStream, mut fate: impl FnMut(&[u8]) -> Fate) {
    while let Ok(message) = read_message(&mut from) {
        let (part, goes_on) = match fate(&message) {
            Fate::Passed => (&message[..], true),
            Fate::Torn => (&message[..message.len() / 2], false),
            Fate::Lost => (&message[..0], false),
        };
        if to.write_all(part).is_err() || !goes_on {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// The next whole message.
pub fn read_message(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut message = vec![0; usize::try_from(i32::from_le_bytes(length)).unwrap()];
    message[..4].copy_from_slice(&length);
    from.read_exact(&mut message[4..])?;
    Ok(message)
}

/// Sends a command over a connection of its own, without a driver's help; an error if no reply comes.
pub fn send(address: &str, database: &str, mut command: Document) -> io::Result<Document> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LONGEST_WAIT))?;
    command.insert("$db", database);
    let body = command.to_vec().unwrap();
    let mut message = Vec::new();
    for field in [i32::try_from(body.len() + 21).unwrap(), 7, 0, 2013, 0] {
        message.extend(field.to_le_bytes());
    }
    message.push(0);
    message.extend(body);
    stream.write_all(&message)?;
    let reply = read_message(&mut stream)?;
    Ok(Document::from_reader(&reply[21..]).unwrap())
}
