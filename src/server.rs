//! Accepts clients on a listener that it is given, within a limit, and stops gracefully.
//!
//! Each connection is a task of its own. On stop no more are accepted; those that are there end as soon as their client
//! has its answers, and what isn't done by the deadline is cut off.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::session::{self, Service};

/// What a server may hold, and how long it takes to stop.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at a time; one more is closed at once, as `mongos` does.
    pub connections_max: usize,
    /// From the stop until what is still there is cut off.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections_max: 65_536,
            drain: Duration::from_secs(30),
        }
    }
}

/// Serves clients until `stop` turns true (or its sender is gone) and the last connection has ended.
pub async fn run(listener: TcpListener, service: Arc<Service>, limits: Limits, stop: watch::Receiver<bool>) {
    let mut sessions = JoinSet::new();
    let mut stopping = stop.clone();
    let mut next_id = 0_u64;
    loop {
        tokio::select! {
            () = session::stop_asked(&mut stopping) => break,
            // Ended tasks are collected here, so that the set doesn't grow with every client that ever came.
            Some(ended) = sessions.join_next(), if !sessions.is_empty() => note_panic(ended),
            accepted = listener.accept() => match accepted {
                Ok((client, peer)) if sessions.len() < limits.connections_max => {
                    next_id += 1;
                    debug!(connection = next_id, %peer, "connection accepted");
                    sessions.spawn(session::run(client, next_id, Arc::clone(&service), stop.clone()));
                }
                Ok((client, peer)) => {
                    service.metrics.connections.refused.inc();
                    refuse(client, peer);
                }
                Err(error) => {
                    // Out of file descriptors, mostly: trying again at once would only burn time.
                    warn!(%error, "a connection couldn't be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
    drop(listener);
    info!(connections = sessions.len(), "draining");
    let drained = tokio::time::timeout(limits.drain, async {
        while let Some(ended) = sessions.join_next().await {
            note_panic(ended);
        }
    });
    if drained.await.is_err() {
        warn!(
            connections = sessions.len(),
            "connections cut off at the end of the drain time"
        );
        sessions.shutdown().await;
    }
}

fn refuse(client: TcpStream, peer: std::net::SocketAddr) {
    warn!(%peer, "connection refused because the limit of connections is reached");
    drop(client);
}

fn note_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection's task panicked");
    }
}
