//! The driver's sessions, each used for one command after the other.
//!
//! The driver gives every command a session of its own, and takes it back in a task of its own: that wakes another thread
//! for each reservation, which on a small machine takes as long as all else that is done for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bson::{Document, RawDocumentBuf};
use mongodb::error::Error;
use mongodb::{Client, ClientSession, Database};

use crate::reply::Times;

/// So many are kept while nobody needs them.
const KEPT: usize = 16;

/// Sessions that wait for their next command, and the latest cluster times that the deployment told in them.
#[derive(Debug, Clone)]
pub(super) struct Sessions {
    client: Client,
    #[expect(
        clippy::vec_box,
        reason = "each is taken out and put back for a command, and is large"
    )]
    idle: Arc<Mutex<Vec<Box<ClientSession>>>>,
    told: Arc<Mutex<Times>>,
}

impl Sessions {
    pub(super) fn new(client: &Client) -> Sessions {
        Sessions {
            client: client.clone(),
            idle: Arc::default(),
            told: Arc::default(),
        }
    }

    /// Runs `command`, which writes, in `database`, and notes the cluster time of the reply: it isn't before what was written.
    ///
    /// # Errors
    /// As the driver has it.
    pub(super) async fn run(&self, database: &Database, command: RawDocumentBuf) -> Result<Document, Error> {
        let mut session = self.take().await?;
        let reply = database.run_raw_command(command).session(&mut *session).await?;
        self.keep(session);
        if let Ok(told) = reply.get_document("$clusterTime") {
            self.lock_told().advance_cluster(told);
        }
        Ok(reply)
    }

    /// Notes the times of a reply.
    pub(super) fn note(&self, times: Times) {
        self.lock_told().advance(times);
    }

    /// The latest times that were noted.
    pub(super) fn times(&self) -> Times {
        self.lock_told().clone()
    }

    fn lock_told(&self) -> MutexGuard<'_, Times> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that nobody else uses.
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

    /// Takes one back after a command that succeeded: after any other the driver may want to be rid of it.
    pub(super) fn keep(&self, session: Box<ClientSession>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT {
            idle.push(session);
        }
    }
}
