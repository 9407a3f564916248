//! Decides whether this Keyward may write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Whether this Keyward may write: its entry can't have been removed. Clones share it; to ask costs an atomic load and a look at the clock.
///
/// It is asked when a command is decided, and again right before each part of it goes on that may take effect: in between
/// a write may have waited for longer than others wait for a Keyward that is gone.
#[derive(Debug, Clone)]
pub struct Permit {
    begun: Instant,
    /// Until when it holds, in milliseconds since `begun`.
    until: Arc<AtomicU64>,
}

impl Permit {
    /// A permit that doesn't hold yet.
    pub(super) fn withheld() -> Permit {
        Permit {
            begun: Instant::now(),
            until: Arc::default(),
        }
    }

    /// Whether this Keyward may write.
    pub fn holds(&self) -> bool {
        let passed = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        passed < self.until.load(Ordering::Acquire)
    }

    /// Makes it hold until then.
    pub(super) fn prolong(&self, until: Instant) {
        let until = until.saturating_duration_since(self.begun).as_millis();
        self.until
            .store(until.try_into().unwrap_or(u64::MAX), Ordering::Release);
    }

    /// Ends it at once.
    pub(super) fn withdraw(&self) {
        self.until.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_permit_holds_until_it_is_over_or_withdrawn() {
        let permit = Permit::withheld();
        let shared = permit.clone();
        assert!(!shared.holds());
        permit.prolong(Instant::now() + Duration::from_secs(60));
        assert!(shared.holds());
        permit.withdraw();
        assert!(!shared.holds());
        permit.prolong(permit.begun);
        assert!(!shared.holds(), "its time is over");
    }
}
