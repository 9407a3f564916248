//! Guesses from a constraint's last keys whether its next key is taken.
//!
//! If a key is free, Keyward learns so with one command, by reserving it. If the key is taken, that costs two commands more.
//! So if Keyward expects a taken key, it reads first and saves the insert that would be refused. The guess affects speed
//! only: right or wrong, the answer is the same.

use std::sync::atomic::{AtomicU16, Ordering};

/// The recent share of taken keys: 0 if none was taken, [`u16::MAX`] if all were.
#[derive(Debug, Default)]
pub struct ConflictPredictor(AtomicU16);

/// Each key moves the value by this part of the remaining way: one eighth. About `WEIGHT * ln 2` keys of one kind move it
/// from one end to the middle.
const WEIGHT: u16 = 8;

impl ConflictPredictor {
    /// Notes one key: a document held it, or it was free.
    pub fn note(&self, is_taken: bool) {
        // Two concurrent notes may count as one, which is good enough for a guess.
        let before = self.0.load(Ordering::Relaxed);
        let after = match is_taken {
            true => before + (u16::MAX - before) / WEIGHT,
            false => before - before / WEIGHT,
        };
        if after != before {
            self.0.store(after, Ordering::Relaxed);
        }
    }

    /// Whether most of the last keys were taken.
    pub fn is_likely_taken(&self) -> bool {
        self.0.load(Ordering::Relaxed) > u16::MAX / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_the_last_keys() {
        let conflict_predictor = ConflictPredictor::default();
        assert!(!conflict_predictor.is_likely_taken());
        let after = |is_taken| {
            let notes = (1..=100).find(|_| {
                conflict_predictor.note(is_taken);
                conflict_predictor.is_likely_taken() == is_taken
            });
            notes.unwrap()
        };
        assert_eq!([after(true), after(false)], [6, 1]);
        (0..1_000).for_each(|_| conflict_predictor.note(true));
        assert_eq!(after(false), 6);
    }
}
