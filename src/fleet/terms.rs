//! Defines how long an entry vouches for its Keyward, and how long others wait for one that is gone.
//!
//! Each Keyward computes its own terms, and its entry states them: others go by what the entry says, never by what they
//! would use themselves. So no two configurations can contradict each other, and none can make a term too short.

use std::time::Duration;

use crate::haste::{self, hastened};
use crate::write::TRANSACTION_LIFE;

/// How long a Keyward may write after it sent the last renewal of its entry that succeeded.
const LEASE: Duration = Duration::from_secs(30);
/// How many renewals fit into a lease.
const RENEWALS: u32 = 10;

/// The terms of one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryTerms {
    /// How long the Keyward may write after a renewal.
    pub lease: Duration,
    /// How long what it has sent may take to be done or undone, once it sends nothing more.
    pub aftermath: Duration,
}

impl EntryTerms {
    /// The terms of a Keyward whose reservations have this `lease`. The server may be at work on its writes for that long.
    pub fn of(lease: Duration) -> EntryTerms {
        EntryTerms {
            lease: LEASE,
            aftermath: TRANSACTION_LIFE.max(lease),
        }
    }

    /// The same terms, shorter if a test asks for it.
    #[must_use]
    pub fn hastened(self) -> EntryTerms {
        EntryTerms {
            lease: hastened(self.lease, haste::REGISTER),
            aftermath: hastened(self.aftermath, haste::REGISTER),
        }
    }

    /// How long to leave it between two renewals.
    pub fn renewal(self) -> Duration {
        self.lease / RENEWALS
    }

    /// How long an entry must have been seen unchanged before its Keyward is taken for gone, with all that it sent.
    pub fn gone_after(self) -> Duration {
        self.lease + self.aftermath
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_wait_until_a_write_with_a_long_lease_is_over_too() {
        let [short, long] = [1, 600].map(|seconds| EntryTerms::of(Duration::from_secs(seconds)));
        assert_eq!(short.gone_after(), Duration::from_secs(125));
        assert_eq!(long.gone_after(), Duration::from_secs(630));
        assert_eq!(short.renewal(), Duration::from_secs(3));
    }
}
