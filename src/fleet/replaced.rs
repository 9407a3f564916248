//! Makes the reservations of a constraint anew whose proxy collection was dropped or replaced past Keyward.
//!
//! A backup that is restored while Keyward runs does that, for example. The server refuses to reserve keys in any other collection
//! than the one that this Keyward knows. So Keyward refuses the writes that need them, until all documents have their reservations again.

use std::sync::Arc;
use std::time::Duration;

use super::{Kept, Membership, RegisterEntry};
use crate::backfill_share::BackfillShare;
use crate::constraint::Constraint;
use crate::metrics::constraint_label;
use crate::prepare::{self, ConstraintState, IfClaimed, PrepareError, Standing};
use crate::proxy_collection::{ProxyCollection, StoreError};
use crate::readiness::Readiness;
use crate::session::Service;

/// How long to leave it between two looks at the catalog.
const POLL: Duration = Duration::from_secs(1);

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
/// - Cancel: at any time; the next call goes on.
/// # Errors
/// [`PrepareError`] if the cluster doesn't do as it is asked: then these constraints reserve nothing still.
pub(super) async fn renew_gone(
    service: &Service,
    membership: &Membership,
    kept: &Kept,
    readiness: &Readiness,
) -> Result<bool, PrepareError> {
    let gone = gone(service, kept);
    if gone.is_empty() {
        return Ok(false);
    }
    report(&gone, service, readiness);
    let client = service.upstream.client();
    let is_gone = |constraint: &Constraint| gone.iter().any(|one| one.constraint.has_name_of(constraint));
    // All of a collection, because they have one strategy.
    let mut wanted = kept.constraints.clone();
    wanted.retain(|constraint| {
        gone.iter()
            .any(|one| one.constraint.namespace() == constraint.namespace())
    });
    let mut reserving = prepare::make(client, &wanted, kept.lease, &service.metrics).await?;
    // Commands that began before the constraint's record said so may have reserved in the former collection.
    let past = service.writes.begin_epoch();
    let ended = service.writes.await_past(past, Duration::MAX).await;
    ended.map_err(|_| StoreError::TimedOut(Duration::MAX))?;
    let mut unready = reserving.unready();
    unready.retain(|constraint| is_gone(constraint));
    let any = |_: &RegisterEntry| true;
    reserving
        .await_writes_of_others(client, membership, &unready, any)
        .await?;
    reserving.note_waited_for(is_gone);
    for constraint in &unready {
        let is_it = |one: &Constraint| one.has_name_of(constraint);
        let never = |_: &Constraint| false;
        // Whether or not the other Keywards reserve for it, nothing may be reserved here before all documents are. The next poll makes it
        // enforced. Writes wait for this backfill, so it makes no pauses.
        let backfilled = reserving
            .backfill_documents(
                client,
                None,
                (is_it, never, never),
                (IfClaimed::Leave, BackfillShare::ALL),
            )
            .await;
        match backfilled {
            // All other documents have their reservations. The next poll reports these.
            Ok(_) | Err(PrepareError::Duplicates(_)) => {}
            Err(error) => return Err(error),
        }
    }
    service.writes.change(|catalog| reserving.in_place_of(catalog, is_gone));
    tracing::info!(constraints = names(&gone), "writes that need a reservation there go on");
    Ok(true)
}

/// Returns once a write has noticed that a proxy collection is gone.
pub(super) async fn noticed_gone(service: &Service, kept: &Kept) {
    while gone(service, kept).is_empty() {
        tokio::time::sleep(POLL).await;
    }
}

/// The proxy collections that are known to be gone.
fn gone(service: &Service, kept: &Kept) -> Vec<ProxyCollection> {
    let catalog = service.writes.catalog();
    let proxies = catalog.all().flat_map(|protected| &protected.constraints);
    // A refused configuration may have left others, which reserve without need.
    let is_kept = |proxy: &&ProxyCollection| kept.constraints.iter().any(|one| one.has_name_of(&proxy.constraint));
    let gone = proxies.filter(|proxy| proxy.is_gone()).filter(is_kept);
    gone.cloned().collect()
}

fn names(gone: &[ProxyCollection]) -> String {
    let labels: Vec<String> = gone.iter().map(|proxy| constraint_label(&proxy.constraint)).collect();
    labels.join(", ")
}

/// Shows that nothing is reserved there, and logs it once.
fn report(gone: &[ProxyCollection], service: &Service, readiness: &Readiness) {
    for proxy in gone {
        service.note_enforced(&proxy.constraint, false);
        let note = "its proxy collection was dropped or replaced: keys are reserved anew";
        readiness.note(&constraint_label(&proxy.constraint), note.to_owned());
    }
    if gone.iter().filter(|proxy| proxy.report_gone()).count() > 0 {
        tracing::error!(
            constraints = names(gone),
            "proxy collections were dropped or replaced past Keyward: writes that need a reservation there are refused until all \
             documents have theirs again"
        );
    }
}
