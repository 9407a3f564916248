//! Runs one Keyward: starts it from a checked configuration, serves clients, and stops it.
//!
//! The order of [`Instance::start`] is a promise: clients can't connect before every constraint holds for every
//! existing document. Several instances may live in one process; nothing here is global.

mod clients;
mod deployment;
mod left_out;
mod pages;
mod reachability;
mod tasks;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use clients::{FollowedInReload, FollowedList};
use deployment::{ServedConstraints, await_answer, await_privileges, followed, joined, prepared, remembers, resolved};
use left_out::LeftOutConstraints;
use pages::{Pages, bound, not_listening};
use tasks::{Background, Keeping, auditing, following, following_privileges, keeping, reaching, sweeping};

use crate::admin::Admin;
use crate::client_constraints::ClientConstraints;
use crate::config::Config;
use crate::config::Problems;
use crate::constraint::Constraint;
use crate::fleet::{self, Membership};
use crate::listener;
use crate::metrics::Metrics;
use crate::prepare::PrepareError;
use crate::proxy_collection::StoreError;
use crate::readiness::{Obstacle, Readiness};
use crate::reload::{self, Changes, LastReload, ReloadError};
use crate::session::{Drain, Service, Stage};
use crate::status::{About, StatusBoard};
use crate::telemetry::Telemetry;
use crate::tls;
use crate::upstream::{SetupError, Upstream};
use crate::write;

/// How long a stopping Keyward waits for work that is still under way upstream.
const AT_WORK: Duration = Duration::from_secs(1);
/// How many clients may wait to be accepted.
const BACKLOG: u32 = 1024;

/// A Keyward that serves clients.
#[derive(Debug)]
pub struct Instance {
    address: SocketAddr,
    /// The configuration that holds now, with clients' constraints.
    config: Config,
    /// The constraints that the file states.
    of_file: Vec<Arc<Constraint>>,
    /// The constraints of the file that clients are served without.
    left_out: LeftOutConstraints,
    /// The list of clients' constraints.
    clients: FollowedList,
    service: Arc<Service>,
    readiness: Readiness,
    reloads: LastReload,
    stage: watch::Sender<Stage>,
    serving: JoinHandle<bool>,
    membership: Arc<Membership>,
    /// The task that makes constraints enforced whenever they aren't.
    keeping: Option<Keeping>,
    sweeping: Background,
    /// The task that audits, if it is to.
    auditing: Option<Background>,
    /// The task that checks the privileges of Keyward's own user.
    privileges: Background,
    /// Tasks of the whole process. They follow shard keys, certificates, which constraints are no longer enforced, and whether the deployment
    /// can be reached. They count reservations, and renew the entry in the register.
    following: [Background; 7],
    pages: Pages,
}

/// Why a Keyward didn't start.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message names each field")]
pub enum StartError {
    /// An address can't be listened on.
    #[error("{setting} ({address}) cannot be listened on: {cause}")]
    Listen {
        setting: &'static str,
        address: SocketAddr,
        cause: io::Error,
    },
    /// The certificates for clients' connections can't be used.
    #[error("tls: {0}")]
    Tls(#[from] tls::TlsError),
    /// The connection string can't be used.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The deployment doesn't let Keyward in.
    #[error("the deployment refuses Keyward: {0}")]
    Refused(StoreError),
    /// The constraints can't be made to hold.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
}

impl Instance {
    /// Waits for the deployment, makes all constraints hold, and begins to serve clients. The admin pages are open from
    /// the beginning and show what Keyward waits for.
    ///
    /// - Cancel: dropping the future stops everything that has begun; the next start can use the cluster's state.
    /// # Errors
    /// [`StartError`]. A deployment that doesn't answer yet is no error: Keyward waits for it.
    pub async fn start(config: &Config) -> Result<Self, StartError> {
        let readiness = Readiness::starting();
        let metrics = Metrics::new(&config.constraints);
        let (reloads, board) = (LastReload::default(), StatusBoard::default());
        let pages = admin_pages(config, &metrics, &readiness, &reloads, &board)?;
        tracing::info!(admin = %pages.address, upstream = %config.upstream, "starting");
        let socket = bound(config.listen).map_err(not_listening("listen", config.listen))?;
        let tls = config.tls.clone().map(tls::Acceptor::new).transpose()?.map(Arc::new);
        let upstream = resolved(config, &readiness).await?.counted(metrics.upstream.clone());
        let reaching = reaching(&upstream, config, &readiness, &metrics);
        await_answer(&upstream, config, &readiness).await?;
        await_privileges(&upstream, config, &readiness).await?;
        let clients = followed(&upstream, config, &readiness).await?;
        let membership = Arc::new(joined(&upstream, config, &readiness, clients.view()).await?);
        // From here on: a backfill can take longer than the entry vouches for this Keyward.
        let renewing = Background(tokio::spawn(fleet::renew(membership.clone(), readiness.clone())));
        let shown = (&readiness, &metrics);
        let served = prepared_or_left(&upstream, config, &clients, shown, &membership, renewing);
        let (served, renewing) = board.work.showing(served).await?;
        let left_out = served.left_out;
        let of_file = left_out.taken_out_of(&config.constraints);
        let constraints = left_out.serving(&config.constraints, clients.list());
        let config = &Config {
            constraints,
            ..config.clone()
        };
        let listener = socket.listen(BACKLOG).map_err(not_listening("listen", config.listen))?;
        let address = listener.local_addr().map_err(not_listening("listen", config.listen))?;
        let (catalog, group_commit) = (Arc::new(served.catalog), metrics.group_commit.clone());
        let writes = write::Context::new(catalog, config.lease, group_commit, upstream.has_credential());
        let mut service = Service::new(upstream, writes, metrics, config.limits);
        (service.tls, service.client_list) = (tls, clients.shared());
        (service.membership, service.board) = (Some(membership.clone()), board);
        let service = Arc::new(service);
        fleet::show(&config.constraints, &served.waiting, &service, &readiness);
        left_out.show(&LeftOutConstraints::default(), &[], &service, &readiness);
        let following = following(&service, &readiness, [renewing, reaching]).await;
        let stage = watch::Sender::new(Stage::Serving);
        let serving = tokio::spawn(listener::run(listener, service.clone(), stage.subscribe()));
        readiness.unblock(&Obstacle::Startup);
        tracing::info!(listen = %address, "ready");
        Ok(Instance {
            address,
            keeping: Some(keeping(&service, &membership, config, &clients, &readiness)),
            membership,
            sweeping: sweeping(&service, config),
            auditing: auditing(&service, config),
            privileges: following_privileges(&service, config, &readiness),
            config: config.clone(),
            of_file,
            left_out,
            clients,
            service,
            readiness,
            reloads,
            stage,
            serving,
            following,
            pages,
        })
    }

    /// Applies another configuration, or reports why it can't: in the log, in the metrics, and on the admin pages.
    ///
    /// - Cancel: new constraints may reserve already, but enforce nothing. Only stopping the instance makes sense then.
    pub async fn reload(&mut self, wanted: Result<Config, Problems>, telemetry: &Telemetry) {
        self.reloads.begin();
        let metrics = self.service.metrics.config.clone();
        // The background task must not mark a constraint as enforced that is about to be removed.
        if let Some(keeping) = self.keeping.take() {
            keeping.stop().await;
        }
        let applied = match wanted {
            Ok(wanted) => {
                let (service, membership) = (self.service.clone(), self.membership.clone());
                tokio::select! {
                    applied = service.board.work.showing(self.apply(wanted)) => applied,
                    never = fleet::end_doubts(&service, &membership) => match never {},
                }
            }
            Err(problems) => Err(ReloadError::Config(problems)),
        };
        self.keep_on();
        // Also if it is refused: clients may have made constraints meanwhile.
        self.privileges = following_privileges(&self.service, &self.config, &self.readiness);
        match applied {
            Ok(changes) => {
                telemetry.apply(&self.config);
                self.sweeping = sweeping(&self.service, &self.config);
                self.auditing = auditing(&self.service, &self.config);
                metrics.applied.inc();
                metrics.generation.inc();
                metrics.is_refused.set(0);
                let (added, removed) = (changes.added.join(", "), changes.removed.join(", "));
                tracing::info!(added, removed, "configuration reloaded");
                for setting in &changes.needs_restart {
                    tracing::warn!(setting, "changed, but stays as it is until the next start");
                }
                self.reloads
                    .applied(metrics.generation.get(), &changes, &self.left_out.names());
            }
            Err(error) => {
                metrics.refused.inc();
                metrics.is_refused.set(1);
                tracing::error!(%error, "configuration refused; the one before still holds");
                self.reloads.refused(metrics.generation.get(), &error);
            }
        }
    }

    /// Applies a configuration, without those of its new constraints that documents violate and that may be left out.
    async fn apply(&mut self, wanted: Config) -> Result<Changes, ReloadError> {
        let mut left_out = LeftOutConstraints::default();
        // A constraint that reserves here already stays.
        let is_new = |one: &&Arc<Constraint>| !self.of_file.iter().any(|of_file| of_file.is_equivalent(one));
        let new: Vec<Arc<Constraint>> = wanted.constraints.iter().filter(is_new).cloned().collect();
        let applied = loop {
            let of_file = left_out.taken_out_of(&wanted.constraints);
            let wanted = Config {
                constraints: left_out.serving(&wanted.constraints, self.clients.list()),
                ..wanted.clone()
            };
            let shared = (&*self.service, &*self.membership, &self.readiness);
            let mut follower = FollowedInReload {
                clients: &mut self.clients,
                wanted: (&left_out, &of_file),
                former: (&self.left_out, &self.of_file),
            };
            match reload::apply(shared, &mut self.config, wanted, &mut follower).await {
                Err(ReloadError::Prepare(PrepareError::Duplicates(reports))) if left_out.add(&new, &reports) => {}
                Ok(changes) => {
                    self.of_file = of_file;
                    break Ok((changes, left_out));
                }
                Err(error) => break Err(error),
            }
        };
        let (applied, before) = match applied {
            Ok((changes, left_out)) => (Ok(changes), std::mem::replace(&mut self.left_out, left_out)),
            Err(error) => (Err(error), LeftOutConstraints::default()),
        };
        self.left_out
            .show(&before, &self.config.constraints, &self.service, &self.readiness);
        applied
    }

    /// Waits until the list of clients' constraints has changed, and returns the new one.
    ///
    /// - Cancel: at any time.
    pub async fn clients_changed(&self) -> ClientConstraints {
        self.clients.changed().await
    }

    /// Applies a list of clients' constraints, or reports why it can't.
    ///
    /// - Cancel: as [`Instance::reload`].
    pub async fn follow_clients(&mut self, list: ClientConstraints) {
        if let Some(keeping) = self.keeping.take() {
            keeping.stop().await;
        }
        let wanted = self.left_out.serving(&self.of_file, &list);
        let (service, membership) = (&self.service, &self.membership);
        self.clients.note_applying(list.version);
        let (readiness, config) = (&self.readiness, &mut self.config);
        let replacing =
            reload::replace_clients_constraints(service, membership, readiness, config, wanted, list.version);
        let replaced = tokio::select! {
            replaced = replacing => replaced,
            never = fleet::end_doubts(service, membership) => match never {},
        };
        match replaced {
            Ok(()) => {
                self.clients.applied(list);
                self.privileges = following_privileges(&self.service, &self.config, &self.readiness);
            }
            Err(error) => self.clients.refused(list, &error, &self.membership).await,
        }
        self.keep_on();
    }

    /// Starts the task that keeps the present constraints enforced.
    fn keep_on(&mut self) {
        let keeping = keeping(
            &self.service,
            &self.membership,
            &self.config,
            &self.clients,
            &self.readiness,
        );
        self.keeping = Some(keeping);
    }

    /// How often to check whether the configuration has changed; zero is never.
    pub fn reload_interval(&self) -> Duration {
        self.config.reload_interval
    }

    /// The address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the admin pages.
    pub fn admin_address(&self) -> SocketAddr {
        self.pages.address
    }

    /// Reports at once that clients aren't welcome any more, but serves them for `drain_delay`. Then it drains their
    /// connections, for at most `drain`. Returns the rest of that time.
    pub async fn stop(self) -> Duration {
        self.readiness.block(Obstacle::Draining, "stopping");
        tokio::time::sleep(self.config.drain_delay).await;
        let drain = Drain::begin(self.config.drain);
        self.stage.send_replace(Stage::Draining(drain));
        drop((self.sweeping, self.auditing, self.privileges, self.keeping));
        let served = tokio::select! {
            served = self.serving => served,
            never = fleet::end_doubts(&self.service, &self.membership) => match never {},
        };
        let is_drained = served.unwrap_or_else(|error| {
            tracing::error!(%error, "serving ended before Keyward was stopped");
            false
        });
        drop(self.following);
        // While the deployment may still work on writes that came through here, the entry stays in the register.
        let writes = &self.service.writes;
        let last = writes.replace(writes.catalog().clone());
        let has_ended = tokio::time::timeout(AT_WORK, last.ended()).await.is_ok();
        self.membership
            .leave(is_drained && has_ended && writes.unobserved_end().is_none())
            .await;
        // The pages close last, so that the draining can be watched to the end.
        drop(self.pages);
        drain.until().saturating_duration_since(tokio::time::Instant::now())
    }
}

/// Opens the admin pages.
fn admin_pages(
    config: &Config,
    metrics: &Metrics,
    readiness: &Readiness,
    reloads: &LastReload,
    board: &StatusBoard,
) -> Result<Pages, StartError> {
    let admin = Admin {
        metrics: metrics.clone(),
        readiness: readiness.clone(),
        about: About::new(&config.upstream),
        reloads: reloads.clone(),
        board: board.clone(),
    };
    Pages::open(config.admin, admin)
}

/// Makes all constraints hold. If that fails, the entry that is being renewed leaves the register.
async fn prepared_or_left(
    upstream: &Upstream,
    config: &Config,
    clients: &FollowedList,
    (readiness, metrics): (&Readiness, &Metrics),
    membership: &Membership,
    renewing: Background,
) -> Result<(ServedConstraints, Background), StartError> {
    let prepared = match remembers(upstream, config, readiness, membership).await {
        Ok(()) => prepared(upstream, config, clients, (readiness, metrics), membership).await,
        Err(error) => Err(error),
    };
    match prepared {
        Ok(prepared) => Ok((prepared, renewing)),
        Err(error) => {
            if let StartError::Prepare(cause) = &error {
                clients.end_gone(cause, membership).await;
            }
            drop(renewing);
            membership.leave(true).await;
            Err(error)
        }
    }
}
