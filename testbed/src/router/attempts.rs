//! The loop around every command that depends on where documents are: look the routing up, try, and where a shard calls
//! it stale, load it anew and try again.
//!
//! Inside a transaction that is only right for its first statement, and if that went to one shard, as in a `mongos`: the shard is
//! told to abort, and the statement starts anew. Otherwise the transaction ends with the shard's error.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;

use super::ddl::create_database;
use super::error::Failure;
use super::operation::Operation;
use super::reply::Reply;
use super::routing::Routing;
use super::transaction::Transaction;
use super::transaction_end::abort_participants;

/// A shard that recovers its own knowledge, after a failover say, answers "stale" until it has: about ten seconds.
const ATTEMPTS_MAX: u32 = 60;
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// One command's attempts on one namespace.
#[derive(Debug)]
pub struct Attempts<'a> {
    operation: &'a Operation,
    namespace: &'a str,
    made: u32,
}

impl<'a> Attempts<'a> {
    /// No attempt yet.
    pub fn new(operation: &'a Operation, namespace: &'a str) -> Self {
        Attempts {
            operation,
            namespace,
            made: 0,
        }
    }

    /// The routing for the next attempt; `None` if the database doesn't exist.
    ///
    /// # Errors
    /// The failure to read the config server.
    pub async fn routing(&self) -> Result<Option<Routing>, Failure> {
        let router = &self.operation.router;
        router.catalog.routing(&router.link(), self.namespace).await
    }

    /// The routing for the next attempt, the database created if it doesn't exist.
    ///
    /// # Errors
    /// The failure to read the config server or to create the database.
    pub async fn routing_for_write(&self) -> Result<Routing, Failure> {
        loop {
            if let Some(routing) = self.routing().await? {
                return Ok(routing);
            }
            let db = self.namespace.split_once('.').map_or(self.namespace, |(db, _)| db);
            create_database(self.operation, db, None).await?;
        }
    }

    /// After an attempt that a shard called stale: makes ready for the next one.
    ///
    /// # Errors
    /// The shard's own error if there must be no further attempt.
    pub async fn stale(&mut self, used: &Routing, why: Bytes) -> Result<(), Failure> {
        self.made += 1;
        self.operation.router.catalog.invalidate_used(self.namespace, used);
        if self.made >= ATTEMPTS_MAX {
            return Err(Failure::Shard(Reply::new(why)));
        }
        if let Some(session) = &self.operation.transaction {
            let restartable = session
                .transaction()
                .as_ref()
                .is_some_and(Transaction::may_restart_statement);
            if !restartable {
                return Err(Failure::Shard(Reply::new(why)));
            }
            abort_participants(self.operation, session).await;
            if let Some(transaction) = session.transaction().as_mut() {
                transaction.restart_statement();
            }
        }
        // The first refusals are news; further ones mean that a shard is busy moving or recovering.
        if self.made > 2 {
            sleep((PAUSE * self.made).min(PAUSE_MAX)).await;
        }
        Ok(())
    }
}
