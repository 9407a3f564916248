//! How large the modelled world is.

pub const IDS: usize = 3;
pub const KEYS: usize = 2;

pub type Store = crate::under_test::store::Store<IDS, KEYS>;
