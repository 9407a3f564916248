//! Creates a protected collection that doesn't exist yet, for a transaction that is to insert into it.
//!
//! A server creates a collection with its first document. But a transaction that writes on several shards can't create one: the
//! server refuses or aborts it, however often it is tried. Keyward's transactions also write reservations or records, often on
//! other shards. So if such a transaction fails, Keyward finds out whether the collection exists. In a client's transaction it looks
//! before the first write, because only the commit fails there. If the collection is missing, Keyward creates it on the client's
//! connection, with the client's own rights. A killed Keyward leaves an empty collection behind at most.

use super::forward_error::ForwardError;
use super::operation::WriteOp;
use super::txn::ErrorReply;
use crate::command::running::{API, append_fields};
use crate::constraint::Strategy;
use crate::raw::{Builder, Doc};
use crate::server::code;
use crate::server::reply;

/// Whether a missing collection was the reason for a failed transaction.
#[derive(Debug)]
pub enum CollectionCheck {
    /// It exists since now: another try may succeed.
    Created,
    /// It existed, or Keyward can't find that out.
    Unneeded,
    /// The server refuses to create it for this client.
    Refused(ErrorReply),
}

/// Whether the server uses this code for a transaction that it doesn't let create a collection.
pub fn may_report_absence(code: Option<i32>) -> bool {
    code == Some(code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION)
}

impl WriteOp<'_> {
    /// Creates the collection for a takeover: in strict mode, a takeover from an absent owner writes to the owner's collection. Returns
    /// the server's refusal.
    ///
    /// # Errors
    /// [`ForwardError`] if the connection is gone.
    pub async fn create_for_takeover(&mut self) -> Result<Option<ErrorReply>, ForwardError> {
        match self.protected.strategy() {
            Strategy::Compensating => Ok(None),
            Strategy::Strict => self.create_for_transaction().await,
        }
    }

    /// Creates the collection for a statement of a client's transaction that may insert. Once the commit has failed, that would be too
    /// late. Returns the server's refusal.
    ///
    /// # Errors
    /// The same.
    pub async fn create_for_transaction(&mut self) -> Result<Option<ErrorReply>, ForwardError> {
        Ok(match self.create_if_absent().await? {
            CollectionCheck::Created | CollectionCheck::Unneeded => None,
            CollectionCheck::Refused(reply) => Some(reply),
        })
    }

    /// Creates the collection if it doesn't exist. A command that has found it doesn't look again: most transactions fail for other reasons.
    ///
    /// # Errors
    /// [`ForwardError`] if the connection is gone.
    pub async fn create_if_absent(&mut self) -> Result<CollectionCheck, ForwardError> {
        let protected = self.protected;
        // A sharded collection exists. On one replica set, any transaction may create one.
        if self.has_checked_collection || protected.is_on_one_replica_set || !protected.shard_key.is_empty() {
            return Ok(CollectionCheck::Unneeded);
        }
        let Some(proxy) = protected.constraints.first() else {
            return Ok(CollectionCheck::Unneeded);
        };
        match proxy.protected_exists().await {
            Ok(false) => {}
            Ok(true) => {
                self.has_checked_collection = true;
                return Ok(CollectionCheck::Unneeded);
            }
            Err(error) => {
                tracing::warn!(%error, collection = %protected.namespace, "could not read whether the collection exists");
                return Ok(CollectionCheck::Unneeded);
            }
        }
        let mut create = Builder::new();
        create.string("create", protected.namespace.collection.as_bytes());
        append_fields(&mut create, self.command.body, &API)?;
        create.string("$db", protected.namespace.database.as_bytes());
        let body = self.upstream.run(&create.finish()).await?;
        let created = Doc::new(&body)?;
        // Another client may have created it meanwhile.
        let exists = reply::is_ok(created)? || reply::code(created)? == Some(code::NAMESPACE_EXISTS);
        Ok(match exists {
            true => {
                self.has_checked_collection = true;
                CollectionCheck::Created
            }
            false => CollectionCheck::Refused(ErrorReply { body }),
        })
    }
}
