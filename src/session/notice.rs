//! Delivers to a session the events that are no messages, such as a drain or another catalog.
//!
//! One future waits for all of them. The session polls the same future until an event happens, so a message costs no registration.

use mongodb::options::ServerAddress;
use tokio::sync::watch;

use super::drain::{Drain, Stage, draining};
use crate::upstream::{Targets, Upstream};
use crate::write::CatalogEpoch;

/// The event.
#[derive(Debug, Clone)]
pub enum Notice {
    /// Clients are to be sent away; `None` if the whole program is at its end.
    Draining(Option<Drain>),
    /// The server at the other end isn't the primary any more.
    Deposed,
    /// New connections go to another server than this one does.
    AnotherServer,
    /// Another catalog decides from now on.
    CatalogEpoch(CatalogEpoch),
}

/// The sources of the notices.
#[derive(Debug)]
pub struct Notices {
    stage: Option<watch::Receiver<Stage>>,
    targets: Option<watch::Receiver<Targets>>,
    chosen: Option<watch::Receiver<Option<ServerAddress>>>,
    address: ServerAddress,
    epochs: watch::Receiver<CatalogEpoch>,
}

impl Notices {
    /// The notices for the session whose connection to `upstream` goes to `address`.
    pub fn new(
        stage: watch::Receiver<Stage>,
        upstream: &Upstream,
        address: ServerAddress,
        epochs: watch::Receiver<CatalogEpoch>,
    ) -> Notices {
        let targets = upstream.targets();
        // One of the two decides how long the connection is of use. Each that is waited for costs something for every message.
        let follows_primary = targets.borrow().follows_primary();
        Notices {
            stage: Some(stage),
            targets: follows_primary.then_some(targets),
            chosen: (!follows_primary).then(|| upstream.chosen()),
            address,
            epochs,
        }
    }

    /// Waits for the next one. Draining, deposition and another server come once.
    pub async fn next(mut self) -> (Notice, Notices) {
        let notice = tokio::select! {
            biased;
            drain = stopping(&mut self.stage) => {
                self.stage = None;
                Notice::Draining(drain)
            }
            () = deposed(&mut self.targets, &self.address) => {
                self.targets = None;
                Notice::Deposed
            }
            () = another(&mut self.chosen, &self.address) => {
                self.chosen = None;
                Notice::AnotherServer
            }
            epoch = epoch(&mut self.epochs) => Notice::CatalogEpoch(epoch),
        };
        (notice, self)
    }
}

async fn stopping(stage: &mut Option<watch::Receiver<Stage>>) -> Option<Drain> {
    match stage {
        Some(stage) => draining(stage).await,
        None => std::future::pending().await,
    }
}

async fn deposed(targets: &mut Option<watch::Receiver<Targets>>, address: &ServerAddress) {
    match targets {
        Some(targets) => drop(targets.wait_for(|targets| targets.has_moved_from(address)).await),
        None => std::future::pending().await,
    }
}

async fn another(chosen: &mut Option<watch::Receiver<Option<ServerAddress>>>, address: &ServerAddress) {
    let is_another = |chosen: &Option<ServerAddress>| chosen.as_ref().is_some_and(|chosen| chosen != address);
    match chosen {
        Some(chosen) => drop(chosen.wait_for(is_another).await),
        None => std::future::pending().await,
    }
}

async fn epoch(epochs: &mut watch::Receiver<CatalogEpoch>) -> CatalogEpoch {
    match epochs.changed().await {
        Ok(()) => epochs.borrow_and_update().clone(),
        // The program ends; another notice reports that.
        Err(_) => std::future::pending().await,
    }
}
