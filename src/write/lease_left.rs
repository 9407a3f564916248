//! How much of a lease is left for a write: it must end before the lease of its keys does.

use std::time::Duration;

use tokio::time::Instant;

/// A write is forwarded only with at least this part of the lease left for it.
const LEFT_MIN: f64 = 0.4;
/// This part of the lease is kept back from what a forwarded write may take: for its way to the server.
const KEPT_BACK: f64 = 0.1;

/// The rest of the lease of keys.
#[derive(Debug, Clone, Copy)]
pub struct LeaseLeft {
    lease: Duration,
    since: Option<Instant>,
}

impl LeaseLeft {
    /// For keys of which the first can have been reserved at `since` at the earliest, if any was.
    pub fn new(lease: Duration, since: Option<Instant>) -> LeaseLeft {
        LeaseLeft { lease, since }
    }

    /// Whether the keys had better be claimed anew.
    pub fn is_too_little(self) -> bool {
        let latest = self.lease.mul_f64(1.0 - LEFT_MIN);
        self.since.is_some_and(|since| since.elapsed() > latest)
    }

    /// How long a write may take that has to end by `deadline`, too; `None` if there is no time any more.
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
