//! A TCP relay between a client and a server that knows where messages begin and end. It can lose a reply (the request gets
//! through and is carried out, the answer never arrives), hold a request back, and close a connection in the middle of a
//! message; and a test can decide about each message by itself.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is passed on.
    Passed,
    /// It is passed on, and then the connection is closed.
    Last,
    /// Half of it is passed on, and then the connection is closed.
    Torn,
    /// It isn't passed on, and the connection is closed.
    Lost,
    /// It is passed on; once its reply comes, the connection is closed instead. For requests only.
    Unanswered,
}

/// Decides about one message.
type Decision = Arc<dyn Fn(&[u8]) -> Fate + Send + Sync>;

/// Decides about the messages of a connection.
#[derive(Clone)]
pub struct Judge {
    requests: Decision,
    replies: Decision,
}

impl Judge {
    /// One that decides about requests and about replies so.
    pub fn of(
        requests: impl Fn(&[u8]) -> Fate + Send + Sync + 'static,
        replies: impl Fn(&[u8]) -> Fate + Send + Sync + 'static,
    ) -> Judge {
        Judge {
            requests: Arc::new(requests),
            replies: Arc::new(replies),
        }
    }
}

/// A running relay.
pub struct Relay {
    /// Where it listens.
    pub address: String,
    shared: Arc<Shared>,
}

/// What its connections share.
struct Shared {
    target: Mutex<String>,
    hold: Mutex<Option<Order>>,
    release: Mutex<Option<mpsc::Receiver<()>>>,
    lose_reply: Mutex<Option<Order>>,
    tear_request: Mutex<Option<Order>>,
    tear_reply: Mutex<Option<Order>>,
}

/// What is to be done to the next message that holds these bytes, or just to the next one; and whom to tell.
struct Order {
    bytes: Vec<u8>,
    done: mpsc::Sender<()>,
}

/// The number of a request that was carried out, and whom to tell when its reply is lost.
type Doomed = (i32, Option<mpsc::Sender<()>>);

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

impl Relay {
    /// Passes everything on to `target`, but for what is ordered later.
    pub fn start(target: String) -> Relay {
        Relay::judged(target, |_| Fate::Passed, |_| Fate::Passed)
    }

    /// The same, with a judge of the requests and one of the replies.
    pub fn judged(
        target: String,
        requests: impl Fn(&[u8]) -> Fate + Send + Sync + 'static,
        replies: impl Fn(&[u8]) -> Fate + Send + Sync + 'static,
    ) -> Relay {
        let judge = Judge::of(requests, replies);
        Relay::judged_by_connection(target, move || judge.clone())
    }

    /// The same, with a judge for each connection, made when it is opened.
    pub fn judged_by_connection(target: String, judge: impl Fn() -> Judge + Send + 'static) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            hold: Mutex::default(),
            release: Mutex::default(),
            lose_reply: Mutex::default(),
            tear_request: Mutex::default(),
            tear_reply: Mutex::default(),
        });
        let of_connections = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let target = of_connections.target.lock().unwrap().clone();
                // A target that is gone closes the client's connection, as it would itself.
                if let Ok(server) = TcpStream::connect(target) {
                    connect(client.unwrap(), server, of_connections.clone(), judge());
                }
            }
        });
        Relay { address, shared }
    }

    /// The connection string for its clients.
    pub fn uri(&self) -> String {
        format!("mongodb://{}/", self.address)
    }

    /// Connects new clients to `target` from now on.
    pub fn retarget(&self, target: String) {
        *self.shared.target.lock().unwrap() = target;
    }

    /// Lets only a half of the next request through, and closes its connection; tells once it has.
    pub fn tear_request(&self) -> mpsc::Receiver<()> {
        self.tear_request_with(Vec::new())
    }

    /// The same for the next request that holds these bytes.
    pub fn tear_request_with(&self, bytes: Vec<u8>) -> mpsc::Receiver<()> {
        order(&self.shared.tear_request, bytes)
    }

    /// Lets only a half of the next reply through, and closes its connection; tells once it has.
    pub fn tear_reply(&self) -> mpsc::Receiver<()> {
        order(&self.shared.tear_reply, Vec::new())
    }

    /// Holds the next request back that holds these bytes, and what comes after it on its connection.
    pub fn hold(&self, bytes: &[u8]) -> Held {
        let (sender, release) = mpsc::channel();
        *self.shared.release.lock().unwrap() = Some(release);
        Held {
            has_arrived: order(&self.shared.hold, bytes.to_vec()),
            _release: sender,
        }
    }

    /// Loses the reply to the next `insert` into a collection of this name; tells once it has arrived here.
    pub fn lose_reply_to_insert(&self, collection: &str) -> mpsc::Receiver<()> {
        self.lose_reply_to(insert_into(collection))
    }

    /// Loses the reply to the next request that holds these bytes; tells once it has arrived here.
    pub fn lose_reply_to(&self, bytes: Vec<u8>) -> mpsc::Receiver<()> {
        order(&self.shared.lose_reply, bytes)
    }
}

/// What every `insert` into a collection of this name holds.
pub fn insert_into(collection: &str) -> Vec<u8> {
    let length = i32::try_from(collection.len() + 1).unwrap().to_le_bytes();
    [b"\x02insert\0", &length[..], collection.as_bytes(), b"\0"].concat()
}

/// Waits until what was ordered is done.
pub fn wait_until(is_done: &mpsc::Receiver<()>) {
    is_done.recv_timeout(LONGEST_WAIT).expect("no such request came");
}

fn order(place: &Mutex<Option<Order>>, bytes: Vec<u8>) -> mpsc::Receiver<()> {
    let (done, is_done) = mpsc::channel();
    *place.lock().unwrap() = Some(Order { bytes, done });
    is_done
}

/// The order, if it is for this message; it is done once.
fn ordered(place: &Mutex<Option<Order>>, message: &[u8]) -> Option<mpsc::Sender<()>> {
    let is_it = |order: &mut Order| {
        order.bytes.is_empty() || message.windows(order.bytes.len()).any(|part| part == order.bytes)
    };
    place.lock().unwrap().take_if(is_it).map(|order| order.done)
}

/// One connection, both ways.
fn connect(client: TcpStream, server: TcpStream, shared: Arc<Shared>, judge: Judge) {
    let doomed: Arc<Mutex<Vec<Doomed>>> = Arc::default();
    let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let (of_requests, noted) = (shared.clone(), doomed.clone());
    std::thread::spawn(move || {
        pass(&from, &to, |message| {
            of_requests.request(message, &noted, &judge.requests)
        })
    });
    std::thread::spawn(move || {
        pass(&server, &client, |message| {
            shared.reply(message, &doomed, &judge.replies)
        })
    });
}

impl Shared {
    fn request(&self, message: &[u8], doomed: &Mutex<Vec<Doomed>>, decide: &Decision) -> Fate {
        if let Some(arrived) = ordered(&self.hold, message) {
            let release = self.release.lock().unwrap().take();
            let _ = arrived.send(());
            let _ = release.map(|release| release.recv_timeout(LONGEST_WAIT));
        }
        let id = i32::from_le_bytes(message[4..8].try_into().unwrap());
        if let Some(lost) = ordered(&self.lose_reply, message) {
            doomed.lock().unwrap().push((id, Some(lost)));
        }
        // Nobody waits for a tear any more that was called off.
        if ordered(&self.tear_request, message).is_some_and(|torn| torn.send(()).is_ok()) {
            return Fate::Torn;
        }
        let fate = decide(message);
        if fate == Fate::Unanswered {
            doomed.lock().unwrap().push((id, None));
        }
        fate
    }

    fn reply(&self, message: &[u8], doomed: &Mutex<Vec<Doomed>>, decide: &Decision) -> Fate {
        let answers = i32::from_le_bytes(message[8..12].try_into().unwrap());
        if let Some((_, lost)) = doomed.lock().unwrap().iter().find(|(id, _)| *id == answers) {
            let _ = lost.as_ref().map(|lost| lost.send(()));
            return Fate::Lost;
        }
        match ordered(&self.tear_reply, message) {
            Some(torn) if torn.send(()).is_ok() => Fate::Torn,
            _ => decide(message),
        }
    }
}

/// Passes whole messages on until one isn't to be, or a side closes.
fn pass(mut from: &TcpStream, mut to: &TcpStream, judge: impl Fn(&[u8]) -> Fate) {
    loop {
        let Ok(message) = read_message(&mut from) else {
            // The other direction ends once the receiver has seen this one's end.
            let _ = to.shutdown(Shutdown::Write);
            return;
        };
        let (part, goes_on) = match judge(&message) {
            Fate::Passed | Fate::Unanswered => (&message[..], true),
            Fate::Last => (&message[..], false),
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
///
/// # Errors
/// If the connection ends before it does.
pub fn read_message(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut message = vec![0; usize::try_from(i32::from_le_bytes(length)).unwrap()];
    message[..4].copy_from_slice(&length);
    from.read_exact(&mut message[4..])?;
    Ok(message)
}
