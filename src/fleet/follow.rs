//! What a Keyward does about the register while it runs: it renews its entry, and has its constraints enforced once
//! all who may write reserve for them, whatever comes between.

use std::sync::Arc;
use std::time::Duration;

use super::Membership;
use crate::constraint::Constraint;
use crate::metrics::{Metrics, constraint_label};
use crate::prepare::{self, PrepareError, State, Waiting};
use crate::readiness::{Obstacle, Readiness};
use crate::session::Service;

/// How long to leave it between two looks at the register and at the states of the constraints.
const LOOK: Duration = Duration::from_secs(1);
/// How long to leave documents that violate a constraint before they are read again.
const AFTER_DUPLICATES: Duration = Duration::from_secs(30);

/// Renews the entry for as long as it runs.
pub async fn renew(membership: Arc<Membership>, readiness: Readiness) {
    loop {
        let pause = match membership.renew().await {
            Ok(()) => membership.terms().renewal(),
            Err(error) => {
                tracing::warn!(%error, "this Keyward's entry in the register of Keywards could not be renewed");
                LOOK.min(membership.terms().renewal())
            }
        };
        match membership.may_write() {
            true => readiness.unblock(&Obstacle::Register),
            false => readiness.block(
                Obstacle::Register,
                "this Keyward's entry couldn't be renewed in time: nothing is written until it can",
            ),
        }
        tokio::time::sleep(pause).await;
    }
}

/// What is kept enforced.
#[derive(Debug)]
pub struct Kept {
    /// The constraints of the configuration that holds.
    pub constraints: Vec<Arc<Constraint>>,
    /// How long a reservation whose owner isn't there yet is presumed in flight.
    pub lease: Duration,
}

/// Has the constraints enforced whenever they aren't, and shows which are; for as long as it runs.
pub async fn keep(service: Arc<Service>, membership: Arc<Membership>, kept: Kept, readiness: Readiness) {
    loop {
        let pause = match look(&service, &membership, &kept, &readiness).await {
            Ok(pause) => pause,
            Err(PrepareError::Duplicates(reports)) => {
                tracing::error!(%reports, "constraints aren't enforced");
                for report in &reports.0 {
                    let label = format!("{}.{}", report.namespace, report.constraint);
                    readiness.note(&label, format!("reserving: {}", report.without_values()));
                }
                AFTER_DUPLICATES
            }
            Err(error) => {
                tracing::warn!(%error, "whether the constraints are enforced can't be seen");
                LOOK
            }
        };
        tokio::time::sleep(pause).await;
    }
}

async fn look(
    service: &Service,
    membership: &Membership,
    kept: &Kept,
    readiness: &Readiness,
) -> Result<Duration, PrepareError> {
    let (client, metrics) = (service.upstream.client(), &service.metrics);
    metrics
        .keywards
        .set(membership.look().await?.try_into().unwrap_or(i64::MAX));
    let states = prepare::states(client, &kept.constraints).await?;
    let mut is_any_left = false;
    for (constraint, state) in kept.constraints.iter().zip(states) {
        match state {
            Some(State::Enforced) => show_enforced(constraint, metrics, readiness),
            _ => {
                is_any_left = true;
                metrics.set_ready(constraint, false);
            }
        }
    }
    if !is_any_left {
        return Ok(LOOK);
    }
    let reserving = prepare::make(client, &kept.constraints, kept.lease, metrics).await?;
    let waiting = reserving
        .take_in(client, kept.lease, Some(membership), |_| false)
        .await?;
    show(&kept.constraints, &waiting, metrics, readiness);
    Ok(LOOK)
}

/// Shows which of `constraints` are enforced, and for whom the others wait.
pub fn show(constraints: &[Arc<Constraint>], waiting: &[Waiting], metrics: &Metrics, readiness: &Readiness) {
    for constraint in constraints {
        let label = constraint_label(constraint);
        match waiting.iter().find(|one| constraint_label(&one.constraint) == label) {
            None => show_enforced(constraint, metrics, readiness),
            Some(Waiting { others, .. }) => {
                metrics.set_ready(constraint, false);
                metrics.set_waits_for(constraint, others.len());
                let others: Vec<String> = others.iter().map(ToString::to_string).collect();
                readiness.note(&label, format!("reserving: waits for {}", others.join("; ")));
            }
        }
    }
}

fn show_enforced(constraint: &Constraint, metrics: &Metrics, readiness: &Readiness) {
    metrics.set_ready(constraint, true);
    metrics.set_waits_for(constraint, 0);
    readiness.forget_note(&constraint_label(constraint));
}
