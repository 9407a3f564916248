//! Computes the waits for other attempts' writes in flight: each is longer than the last, and random, so that waiting clients
//! don't retry in step.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(4);
const LONGEST: Duration = Duration::from_millis(250);

/// The waits of one command.
#[derive(Debug)]
pub struct BackOff {
    next: Duration,
}

impl Default for BackOff {
    fn default() -> Self {
        BackOff { next: FIRST }
    }
}

impl BackOff {
    /// The next wait: at most 4 ms the first time, at most 250 ms in the end.
    pub fn next(&mut self) -> Duration {
        let wait = self.next.mul_f64(rand::random_range(0.5..1.0));
        self.next = LONGEST.min(self.next * 2);
        wait
    }
}
