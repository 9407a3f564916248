//! Whether the next key of a constraint is likely to be taken, going by the last ones.
//!
//! Reserving finds out in one command that a key is free; that it is taken costs two more. Who expects that looks first, which
//! saves the write that would be refused. It is a guess about speed: right or wrong, the answer is the same.

use std::sync::atomic::{AtomicU16, Ordering};

/// What the last keys have shown: 0 where none was taken, [`u16::MAX`] where all were.
#[derive(Debug, Default)]
pub struct ConflictPredictor(AtomicU16);

/// Each key moves it by a part of what is left: so many of one kind turn it over, from one end to the middle, as
/// `WEIGHT * ln 2`.
const WEIGHT: u16 = 8;

impl ConflictPredictor {
    /// Takes note of one key: a document held it, or it was free.
    pub fn note(&self, is_taken: bool) {
        // Two at once may count as one: it is a guess.
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
