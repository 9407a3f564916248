//! Carries out `drop` and `dropDatabase`: drops the collections on the client's connection, then releases their documents'
//! reservations.
//!
//! Reservations that outlive their documents are stale, and the next write that meets one detects that. Documents that outlive
//! their reservations would be unprotected. So Keyward never drops a proxy collection: another Keyward may just have reserved a
//! key there for a document that arrives after the drop. If Keyward is killed at any point, at most stale reservations are
//! left.
//!
//! A recent reservation is presumed in flight for its lease, and a write that wants its key has to wait. A test must be able to
//! drop a collection and start again at once. So before the drop, Keyward notes the recent reservations whose documents exist.
//! The writes of these reservations have ended, and no other write in progress has the same token and time. After the drop,
//! Keyward checks by a read that a deposed primary can't answer whether the documents are gone. If so, it deletes their
//! reservations, unless they were written anew. Older reservations block no write, and the sweeper removes them.
//!
//! Keyward does this work, which may be large, as its own user. So it omits it for a client that seems to have no right to the
//! drop. It still forwards the client's command, and the client gets the server's answer. If the privilege has just been
//! granted, recent reservations wait for their lease.

use futures_util::future::join_all;

use super::context::Context;
use super::forward_error::ForwardError;
use super::txn::{ErrorReply, Failure};
use crate::authorization::{Actions, Rights};
use crate::catalog::{Catalog, Protected};
use crate::command::running::{API, append_fields};
use crate::constraint::{Key, PROXY_PREFIX};
use crate::namespace::Namespace;
use crate::proxy_collection::{ProxyCollection, Reservation, StoreError};
use crate::raw::{Builder, Doc, Malformed};
use crate::reply::{ConcernError, Times};
use crate::reservation::Scope;
use crate::server::{code::NAMESPACE_NOT_FOUND, cursor, reply::code};
use crate::upstream::Connection;

/// The most reservations of one constraint that Keyward releases with a drop; others wait for their lease.
const RELEASED_MAX: i64 = 100_000;
/// A reservation counts as recent for this many leases: other Keywards may have longer leases, or may have learned of it later.
const LEASES: u32 = 3;

/// Drops a protected collection by the client's command `body`; returns the server's reply.
pub async fn drop_collection(
    context: &Context,
    protected: &Protected,
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<Vec<u8>, ForwardError> {
    let rights = Rights::if_known(context.has_users, body, upstream).await?;
    drop_with(context, protected, &rights, body, upstream).await
}

/// The same for a client with these rights, as far as Keyward knows them.
async fn drop_with(
    context: &Context,
    protected: &Protected,
    rights: &Rights,
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<Vec<u8>, ForwardError> {
    let Namespace { database, collection } = &protected.namespace;
    let decided = match rights.may(Actions::DROP_COLLECTION, database.as_bytes(), collection.as_bytes()) {
        true => decided(context, protected).await,
        false => Vec::new(),
    };
    let reply = upstream.run(body.bytes()).await?;
    release(protected, &decided).await;
    // The drop removed the shard key: a new collection of that name isn't sharded.
    context.renew_shard_keys().await;
    Ok(reply)
}

/// Drops every collection of `database` except Keyward's own, by the client's command `body`; returns the reply.
pub async fn drop_database(
    context: &Context,
    catalog: &Catalog,
    database: &[u8],
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<Vec<u8>, ForwardError> {
    if body.get("autocommit")?.is_some() {
        // The server never allows it in a transaction, and its error says so.
        return Ok(upstream.run(body.bytes()).await?);
    }
    match drop_all(context, catalog, database, body, upstream).await {
        Ok(dropped) => Ok(dropped.reply(database)?),
        Err(failure) => Ok(failure.into_reply()?.body),
    }
}

/// The parts of a reply to `dropDatabase` that come from the replies to Keyward's own commands.
#[derive(Default)]
struct DroppedDatabase {
    times: Times,
    concern_error: ConcernError,
}

impl DroppedDatabase {
    /// The server's reply to the client.
    fn reply(&self, database: &[u8]) -> Result<Vec<u8>, Malformed> {
        let mut reply = Builder::new();
        reply.double("ok", 1.0).string("dropped", database);
        self.concern_error.append_to(&mut reply)?;
        self.times.append_to(&mut reply);
        Ok(reply.finish())
    }

    fn take(&mut self, reply: &[u8]) -> Result<(), Malformed> {
        self.times.advance(Times::of_reply(reply));
        self.concern_error.take_from(Doc::new(reply)?)
    }
}

async fn drop_all(
    context: &Context,
    catalog: &Catalog,
    database: &[u8],
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<DroppedDatabase, Failure> {
    let mut dropped = DroppedDatabase::default();
    let (systems, others): (Vec<_>, Vec<_>) = names(database, body, upstream, &mut dropped.times)
        .await?
        .into_iter()
        .filter(|name| !name.starts_with(PROXY_PREFIX.as_bytes()))
        .partition(|name| name.starts_with(b"system."));
    let rights = Rights::if_known(context.has_users, body, upstream).await?;
    for name in others {
        let command = drop_command(database, &name, body)?;
        let reply = match catalog.protected(database, &name) {
            Some(protected) => drop_with(context, protected, &rights, Doc::new(&command)?, upstream).await?,
            None => upstream.run(&command).await?,
        };
        dropped.take(&reply)?;
        match code(Doc::new(&reply)?)? {
            // Another client dropped it meanwhile.
            None | Some(NAMESPACE_NOT_FOUND) => {}
            Some(_) => return Err(Failure::ErrorReply(ErrorReply { body: reply })),
        }
    }
    // The server's own collections for the others are dropped with them, or are empty; some of them can't be dropped.
    for name in systems {
        let reply = upstream.run(&drop_command(database, &name, body)?).await?;
        dropped.take(&reply)?;
    }
    Ok(dropped)
}

/// The names of all collections of `database` that the client may list.
async fn names(
    database: &[u8],
    body: Doc<'_>,
    upstream: &mut Connection,
    times: &mut Times,
) -> Result<Vec<Vec<u8>>, Failure> {
    let mut list = Builder::new();
    list.int32("listCollections", 1).boolean("nameOnly", true);
    let mut command = finished(list, database, body)?;
    let mut names = Vec::new();
    loop {
        let reply = upstream.run(&command).await?;
        times.advance(Times::of_reply(&reply));
        let answer = Doc::new(&reply)?;
        if !cursor::is_in(answer)? {
            return Err(Failure::ErrorReply(ErrorReply { body: reply }));
        }
        for entry in cursor::batch(answer)? {
            let name = entry.get("name")?.and_then(|name| name.as_string_bytes());
            names.extend(name.map(<[u8]>::to_vec));
        }
        let Some(id) = cursor::more(answer)? else {
            return Ok(names);
        };
        command = finished(cursor::get_more(b"$cmd.listCollections", id), database, body)?;
    }
}

fn drop_command(database: &[u8], collection: &[u8], body: Doc<'_>) -> Result<Vec<u8>, Malformed> {
    let mut command = Builder::new();
    command.string("drop", collection);
    append_fields(&mut command, body, &["writeConcern", "comment"])?;
    finished(command, database, body)
}

/// A command for `database`, under the API version of the client's command `body`.
fn finished(mut command: Builder, database: &[u8], body: Doc<'_>) -> Result<Vec<u8>, Malformed> {
    append_fields(&mut command, body, &API)?;
    command.string("$db", database);
    Ok(command.finish())
}

/// For each constraint, the recent reservations whose documents exist.
async fn decided(context: &Context, protected: &Protected) -> Vec<Vec<(Key, Reservation)>> {
    let span = context.lease * LEASES;
    let each = protected.constraints.iter().map(|proxy| async move {
        let found: Result<_, StoreError> = async {
            let recent = proxy.recent(span, RELEASED_MAX).await?;
            let pairs: Vec<_> = recent.iter().map(|(key, seen)| (key, &seen.owner)).collect();
            let held = proxy.look_up(&pairs, Scope::Everywhere).await?;
            Ok(recent.into_iter().zip(held))
        }
        .await;
        match found {
            Ok(found) => found.filter_map(|(recent, held)| held.then_some(recent)).collect(),
            Err(error) => {
                warn(proxy, &error);
                Vec::new()
            }
        }
    });
    join_all(each).await
}

/// Deletes those of the reservations whose documents are gone now.
async fn release(protected: &Protected, decided: &[Vec<(Key, Reservation)>]) {
    let each = protected
        .constraints
        .iter()
        .zip(decided)
        .map(|(proxy, decided)| async move {
            let released = async {
                let decided = decided.iter().map(|(key, seen)| (key, seen)).collect();
                let gone = proxy.unheld(decided, Scope::Linearizable).await?;
                proxy.release_seen(&gone).await
            };
            proxy.log_failed_release(released).await;
        });
    join_all(each).await;
}

fn warn(proxy: &ProxyCollection, error: &StoreError) {
    let constraint = proxy.constraint.name();
    tracing::warn!(%error, constraint, "reservations of a dropped collection are left to their lease and the sweeper");
}
