//! How large the simulated world is at most.

pub const IDS: usize = 8;
pub const KEYS: usize = 5;

pub type Store = crate::under_test::store::Store<IDS, KEYS>;
