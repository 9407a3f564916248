//! `keyward run`: from the configuration file to a port that takes clients, and back to a clean stop.
//!
//! The port opens only once every constraint holds. SIGTERM or SIGINT lets clients have the answers they are owed; a
//! second one ends the process at once.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::Exit;
use crate::admin::Admin;
use crate::config::{Config, Problems};
use crate::metrics::Metrics;
use crate::prepare::{PrepareError, prepare};
use crate::readiness::{Obstacle, Readiness};
use crate::server::{self, Limits};
use crate::session::Service;
use crate::telemetry::{self, TelemetryError};
use crate::upstream::{SetupError, Upstream};
use crate::write;

/// Why the process ends otherwise than it was asked to.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error(transparent)]
    Config(#[from] Problems),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error(transparent)]
    Upstream(#[from] SetupError),
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error("{address} can't be listened on: {error}")]
    Listen { address: SocketAddr, error: std::io::Error },
    #[error("the process can't be set up: {0}")]
    System(#[from] std::io::Error),
}

impl RunError {
    fn exit(&self) -> Exit {
        match self {
            RunError::Config(_) | RunError::Telemetry(_) => Exit::Config,
            RunError::Prepare(PrepareError::OtherDefinition { .. }) => Exit::Config,
            RunError::Prepare(PrepareError::Duplicates(_)) => Exit::Duplicates,
            RunError::Upstream(_) | RunError::Prepare(_) => Exit::Upstream,
            RunError::Listen { .. } | RunError::System(_) => Exit::System,
        }
    }
}

/// Runs the proxy until it is told to stop.
pub(super) fn run(file: &Path) -> Exit {
    match start(file) {
        Ok(()) => Exit::Success,
        Err(error) => {
            eprintln!("keyward: {error}");
            error.exit()
        }
    }
}

fn start(file: &Path) -> Result<(), RunError> {
    let config = Config::load(file)?;
    telemetry::start(&config.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(proxy(config));
    runtime.shutdown_background();
    ended
}

async fn proxy(config: Config) -> Result<(), RunError> {
    let (stop, stopping) = watch::channel(false);
    let mut signals = Signals::new()?;
    let metrics = Metrics::new(&config.constraints);
    let readiness = Readiness::starting();
    let admin_listener = listen(config.admin).await?;
    let admin_address = admin_listener.local_addr()?;
    let admin = Admin {
        metrics: metrics.clone(),
        readiness: readiness.clone(),
    };
    let pages = tokio::spawn(admin.serve(admin_listener, std::future::pending()));

    let upstream = Upstream::new(config.upstream.uri()).await?;
    let catalog = tokio::select! {
        catalog = prepare(upstream.client(), &config.constraints, config.lease) => catalog?,
        () = signals.next() => return Ok(()),
    };
    for constraint in &config.constraints {
        metrics.set_ready(constraint, true);
    }
    let listener = listen(config.listen).await?;
    let address = listener.local_addr()?;
    let service = Arc::new(Service {
        upstream,
        writes: write::Context::new(catalog, config.lease),
    });
    let limits = Limits {
        connections_max: config.limits.max_connections,
        drain: config.drain,
    };
    let server = tokio::spawn(server::run(listener, service, limits, stopping));
    readiness.unblock(&Obstacle::Startup);
    println!(
        "{}",
        json!({ "listen": address.to_string(), "admin": admin_address.to_string() })
    );
    tracing::info!(listen = %address, admin = %admin_address, "ready");

    signals.next().await;
    readiness.block(Obstacle::Draining, "told to stop");
    tokio::select! {
        () = drain(server, &stop) => {}
        () = signals.next() => tracing::warn!("told to stop again: connections are cut off"),
    }
    // The pages stay up while connections end, so that the draining can be watched.
    pages.abort();
    Ok(())
}

/// Tells the server to stop and waits until its last connection has ended.
async fn drain(server: tokio::task::JoinHandle<()>, stop: &watch::Sender<bool>) {
    stop.send_replace(true);
    if let Err(error) = server.await {
        tracing::error!(%error, "the server ended abnormally");
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, RunError> {
    TcpListener::bind(address)
        .await
        .map_err(|error| RunError::Listen { address, error })
}

/// What tells the process to stop.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
