//! Keeps sessions of the driver, and uses each for one command after the other.
//!
//! Otherwise the driver would give every command a session of its own, and take it back in a task of its own. That wakes
//! another thread for each reservation. On a small machine this takes as long as all other work for the reservation.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bson::{Document, RawDocumentBuf};
use mongodb::error::Error;
use mongodb::{Client, ClientSession, Database};

use crate::reply::Times;

/// How many idle sessions are kept.
const KEPT: usize = 16;

/// Idle sessions, and the latest cluster times of the replies in all sessions.
#[derive(Debug, Clone)]
pub(super) struct Sessions {
    client: Client,
    #[expect(
        clippy::vec_box,
        reason = "each is taken out and put back for a command, and is large"
    )]
    idle: Arc<Mutex<Vec<Box<ClientSession>>>>,
    times: Arc<Mutex<Times>>,
}

impl Sessions {
    pub(super) fn new(client: &Client) -> Sessions {
        Sessions {
            client: client.clone(),
            idle: Arc::default(),
            times: Arc::default(),
        }
    }

    /// Runs `command`, which writes, in `database`, and notes the cluster time of the reply, which isn't before the write's.
    pub(super) async fn run(&self, database: &Database, command: RawDocumentBuf) -> Result<Document, Error> {
        let mut session = self.take().await?;
        let reply = database.run_raw_command(command).session(&mut *session).await?;
        self.keep(session);
        if let Ok(cluster_time) = reply.get_document("$clusterTime") {
            self.lock_times().advance_cluster(cluster_time);
        }
        Ok(reply)
    }

    /// Notes the times of a reply.
    pub(super) fn note(&self, times: Times) {
        self.lock_times().advance(times);
    }

    /// The latest times that were noted.
    pub(super) fn times(&self) -> Times {
        self.lock_times().clone()
    }

    fn lock_times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an idle session, or starts one.
    pub(super) async fn take(&self) -> Result<Box<ClientSession>, Error> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(session) => Ok(session),
            // Not causally consistent: `afterClusterTime` and linearizable reads exclude each other.
            None => self
                .client
                .start_session()
                .causal_consistency(false)
                .await
                .map(Box::new),
        }
    }

    /// Keeps a session after a successful command. After a failed one the driver may have to discard the session.
    pub(super) fn keep(&self, session: Box<ClientSession>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT {
            idle.push(session);
        }
    }
}
