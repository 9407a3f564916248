//! Remembers which constraints are enforced, as far as this Keyward knows.

use std::collections::HashSet;
use std::sync::{PoisonError, RwLock};

use crate::constraint::Constraint;
use crate::metrics::constraint_label;

/// The constraints that are enforced: every document is reserved, and every Keyward that may write reserves.
#[derive(Debug, Default)]
pub struct Enforced(RwLock<HashSet<String>>);

impl Enforced {
    /// Notes whether `constraint` is enforced.
    pub fn note(&self, constraint: &Constraint, is_enforced: bool) {
        let label = constraint_label(constraint);
        let mut enforced = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match is_enforced {
            true => enforced.insert(label),
            false => enforced.remove(&label),
        };
    }

    /// Whether `constraint` is enforced.
    pub fn has(&self, constraint: &Constraint) -> bool {
        let enforced = self.0.read().unwrap_or_else(PoisonError::into_inner);
        enforced.contains(&constraint_label(constraint))
    }
}
