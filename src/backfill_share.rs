//! Slows backfills down by pauses, so that clients feel less of them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The longest pause. The server may close a cursor that isn't read for ten minutes.
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// How fast a backfill may be, as a share of its full speed: above 0 and up to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BackfillShare(pub f64);

impl BackfillShare {
    /// No pauses.
    pub const ALL: BackfillShare = BackfillShare(1.0);

    /// The pause after work that took this long. The slower the servers are under their load, the longer it is.
    fn pause(self, worked: Duration) -> Duration {
        let pause = worked.as_secs_f64() * (1.0 / self.0 - 1.0);
        Duration::try_from_secs_f64(pause).map_or(PAUSE_MAX, |pause| pause.min(PAUSE_MAX))
    }
}

/// The pauses that a backfill still has to make.
///
/// A batch makes the pause of an earlier one, before it begins. So there is none after the last batches, and each batch is noted at once.
#[derive(Debug)]
pub struct Pauses {
    share: BackfillShare,
    pending: Mutex<Vec<Duration>>,
}

impl Pauses {
    /// None yet.
    pub fn of(share: BackfillShare) -> Pauses {
        Pauses {
            share,
            pending: Mutex::default(),
        }
    }

    /// Does the `work` of one batch, after the pause of an earlier one. It took `spent` to read the batch.
    pub async fn pace<T>(&self, spent: Duration, work: impl Future<Output = T>) -> T {
        let pause = self.pending.lock().unwrap_or_else(PoisonError::into_inner).pop();
        tokio::time::sleep(pause.unwrap_or_default()).await;
        let began = Instant::now();
        let outcome = work.await;
        let pause = self.share.pause(spent + began.elapsed());
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).push(pause);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream::{self, StreamExt};

    use super::*;

    #[test]
    fn a_pause_is_as_long_as_the_share_says() {
        let pause = |share, millis| BackfillShare(share).pause(Duration::from_millis(millis));
        assert_eq!(BackfillShare::ALL.pause(Duration::from_secs(9)), Duration::ZERO);
        assert_eq!(pause(0.5, 400), Duration::from_millis(400));
        assert_eq!(pause(0.25, 400), Duration::from_millis(1_200));
        assert_eq!(pause(0.05, 60_000), PAUSE_MAX);
        assert_eq!(pause(0.0, 1), PAUSE_MAX);
    }

    #[tokio::test]
    async fn every_batch_but_the_first_ones_waits_and_none_waits_at_the_end() {
        let work = Duration::from_millis(10);
        let pauses = Pauses::of(BackfillShare(0.2));
        let began = Instant::now();
        let batches =
            stream::iter(0..12).map(|_| pauses.pace(Duration::ZERO, async { tokio::time::sleep(work).await }));
        batches.buffered(3).for_each(|()| std::future::ready(())).await;
        // Three at a time: four in a row, with three pauses in between.
        assert!(began.elapsed() >= work * (4 + 3 * 4), "{:?}", began.elapsed());
        assert_eq!(pauses.pending.into_inner().unwrap().len(), 3);
    }
}
