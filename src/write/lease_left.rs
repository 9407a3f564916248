//! Computes the time limit of a write: it must end before the lease of its keys does.
//!
//! A `mongos` counts a time limit from the moment it reads the command. It may then wait for a connection to a shard, for as long as the
//! limit, and still hand the whole limit on. So a write through it may take twice its limit.

use std::time::Duration;

use tokio::time::Instant;

/// Keyward forwards a write only if at least this part of the lease is left.
const LEFT_MIN: f64 = 0.4;
/// Keyward keeps this part of the lease back for the write's way to the server: a forwarded write may not use it.
const KEPT_BACK: f64 = 0.1;
/// How many times its limit a write through a router may take.
const LIMITS_OF_ROUTER: u32 = 2;

/// The rest of the lease of keys.
#[derive(Debug, Clone, Copy)]
pub struct LeaseLeft {
    lease: Duration,
    since: Option<Instant>,
    may_be_routed: bool,
}

impl LeaseLeft {
    /// For keys whose first reservation was made at `since` at the earliest; `None` if no key was reserved. `may_be_routed` is whether
    /// a router may be at the other end of the write's connection.
    pub fn new(lease: Duration, since: Option<Instant>, may_be_routed: bool) -> LeaseLeft {
        LeaseLeft {
            lease,
            since,
            may_be_routed,
        }
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
        let in_lease = match self.may_be_routed {
            true => in_lease / LIMITS_OF_ROUTER,
            false => in_lease,
        };
        let time = match deadline {
            Some(deadline) => in_lease.min(deadline.saturating_duration_since(Instant::now())),
            None => in_lease,
        };
        (time >= Duration::from_millis(1)).then_some(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(1_000);

    /// The limit in seconds, for keys that were reserved 300 seconds ago. The test itself takes part of a second.
    fn limit(may_be_routed: bool, clients: Option<Duration>) -> f64 {
        let now = Instant::now();
        let since = now - Duration::from_secs(300);
        let left = LeaseLeft::new(LEASE, Some(since), may_be_routed);
        let limit = left.time_to_write(clients.map(|limit| now + limit));
        limit.expect("time is left").as_secs_f64()
    }

    #[test]
    fn a_router_may_take_the_limit_twice_within_the_lease() {
        assert!((590.0..=600.0).contains(&limit(false, None)));
        assert!((290.0..=300.0).contains(&limit(true, None)));
    }

    #[test]
    fn the_clients_own_limit_counts_whole() {
        let clients = |seconds| Some(Duration::from_secs(seconds));
        assert!((190.0..=200.0).contains(&limit(true, clients(200))));
        assert!((290.0..=300.0).contains(&limit(true, clients(400))));
    }
}
