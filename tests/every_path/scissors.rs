//! A TCP forwarder that cuts every connection at a certain message: what a crash, or a network that fails, leaves behind.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};

/// Where a message is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// The request never arrives.
    Request,
    /// It does and is carried out; its reply never arrives.
    Reply,
}

/// The forwarder; messages are counted while it is armed.
pub struct Scissors {
    pub address: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// What is left to count until the cut, and what it hits.
    cut: Option<(usize, Lost)>,
    /// Whom to tell of it.
    tell: Option<mpsc::Sender<()>>,
    /// Whether it has cut, and lets nothing through.
    is_cut: bool,
    /// How often it was mended: what was to be lost before that isn't any more.
    mended: usize,
    next: usize,
    /// Both ends of the connections that carried a write: who only watches the topology goes on.
    open: HashMap<usize, [TcpStream; 2]>,
}

impl Scissors {
    pub fn start(target: String) -> Scissors {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                if shared.lock().unwrap().is_cut {
                    continue;
                }
                if let Ok(server) = TcpStream::connect(&target) {
                    forward(client, server, &shared);
                }
            }
        });
        Scissors { address, state }
    }

    /// Cuts at the request number `step` from now on (from zero) that is about a write, and tells.
    pub fn cut_at(&self, step: usize, lost: Lost, tell: mpsc::Sender<()>) {
        let mut state = self.state.lock().unwrap();
        state.cut = Some((step, lost));
        state.tell = Some(tell);
    }

    pub fn has_cut(&self) -> bool {
        self.state.lock().unwrap().is_cut
    }

    /// Lets everything through again.
    pub fn mend(&self) {
        let mut state = self.state.lock().unwrap();
        state.cut = None;
        state.tell = None;
        state.is_cut = false;
        state.mended += 1;
    }
}

impl State {
    /// Counts a request that is about a write; what is to be lost, if it is the one.
    fn count(&mut self) -> Option<Lost> {
        let (left, lost) = self.cut.as_mut()?;
        match left.checked_sub(1) {
            Some(less) => *left = less,
            None => return Some(*lost),
        }
        None
    }

    fn cut(&mut self) {
        self.cut = None;
        self.is_cut = true;
        if let Some(tell) = self.tell.take() {
            let _ = tell.send(());
        }
        for (_, [one, other]) in self.open.drain() {
            let _ = one.shutdown(Shutdown::Both);
            let _ = other.shutdown(Shutdown::Both);
        }
    }
}

fn forward(client: TcpStream, server: TcpStream, state: &Arc<Mutex<State>>) {
    let number = {
        let mut state = state.lock().unwrap();
        state.next += 1;
        state.next
    };
    // The request whose reply is the last thing that comes, and how often had been mended when it was sent.
    let doomed: Arc<Mutex<Option<(i32, usize)>>> = Arc::default();
    let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let (shared, noted) = (state.clone(), doomed.clone());
    let both = [client.try_clone().unwrap(), server.try_clone().unwrap()];
    std::thread::spawn(move || {
        while let Some(message) = read_message(&mut from) {
            let mut state = shared.lock().unwrap();
            let is_about_a_write = is_about_a_write(&message);
            if is_about_a_write {
                let both = [both[0].try_clone().unwrap(), both[1].try_clone().unwrap()];
                state.open.insert(number, both);
            }
            match is_about_a_write.then(|| state.count()).flatten() {
                Some(Lost::Request) => return state.cut(),
                Some(Lost::Reply) => {
                    state.cut = None;
                    let id = i32::from_le_bytes(message[4..8].try_into().unwrap());
                    *noted.lock().unwrap() = Some((id, state.mended));
                }
                None => {}
            }
            drop(state);
            if to.write_all(&message).is_err() {
                break;
            }
        }
        close(&shared, number);
    });
    let (mut from, mut to, shared) = (server, client, state.clone());
    std::thread::spawn(move || {
        while let Some(message) = read_message(&mut from) {
            let answers = i32::from_le_bytes(message[8..12].try_into().unwrap());
            let mut state = shared.lock().unwrap();
            if *doomed.lock().unwrap() == Some((answers, state.mended)) {
                return state.cut();
            }
            drop(state);
            if to.write_all(&message).is_err() {
                break;
            }
        }
        close(&shared, number);
    });
}

fn is_about_a_write(request: &[u8]) -> bool {
    [&b"users"[..], b"Transaction\0", b"keyward."]
        .iter()
        .any(|needle| request.windows(needle.len()).any(|bytes| bytes == *needle))
}

fn close(state: &Mutex<State>, number: usize) {
    if let Some([one, other]) = state.lock().unwrap().open.remove(&number) {
        let _ = one.shutdown(Shutdown::Both);
        let _ = other.shutdown(Shutdown::Both);
    }
}

fn read_message(from: &mut impl Read) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length).ok()?;
    let mut message = vec![0; usize::try_from(i32::from_le_bytes(length)).ok()?];
    message[..4].copy_from_slice(&length);
    from.read_exact(&mut message[4..]).ok()?;
    Some(message)
}
