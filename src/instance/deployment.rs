//! Waits for the deployment at the start: until it is found, answers, grants the privileges, and holds the constraints.
//!
//! A deployment that doesn't answer may come up after Keyward, so only an error that is final ends the wait.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use mongodb::Client;
use mongodb::error::{ErrorKind, RETRYABLE_WRITE_ERROR};

use super::StartError;
use super::clients::FollowedList;
use super::left_out::LeftOutConstraints;
use crate::catalog::Catalog;
use crate::client_constraints::is_current;
use crate::config::Config;
use crate::constraint::Constraint;
use crate::fleet::{self, ClientsView, EntryTerms, Membership};
use crate::metrics::Metrics;
use crate::prepare::{self, PrepareError, Report, Reports, WaitingConstraint};
use crate::proxy_collection::{StoreError, answered};
use crate::readiness::{Obstacle, Readiness};
use crate::server::{code, definite, driver};
use crate::session::Service;
use crate::upstream::{SetupError, Upstream, reports_retries};

/// How long to wait after a deployment gave no answer.
const RETRY: Duration = Duration::from_secs(1);
/// How long to wait between two checks of the privileges of Keyward's own user.
const PRIVILEGES_EVERY: Duration = Duration::from_secs(30);

/// Looks the deployment up; with `mongodb+srv`, repeats this until it is found.
pub(super) async fn resolved(config: &Config, readiness: &Readiness) -> Result<Upstream, StartError> {
    loop {
        match Upstream::new(config.upstream.uri()).await {
            Err(SetupError::Uri(error)) if matches!(*error.kind, ErrorKind::DnsResolve { .. }) => {
                let reason = driver::in_words(&error);
                if !readiness.obstacles().contains(&(Obstacle::Upstream, reason.clone())) {
                    tracing::warn!(upstream = %config.upstream, reason, "the deployment does not answer");
                    readiness.block(Obstacle::Upstream, reason);
                }
                tokio::time::sleep(RETRY).await;
            }
            result => {
                readiness.unblock(&Obstacle::Upstream);
                return Ok(result?);
            }
        }
    }
}

/// Asks until the deployment answers, because it may start after Keyward. Only a refusal is final.
pub(super) async fn await_answer(
    upstream: &Upstream,
    config: &Config,
    readiness: &Readiness,
) -> Result<(), StartError> {
    loop {
        match prepare::ping(upstream.client()).await {
            Ok(()) => {
                readiness.unblock(&Obstacle::Deployment);
                return Ok(());
            }
            Err(error) if is_refusal(&error) => return Err(StartError::Refused(error)),
            Err(error) => {
                wait_after(&error, config, readiness).await;
            }
        }
    }
}

/// Asks until Keyward's own user has its privileges: they can be granted while Keyward waits.
pub(super) async fn await_privileges(
    upstream: &Upstream,
    config: &Config,
    readiness: &Readiness,
) -> Result<(), StartError> {
    loop {
        match prepare::privileges::missing(upstream.client(), &config.constraints).await {
            Ok(missing) => match show_privileges(&missing, readiness) {
                true => return Ok(()),
                false => tokio::time::sleep(RETRY).await,
            },
            Err(PrepareError::Store(error)) if may_pass(&error) => wait_after(&error, config, readiness).await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Checks the privileges again for as long as Keyward runs. A privilege that is revoked later, or a deployment that
/// stops answering, is reported in the same way.
pub(super) async fn follow_privileges(service: Arc<Service>, config: Config, readiness: Readiness) {
    let mut pause = PRIVILEGES_EVERY;
    loop {
        tokio::time::sleep(pause).await;
        pause = match prepare::privileges::missing(service.upstream.client(), &config.constraints).await {
            Ok(missing) => {
                readiness.unblock(&Obstacle::Deployment);
                show_privileges(&missing, &readiness);
                PRIVILEGES_EVERY
            }
            Err(error) => {
                show_failure(&error, &config.upstream, &readiness);
                RETRY
            }
        };
    }
}

/// Shows missing privileges in `/readyz`, and in the log when they change. Returns whether none is missing.
fn show_privileges(missing: &[String], readiness: &Readiness) -> bool {
    let text = format!("Keyward's user lacks {}; see docs/security.md", missing.join("; "));
    if missing.is_empty() {
        readiness.unblock(&Obstacle::Privileges);
    } else if !readiness.obstacles().contains(&(Obstacle::Privileges, text.clone())) {
        readiness.block(Obstacle::Privileges, text);
        tracing::error!(missing = missing.join("; "), "Keyward's user lacks privileges");
    }
    missing.is_empty()
}

/// Reads the list of clients' constraints.
pub(super) async fn followed(
    upstream: &Upstream,
    config: &Config,
    readiness: &Readiness,
) -> Result<FollowedList, StartError> {
    until_answered(config, readiness, async || FollowedList::of(upstream.client()).await).await
}

/// Enters this Keyward in the register.
pub(super) async fn joined(
    upstream: &Upstream,
    config: &Config,
    readiness: &Readiness,
    clients: ClientsView,
) -> Result<Membership, StartError> {
    let terms = EntryTerms::of(config.lease).hastened();
    let listen = config.listen.to_string();
    let join = async || Membership::join(upstream.client(), listen.clone(), terms, clients).await;
    until_answered(config, readiness, join).await
}

/// Asks until the deployment answers.
async fn until_answered<T>(
    config: &Config,
    readiness: &Readiness,
    ask: impl AsyncFn() -> Result<T, StoreError>,
) -> Result<T, StartError> {
    loop {
        match ask().await {
            Ok(answer) => {
                readiness.unblock(&Obstacle::Deployment);
                return Ok(answer);
            }
            Err(error) if may_pass(&error) => wait_after(&error, config, readiness).await,
            Err(error) => return Err(PrepareError::from(error).into()),
        }
    }
}

/// Checks that the deployment says which statements of a retry were carried out before, with the entry in the register: it is renewed
/// twice under one number.
pub(super) async fn remembers(
    upstream: &Upstream,
    config: &Config,
    readiness: &Readiness,
    membership: &Membership,
) -> Result<(), StartError> {
    loop {
        match reports_retries_of(upstream, membership).await {
            Ok(Some(true)) => {
                readiness.unblock(&Obstacle::Deployment);
                return Ok(());
            }
            Ok(Some(false)) => return Err(StartError::Refused(StoreError::Forgetful)),
            // Another Keyward has taken the entry away; it is about to be registered anew.
            Ok(None) => tokio::time::sleep(RETRY).await,
            // Without a replica set there is no memory; the next step says so in its own words.
            Err(StoreError::Driver(error)) if driver::code_of(&error) == Some(code::ILLEGAL_OPERATION) => return Ok(()),
            Err(error) if may_pass(&error) => wait_after(&error, config, readiness).await,
            Err(error) => return Err(PrepareError::from(error).into()),
        }
    }
}

async fn reports_retries_of(upstream: &Upstream, membership: &Membership) -> Result<Option<bool>, StoreError> {
    let client = upstream.apart().map_err(|error| match error {
        SetupError::Uri(error) => StoreError::Driver(error),
        _ => StoreError::Unexpected("the connection string"),
    })?;
    let asked = async {
        let mut session = client.start_session().await?;
        let database = client.database(fleet::DATABASE);
        reports_retries(&database, &mut session, &membership.renewal(), 1, None).await
    };
    let is_reported = answered(asked).await;
    // On its own: with a service name, it waits until the driver looks the name up again, up to a minute later.
    tokio::spawn(client.shutdown().immediate(true).into_future());
    is_reported
}

/// The constraints that clients are served with.
pub(super) struct ServedConstraints {
    pub catalog: Catalog,
    /// The constraints that can't be called enforced yet.
    pub waiting: Vec<WaitingConstraint>,
    /// The constraints that clients are served without.
    pub left_out: LeftOutConstraints,
}

/// Makes all constraints hold, those of the file's configuration and those of clients, except violated ones that may be left out or were
/// enforced before.
/// A broken connection or a shard without a primary may interrupt this; a later try finishes every step that has begun.
pub(super) async fn prepared(
    upstream: &Upstream,
    config: &Config,
    clients: &FollowedList,
    (readiness, metrics): (&Readiness, &Metrics),
    membership: &Membership,
) -> Result<ServedConstraints, StartError> {
    let mut left_out = LeftOutConstraints::default();
    let mut deferred: Vec<Arc<Constraint>> = Vec::new();
    let mut is_changed = false;
    let client = upstream.client();
    loop {
        let prepared = async {
            let constraints = &left_out.serving(&config.constraints, clients.list());
            left_out.give_up(client, membership).await?;
            let (rejoined, doubt) = (membership.rejoined(), membership.doubt());
            if is_changed || doubt.is_some() {
                // Its entry has the collections by now, so the register must list the constraints as they are before they can be
                // enforced. It is true: nothing is written here yet.
                let reserving = prepare::make(client, constraints, config.lease, metrics).await?;
                membership.list(&reserving.identities(|_| true), rejoined).await?;
            }
            let how = (&deferred[..], config.backfill_share);
            let prepared = prepare::prepare(client, constraints, config.lease, metrics, Some(membership), how);
            let (reserving, waiting) = match prepared.await {
                Err(PrepareError::Duplicates(reports)) => return defer(&mut deferred, client, config, reports).await,
                prepared => prepared?,
            };
            // An enforced constraint is not left out: its documents have been changed meanwhile.
            if left_out.is_any_enforced(client).await? {
                return Ok(None);
            }
            let identities = reserving.identities(|_| true);
            // If clients have made constraints meanwhile, the first write to each collection waits for them.
            membership
                .declare_if(
                    reserving.namespaces_of_file(),
                    &identities,
                    is_current(clients.shared().as_ref()),
                )
                .await?;
            reserving.check_unchanged(client, |_| true).await?;
            if let Some(doubt) = doubt {
                membership.confirm(doubt).await?;
            }
            Ok(Some((reserving.catalog(), waiting)))
        };
        match prepared.await {
            Ok(Some((catalog, waiting))) => {
                readiness.unblock(&Obstacle::Deployment);
                return Ok(ServedConstraints {
                    catalog,
                    waiting,
                    left_out,
                });
            }
            Ok(None) => left_out = LeftOutConstraints::default(),
            Err(PrepareError::Duplicates(first)) if left_out.add(&config.constraints, &first) => {}
            // The next try lists the constraints in the new entry.
            Err(PrepareError::Store(StoreError::Outlasted)) => {}
            Err(PrepareError::Store(error)) if may_pass(&error) => wait_after(&error, config, readiness).await,
            // The next try makes it anew, or says why it can't.
            Err(PrepareError::Changed(changed)) => {
                tracing::info!(namespace = %changed.namespace, constraint = changed.name, "the constraint was changed in the cluster meanwhile");
                is_changed = true;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Adds the violated constraints that were enforced before, and may not be left out, to those `deferred`. Other Keywards serve clients although
/// such a constraint is violated since, and so does a start: only a first start ends.
///
/// # Errors
/// Always: [`PrepareError::Duplicates`] with the other reports, if any; or the cluster doesn't answer.
async fn defer<T>(
    deferred: &mut Vec<Arc<Constraint>>,
    client: &Client,
    config: &Config,
    reports: Reports,
) -> Result<T, PrepareError> {
    let is_violated = |constraint: &&Arc<Constraint>| reports.0.iter().any(|report| report.is_of(constraint));
    let violated = config.constraints.iter().filter(is_violated);
    let violated: Vec<_> = violated.filter(|one| !one.may_be_left_out()).cloned().collect();
    let standings = prepare::standings(client, &violated).await?;
    for (constraint, standing) in violated.into_iter().zip(standings) {
        if standing.is_some_and(|standing| standing.was_enforced) {
            deferred.push(constraint);
        }
    }
    let is_deferred = |report: &Report| deferred.iter().any(|constraint| report.is_of(constraint));
    let (later, first): (Vec<_>, Vec<_>) = reports.0.into_iter().partition(is_deferred);
    if !later.is_empty() {
        tracing::error!(reports = %Reports(later), "constraints aren't enforced");
    }
    Err(PrepareError::Duplicates(Reports(first)))
}

/// Shows `error` in `/readyz` and in the log, and waits a moment.
async fn wait_after(error: &StoreError, config: &Config, readiness: &Readiness) {
    show_failure(error, &config.upstream, readiness);
    tokio::time::sleep(RETRY).await;
}

/// Shows `error` in `/readyz`, and in the log if it is a new one.
fn show_failure(error: &dyn Display, upstream: &dyn Display, readiness: &Readiness) {
    let shown = (Obstacle::Deployment, error.to_string());
    if !readiness.obstacles().contains(&shown) {
        tracing::warn!(%error, %upstream, "the deployment does not carry out Keyward's commands");
        readiness.block(shown.0, shown.1);
    }
}

/// Whether another try would get the same answer: the user, the password or the rights are wrong, or the server is old.
fn is_refusal(error: &StoreError) -> bool {
    let driver = match error {
        StoreError::TooOld(_) => return true,
        StoreError::Driver(driver) => driver,
        _ => return false,
    };
    matches!(*driver.kind, ErrorKind::Authentication { .. } | ErrorKind::Command(_)) && !may_pass(error)
}

/// Whether the deployment may give another answer soon: a connection broke, or a shard has no primary just now.
fn may_pass(error: &StoreError) -> bool {
    let error = match error {
        StoreError::TimedOut(_) => return true,
        StoreError::Driver(error) => error,
        _ => return false,
    };
    match &*error.kind {
        ErrorKind::Io(_) | ErrorKind::ServerSelection { .. } | ErrorKind::ConnectionPoolCleared { .. } => true,
        ErrorKind::Command(refused) => definite::may_pass(refused.code),
        _ => error.contains_label(RETRYABLE_WRITE_ERROR),
    }
}
