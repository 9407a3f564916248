//! Waits until no command that the previous catalog decided is in progress.
//!
//! Each connection holds the epoch of the catalog that decided its commands in progress. It releases the epoch after the reply
//! has arrived. So Keyward counts no messages: a change of the catalog waits until no connection holds the previous epoch.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::haste::{self, hastened};

/// How long a client's transaction may live. The server ends transactions older than `transactionLifetimeLimitSeconds`, 60; it
/// checks for them every 30 seconds.
pub const TRANSACTION_LIFE: Duration = Duration::from_secs(95);

/// The epoch of a catalog. A connection holds it as long as a command that this catalog decided may be in progress.
#[derive(Debug, Clone)]
pub struct CatalogEpoch(#[expect(dead_code, reason = "it only has to live")] mpsc::Sender<Infallible>);

impl CatalogEpoch {
    /// The epoch of a connection on which no command is in progress: nothing waits for its end.
    pub fn none() -> CatalogEpoch {
        CatalogEpoch(mpsc::channel(1).0)
    }
}

/// An epoch that has ended for new commands, but not for commands in progress.
#[derive(Debug)]
pub struct PastEpoch {
    held: mpsc::Receiver<Infallible>,
}

impl PastEpoch {
    /// Waits until no command that this epoch decided is in progress any more.
    pub async fn is_over(mut self) {
        // Nothing can be sent; `recv` returns when the last sender is gone.
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
    /// When a command of a client's transaction was last forwarded, or a write's reply was last lost, in milliseconds since
    /// `begun`, plus one.
    pub(super) unobserved_at: AtomicU64,
    /// When a write's reply was last lost, in the same unit.
    pub(super) in_doubt_at: AtomicU64,
}

impl CatalogEpochs {
    pub(super) fn new(lease: Duration) -> CatalogEpochs {
        let (epoch, held) = mpsc::channel(1);
        CatalogEpochs {
            current: watch::Sender::new(CatalogEpoch(epoch)),
            held: Mutex::new(held),
            begun: Instant::now(),
            life: hastened(TRANSACTION_LIFE, haste::TRANSACTIONS).max(lease),
            unobserved_at: AtomicU64::new(0),
            in_doubt_at: AtomicU64::new(0),
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

    /// The current time in the unit of the notes.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    /// The noted time plus the lease, or plus the longest life of a transaction if that is more. Returns `None` if the sum is past, or no
    /// time is noted.
    pub(super) fn end_of(&self, noted: &AtomicU64) -> Option<Instant> {
        let at = noted.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.begun + Duration::from_millis(at) + self.life).filter(|end| *end > Instant::now())
    }
}
