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
/// The part of the lease that is kept back besides for a large write, whose sending takes longer.
const KEPT_BACK_FOR_LARGE: f64 = 0.2;
/// From which size on a write is large, in bytes.
const LARGE: usize = 1 << 20;
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

    /// The time that a write of so many `bytes`, with this `deadline`, may take; `None` if there is no time left.
    pub fn time_to_write(self, bytes: usize, deadline: Option<Instant>) -> Option<WriteTime> {
        let mut sending = self.lease.mul_f64(KEPT_BACK);
        let elapsed = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        let mut in_lease = self.lease.saturating_sub(sending).saturating_sub(elapsed);
        let more = self.lease.mul_f64(KEPT_BACK_FOR_LARGE);
        if bytes >= LARGE && in_lease > more * 2 {
            sending += more;
            in_lease -= more;
        }
        if self.may_be_routed {
            in_lease /= LIMITS_OF_ROUTER;
        }
        let limit = match deadline {
            Some(deadline) => in_lease.min(deadline.saturating_duration_since(Instant::now())),
            None => in_lease,
        };
        (limit >= Duration::from_millis(1)).then_some(WriteTime { limit, sending })
    }
}

/// The time that a write may take, so that it ends within the lease of its keys.
#[derive(Debug, Clone, Copy)]
pub struct WriteTime {
    /// The server's limit, which counts from when the server has read the command.
    pub limit: Duration,
    /// For how long Keyward may send the command.
    pub sending: Duration,
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
        let time = left.time_to_write(1, clients.map(|limit| now + limit));
        time.expect("time is left").limit.as_secs_f64()
    }

    #[test]
    fn a_router_may_take_the_limit_twice_within_the_lease() {
        assert!((590.0..=600.0).contains(&limit(false, None)));
        assert!((290.0..=300.0).contains(&limit(true, None)));
    }

    /// However late it begins, and however long sending it takes.
    #[test]
    fn a_write_ends_within_the_lease() {
        for (bytes, elapsed) in [
            (1, 0),
            (1, 600),
            (LARGE, 0),
            (LARGE, 300),
            (LARGE, 600),
            (16 * LARGE, 890),
        ] {
            for (may_be_routed, limits) in [(true, 2), (false, 1)] {
                let since = Instant::now() - Duration::from_secs(elapsed);
                let time = LeaseLeft::new(LEASE, Some(since), may_be_routed).time_to_write(bytes, None);
                let time = time.expect("time is left");
                let end = Duration::from_secs(elapsed) + time.sending + time.limit * limits;
                assert!(end <= LEASE, "{bytes} bytes after {elapsed} s end after {end:?}");
                let is_longer = time.sending > LEASE.mul_f64(KEPT_BACK);
                assert_eq!(is_longer, bytes >= LARGE && elapsed <= 300);
            }
        }
    }

    #[test]
    fn the_clients_own_limit_counts_whole() {
        let clients = |seconds| Some(Duration::from_secs(seconds));
        assert!((190.0..=200.0).contains(&limit(true, clients(200))));
        assert!((290.0..=300.0).contains(&limit(true, clients(400))));
    }
}
