//! A relay between a driver and its server that loses what it is told to lose, so that the driver sends it again.
//!
//! A command's `comment` tells it: `lose the reply 1` is passed on, and once the server has answered, the connection is
//! cut instead; `hang up 1` cuts it as soon as the command is passed on. Each comment counts once: the driver's second
//! try, which has the same comment, gets through.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use testkit::relay::{self, Fate};

const LOSE_THE_REPLY: &[u8] = b"lose the reply ";
const HANG_UP: &[u8] = b"hang up ";

pub struct Relay {
    relay: relay::Relay,
    cut: Arc<Mutex<HashSet<Vec<u8>>>>,
}

impl Relay {
    /// A relay in front of `server`, for as long as the test runs.
    pub fn start(server: &str) -> Relay {
        let cut = Arc::<Mutex<HashSet<Vec<u8>>>>::default();
        let seen = cut.clone();
        let judge = move |message: &[u8]| match order(message) {
            Some(order) if !seen.lock().unwrap().insert(order.to_vec()) => Fate::Passed,
            Some(order) if order.starts_with(HANG_UP) => Fate::Last,
            Some(_) => Fate::Unanswered,
            None => Fate::Passed,
        };
        let relay = relay::Relay::judged(server.to_owned(), judge, |_| Fate::Passed);
        Relay { relay, cut }
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.relay.address
    }

    /// How often it cut a connection.
    pub fn cuts(&self) -> usize {
        self.cut.lock().unwrap().len()
    }
}

/// The comment of `message`, if it is for the relay.
fn order(message: &[u8]) -> Option<&[u8]> {
    let start = [LOSE_THE_REPLY, HANG_UP]
        .iter()
        .find_map(|order| message.windows(order.len()).position(|window| window == *order))?;
    message[start..].split(|byte| *byte == 0).next()
}
