//! Prepares commands that work on the deployment once and end: their constraints, and a client.

use std::sync::Arc;

use mongodb::Client;
use tokio::runtime::Runtime;

use super::failure::CliFailure;
use super::{ConfigFile, OneCollection};
use crate::client_constraints::{ClientConstraintStore, FoundList};
use crate::config::Config;
use crate::constraint::{Constraint, ConstraintName};
use crate::instance::StartError;
use crate::known_constraints;
use crate::metrics::Metrics;
use crate::prepare;
use crate::proxy_collection::StoreError;
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

    /// The same, with those that clients made in the deployment of `client`. Also returns clients' constraints that the command is about, and
    /// that the user may not read.
    pub(super) async fn constraints(
        &self,
        client: &Client,
    ) -> Result<(Vec<Arc<Constraint>>, Vec<ConstraintName>), CliFailure> {
        let of_store = |error: StoreError| StartError::Prepare(error.into());
        let found = ClientConstraintStore::of_deployment(client).await.map_err(of_store)?;
        let mut unreadable = match found {
            FoundList::Unreadable => known_constraints::defined_for_clients(client).await.map_err(of_store)?,
            FoundList::There(..) | FoundList::None => Vec::new(),
        };
        unreadable.retain(|hidden| {
            let is_it = |one: &Arc<Constraint>| one.is_named(&hidden.namespace, &hidden.name);
            let is_meant = self
                .only
                .as_ref()
                .is_none_or(|only| *only == hidden.namespace.to_string());
            is_meant && !self.config.constraints.iter().any(is_it)
        });
        let all = found.into_parts().1.with(&self.config.constraints);
        let constraints = match self.meant(all) {
            Err(CliFailure::Collection(_)) if !unreadable.is_empty() => Vec::new(),
            meant => meant?,
        };
        Ok((constraints, unreadable))
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
