//! Tracks for how long changes have waited for this Keyward's audits.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::namespace::Namespace;

/// The audits of this Keyward, as an operator sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenAudits {
    /// The number of collections that this Keyward audits. Other Keywards audit the others.
    pub collections: usize,
    /// The longest time for which one of them has had changes that aren't audited.
    pub behind: Duration,
}

/// How far the collections are audited that this Keyward audits.
#[derive(Debug, Default)]
pub(super) struct AuditProgress(HashMap<Namespace, CollectionProgress>);

/// How far one collection is audited.
#[derive(Debug)]
struct CollectionProgress {
    /// When every change was audited last; at first, when the audit began.
    caught_up: Instant,
    /// Whether the audit was broken off, and isn't as far again as it was.
    is_broken_off: bool,
}

impl AuditProgress {
    /// Notes that this Keyward audits the collection from now on, unless it has done so before and isn't through.
    pub(super) fn note_begun(&mut self, namespace: &Namespace, now: Instant) {
        self.of(namespace, now);
    }

    /// Notes that the audit of the collection was broken off, or can't begin. It is behind until it is as far again.
    pub(super) fn note_broken_off(&mut self, namespace: &Namespace, now: Instant) {
        self.of(namespace, now).is_broken_off = true;
    }

    /// Notes that every change of the collection until then is audited. If `is_compared`, that includes the changes before the audit began.
    ///
    /// An audit that was broken off may begin anew with a comparison of all documents. Its changes alone prove nothing until then.
    pub(super) fn note_caught_up(&mut self, namespace: &Namespace, is_compared: bool, until: Instant) {
        let progress = self.of(namespace, until);
        if is_compared || !progress.is_broken_off {
            *progress = CollectionProgress {
                caught_up: progress.caught_up.max(until),
                is_broken_off: false,
            };
        }
    }

    /// Notes that this Keyward doesn't audit the collection any more.
    pub(super) fn forget(&mut self, namespace: &Namespace) {
        self.0.remove(namespace);
    }

    /// How far this Keyward's audits have come.
    pub(super) fn seen(&self, now: Instant) -> SeenAudits {
        let behind = self.0.values().map(|progress| now - progress.caught_up);
        SeenAudits {
            collections: self.0.len(),
            behind: behind.max().unwrap_or_default(),
        }
    }

    fn of(&mut self, namespace: &Namespace, now: Instant) -> &mut CollectionProgress {
        self.0.entry(namespace.clone()).or_insert(CollectionProgress {
            caught_up: now,
            is_broken_off: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_audit_that_fails_again_and_again_is_behind_since_its_last_success() {
        let (users, begun) = (Namespace::new("shop", "users"), Instant::now());
        let mut progress = AuditProgress::default();
        assert_eq!(progress.seen(begun).behind, Duration::ZERO);
        progress.note_begun(&users, begun);
        progress.note_caught_up(&users, false, begun + SECOND);
        for second in 2..10 {
            progress.note_broken_off(&users, begun + second * SECOND);
            progress.note_begun(&users, begun + second * SECOND);
            // It has compared only some of the documents.
            progress.note_caught_up(&users, false, begun + second * SECOND);
        }
        assert_eq!(progress.seen(begun + 10 * SECOND).behind, 9 * SECOND);
        progress.note_caught_up(&users, true, begun + 11 * SECOND);
        assert_eq!(progress.seen(begun + 11 * SECOND).behind, Duration::ZERO);
        progress.note_caught_up(&users, false, begun + 12 * SECOND);
        assert_eq!(progress.seen(begun + 14 * SECOND).behind, 2 * SECOND);
        // The cluster's clock may leap.
        progress.note_caught_up(&users, false, begun + 3 * SECOND);
        assert_eq!(progress.seen(begun + 14 * SECOND).behind, 2 * SECOND);
    }

    #[test]
    fn an_audit_that_cannot_begin_is_behind_until_another_keyward_has_its_turn() {
        let (users, now) = (Namespace::new("shop", "users"), Instant::now());
        let mut progress = AuditProgress::default();
        progress.note_broken_off(&users, now);
        assert_eq!(progress.seen(now + SECOND).behind, SECOND);
        assert_eq!(progress.seen(now).collections, 1);
        progress.forget(&users);
        let none = SeenAudits {
            collections: 0,
            behind: Duration::ZERO,
        };
        assert_eq!(progress.seen(now + SECOND), none);
    }
}
