//! `drop` and `dropDatabase`: collections go first, on the client's connection, and only then the reservations of what
//! was in them.
//!
//! Reservations that outlive their documents are stale, and the next write that meets one finds out. Documents that outlived their
//! reservations would be unprotected. So no proxy collection is ever dropped: another Keyward may just have reserved there
//! for a document that arrives after the drop. Killed at any point, this leaves stale reservations at most.
//!
//! A recent reservation is presumed in flight for its lease, and a write that wants its key has to wait. So that a
//! test can drop a collection and begin anew at once, those reservations are noted before the drop whose document is there:
//! their writes have ended, and no other write is under way for the same token and time. If their documents are gone
//! afterwards, by a read that a deposed primary can't answer, they are deleted, unless they were written anew. Older ones
//! are in nobody's way, and left to the sweeper.
//!
//! All that is done as Keyward's own user, and may be much: so not for a client that seems to have no right to the drop. Its
//! command goes to the server all the same, whose answer is the client's. If the privilege has just been granted, recent
//! reservations wait for their lease.

use bson::RawDocument;
use futures_util::future::join_all;

use super::context::Context;
use super::forward::ForwardError;
use super::txn::{Failure, Refused};
use crate::authorization::{self, Rights};
use crate::catalog::Protected;
use crate::command::running::{API, append_fields};
use crate::constraint::{Key, PROXY_PREFIX};
use crate::namespace::Namespace;
use crate::proxy_collection::{ProxyCollection, Reservation, StoreError};
use crate::raw::{Builder, Doc, Malformed};
use crate::reply::{Times, dropped_database};
use crate::reservation::Scope;
use crate::server::{code::NAMESPACE_NOT_FOUND, cursor, reply::code};
use crate::upstream::Connection;

/// At most so many reservations of one constraint are settled with a drop; others wait for their lease.
const SETTLED_MAX: i64 = 100_000;
/// A reservation counts as young for so many leases: other Keywards may run with longer ones, or haven't known it for as long.
const LEASES: u32 = 3;

/// Drops a protected collection by the client's command `body`; gives the server's reply.
///
/// # Errors
/// [`ForwardError`] if the upstream connection is gone or garbled: the client's has to go, too.
pub async fn drop_collection(
    context: &Context,
    protected: &Protected,
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<Vec<u8>, ForwardError> {
    let rights = rights(context, body, upstream).await?;
    drop_with(context, protected, &rights, body, upstream).await
}

/// The same for a client with these rights, as far as they are known.
async fn drop_with(
    context: &Context,
    protected: &Protected,
    rights: &Rights,
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<Vec<u8>, ForwardError> {
    let Namespace { database, collection } = &protected.namespace;
    let settled = match rights.may_drop(database.as_bytes(), collection.as_bytes()) {
        true => settled(context, protected).await,
        false => Vec::new(),
    };
    let reply = upstream.run(body.bytes()).await?;
    release(protected, &settled).await;
    // It was dropped with its shard key: made again, it isn't sharded.
    context.renew_shard_keys().await;
    Ok(reply)
}

/// Drops every collection of `database` but Keyward's own, by the client's command `body`; gives the reply.
///
/// # Errors
/// [`ForwardError`] if the upstream connection is gone or garbled: the client's has to go, too.
pub async fn drop_database(
    context: &Context,
    database: &[u8],
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<Vec<u8>, ForwardError> {
    if body.get("autocommit")?.is_some() {
        // Never served in a transaction: the server says so.
        return Ok(upstream.run(body.bytes()).await?);
    }
    match drop_all(context, database, body, upstream).await {
        Ok(times) => Ok(dropped_database(database, &times)),
        Err(Failure::Refused(refused) | Failure::InDoubt(refused)) => Ok(refused.body),
        Err(Failure::Forward(error)) => Err(error),
    }
}

async fn drop_all(
    context: &Context,
    database: &[u8],
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<Times, Failure> {
    let mut times = Times::default();
    let (systems, others): (Vec<_>, Vec<_>) = names(database, body, upstream, &mut times)
        .await?
        .into_iter()
        .filter(|name| !name.starts_with(PROXY_PREFIX.as_bytes()))
        .partition(|name| name.starts_with(b"system."));
    let rights = rights(context, body, upstream).await?;
    for name in others {
        let command = drop_command(database, &name, body)?;
        let protected = context.catalog().protected(database, &name).cloned();
        let reply = match protected {
            Some(protected) => drop_with(context, &protected, &rights, Doc::new(&command)?, upstream).await?,
            None => upstream.run(&command).await?,
        };
        times.advance(times_of(&reply));
        match code(Doc::new(&reply)?)? {
            // Somebody else dropped it meanwhile.
            None | Some(NAMESPACE_NOT_FOUND) => {}
            Some(_) => return Err(Failure::Refused(Refused { body: reply })),
        }
    }
    // What the server keeps for the others goes with them, or is empty; some of it can't be dropped.
    for name in systems {
        times.advance(times_of(&upstream.run(&drop_command(database, &name, body)?).await?));
    }
    Ok(times)
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
        times.advance(times_of(&reply));
        let answer = Doc::new(&reply)?;
        if answer.nested("cursor")?.is_none() {
            return Err(Failure::Refused(Refused { body: reply }));
        }
        for entry in cursor::batch(answer)? {
            let name = entry.get("name")?.and_then(|name| name.as_string_bytes());
            names.extend(name.map(<[u8]>::to_vec));
        }
        let Some(id) = cursor::more(answer)? else {
            return Ok(names);
        };
        let mut more = Builder::new();
        more.int64("getMore", id).string("collection", b"$cmd.listCollections");
        command = finished(more, database, body)?;
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

fn times_of(reply: &[u8]) -> Times {
    RawDocument::from_bytes(reply).map(Times::of_raw).unwrap_or_default()
}

/// What the client may do, as far as the server says it: nothing, where it doesn't.
async fn rights(context: &Context, body: Doc<'_>, upstream: &mut Connection) -> Result<Rights, ForwardError> {
    if !context.has_users {
        return Ok(Rights::no_less_than_keywards());
    }
    match Rights::ask(body, upstream).await {
        Ok(rights) => Ok(rights),
        Err(authorization::Error::Unanswered { .. }) => Ok(Rights::unknown()),
        Err(authorization::Error::Upstream(error)) => Err(error.into()),
        Err(authorization::Error::Malformed(malformed)) => Err(malformed.into()),
    }
}

/// For each constraint, the young reservations whose document is there.
async fn settled(context: &Context, protected: &Protected) -> Vec<Vec<(Key, Reservation)>> {
    let span = context.lease * LEASES;
    let each = protected.constraints.iter().map(|proxy| async move {
        let found: Result<_, StoreError> = async {
            let recent = proxy.recent(span, SETTLED_MAX).await?;
            let claims: Vec<_> = recent.iter().map(|(key, seen)| (key, &seen.owner)).collect();
            let held = proxy.look_up(&claims, Scope::Everywhere).await?;
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

/// Deletes those of the reservations whose document is gone now.
async fn release(protected: &Protected, settled: &[Vec<(Key, Reservation)>]) {
    let each = protected
        .constraints
        .iter()
        .zip(settled)
        .map(|(proxy, settled)| async move {
            let released = async {
                let settled = settled.iter().map(|(key, seen)| (key, seen)).collect();
                let gone = proxy.unheld(settled, Scope::Linearizable).await?;
                proxy.release_seen(&gone).await
            };
            proxy.or_left_behind(released).await;
        });
    join_all(each).await;
}

fn warn(proxy: &ProxyCollection, error: &StoreError) {
    let constraint = proxy.constraint.name();
    tracing::warn!(%error, constraint, "reservations of a dropped collection are left to their lease and the sweeper");
}
