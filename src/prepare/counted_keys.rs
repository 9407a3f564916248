//! Counts how often each key occurs, in bounded memory: the keys of one range of fingerprints in each reading of the
//! collection.
//!
//! If a range has more keys than fit, the range is halved, and its upper half waits for the next reading. So every key
//! is counted completely in one of the readings.

use std::collections::HashMap;

/// How many keys are counted in one reading: about 100 MB.
pub(super) const KEYS_AT_ONCE: usize = 3_500_000;

/// The keys of one range of fingerprints.
#[derive(Debug)]
pub(super) struct CountedKeys {
    counts: HashMap<u64, u64>,
    from: u64,
    through: u64,
    at_once: usize,
}

impl CountedKeys {
    /// The range that begins at the fingerprint `from`, with at most `at_once` keys.
    pub(super) fn starting_at(from: u64, at_once: usize) -> CountedKeys {
        CountedKeys {
            counts: HashMap::new(),
            from,
            through: u64::MAX,
            at_once,
        }
    }

    /// Counts a key, if it is in the range.
    pub(super) fn add(&mut self, fingerprint: u64) {
        if !(self.from..=self.through).contains(&fingerprint) {
            return;
        }
        *self.counts.entry(fingerprint).or_default() += 1;
        while self.counts.len() > self.at_once && self.from < self.through {
            self.through = self.from + (self.through - self.from) / 2;
            let through = self.through;
            self.counts.retain(|fingerprint, _| *fingerprint <= through);
        }
    }

    /// Where the next range begins; none after the last one.
    pub(super) fn next(&self) -> Option<u64> {
        self.through.checked_add(1)
    }

    /// The keys that occurred more than once, with their numbers.
    pub(super) fn repeated(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.counts.iter().map(|(fingerprint, count)| (*fingerprint, *count));
        counts.filter(|(_, count)| *count > 1)
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::seq::SliceRandom;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn each_key_is_counted_once_however_few_fit() {
        let mut random = StdRng::seed_from_u64(7);
        let mut keys = vec![0, 0, u64::MAX, u64::MAX, u64::MAX, 1];
        let mut expected = HashMap::from([(0, 2), (u64::MAX, 3)]);
        for _ in 0..500 {
            let (key, count) = (random.random::<u64>(), random.random_range(1..4));
            keys.extend(std::iter::repeat_n(key, count));
            if count > 1 {
                expected.insert(key, count as u64);
            }
        }
        for at_once in [1, 7, 100, 10_000] {
            keys.shuffle(&mut random);
            let (mut found, mut from, mut readings) = (HashMap::new(), Some(0), 0);
            while let Some(start) = from {
                let mut counted = CountedKeys::starting_at(start, at_once);
                keys.iter().for_each(|key| counted.add(*key));
                assert!(counted.counts.len() <= at_once);
                for (key, count) in counted.repeated() {
                    assert_eq!(found.insert(key, count), None, "{key} in two readings");
                }
                from = counted.next();
                readings += 1;
            }
            assert_eq!(found, expected, "{at_once} at once");
            assert!(readings == 1 || at_once < 10_000);
        }
    }
}
