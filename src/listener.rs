//! Accepts clients on a given listener, up to a limit, and ends their connections gracefully.
//!
//! Each connection is a task of its own. When it drains, it accepts no more clients. Existing connections end as soon
//! as they may; at the deadline, the others are cut off.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout_at;
use tracing::{debug, info, warn};

use crate::session::{self, Service, Stage};

/// Serves clients until `stage` is draining and the last connection has ended. At the deadline of that stage, or once
/// the sender of `stage` is gone, it cuts off all connections. Returns whether all connections ended by themselves.
pub async fn run(listener: TcpListener, service: Arc<Service>, stage: watch::Receiver<Stage>) -> bool {
    let mut sessions = JoinSet::new();
    let mut stopping = stage.clone();
    let mut next_id = 0_u64;
    let drain = loop {
        tokio::select! {
            drain = session::draining(&mut stopping) => break drain,
            // Ended tasks are collected here, so that the set does not grow with every past client.
            Some(ended) = sessions.join_next(), if !sessions.is_empty() => note_broken(ended, &service),
            accepted = listener.accept() => match accepted {
                Ok((client, peer)) if sessions.len() < service.limits().max_connections => {
                    next_id += 1;
                    debug!(connection = next_id, %peer, "connection accepted");
                    sessions.spawn(session::run(client, next_id, Arc::clone(&service), stage.clone()));
                }
                Ok((client, peer)) => {
                    service.metrics.connections.refused.inc();
                    refuse(client, peer);
                }
                Err(error) => {
                    // Usually no file descriptors are left: an immediate retry would only burn time.
                    warn!(%error, "a connection couldn't be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
        }
    };
    drop(listener);
    info!(connections = sessions.len(), "draining");
    let Some(drain) = drain else {
        sessions.shutdown().await;
        return false;
    };
    let drained = timeout_at(drain.until(), async {
        while let Some(ended) = sessions.join_next().await {
            note_broken(ended, &service);
        }
    });
    let is_drained = drained.await.is_ok();
    if !is_drained {
        warn!(
            connections = sessions.len(),
            "connections cut off at the end of the drain time"
        );
        sessions.shutdown().await;
    }
    is_drained
}

fn refuse(client: TcpStream, peer: std::net::SocketAddr) {
    warn!(%peer, "connection refused because the limit of connections is reached");
    drop(client);
}

/// Notes a connection that ended because an invariant of Keyward does not hold. Other connections go on.
fn note_broken(ended: Result<(), tokio::task::JoinError>, service: &Service) {
    if let Err(error) = ended {
        service.writes.note_in_doubt();
        tracing::error!(%error, "an invariant does not hold: the connection is closed, and its writes are in doubt");
    }
}
