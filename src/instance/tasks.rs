//! Starts the tasks that run beside the clients' connections for as long as a Keyward or its configuration does.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::clients::{self, FollowedList};
use super::deployment::follow_privileges;
use super::reachability;
use crate::audit::{self, SeenAudits};
use crate::config::Config;
use crate::constraint::Constraint;
use crate::fleet::{self, Kept, Membership};
use crate::metrics::Metrics;
use crate::readiness::Readiness;
use crate::session::Service;
use crate::sweep;
use crate::tls;
use crate::upstream::Upstream;

pub(super) fn keeping(
    service: &Arc<Service>,
    membership: &Arc<Membership>,
    config: &Config,
    clients: &FollowedList,
    readiness: &Readiness,
) -> Keeping {
    let kept = Kept {
        constraints: config.constraints.clone(),
        clients: clients.list().clone(),
        lease: config.lease,
        backfill_share: config.backfill_share,
    };
    let (service, membership, readiness) = (service.clone(), membership.clone(), readiness.clone());
    let work = service.board.work.clone();
    let (stop, stopped) = oneshot::channel::<Infallible>();
    let runtime = Handle::current();
    // On a thread of its own: its future can't move between threads.
    let ended = tokio::task::spawn_blocking(move || {
        runtime.block_on(async {
            tokio::select! {
                () = work.showing(fleet::keep(service, membership, kept, readiness)) => {}
                _ = stopped => {}
            }
        });
    });
    Keeping { stop, ended }
}

/// The task that makes constraints enforced; it stops at any point when this is dropped.
#[derive(Debug)]
pub(super) struct Keeping {
    stop: oneshot::Sender<Infallible>,
    ended: JoinHandle<()>,
}

impl Keeping {
    /// Stops the task, and waits until it has ended.
    pub(super) async fn stop(self) {
        drop(self.stop);
        if let Err(error) = self.ended.await {
            tracing::error!(%error, "the task that makes constraints enforced ended before Keyward was stopped");
        }
    }
}

/// The tasks that run for as long as Keyward does. They follow shard keys and certificates, and count reservations and read builds on request.
/// One notices which constraints are no longer enforced. It has done so once already: reads can rely on the others at once. The tasks that
/// already run come with them.
pub(super) async fn following(
    service: &Arc<Service>,
    readiness: &Readiness,
    [renewing, reaching]: [Background; 2],
) -> [Background; 7] {
    let shard_keys = tokio::spawn({
        let service = service.clone();
        async move { service.writes.follow_shard_keys().await }
    });
    let certificates = tokio::spawn({
        let (tls, metrics) = (service.tls.clone(), service.metrics.certificates.clone());
        async move {
            if let Some(acceptor) = tls {
                tls::follow(acceptor, metrics).await;
            }
        }
    });
    let counting = tokio::spawn({
        let service = service.clone();
        async move { service.board.count(|| service.writes.catalog().clone()).await }
    });
    let building = tokio::spawn({
        let (board, service) = (service.board.clone(), service.clone());
        async move { board.show_builds(|| clients::builds(service.clone())).await }
    });
    let mut revoked = fleet::FollowRevoked::default();
    revoked.once(service, readiness).await;
    let revoked = tokio::spawn(revoked.run(service.clone(), readiness.clone()));
    let [shard_keys, certificates, counting, building, revoked] =
        [shard_keys, certificates, counting, building, revoked].map(Background);
    [
        shard_keys,
        certificates,
        counting,
        building,
        revoked,
        renewing,
        reaching,
    ]
}

/// The task that follows whether the deployment can be reached.
pub(super) fn reaching(upstream: &Upstream, config: &Config, readiness: &Readiness, metrics: &Metrics) -> Background {
    let (upstream, name) = (upstream.clone(), config.upstream.to_string());
    let following = reachability::follow(upstream, name, readiness.clone(), metrics.upstream.clone());
    Background(tokio::spawn(following))
}

pub(super) fn sweeping(service: &Arc<Service>, config: &Config) -> Background {
    let (client, service) = (service.upstream.client().clone(), service.clone());
    let current = move || service.writes.catalog().clone();
    Background(tokio::spawn(sweep::run(client, current, config.sweep)))
}

pub(super) fn auditing(service: &Arc<Service>, config: &Config) -> Option<Background> {
    service.metrics.audit_behind_seconds.set(0);
    service.board.note_audits(None);
    if !config.audit {
        return None;
    }
    let client = service.upstream.for_audits();
    let client = client
        .inspect_err(|error| tracing::error!(%error, "no collection is audited"))
        .ok()?;
    let (service, knowing, noting) = (service.clone(), service.clone(), service.clone());
    let current = move || service.writes.catalog().clone();
    let is_enforced = move |constraint: &Constraint| knowing.is_enforced(constraint);
    let note = move |seen: SeenAudits| {
        let behind = i64::try_from(seen.behind.as_secs()).unwrap_or(i64::MAX);
        noting.metrics.audit_behind_seconds.set(behind);
        noting.board.note_audits(Some(seen));
    };
    let audited = audit::run(client, (current, is_enforced), note);
    Some(Background(tokio::spawn(audited)))
}

pub(super) fn following_privileges(service: &Arc<Service>, config: &Config, readiness: &Readiness) -> Background {
    let (service, config) = (service.clone(), config.clone());
    Background(tokio::spawn(follow_privileges(service, config, readiness.clone())))
}

/// A task that stops at any point when this is dropped.
#[derive(Debug)]
pub(super) struct Background(pub(super) JoinHandle<()>);

impl Drop for Background {
    fn drop(&mut self) {
        self.0.abort();
    }
}
