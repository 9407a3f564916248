//! Records whether clients should be sent here, and if not, why.
//!
//! Many parts of Keyward set it, and `/readyz` shows it. Ready means that no obstacle exists. Each part names its own obstacle and
//! removes only that one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A reason why clients should not be sent here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obstacle {
    /// The process is still starting.
    Startup,
    /// No server of the deployment that clients could be connected to answers.
    Upstream,
    /// The deployment doesn't carry out Keyward's own commands.
    Deployment,
    /// Keyward's own user lacks privileges that it needs.
    Privileges,
    /// This Keyward may be missing in the register of Keywards.
    Register,
    /// The process is stopping.
    Draining,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Startup => f.write_str("startup"),
            Obstacle::Upstream => f.write_str("upstream"),
            Obstacle::Deployment => f.write_str("deployment"),
            Obstacle::Privileges => f.write_str("privileges"),
            Obstacle::Register => f.write_str("register"),
            Obstacle::Draining => f.write_str("draining"),
        }
    }
}

/// The current obstacles, each with its reason; clones share them.
#[derive(Debug, Clone)]
pub struct Readiness {
    obstacles: Arc<Mutex<BTreeMap<Obstacle, String>>>,
    notes: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Readiness {
    /// Not ready: [`Obstacle::Startup`] exists from the beginning.
    pub fn starting() -> Self {
        let startup = (Obstacle::Startup, "starting".to_owned());
        Readiness {
            obstacles: Arc::new(Mutex::new(BTreeMap::from([startup]))),
            notes: Arc::default(),
        }
    }

    /// Adds `obstacle`, or gives it another reason.
    pub fn block(&self, obstacle: Obstacle, reason: impl Into<String>) {
        self.with(|obstacles| obstacles.insert(obstacle, reason.into()));
    }

    /// Removes `obstacle`, if it exists.
    pub fn unblock(&self, obstacle: &Obstacle) {
        self.with(|obstacles| obstacles.remove(obstacle));
    }

    /// The current obstacles; empty if clients are welcome.
    pub fn obstacles(&self) -> Vec<(Obstacle, String)> {
        self.with(|obstacles| obstacles.clone().into_iter().collect())
    }

    /// Adds the note `text` about `what`, which is no obstacle.
    pub fn note(&self, what: &str, text: String) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.insert(what.to_owned(), text);
    }

    /// Removes the note about `what`.
    pub fn forget_note(&self, what: &str) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).remove(what);
    }

    /// The notes, which are no obstacles: each names its constraint, and its text.
    pub fn notes(&self) -> Vec<(String, String)> {
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.clone().into_iter().collect()
    }

    fn with<T>(&self, change: impl FnOnce(&mut BTreeMap<Obstacle, String>) -> T) -> T {
        // A panic elsewhere leaves the map complete, because nothing here can panic midway.
        change(&mut self.obstacles.lock().unwrap_or_else(PoisonError::into_inner))
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
