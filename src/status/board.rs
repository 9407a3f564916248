//! Collects what parts of a running Keyward note for its status: the register, the counts of reservations, the audits, the work
//! under way.
//!
//! Reservations are counted only when a client asks for the status, and at most once in [`FRESH`]. The server answers from the
//! collections' metadata. The builds of clients' constraints are read each time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bson::oid::ObjectId;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::audit::SeenAudits;
use crate::catalog::Catalog;
use crate::client_constraints::BuildUnderWay;
use crate::fleet::RegisterEntry;
use crate::metrics::constraint_label;
use crate::progress::WorkUnderWay;

/// How long a count is shown before another look has it made anew.
const FRESH: Duration = Duration::from_secs(15);
/// How long a look waits for a new count. After that it shows the old one.
const PATIENCE: Duration = Duration::from_secs(1);

/// The number of reservations of each constraint, by its label.
#[derive(Debug, Clone)]
pub struct ReservationCounts {
    /// When they were counted.
    pub at: Instant,
    /// By the constraint's label; one that couldn't be counted is missing.
    pub by_constraint: HashMap<String, u64>,
}

/// The Keywards of the register, as they were seen last.
#[derive(Debug, Clone)]
pub struct SeenFleet {
    /// When that was.
    pub at: Instant,
    /// This Keyward's entry.
    pub own: ObjectId,
    /// All entries.
    pub entries: Vec<RegisterEntry>,
}

/// The notes; clones share them.
#[derive(Debug, Clone, Default)]
pub struct StatusBoard {
    /// Long work under way.
    pub work: WorkUnderWay,
    fleet: Arc<Mutex<Option<SeenFleet>>>,
    audits: Arc<Mutex<Option<SeenAudits>>>,
    counts: Arc<OnRequest<Option<ReservationCounts>>>,
    builds: Arc<OnRequest<Vec<BuildUnderWay>>>,
}

impl StatusBoard {
    /// Notes the entries of the register, of which `own` is this Keyward's.
    pub fn note_fleet(&self, own: ObjectId, entries: &[RegisterEntry]) {
        let seen = SeenFleet {
            at: Instant::now(),
            own,
            entries: entries.to_vec(),
        };
        *self.fleet.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
    }

    /// The register as it was seen last, if it was.
    pub fn fleet(&self) -> Option<SeenFleet> {
        self.fleet.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes how far the audits have come, or that this Keyward doesn't audit.
    pub fn note_audits(&self, seen: Option<SeenAudits>) {
        *self.audits.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }

    /// How far the audits have come, if this Keyward is to audit.
    pub fn audits(&self) -> Option<SeenAudits> {
        *self.audits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last count of reservations, if there is one.
    pub fn counts(&self) -> Option<ReservationCounts> {
        self.counts.latest.borrow().clone()
    }

    /// The builds of clients' constraints, as they were read last.
    pub fn builds(&self) -> Vec<BuildUnderWay> {
        self.builds.latest.borrow().clone()
    }

    /// Requests the builds, and a new count of reservations if the last one is old. Waits for both a little.
    pub async fn refresh(&self) {
        let is_fresh = self.counts().is_some_and(|counts| counts.at.elapsed() < FRESH);
        let counts = async {
            if !is_fresh {
                self.counts.refresh().await;
            }
        };
        tokio::join!(counts, self.builds.refresh());
    }

    /// Counts the reservations of the catalog that `current` returns, each time that a count is requested. It ends only when it is dropped.
    pub async fn count(&self, current: impl Fn() -> Arc<Catalog>) {
        let count = || {
            let catalog = current();
            async move { Some(count(&catalog).await) }
        };
        self.counts.answer(count).await;
    }

    /// Has `read` read the builds each time that they are requested. It ends only when it is dropped.
    pub async fn show_builds<F: Future<Output = Vec<BuildUnderWay>>>(&self, read: impl Fn() -> F) {
        self.builds.answer(read).await;
    }
}

/// Counts the reservations of each constraint of `catalog`.
async fn count(catalog: &Catalog) -> ReservationCounts {
    let mut by_constraint = HashMap::new();
    for proxy in catalog.all().flat_map(|protected| &protected.constraints) {
        match proxy.count_reservations().await {
            Ok(count) => {
                by_constraint.insert(constraint_label(&proxy.constraint), count);
            }
            Err(error) => {
                tracing::debug!(%error, "reservations could not be counted");
                // Each of the others would wait as long.
                break;
            }
        }
    }
    ReservationCounts {
        at: Instant::now(),
        by_constraint,
    }
}

/// A value that one task reads when another task requests it.
#[derive(Debug, Default)]
struct OnRequest<T> {
    latest: watch::Sender<T>,
    wanted: Notify,
}

impl<T> OnRequest<T> {
    /// Requests the value, and waits for it a little. Without [`OnRequest::answer`] it stays as it is.
    async fn refresh(&self) {
        // The task that answers holds a receiver for as long as it runs.
        if self.latest.receiver_count() == 0 {
            return;
        }
        let mut answered = self.latest.subscribe();
        self.wanted.notify_one();
        // If it takes longer, the next look has it.
        let _ = timeout(PATIENCE, answered.changed()).await;
    }

    /// Has `read` read the value each time that it is requested.
    async fn answer<F: Future<Output = T>>(&self, read: impl Fn() -> F) {
        let _answering = self.latest.subscribe();
        loop {
            self.wanted.notified().await;
            self.latest.send_replace(read().await);
        }
    }
}
