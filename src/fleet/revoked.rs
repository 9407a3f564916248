//! Notices that constraints are no longer enforced, also while another task changes the constraints or reads all documents.
//!
//! Another Keyward that begins to write without a constraint revokes `enforced` in the cluster. Reads that rely on the constraint would
//! miss documents that it writes. So no other work of this Keyward delays this task.

use std::sync::Arc;

use super::follow::POLL;
use crate::constraint::Constraint;
use crate::metrics::constraint_label;
use crate::prepare::{self, ConstraintState};
use crate::proxy_collection::StoreError;
use crate::readiness::Readiness;
use crate::session::Service;

/// The task that notices it.
#[derive(Debug, Default)]
pub struct FollowRevoked {
    /// The last read failed, which is reported.
    is_failing: bool,
}

impl FollowRevoked {
    /// Notices which constraints are no longer enforced, for as long as it runs.
    ///
    /// - Cancel: at any time.
    pub async fn run(mut self, service: Arc<Service>, readiness: Readiness) {
        loop {
            tokio::time::sleep(POLL).await;
            self.once(&service, &readiness).await;
        }
    }

    /// Notices which constraints are no longer enforced now.
    pub async fn once(&mut self, service: &Service, readiness: &Readiness) {
        let noted = note_revoked(service, readiness).await;
        // Only the first failure: the task that makes constraints enforced mostly fails, too, and reports that each time.
        if let (Err(error), false) = (&noted, self.is_failing) {
            tracing::warn!(%error, "whether the constraints are enforced can't be seen");
        }
        self.is_failing = noted.is_err();
    }
}

/// Notes which of the constraints that count as enforced are so no longer. It never notes that one is enforced.
///
/// # Errors
/// [`StoreError`] if the states can't be read: after some seconds no read relies on them.
async fn note_revoked(service: &Service, readiness: &Readiness) -> Result<(), StoreError> {
    let enforced = &service.writes.enforced;
    let read = enforced.begin_read();
    let catalog = service.writes.catalog().clone();
    let proxies = catalog.all().flat_map(|protected| &protected.constraints);
    let constraints = proxies.map(|proxy| proxy.constraint.clone());
    let constraints: Vec<Arc<Constraint>> = constraints.filter(|one| enforced.has(one)).collect();
    let standings = prepare::standings(service.upstream.client(), &constraints).await?;
    enforced.end_read(read);
    for (constraint, standing) in constraints.iter().zip(standings) {
        if standing.is_some_and(|standing| standing.state == ConstraintState::Enforced) {
            continue;
        }
        enforced.revoke(constraint, read, || {
            service.metrics.set_ready(constraint, false);
            let note = "reserving: a Keyward may have written without it".to_owned();
            readiness.note(&constraint_label(constraint), note);
        });
    }
    Ok(())
}
