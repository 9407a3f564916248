//! Settles abandoned reservations that no write conflicts with.
//!
//! They remain after a crash, after a delete that bypassed Keyward, or after a backfill of a document that had just lost its key.
//! It also renews reservations that name a former shard key.
//!
//! It walks each proxy collection slowly, key by key, and checks the reservations that this process knows to be past their
//! lease. It reads the owner with a read that a deposed primary can't answer. If the owner doesn't hold the key, it deletes the
//! reservation, unless that has changed since. One Keyward sweeps a constraint at a time ([`turn`]) and goes on where the
//! last one stopped. It can be killed at any point. Nothing depends on it being fast, or running at all.

mod turn;

use std::sync::Arc;
use std::time::Duration;

use mongodb::Client;

use crate::catalog::{Catalog, Protected};
use crate::claims::owner_of;
use crate::constraint::Key;
use crate::prepare::is_defined_as_here;
use crate::proxy_collection::{ProxyCollection, Reservation, StoreError};
use crate::raw::Doc;
use crate::reservation::Scope;
use turn::SweepTurn;

/// The number of reservations that are checked together.
const PAGE: i32 = 200;
/// How long to rest after each page: at most 2,000 reservations a second.
const REST: Duration = Duration::from_millis(100);

/// Sweeps every constraint of the catalog that `current` gives, again and again with `pause` in between; ends only when it is
/// dropped. It asks for the catalog before each page: a collection may be sharded meanwhile.
pub async fn run(client: Client, current: impl Fn() -> Arc<Catalog> + Sync, pause: Duration) {
    let sweeper = bson::oid::ObjectId::new().to_hex();
    loop {
        for protected in current().all() {
            for proxy in &protected.constraints {
                let now = || current().on(&protected.namespace).cloned();
                if let Err(error) = sweep(&client, now, proxy, &sweeper, pause).await {
                    tracing::warn!(%error, constraint = proxy.constraint.name(), "a sweep was broken off");
                }
            }
        }
        tokio::time::sleep(pause).await;
    }
}

/// Sweeps one constraint, if it is this Keyward's turn, of the collection that `now` gives.
async fn sweep(
    client: &Client,
    now: impl Fn() -> Option<Arc<Protected>>,
    proxy: &ProxyCollection,
    sweeper: &str,
    pause: Duration,
) -> Result<(), StoreError> {
    let namespace = proxy.constraint.namespace();
    let name = proxy.constraint.name();
    let Some(mut turn) = SweepTurn::take(client, namespace, name, sweeper, pause).await? else {
        return Ok(());
    };
    loop {
        let page = proxy.page(turn.after(), PAGE).await?;
        let Some(last) = page.last().map(|entry| entry.id.clone()) else {
            proxy.metrics.sweeps.inc();
            return turn.end(pause).await;
        };
        let mut readable = Vec::with_capacity(page.len());
        for entry in page {
            match entry.read {
                Ok(read) => readable.push(read),
                Err(reason) => {
                    let constraint = proxy.constraint.name();
                    tracing::warn!(%reason, constraint, "not a reservation; `keyward verify` lists them all");
                }
            }
        }
        let Some(protected) = now() else { return Ok(()) };
        if !settle(&protected, proxy, &readable).await? {
            let constraint = proxy.constraint.name();
            tracing::info!(%namespace, constraint, "not swept: the constraint has another definition in the cluster");
            // The turn runs out, and a Keyward with that definition goes on.
            return Ok(());
        }
        if !turn.go_on(last).await? {
            return Ok(());
        }
        tokio::time::sleep(REST).await;
    }
}

/// Deletes each suspect whose owner doesn't hold the key, and returns their number. All suspects are past their lease. Returns none, and
/// deletes nothing, if the constraint has another definition in the cluster by now.
///
/// # Errors
/// [`StoreError`] if the cluster gave no sure answer.
pub async fn delete_abandoned(
    protected: &Protected,
    proxy: &ProxyCollection,
    suspects: Vec<(&Key, &Reservation)>,
) -> Result<Option<u64>, StoreError> {
    // The suspects were read before this, and their owners are read after it.
    match is_defined_as_here(protected, proxy).await? {
        true => proxy.sweep(protected.strategy(), suspects).await.map(Some),
        false => Ok(None),
    }
}

/// Deletes the reservations of a page that are past their lease and whose owner doesn't hold the key. Updates the routes of the other ones
/// past their lease, if they name a former shard key. Does neither, and returns false, if the constraint has another definition in the cluster by now.
async fn settle(
    protected: &Protected,
    proxy: &ProxyCollection,
    page: &[(Key, Reservation)],
) -> Result<bool, StoreError> {
    let old = page.iter().filter(|(_, reservation)| proxy.is_over(reservation));
    let old: Vec<_> = old.map(|(key, reservation)| (key, reservation)).collect();
    let suspects = proxy.unheld(old.clone(), Scope::Route).await?;
    let is_of_now = |(_, seen): &(&Key, &Reservation)| seen.owner.has_route_by(&protected.shard_key);
    if suspects.is_empty() && old.iter().all(is_of_now) {
        return Ok(true);
    }
    let Some(count) = delete_abandoned(protected, proxy, suspects).await? else {
        return Ok(false);
    };
    if count > 0 {
        tracing::info!(
            namespace = %protected.namespace,
            constraint = proxy.constraint.name(),
            count,
            "reservations without owner deleted"
        );
    }
    let route_of = |document: Doc<'_>| owner_of(protected, document).ok();
    let (namespace, constraint) = (&protected.namespace, proxy.constraint.name());
    match proxy.renew_routes(&old, &protected.shard_key, route_of).await {
        Ok(0) => {}
        Ok(count) => tracing::info!(%namespace, constraint, count, "reservations name the present shard key"),
        // They only cost look-ups on all shards. The next sweep tries again.
        Err(error) => tracing::warn!(%error, %namespace, constraint, "reservations still name a former shard key"),
    }
    Ok(true)
}
