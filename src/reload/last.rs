//! Keeps which configuration holds, and the outcome of the last reload, for the admin pages.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use serde_json::{Value, json};

use super::{Changes, ReloadError};
use crate::prepare::PrepareError;

/// The configuration that holds, and the outcome of the last reload; both can be read at any time, and clones share them.
#[derive(Debug, Clone, Default)]
pub struct LastReload {
    shared: Arc<Mutex<Outcomes>>,
}

#[derive(Debug)]
struct Outcomes {
    last: Option<Value>,
    holding: HoldingConfiguration,
}

/// The state of the configuration that holds.
#[derive(Debug, Clone)]
pub struct HoldingConfiguration {
    /// When it was loaded.
    pub loaded_at: SystemTime,
    /// When a later one was refused, and why.
    pub refused: Option<(SystemTime, String)>,
    /// The settings that differ in the file, but stay unchanged until the next start.
    pub needs_restart: Vec<&'static str>,
}

impl Default for Outcomes {
    fn default() -> Outcomes {
        Outcomes {
            last: None,
            holding: HoldingConfiguration {
                loaded_at: SystemTime::now(),
                refused: None,
                needs_restart: Vec::new(),
            },
        }
    }
}

impl LastReload {
    /// The outcome as JSON.
    pub fn last(&self) -> Value {
        let last = self.with(|outcomes| outcomes.last.clone());
        last.unwrap_or_else(|| json!({ "outcome": "none" }))
    }

    /// The configuration that holds.
    pub fn holding(&self) -> HoldingConfiguration {
        self.with(|outcomes| outcomes.holding.clone())
    }

    /// The same as JSON.
    pub fn configuration(&self) -> Value {
        let holding = self.holding();
        let at = |time: SystemTime| humantime::format_rfc3339_seconds(time).to_string();
        let refused = holding.refused;
        json!({
            "loadedAt": at(holding.loaded_at),
            "refused": refused.map(|(time, error)| json!({ "at": at(time), "error": error })),
            "needsRestart": holding.needs_restart,
        })
    }

    /// Notes that a reload has begun.
    pub fn begin(&self) {
        self.with(|outcomes| outcomes.last = Some(json!({ "outcome": "under way" })));
    }

    /// Notes that the configuration holds.
    pub fn applied(&self, generation: i64, changes: &Changes, left_out: &[String]) {
        let outcome = json!({
            "outcome": "applied",
            "generation": generation,
            "constraintsAdded": changes.added,
            "constraintsWaiting": changes.waiting,
            "constraintsRemoved": changes.removed,
            "constraintsLeftOut": left_out,
            "needsRestart": changes.needs_restart,
        });
        self.with(|outcomes| {
            outcomes.last = Some(outcome);
            outcomes.holding = HoldingConfiguration {
                loaded_at: SystemTime::now(),
                refused: None,
                needs_restart: changes.needs_restart.clone(),
            };
        });
    }

    /// Notes that the configuration was refused. The log has the documents' values, but clients of the admin port may not
    /// see them.
    pub fn refused(&self, generation: i64, error: &ReloadError) {
        let error = match error {
            ReloadError::Prepare(PrepareError::Duplicates(reports)) => reports.without_values(),
            error => error.to_string(),
        };
        let outcome = json!({ "outcome": "refused", "generation": generation, "error": error });
        self.with(|outcomes| {
            outcomes.last = Some(outcome);
            outcomes.holding.refused = Some((SystemTime::now(), error));
        });
    }

    fn with<T>(&self, change: impl FnOnce(&mut Outcomes) -> T) -> T {
        change(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
