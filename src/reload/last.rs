//! Keeps the outcome of the last reload, for the admin pages.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use super::{Changes, ReloadError};
use crate::prepare::PrepareError;

/// The outcome of the last reload, which can be read at any time; clones share it.
#[derive(Debug, Clone, Default)]
pub struct LastReload {
    last: Arc<Mutex<Option<Value>>>,
}

impl LastReload {
    /// The outcome as JSON.
    pub fn last(&self) -> Value {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone().unwrap_or_else(|| json!({ "outcome": "none" }))
    }

    /// Notes that a reload has begun.
    pub fn begin(&self) {
        self.note(json!({ "outcome": "under way" }));
    }

    /// Notes that the configuration holds.
    pub fn applied(&self, generation: i64, changes: &Changes, left_out: &[String]) {
        self.note(json!({
            "outcome": "applied",
            "generation": generation,
            "constraintsAdded": changes.added,
            "constraintsWaiting": changes.waiting,
            "constraintsRemoved": changes.removed,
            "constraintsLeftOut": left_out,
            "needsRestart": changes.needs_restart,
        }));
    }

    /// Notes that the configuration was refused. The log has the documents' values, but not everybody who can reach the
    /// admin port may see them.
    pub fn refused(&self, generation: i64, error: &ReloadError) {
        let error = match error {
            ReloadError::Prepare(PrepareError::Duplicates(reports)) => reports.without_values(),
            error => error.to_string(),
        };
        self.note(json!({ "outcome": "refused", "generation": generation, "error": error }));
    }

    fn note(&self, outcome: Value) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    }
}
