//! Audits protected collections: follows their change streams, and compares what was written with what is reserved.
//!
//! Clients mustn't write to a protected collection past Keyward, but an operator or a migration may do so. The auditor reserves the keys of
//! such documents, and reports the ones that violate a constraint. Reservations of documents that were deleted past Keyward are left
//! to the sweeper, unless all documents are compared.
//!
//! A constraint that isn't enforced yet is only reserved for: its documents may be older than the constraint, and the backfill reports
//! those that violate it. If the audit has found such violations itself, it compares all documents once the constraint is enforced.
//!
//! One Keyward audits a collection at a time ([`turn`]), and records how far it has come. If it is killed, another one goes on from
//! there. If there is no such record, or the servers no longer have the history since then, it also compares all documents once, as
//! `keyward verify` does. Auditing a document twice, or by two Keywards at once, does no harm.

mod changes;
mod collection;
mod progress;
mod turn;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mongodb::Client;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::catalog::{Catalog, Protected};
use crate::constraint::{Constraint, ConstraintName};
use crate::namespace::Namespace;
use collection::audit_again_and_again;
use progress::AuditProgress;
pub use progress::SeenAudits;

/// How long to leave it between two reads of the catalog, and two notes of the progress.
const POLL: Duration = Duration::from_secs(1);

/// The state that the audits of all collections share.
struct Auditor {
    /// Not the client of the reservations. A snapshot through that one is no older than a change that this one has read: a sharded change
    /// stream shows a change once all shards are past its time.
    client: Client,
    /// Names this process in the records.
    id: String,
    current: Box<dyn Fn() -> Arc<Catalog> + Send + Sync>,
    is_enforced: Box<dyn Fn(&Constraint) -> bool + Send + Sync>,
    /// The constraints that weren't enforced when the audit found violations, which it didn't report.
    unreported: Mutex<HashSet<ConstraintName>>,
    progress: Mutex<AuditProgress>,
}

impl Auditor {
    /// Whether an audit of all documents would report violations that weren't reported before.
    fn has_more_to_report(&self, protected: &Protected) -> bool {
        self.is_any_unreported(protected, |constraint| (self.is_enforced)(constraint))
    }

    /// Whether violations of a constraint of the collection weren't reported.
    fn has_unreported(&self, protected: &Protected) -> bool {
        self.is_any_unreported(protected, |_| true)
    }

    fn is_any_unreported(&self, protected: &Protected, is_meant: impl Fn(&Constraint) -> bool) -> bool {
        let unreported = self.unreported.lock().unwrap_or_else(PoisonError::into_inner);
        let mut constraints = protected.constraints.iter().map(|proxy| &proxy.constraint);
        !unreported.is_empty() && constraints.any(|one| unreported.contains(&one.full_name()) && is_meant(one))
    }

    /// Notes whether violations of the constraint were found that aren't reported.
    fn note_unreported(&self, constraint: &Constraint, is_any_unreported: bool) {
        let mut unreported = self.unreported.lock().unwrap_or_else(PoisonError::into_inner);
        match is_any_unreported {
            true => unreported.insert(constraint.full_name()),
            false => unreported.remove(&constraint.full_name()),
        };
    }

    fn progress(&self) -> MutexGuard<'_, AuditProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Audits every protected collection of the catalog that `current` gives; ends only when it is dropped. It reports nothing about
/// a constraint unless that `is_enforced`: until then documents without reservations are no fault. It tells `note` how far it has come.
pub async fn run(
    client: Client,
    (current, is_enforced): (
        impl Fn() -> Arc<Catalog> + Send + Sync + 'static,
        impl Fn(&Constraint) -> bool + Send + Sync + 'static,
    ),
    note: impl Fn(SeenAudits),
) {
    let auditor = Arc::new(Auditor {
        client,
        id: bson::oid::ObjectId::new().to_hex(),
        current: Box::new(current),
        is_enforced: Box::new(is_enforced),
        unreported: Mutex::default(),
        progress: Mutex::default(),
    });
    // Dropping it aborts all of them.
    let mut tasks = JoinSet::new();
    let mut audits: HashMap<Namespace, AbortHandle> = HashMap::new();
    loop {
        let catalog = (auditor.current)();
        let protected: HashSet<Namespace> = catalog.all().map(|protected| protected.namespace.clone()).collect();
        for (namespace, audit) in audits.extract_if(|namespace, _| !protected.contains(namespace)) {
            audit.abort();
            auditor.progress().forget(&namespace);
        }
        for namespace in protected {
            audits
                .entry(namespace)
                .or_insert_with_key(|namespace| tasks.spawn(audit_again_and_again(auditor.clone(), namespace.clone())));
        }
        let seen = auditor.progress().seen(Instant::now());
        note(seen);
        tokio::time::sleep(POLL).await;
    }
}
