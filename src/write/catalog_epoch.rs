//! The catalog changes while clients write: from which moment on was everything decided by the new constraints?
//!
//! Each connection holds the epoch of the catalog by which it decided what is still under way on it, and releases the epoch
//! once the answer has come. So no message is counted on its way; a change of the catalog waits until no connection holds the
//! epoch before.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// How long a client's transaction may live: the server ends what is older than `transactionLifetimeLimitSeconds`, 60, and looks
/// for that every 30 seconds.
pub const TRANSACTION_LIFE: Duration = Duration::from_secs(95);

/// Held as long as something that one catalog has decided may be under way.
#[derive(Debug, Clone)]
pub struct CatalogEpoch(#[expect(dead_code, reason = "it only has to live")] mpsc::Sender<Infallible>);

/// An epoch that has ended for new commands, but not for what is under way.
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

/// The catalog epochs of one Keyward.
#[derive(Debug)]
pub(super) struct CatalogEpochs {
    pub(super) current: watch::Sender<CatalogEpoch>,
    held: Mutex<mpsc::Receiver<Infallible>>,
    pub(super) begun: Instant,
    /// How long a write with a lost reply may take: a transaction's life, or the lease that limits a protected write.
    life: Duration,
    /// When a command of a client's transaction last passed, or a write's reply was last lost, in milliseconds since
    /// `begun`, and one more.
    pub(super) unseen_at: AtomicU64,
    /// When a write's reply was last lost, as above.
    pub(super) lost_at: AtomicU64,
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

    /// Ends the current epoch for new commands.
    pub(super) fn begin(&self) -> PastEpoch {
        let (epoch, held) = mpsc::channel(1);
        let mut last = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let past = std::mem::replace(&mut *last, held);
        self.current.send_replace(CatalogEpoch(epoch));
        PastEpoch { held: past }
    }

    /// The time, as it is noted.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    /// When a transaction's life is over after what was noted there, unless it is over already.
    pub(super) fn end_of(&self, noted: &AtomicU64) -> Option<Instant> {
        let at = noted.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.begun + Duration::from_millis(at) + self.life).filter(|end| *end > Instant::now())
    }
}
