//! Serves a read by a unique field: reads the key's reservation, and sends the read to the owner's shard only.
//!
//! The client's own command can go on unchanged after every fault on the way: only a reply that shows a document replaces its
//! reply.

use std::sync::Arc;

use super::leaving::{AHEAD_BYTES_MAX, gone};
use super::{End, Service};
use crate::authorization::Rights;
use crate::catalog::{Catalog, Protected};
use crate::command::running::{API, append_fields};
use crate::raw::Doc;
use crate::route::{ReadByKey, RoutedReply, found, read_target};
use crate::server::cursor;
use crate::server::reply::is_ok;
use crate::stream::Incoming;
use crate::upstream::Connection;
use crate::wire::{Draft, Flags, Message, OpMsg, Rejection, Request};

/// The reply that replaces that of the client's own command.
pub(super) struct Routed {
    /// Its body.
    pub body: Vec<u8>,
    /// Whether it leaves a cursor open.
    pub leaves_cursor: bool,
}

/// A read by a key, and the collection that it reads.
pub(super) struct RoutableRead<'m> {
    protected: Arc<Protected>,
    read: ReadByKey<'m>,
}

impl<'m> RoutableRead<'m> {
    /// The read, if `request` is one that a constraint of `catalog` routes.
    pub(super) fn of(request: &Request<'m>, catalog: &Catalog) -> Option<RoutableRead<'m>> {
        let Ok(Message::Msg(message)) = &request.parsed else {
            return None;
        };
        let is_streamed = request.envelope.flags.has(Flags::EXHAUST_ALLOWED);
        if is_streamed || !request.envelope.wants_reply() {
            return None;
        }
        let first = message.body.elements().next()?.ok()?;
        let database = message.body.get("$db").ok()??.as_string_bytes()?;
        let target = read_target(database, &first)?;
        let protected = catalog.protected(target.database, target.collection)?;
        let read = ReadByKey::of(message, protected)?;
        Some(RoutableRead {
            protected: protected.clone(),
            read,
        })
    }

    /// The read in its form for the owner's shard. `None` if the client's own command is to go on unchanged.
    ///
    /// # Errors
    /// [`End`] if the upstream connection is gone.
    pub(super) async fn pin(
        &self,
        request: &Request<'_>,
        service: &Service,
        rights: &mut Rights,
        upstream: &mut Connection,
    ) -> Result<Option<PinnedRead>, End> {
        let (protected, read) = (&self.protected, &self.read);
        // The server checks a message whole before it runs any of it.
        let Ok(message) = OpMsg::parse_whole(request.unpacked) else {
            return Ok(None);
        };
        let proxy = &protected.constraints[read.asked.constraint];
        // While documents without reservations may exist, two documents may hold the key.
        if !service.is_enforced_lately(&proxy.constraint)
            || !rights.may_find(&protected.namespace, message.body, upstream).await?
        {
            return Ok(None);
        }
        let owner = proxy.reserved_owner(&read.asked.key).await;
        let Some(command) = owner.and_then(|owner| read.pinned(&owner, protected).ok().flatten()) else {
            proxy.metrics.routed_misses.inc();
            return Ok(None);
        };
        Ok(Some(PinnedRead {
            protected: protected.clone(),
            constraint: read.asked.constraint,
            is_explained: read.is_explained,
            command,
        }))
    }
}

/// A read by a key, in its form for the owner's shard. It borrows nothing of the client's message, so Keyward can read on from the client
/// while the server carries it out.
pub(super) struct PinnedRead {
    protected: Arc<Protected>,
    /// The position of the constraint.
    constraint: usize,
    is_explained: bool,
    command: Vec<u8>,
}

impl PinnedRead {
    /// Sends the read, and waits for its reply, or until `client` is gone. `None` if the client's own command is to go on unchanged.
    ///
    /// If the client goes, the upstream connection is out of step. It is closed, and so the server ends the read.
    ///
    /// # Errors
    /// [`End`] if the client or the upstream connection is gone.
    pub(super) async fn run(&self, client: &mut Incoming, upstream: &mut Connection) -> Result<Option<Routed>, End> {
        let metrics = &self.protected.constraints[self.constraint].metrics;
        let draft = Draft::of_body(&self.command);
        let ahead_max = client.inbox.bytes().len() + AHEAD_BYTES_MAX;
        let reply = tokio::select! {
            biased;
            reply = upstream.request(&draft) => reply?,
            end = gone(client, ahead_max) => return Err(end),
        };
        let leaves_cursor = match found(reply.body()).map_err(Rejection::from)? {
            RoutedReply::Document { leaves_cursor } => leaves_cursor,
            RoutedReply::Ended => false,
            RoutedReply::Nothing { .. } if self.is_explained && is_ok(reply.body()).unwrap_or(false) => false,
            RoutedReply::Nothing { cursor } => {
                metrics.routed_fell_back.inc();
                if let Some(cursor) = cursor {
                    let body = Doc::new(&self.command).map_err(Rejection::from)?;
                    close(cursor, &self.protected, body, upstream).await?;
                }
                return Ok(None);
            }
        };
        metrics.routed_hits.inc();
        Ok(Some(Routed {
            body: reply.body().bytes().to_vec(),
            leaves_cursor,
        }))
    }
}

/// Closes the cursor of a routed read that has found nothing so far.
async fn close(cursor: i64, protected: &Protected, body: Doc<'_>, upstream: &mut Connection) -> Result<(), End> {
    let mut command = cursor::kill(protected.namespace.collection.as_bytes(), cursor);
    append_fields(&mut command, body, &["lsid", "$db"]).map_err(Rejection::from)?;
    append_fields(&mut command, body, &API).map_err(Rejection::from)?;
    upstream.run(&command.finish()).await?;
    Ok(())
}
