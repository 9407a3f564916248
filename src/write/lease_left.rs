//! Computes the time limit of a write: it must end before the lease of its keys does.

use std::time::Duration;

use tokio::time::Instant;

/// Keyward forwards a write only if at least this part of the lease is left.
const LEFT_MIN: f64 = 0.4;
/// Keyward keeps this part of the lease back for the write's way to the server: a forwarded write may not use it.
const KEPT_BACK: f64 = 0.1;

/// The rest of the lease of keys.
#[derive(Debug, Clone, Copy)]
pub struct LeaseLeft {
    lease: Duration,
    since: Option<Instant>,
}

impl LeaseLeft {
    /// For keys whose first reservation was made at `since` at the earliest; `None` if no key was reserved.
    pub fn new(lease: Duration, since: Option<Instant>) -> LeaseLeft {
        LeaseLeft { lease, since }
    }

    /// Whether Keyward should claim the keys anew.
    pub fn is_too_little(self) -> bool {
        let latest = self.lease.mul_f64(1.0 - LEFT_MIN);
        self.since.is_some_and(|since| since.elapsed() > latest)
    }

    /// The time that a write with this `deadline` may take; `None` if there is no time left.
    pub fn time_to_write(self, deadline: Option<Instant>) -> Option<Duration> {
        let usable = self.lease.mul_f64(1.0 - KEPT_BACK);
        let in_lease = self
            .since
            .map_or(usable, |since| usable.saturating_sub(since.elapsed()));
        let time = match deadline {
            Some(deadline) => in_lease.min(deadline.saturating_duration_since(Instant::now())),
            None => in_lease,
        };
        (time >= Duration::from_millis(1)).then_some(time)
    }
}
