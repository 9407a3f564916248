//! Serves a read by a unique field: reads the key's reservation, and sends the read to the owner's shard only.
//!
//! The client's own command can go on unchanged after every fault on the way: only a reply that shows a document replaces its
//! reply.

use std::sync::Arc;

use bson::spec::ElementType;

use super::{End, Service};
use crate::authorization::Rights;
use crate::catalog::{Catalog, Protected};
use crate::command::running::{API, append_fields};
use crate::raw::{Builder, Doc};
use crate::route::{ReadByKey, RoutedReply, found, read_target};
use crate::server::reply::is_ok;
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

    /// Routes the read. `None` if the client's own command is to go on unchanged.
    ///
    /// # Errors
    /// [`End`] if the upstream connection is gone.
    pub(super) async fn route(
        &self,
        request: &Request<'_>,
        service: &Service,
        rights: &mut Rights,
        upstream: &mut Connection,
    ) -> Result<Option<Routed>, End> {
        let (protected, read) = (&self.protected, &self.read);
        // The server checks a message whole before it runs any of it.
        let Ok(message) = OpMsg::parse_whole(request.unpacked) else {
            return Ok(None);
        };
        let proxy = &protected.constraints[read.asked.constraint];
        let metrics = &proxy.metrics;
        // While documents without reservations may exist, two documents may hold the key.
        if !service.is_enforced(&proxy.constraint)
            || !rights.may_find(&protected.namespace, message.body, upstream).await?
        {
            return Ok(None);
        }
        let owner = proxy.reserved_owner(&read.asked.key).await;
        let Some(command) = owner.and_then(|owner| read.pinned(&owner, protected).ok().flatten()) else {
            metrics.routed_misses.inc();
            return Ok(None);
        };
        let reply = upstream.request(&Draft::of_body(&command)).await?;
        let leaves_cursor = match found(reply.body()).map_err(Rejection::from)? {
            RoutedReply::Document { leaves_cursor } => leaves_cursor,
            RoutedReply::Ended => false,
            RoutedReply::Nothing { .. } if read.is_explained && is_ok(reply.body()).unwrap_or(false) => false,
            RoutedReply::Nothing { cursor } => {
                metrics.routed_fell_back.inc();
                if let Some(cursor) = cursor {
                    close(cursor, protected, message.body, upstream).await?;
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
    let mut command = Builder::new();
    command.string("killCursors", protected.namespace.collection.as_bytes());
    command.open(ElementType::Array, b"cursors");
    command.append(ElementType::Int64, b"0", &cursor.to_le_bytes());
    command.close();
    append_fields(&mut command, body, &["lsid", "$db"]).map_err(Rejection::from)?;
    append_fields(&mut command, body, &API).map_err(Rejection::from)?;
    upstream.run(&command.finish()).await?;
    Ok(())
}
