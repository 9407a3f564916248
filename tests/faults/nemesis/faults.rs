//! How often each fault happened, and when the next one comes: each thread does harm, undoes it, rests, and goes on until it
//! is told that it is enough.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;

/// How often each fault happened.
#[derive(Default)]
pub struct Faults(Mutex<BTreeMap<String, usize>>);

impl Faults {
    pub fn count(&self, name: String) {
        *self.0.lock().unwrap().entry(name).or_default() += 1;
    }

    pub fn all(&self) -> BTreeMap<String, usize> {
        self.0.lock().unwrap().clone()
    }
}

/// When to go on with the next fault, and when to stop.
pub struct Pace {
    pub is_over: Receiver<()>,
    pub random: StdRng,
    pub rest_ms: std::ops::Range<u64>,
}

impl Pace {
    /// Rests for a while; false if it is over.
    pub fn goes_on(&mut self) -> bool {
        let rest = Duration::from_millis(self.random.random_range(self.rest_ms.clone()));
        self.is_over.recv_timeout(rest) == Err(RecvTimeoutError::Timeout)
    }

    /// Whether it is over, without a rest.
    pub fn is_over(&self) -> bool {
        self.is_over.try_recv() != Err(TryRecvError::Empty)
    }
}
