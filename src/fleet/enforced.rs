//! Remembers which constraints are enforced, as far as this Keyward knows.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use crate::constraint::Constraint;
use crate::metrics::constraint_label;

/// How long reads rely on the states of the constraints without another successful read of them. Meanwhile another Keyward may have
/// begun to write without a constraint.
const FRESH: Duration = Duration::from_secs(10);

/// The constraints that are enforced: every document is reserved, and every Keyward that may write reserves.
#[derive(Debug, Default)]
pub struct Enforced(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The label of each enforced constraint, with the number of the note that says so.
    enforced: HashMap<String, u64>,
    /// How many notes there were.
    notes: u64,
    /// When the last successful read of the states was sent.
    read_at: Option<Instant>,
}

/// A read of the constraints' states, from the moment before it is sent.
#[derive(Debug, Clone, Copy)]
pub struct StatesRead {
    sent: Instant,
    notes: u64,
}

impl Enforced {
    /// Notes whether `constraint` is enforced. It shows that before another note about it.
    pub fn note(&self, constraint: &Constraint, is_enforced: bool, show: impl FnOnce()) {
        let label = constraint_label(constraint);
        let mut known = self.write();
        known.notes += 1;
        let number = known.notes;
        match is_enforced {
            true => known.enforced.insert(label, number),
            false => known.enforced.remove(&label),
        };
        show();
    }

    /// Begins a read of the constraints' states.
    pub fn begin_read(&self) -> StatesRead {
        StatesRead {
            sent: Instant::now(),
            notes: self.read().notes,
        }
    }

    /// Notes that the `read` was successful.
    pub fn end_read(&self, read: StatesRead) {
        self.write().read_at = Some(read.sent);
    }

    /// Notes that `constraint` is not enforced, as the `read` shows, and shows that. If a note after the beginning of the read says
    /// that it is, the read may be older: then the next one decides.
    pub fn revoke(&self, constraint: &Constraint, read: StatesRead, show: impl FnOnce()) {
        let label = constraint_label(constraint);
        let mut known = self.write();
        if known.enforced.get(&label).is_some_and(|number| *number <= read.notes) {
            known.enforced.remove(&label);
            show();
        }
    }

    /// Whether `constraint` is enforced, as the last note says.
    pub fn has(&self, constraint: &Constraint) -> bool {
        self.read().enforced.contains_key(&constraint_label(constraint))
    }

    /// The same, if a successful read of the states is recent enough to rely on that.
    pub fn has_lately(&self, constraint: &Constraint) -> bool {
        let known = self.read();
        known.read_at.is_some_and(|at| at.elapsed() < FRESH)
            && known.enforced.contains_key(&constraint_label(constraint))
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;
    use crate::constraint::IndexSpec;
    use crate::namespace::Namespace;

    fn constraint() -> Constraint {
        let spec = IndexSpec {
            key: doc! { "email": 1 },
            ..IndexSpec::default()
        };
        Constraint::new(Namespace::new("shop", "users"), spec).unwrap()
    }

    #[test]
    fn reads_rely_only_on_states_that_were_read_lately() {
        let (enforced, constraint) = (Enforced::default(), constraint());
        enforced.note(&constraint, true, || ());
        assert!(enforced.has(&constraint) && !enforced.has_lately(&constraint));
        let read = enforced.begin_read();
        enforced.end_read(read);
        assert!(enforced.has_lately(&constraint));
        let Some(sent) = read.sent.checked_sub(FRESH) else {
            return;
        };
        enforced.end_read(StatesRead { sent, ..read });
        assert!(enforced.has(&constraint) && !enforced.has_lately(&constraint));
    }

    #[test]
    fn a_read_that_began_before_the_constraint_was_enforced_revokes_nothing() {
        let (enforced, constraint) = (Enforced::default(), constraint());
        let early = enforced.begin_read();
        enforced.note(&constraint, true, || ());
        enforced.revoke(&constraint, early, || panic!("it is enforced"));
        assert!(enforced.has(&constraint));
        let mut is_shown = false;
        enforced.revoke(&constraint, enforced.begin_read(), || is_shown = true);
        assert!(is_shown && !enforced.has(&constraint));
    }
}
