//! Measures for how long the others' entries have been unchanged, by this process's own clock.

use std::collections::HashMap;
use std::time::Instant;

use bson::oid::ObjectId;

use super::RegisterEntry;

/// The time since which each entry is unchanged.
#[derive(Debug, Default)]
pub(super) struct EntryWatch {
    since: HashMap<ObjectId, (i64, bool, Instant)>,
}

impl EntryWatch {
    /// Takes note of `entries`, which were read before `now`; gives those whose Keyward is gone, with all that it sent.
    pub(super) fn gone<'e>(&mut self, entries: &'e [RegisterEntry], now: Instant) -> Vec<&'e RegisterEntry> {
        self.since.retain(|id, _| entries.iter().any(|entry| entry.id == *id));
        let mut gone = Vec::new();
        for entry in entries {
            let state = (entry.beat, entry.has_left);
            let since = self
                .since
                .entry(entry.id)
                .and_modify(|since| {
                    if (since.0, since.1) != state {
                        *since = (state.0, state.1, now);
                    }
                })
                .or_insert((state.0, state.1, now))
                .2;
            // A Keyward that has reported its end writes nothing more. Of any other, a strict constraint doesn't assume that.
            let enough = match (entry.has_left, entry.is_pinned) {
                (true, _) => entry.terms.aftermath,
                (false, false) => entry.terms.gone_after(),
                (false, true) => continue,
            };
            if now.saturating_duration_since(since) > enough {
                gone.push(entry);
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::EntryTerms;
    use super::*;

    #[test]
    fn a_keyward_is_gone_once_its_entry_was_unchanged_for_its_lease_and_the_aftermath() {
        let mut watch = EntryWatch::default();
        let mut entry = RegisterEntry::of_this_process(String::new(), EntryTerms::of(Duration::from_secs(600)));
        let begun = Instant::now();
        let mut is_gone = |entry: &RegisterEntry, after: Duration| {
            let entries = [entry.clone()];
            !watch.gone(&entries, begun + after).is_empty()
        };
        let (first, moment) = (Duration::from_secs(10), Duration::from_millis(1));
        let long = entry.terms.gone_after() + moment;
        assert!(!is_gone(&entry, Duration::ZERO));
        entry.beat += 1;
        assert!(!is_gone(&entry, first));
        assert!(!is_gone(&entry, long));
        assert!(is_gone(&entry, first + long));
        entry.is_pinned = true;
        assert!(
            !is_gone(&entry, first + 100 * long),
            "time proves nothing to a strict constraint"
        );
        entry.has_left = true;
        assert!(!is_gone(&entry, first + 101 * long), "it is another state");
        assert!(is_gone(&entry, first + 101 * long + entry.terms.aftermath + moment));
    }
}
