//! Accepts clients on a given listener, up to a limit, and ends their connections gracefully.
//!
//! Each connection is a task of its own. When it drains, it accepts no more clients. Existing connections end as soon
//! as they may; at the deadline, the others are cut off.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::timeout_at;
use tracing::{debug, info, warn};

use crate::session::{self, ClientSpan, Service, Stage};

/// Serves clients until `stage` is draining and the last connection has ended. At the deadline of that stage, or once
/// the sender of `stage` is gone, it cuts off all connections. Returns whether all connections ended by themselves.
pub async fn run(listener: TcpListener, service: Arc<Service>, stage: watch::Receiver<Stage>) -> bool {
    let mut clients = ClientTasks::default();
    let mut stopping = stage.clone();
    let mut next_id = 0_u64;
    let drain = loop {
        tokio::select! {
            drain = session::draining(&mut stopping) => break drain,
            // Ended tasks are collected here, so that the set does not grow with every past client.
            Some(()) = clients.join_next(), if !clients.tasks.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((client, peer)) if clients.tasks.len() < service.limits().max_connections => {
                    next_id += 1;
                    let span = ClientSpan::of(next_id, peer);
                    span.log(|| debug!("connection accepted"));
                    let client = session::run(client, span.clone(), Arc::clone(&service), stage.clone());
                    let task = clients.tasks.spawn(client);
                    clients.spans.insert(task.id(), span);
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
    info!(connections = clients.tasks.len(), "draining");
    let Some(drain) = drain else {
        clients.tasks.shutdown().await;
        return false;
    };
    let drained = timeout_at(drain.until(), async { while clients.join_next().await.is_some() {} });
    let is_drained = drained.await.is_ok();
    if !is_drained {
        warn!(
            connections = clients.tasks.len(),
            "connections cut off at the end of the drain time"
        );
        clients.tasks.shutdown().await;
        for span in clients.spans.values() {
            span.log(|| info!("connection cut off"));
        }
    }
    is_drained
}

fn refuse(client: TcpStream, peer: SocketAddr) {
    warn!(%peer, "connection refused because the limit of connections is reached");
    drop(client);
}

/// The tasks of the connections, and the client of each.
#[derive(Default)]
struct ClientTasks {
    tasks: JoinSet<()>,
    spans: HashMap<Id, ClientSpan>,
}

impl ClientTasks {
    /// Waits until one has ended; `None` if there is none.
    async fn join_next(&mut self) -> Option<()> {
        let ended = self.tasks.join_next_with_id().await?;
        let task = ended.as_ref().map_or_else(JoinError::id, |(task, ())| *task);
        let span = self.spans.remove(&task);
        if let Err(error) = ended {
            log_broken(&error, span);
        }
        Some(())
    }
}

/// Logs that a connection ended because an invariant of Keyward does not hold. Other connections go on.
fn log_broken(error: &JoinError, client: Option<ClientSpan>) {
    let log =
        || tracing::error!(%error, "an invariant does not hold: the connection is closed, and its writes are in doubt");
    match client {
        Some(client) => client.log(log),
        None => log(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_broken_invariant_ends_only_its_own_connection() {
        let mut clients = ClientTasks::default();
        let (go_on, waits) = oneshot::channel::<()>();
        let (served, is_served) = oneshot::channel();
        clients.tasks.spawn(async { panic!("an invariant that doesn't hold") });
        clients.tasks.spawn(async move {
            waits.await.unwrap();
            served.send(()).unwrap();
        });
        assert_eq!(clients.join_next().await, Some(()));
        go_on.send(()).unwrap();
        assert_eq!(clients.join_next().await, Some(()));
        assert_eq!(clients.join_next().await, None);
        is_served.await.unwrap();
    }
}
