//! Waits until no command that an earlier catalog decided is in progress.
//!
//! Each connection holds the epoch of the catalog that decided its commands in progress. It releases the epoch after the reply
//! has arrived. So Keyward counts no messages: a change of the catalog waits until no connection holds an earlier epoch. It
//! waits for all earlier ones, because a change that was given up may not have waited for its own.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
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

/// All epochs that have ended for new commands, but not for commands in progress.
#[derive(Debug, Clone, Default)]
pub struct PastEpochs(Vec<Shared<BoxFuture<'static, ()>>>);

impl PastEpochs {
    /// Adds the epoch whose connections have the senders of `held`, and forgets those that are over.
    fn add(&mut self, mut held: mpsc::Receiver<Infallible>) {
        self.0.retain(|over| over.clone().now_or_never().is_none());
        // Nothing can be sent; `recv` returns when the last sender is gone.
        let over = async move {
            let _ = held.recv().await;
        };
        self.0.push(over.boxed().shared());
    }

    /// Waits until no command that these epochs decided is in progress any more.
    pub async fn ended(self) {
        for over in self.0 {
            over.await;
        }
    }
}

/// The catalog epochs of one Keyward.
#[derive(Debug)]
pub(super) struct CatalogEpochs {
    pub(super) current: watch::Sender<CatalogEpoch>,
    /// The past epochs, and the receiver of the current one.
    past: Mutex<(PastEpochs, mpsc::Receiver<Infallible>)>,
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
            past: Mutex::new((PastEpochs::default(), held)),
            begun: Instant::now(),
            life: hastened(TRANSACTION_LIFE, haste::TRANSACTIONS).max(lease),
            unobserved_at: AtomicU64::new(0),
            in_doubt_at: AtomicU64::new(0),
        }
    }

    /// Ends the current epoch for new commands.
    pub(super) fn begin(&self) -> PastEpochs {
        let (epoch, held) = mpsc::channel(1);
        let mut last = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        let (past, current) = &mut *last;
        past.add(std::mem::replace(current, held));
        self.current.send_replace(CatalogEpoch(epoch));
        past.clone()
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
