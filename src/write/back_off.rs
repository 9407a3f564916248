//! How long to leave what somebody else has in flight: longer each time, and never in step with others who wait.

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
    /// The next wait: 4 ms at most the first time, 250 ms in the end.
    pub fn next(&mut self) -> Duration {
        let wait = self.next.mul_f64(rand::random_range(0.5..1.0));
        self.next = LONGEST.min(self.next * 2);
        wait
    }
}
