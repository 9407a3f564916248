//! Makes the reservations of a constraint anew whose proxy collection was dropped or replaced past Keyward.
//!
//! A backup that is restored while Keyward runs does that, for example. The server refuses to reserve keys in any other collection
//! than the one that this Keyward knows. So Keyward refuses the writes that need them, until all documents have their reservations again.

use std::sync::Arc;
use std::time::Duration;

use super::{Kept, Membership};
use crate::constraint::Constraint;
use crate::metrics::{constraint_label, constraint_labels};
use crate::prepare::{self, ConstraintState, IfClaimed, PrepareError, Standing};
use crate::proxy_collection::StoreError;
use crate::readiness::Readiness;
use crate::session::Service;

/// How long commands that reserved in the former collection may take to end.
const PATIENCE: Duration = Duration::from_secs(120);

/// Notes which proxy collections aren't the ones any more that this Keyward writes to, as the `standings` of `constraints` show.
/// Another Keyward has made their reservations anew.
pub(super) fn note_gone(service: &Service, constraints: &[Arc<Constraint>], standings: &[Option<Standing>]) {
    let catalog = service.writes.catalog();
    for (constraint, standing) in constraints.iter().zip(standings) {
        let Some(Standing {
            state: ConstraintState::Enforced,
            proxy: Some(complete_in),
            ..
        }) = standing
        else {
            continue;
        };
        let protected = catalog.on(constraint.namespace());
        let mut proxies = protected.iter().flat_map(|protected| &protected.constraints);
        if let Some(proxy) = proxies.find(|proxy| proxy.constraint.has_name_of(constraint)) {
            proxy.note_complete_in(*complete_in);
        }
    }
}

/// Makes the reservations anew of the constraints whose proxy collections are gone. Returns whether there are any.
///
/// - Cancel: at any time; the next call begins again.
/// # Errors
/// [`PrepareError`] if the cluster doesn't do as it is asked: then these constraints reserve nothing still.
pub(super) async fn renew_gone(
    service: &Service,
    membership: &Membership,
    kept: &Kept,
    readiness: &Readiness,
) -> Result<bool, PrepareError> {
    let catalog = Arc::clone(&service.writes.catalog());
    let proxies = catalog.all().flat_map(|protected| &protected.constraints);
    let gone: Vec<Arc<Constraint>> = proxies
        .filter(|proxy| proxy.is_gone())
        .map(|proxy| proxy.constraint.clone())
        .collect();
    if gone.is_empty() {
        return Ok(false);
    }
    tracing::error!(
        constraints = constraint_labels(&gone).join(", "),
        "proxy collections were dropped or replaced past Keyward: writes that need a reservation there are refused until all documents \
         have theirs again"
    );
    for constraint in &gone {
        service.note_enforced(constraint, false);
        let note = "its proxy collection was dropped or replaced: keys are reserved anew";
        readiness.note(&constraint_label(constraint), note.to_owned());
    }
    let is_gone = |constraint: &Constraint| gone.iter().any(|one| one.has_name_of(constraint));
    let client = service.upstream.client();
    let mut reserving = prepare::make(client, &kept.constraints, kept.lease, &service.metrics).await?;
    reserving.go_on_from(&catalog, |constraint| !is_gone(constraint));
    let mut unready = reserving.unready();
    unready.retain(|constraint| is_gone(constraint));
    if !unready.is_empty() {
        let past = service.writes.replace(catalog);
        let ended = service.writes.await_past(past, PATIENCE).await;
        ended.map_err(|_| StoreError::TimedOut(PATIENCE))?;
        reserving.await_writes_by_replaced(client, membership).await?;
        let is_meant = |constraint: &Constraint| unready.iter().any(|one| one.has_name_of(constraint));
        let never = |_: &Constraint| false;
        let backfilled = reserving
            .backfill_documents(client, Some(membership), (is_meant, never, never), IfClaimed::Wait)
            .await;
        match backfilled {
            // All other documents have their reservations. The next poll reports these.
            Ok(_) | Err(PrepareError::Duplicates(_)) => {}
            Err(error) => return Err(error),
        }
    }
    drop(service.writes.replace(Arc::new(reserving.catalog())));
    tracing::info!(
        constraints = constraint_labels(&gone).join(", "),
        "writes that need a reservation there go on"
    );
    Ok(true)
}
