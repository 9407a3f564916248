//! When the constraints change while clients write: from when on everything that is written was decided by the new ones.
//!
//! Each connection holds the era by whose catalog it decided what is still under way on it, and lets it go once
//! that has its answer. So nobody counts anything while messages pass; who changes the catalog waits until the era
//! before is held by no one.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::context::Context;
use crate::catalog::Catalog;

/// How long a client's transaction may live: the server ends what is older than `transactionLifetimeLimitSeconds`, 60, and looks
/// for that every 30 seconds.
pub const TRANSACTION_LIFE: Duration = Duration::from_secs(95);

/// Held as long as something that one catalog has decided may be under way.
#[derive(Debug, Clone)]
pub struct CatalogEpoch(#[expect(dead_code, reason = "it only has to live")] mpsc::Sender<Infallible>);

/// An era that has ended for what begins now, but not for what is under way.
#[derive(Debug)]
pub struct PastEpoch {
    held: mpsc::Receiver<Infallible>,
}

impl PastEpoch {
    /// Waits until nothing is under way any more that was decided then.
    pub async fn is_over(mut self) {
        // Nothing can be sent; it ends when the last sender is gone.
        self.held.recv().await;
    }
}

/// The eras of one Keyward.
#[derive(Debug)]
pub(super) struct CatalogEpochs {
    current: watch::Sender<CatalogEpoch>,
    held: Mutex<mpsc::Receiver<Infallible>>,
    begun: Instant,
    /// How long what was lost sight of may take: a transaction's life, or the lease that limits a protected write.
    life: Duration,
    /// When a command of a client's transaction last passed, or a write was last lost sight of, in milliseconds since
    /// `begun`, and one more.
    unseen_at: AtomicU64,
    /// When a write was last lost sight of, as above.
    lost_at: AtomicU64,
}

impl CatalogEpochs {
    pub(super) fn new(lease: Duration) -> CatalogEpochs {
        let (epoch, held) = mpsc::channel(1);
        CatalogEpochs {
            current: watch::Sender::new(CatalogEpoch(epoch)),
            held: Mutex::new(held),
            begun: Instant::now(),
            life: TRANSACTION_LIFE.max(lease),
            unseen_at: AtomicU64::new(0),
            lost_at: AtomicU64::new(0),
        }
    }

    /// The time, as it is noted.
    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    /// When a transaction's life is over after what was noted there, unless it is over already.
    fn end_of(&self, noted: &AtomicU64) -> Option<Instant> {
        let at = noted.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.begun + Duration::from_millis(at) + self.life).filter(|end| *end > Instant::now())
    }
}

impl Context {
    /// The eras as they begin; who holds one decides by the catalog only.
    pub fn epochs(&self) -> watch::Receiver<CatalogEpoch> {
        self.epochs.current.subscribe()
    }

    /// Notes that a command of a client's transaction passes.
    pub fn note_transaction(&self) {
        self.epochs.unseen_at.store(self.epochs.now(), Ordering::Relaxed);
    }

    /// Notes that the connection has broken on which a write's reply was to come, or that a protected write's reply doesn't say what
    /// became of it: nobody can tell how long the server is at work on it. It is given as long as a transaction, or a lease if that is longer. What a reply
    /// says that only passes through is looked at by nobody.
    pub fn note_lost(&self) {
        let now = self.epochs.now();
        self.epochs.unseen_at.store(now, Ordering::Relaxed);
        self.epochs.lost_at.store(now, Ordering::Relaxed);
    }

    /// When no transaction can be open any more of which a command has passed so far, nor a server be at work on a write that
    /// was lost sight of.
    pub fn unseen_end(&self) -> Option<Instant> {
        self.epochs.end_of(&self.epochs.unseen_at)
    }

    /// When no server can be at work any more on a write that was lost sight of.
    pub fn lost_end(&self) -> Option<Instant> {
        self.epochs.end_of(&self.epochs.lost_at)
    }

    /// Has no client's transaction be committed any more that began before the last change of the catalog: how long one may be
    /// open is a setting of the servers', and one that is prepared is open until all of its shards are there. Commits that have
    /// passed are under way until what is given back is over.
    pub fn refuse_older_transactions(&self) -> PastEpoch {
        self.transactions.refuse_older();
        self.begin_era()
    }

    /// Has `catalog` decide from now on.
    pub fn replace(&self, catalog: Arc<Catalog>) -> PastEpoch {
        // First the catalog: who holds the new era has decided nothing by the old one.
        self.catalog.store(catalog);
        self.transactions.note_change();
        self.begin_era()
    }

    fn begin_era(&self) -> PastEpoch {
        let (epoch, held) = mpsc::channel(1);
        let mut last = self.epochs.held.lock().unwrap_or_else(PoisonError::into_inner);
        let past = std::mem::replace(&mut *last, held);
        self.epochs.current.send_replace(CatalogEpoch(epoch));
        PastEpoch { held: past }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::metrics::Metrics;

    fn context() -> Context {
        context_with(Duration::from_secs(1))
    }

    fn context_with(lease: Duration) -> Context {
        Context::new(Arc::default(), lease, Metrics::new(&[]).group_commit)
    }

    #[tokio::test]
    async fn an_era_is_over_when_nobody_holds_it() {
        let context = context();
        let mut epochs = context.epochs();
        let held = epochs.borrow_and_update().clone();
        let past = context.replace(Arc::new(Catalog::default()));
        assert!(epochs.has_changed().unwrap());
        let over = past.is_over().shared();
        assert!(over.clone().now_or_never().is_none());
        drop(held);
        over.await;
        // Nobody held the second one.
        context.replace(Arc::new(Catalog::default())).is_over().await;
    }

    #[test]
    fn transactions_are_waited_for_as_long_as_they_may_live() {
        let context = context();
        assert_eq!(context.unseen_end(), None);
        let before = Instant::now();
        context.note_transaction();
        let end = context.unseen_end().unwrap();
        let slack = Duration::from_millis(1);
        assert!(end + slack >= before + TRANSACTION_LIFE && end <= Instant::now() + TRANSACTION_LIFE + slack);
    }

    /// The server may be at work on a protected write until its lease is over.
    #[test]
    fn a_lost_write_is_waited_for_as_long_as_its_lease() {
        let lease = 4 * TRANSACTION_LIFE;
        let context = context_with(lease);
        let before = Instant::now();
        context.note_lost();
        let slack = Duration::from_millis(1);
        assert!(context.lost_end().unwrap() + slack >= before + lease);
    }
}
