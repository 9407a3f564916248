//! Prepares commands that work on the deployment once and end: their constraints, and a client.

use std::sync::Arc;

use mongodb::Client;
use tokio::runtime::Runtime;

use super::failure::CliFailure;
use super::{ConfigFile, OneCollection};
use crate::client_constraints::{ClientConstraintStore, FoundList};
use crate::config::Config;
use crate::constraint::Constraint;
use crate::instance::StartError;
use crate::known_constraints;
use crate::metrics::Metrics;
use crate::prepare;
use crate::telemetry;
use crate::upstream::Upstream;

/// A command's configuration, and what to carry it out with.
pub(super) struct Task {
    pub config: Config,
    pub metrics: Metrics,
    pub runtime: Runtime,
    /// The collection that the command is about; none is all.
    only: Option<String>,
}

impl Task {
    pub(super) fn new(file: &ConfigFile, only: &OneCollection) -> Result<Task, CliFailure> {
        let config = Config::load(&file.config)?;
        telemetry::start(&config.log, None)?;
        Ok(Task {
            metrics: Metrics::new(&config.constraints),
            runtime: Runtime::new()?,
            only: only.collection.clone(),
            config,
        })
    }

    /// The constraints in the file that the command is about.
    pub(super) fn constraints_of_file(&self) -> Result<Vec<Arc<Constraint>>, CliFailure> {
        self.meant(self.config.constraints.clone())
    }

    /// The same, with those that clients made in the deployment of `client`.
    pub(super) async fn constraints(&self, client: &Client) -> Result<Vec<Arc<Constraint>>, CliFailure> {
        let found = ClientConstraintStore::of_deployment(client).await;
        let found = found.map_err(|error| StartError::Prepare(error.into()))?;
        if matches!(found, FoundList::Unreadable) {
            let hidden = known_constraints::defined_for_clients(client).await;
            let hidden = hidden.map_err(|error| StartError::Prepare(error.into()))?;
            if !hidden.is_empty() {
                return Err(CliFailure::Hidden(hidden));
            }
        }
        self.meant(found.into_parts().1.with(&self.config.constraints))
    }

    fn meant(&self, mut constraints: Vec<Arc<Constraint>>) -> Result<Vec<Arc<Constraint>>, CliFailure> {
        if let Some(name) = &self.only {
            constraints.retain(|constraint| constraint.namespace().to_string() == *name);
            if constraints.is_empty() {
                return Err(CliFailure::Collection(name.clone()));
            }
        }
        Ok(constraints)
    }

    /// Keyward's own client, once the deployment has answered it. The command doesn't wait for a deployment that is down.
    pub(super) async fn connect(&self) -> Result<Client, CliFailure> {
        let upstream = Upstream::new(self.config.upstream.uri())
            .await
            .map_err(StartError::from)?;
        let answered = upstream.reporting_silence(prepare::ping(upstream.client())).await;
        answered.map_err(|error| StartError::Prepare(error.into()))?;
        Ok(upstream.client().clone())
    }
}
