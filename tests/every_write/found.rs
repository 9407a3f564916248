//! Sequences that once differed.
