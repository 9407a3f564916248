//! Prepares commands that work on the deployment once and end: their constraints, and a client.

use std::sync::Arc;

use mongodb::Client;
use tokio::runtime::Runtime;

use super::failure::CliFailure;
use super::{ConfigFile, OneCollection};
use crate::config::Config;
use crate::constraint::Constraint;
use crate::instance::StartError;
use crate::metrics::Metrics;
use crate::prepare;
use crate::telemetry;
use crate::upstream::Upstream;

/// A command's configuration, and what to carry it out with.
pub(super) struct Task {
    pub config: Config,
    /// Those that the command is about.
    pub constraints: Vec<Arc<Constraint>>,
    pub metrics: Metrics,
    pub runtime: Runtime,
}

impl Task {
    pub(super) fn new(file: &ConfigFile, only: &OneCollection) -> Result<Task, CliFailure> {
        let config = Config::load(&file.config)?;
        let mut constraints = config.constraints.clone();
        if let Some(name) = &only.collection {
            constraints.retain(|constraint| constraint.namespace().to_string() == *name);
            if constraints.is_empty() {
                return Err(CliFailure::Collection(name.clone()));
            }
        }
        telemetry::start(&config.log, None)?;
        Ok(Task {
            metrics: Metrics::new(&constraints),
            runtime: Runtime::new()?,
            constraints,
            config,
        })
    }

    /// Keyward's own client, once the deployment has answered it. Nobody is there to wait for one that doesn't.
    pub(super) async fn connect(&self) -> Result<Client, CliFailure> {
        let upstream = Upstream::new(self.config.upstream.uri())
            .await
            .map_err(StartError::from)?;
        let answered = upstream.reporting_silence(prepare::ping(upstream.client())).await;
        answered.map_err(|error| StartError::Prepare(error.into()))?;
        Ok(upstream.client().clone())
    }
}
