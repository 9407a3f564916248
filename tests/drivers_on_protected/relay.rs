//! A relay between a driver and its server that loses what it is told to lose, so that the driver sends it again.
//!
//! A command's `comment` tells it: `lose the reply 1` is passed on, and once the server has answered, the connection is
//! cut instead; `hang up 1` cuts it as soon as the command is passed on. Each comment counts once: the driver's second
//! try, which has the same comment, gets through.

use std::collections::HashSet;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::forwarder::{Fate, pass};

const LOSE_THE_REPLY: &[u8] = b"lose the reply ";
const HANG_UP: &[u8] = b"hang up ";

pub struct Relay {
    pub address: String,
    cut: Arc<Mutex<HashSet<Vec<u8>>>>,
}

impl Relay {
    /// A relay in front of `server`, for as long as the test runs.
    pub fn start(server: &str) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let cut = Arc::<Mutex<HashSet<Vec<u8>>>>::default();
        let (server, seen) = (server.to_owned(), cut.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(&server) else { break };
                relay(client, server, seen.clone());
            }
        });
        Relay { address, cut }
    }

    /// How often it cut a connection.
    pub fn cuts(&self) -> usize {
        self.cut.lock().unwrap().len()
    }
}

/// One connection, both ways.
fn relay(client: TcpStream, server: TcpStream, seen: Arc<Mutex<HashSet<Vec<u8>>>>) {
    let lost = Arc::<Mutex<HashSet<i32>>>::default();
    let (from, to, doomed) = (client.try_clone().unwrap(), server.try_clone().unwrap(), lost.clone());
    std::thread::spawn(move || {
        pass(&from, &to, |message| {
            let order = order(message).filter(|order| seen.lock().unwrap().insert(order.to_vec()));
            if order.is_some_and(|order| order.starts_with(LOSE_THE_REPLY)) {
                doomed.lock().unwrap().insert(number(message, 4));
            }
            match order {
                Some(order) if order.starts_with(HANG_UP) => {
                    let _ = (&to).write_all(message);
                    Fate::Lost
                }
                _ => Fate::Passed,
            }
        })
    });
    std::thread::spawn(move || {
        pass(&server, &client, |message| {
            match lost.lock().unwrap().contains(&number(message, 8)) {
                true => Fate::Lost,
                false => Fate::Passed,
            }
        });
    });
}

fn number(message: &[u8], at: usize) -> i32 {
    i32::from_le_bytes(message[at..at + 4].try_into().unwrap())
}

/// The comment of `message`, if it is for the relay.
fn order(message: &[u8]) -> Option<&[u8]> {
    let start = [LOSE_THE_REPLY, HANG_UP]
        .iter()
        .find_map(|order| message.windows(order.len()).position(|window| window == *order))?;
    message[start..].split(|byte| *byte == 0).next()
}
