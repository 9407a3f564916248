//! Whether clients should be sent here, and if not, why: a small state that many parts set and `/readyz` shows.
//!
//! Ready means that nothing stands in the way; each part names its own obstacle and takes only that one away.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// What stands in the way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obstacle {
    /// The process is still starting.
    Startup,
    /// The deployment can't be reached, or doesn't let Keyward in.
    Upstream,
    /// Keyward's own user may not do what it must.
    Privileges,
    /// The register of Keywards may not have this one any more.
    Register,
    /// The process has been told to stop.
    Draining,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Startup => f.write_str("startup"),
            Obstacle::Upstream => f.write_str("upstream"),
            Obstacle::Privileges => f.write_str("privileges"),
            Obstacle::Register => f.write_str("register"),
            Obstacle::Draining => f.write_str("draining"),
        }
    }
}

/// The obstacles there are, each with its reason; clones share them.
#[derive(Debug, Clone)]
pub struct Readiness {
    obstacles: Arc<Mutex<BTreeMap<Obstacle, String>>>,
    notes: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Readiness {
    /// Not ready: [`Obstacle::Startup`] is there from the beginning.
    pub fn starting() -> Self {
        let startup = (Obstacle::Startup, "starting".to_owned());
        Readiness {
            obstacles: Arc::new(Mutex::new(BTreeMap::from([startup]))),
            notes: Arc::default(),
        }
    }

    /// Puts `obstacle` in the way, or gives it another reason.
    pub fn block(&self, obstacle: Obstacle, reason: impl Into<String>) {
        self.with(|obstacles| obstacles.insert(obstacle, reason.into()));
    }

    /// Takes `obstacle` away, if it is there.
    pub fn unblock(&self, obstacle: &Obstacle) {
        self.with(|obstacles| obstacles.remove(obstacle));
    }

    /// What stands in the way now; empty if clients are welcome.
    pub fn obstacles(&self) -> Vec<(Obstacle, String)> {
        self.with(|obstacles| obstacles.clone().into_iter().collect())
    }

    /// Says `text` of `what`, which stands in nobody's way.
    pub fn note(&self, what: &str, text: String) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.insert(what.to_owned(), text);
    }

    /// Says nothing of `what` any more.
    pub fn forget_note(&self, what: &str) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).remove(what);
    }

    /// What is said though it stands in nobody's way: of which constraint, and what.
    pub fn notes(&self) -> Vec<(String, String)> {
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.clone().into_iter().collect()
    }

    fn with<T>(&self, look: impl FnOnce(&mut BTreeMap<Obstacle, String>) -> T) -> T {
        // A panic elsewhere leaves the map whole: nothing here can panic midway.
        look(&mut self.obstacles.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_means_that_every_obstacle_is_gone() {
        let readiness = Readiness::starting();
        let elsewhere = readiness.clone();
        elsewhere.block(Obstacle::Upstream, "connection refused");
        readiness.unblock(&Obstacle::Startup);
        assert_eq!(
            readiness.obstacles(),
            [(Obstacle::Upstream, "connection refused".to_owned())]
        );
        elsewhere.unblock(&Obstacle::Upstream);
        assert!(readiness.obstacles().is_empty());
    }
}
