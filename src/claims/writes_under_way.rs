//! Wakes writes that wait for another write of this Keyward, once its outcome is known.
//!
//! This is only a short cut: decisions are always read from the cluster, so a lost entry costs a wait, never correctness.

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::Notify;

use crate::reservation::{Token, WriteId};

/// The writes under way in this process that reserve keys.
#[derive(Debug, Clone, Default)]
pub struct WritesUnderWay {
    writes: Arc<DashMap<WriteId, Arc<Notify>>>,
}

/// A write under way. When it is dropped, it wakes all writes that wait for it.
#[derive(Debug)]
pub struct WriteGuard {
    write: WriteId,
    all: WritesUnderWay,
    notify: Arc<Notify>,
}

/// The token of a write that isn't registered: a transaction writes its reservations, and other writes conflict with that
/// transaction instead of waiting for it.
pub fn unregistered_token() -> Token {
    Token::of(WriteId(rand::random()))
}

impl WritesUnderWay {
    /// Begins a write with a fresh id.
    pub fn begin(&self) -> WriteGuard {
        let write = WriteId(rand::random());
        let notify = Arc::new(Notify::new());
        self.writes.insert(write, notify.clone());
        WriteGuard {
            write,
            all: self.clone(),
            notify,
        }
    }

    /// Waits until something about `write` may have changed, but no longer than `at_most`. It always waits that long for
    /// writes of other processes, which can't notify it.
    pub async fn wait_for(&self, write: WriteId, at_most: Duration) {
        let notify = self.writes.get(&write).map(|entry| entry.value().clone());
        let Some(notify) = notify else {
            return tokio::time::sleep(at_most).await;
        };
        let changed = notify.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        // It may have ended between the look-up and the subscription.
        if self.writes.contains_key(&write) {
            let _ = tokio::time::timeout(at_most, changed).await;
        }
    }
}

impl WriteGuard {
    /// Its id.
    pub fn id(&self) -> WriteId {
        self.write
    }

    /// Wakes the writes that wait for this one: some of its documents are decided.
    pub fn announce(&self) {
        self.notify.notify_waiters();
    }
}

impl Drop for WriteGuard {
    fn drop(&mut self) {
        self.all.writes.remove(&self.write);
        self.notify.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_waiter_wakes_when_the_write_ends() {
        let under_way = WritesUnderWay::default();
        let write = under_way.begin();
        let far_away = Duration::from_secs(3_600);
        let waiting = under_way.wait_for(write.id(), far_away);
        tokio::pin!(waiting);
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        drop(write);
        waiting.await;
    }

    #[tokio::test]
    async fn an_unknown_write_takes_the_whole_time() {
        let started = tokio::time::Instant::now();
        let elsewhere = WriteId([0; 16]);
        WritesUnderWay::default()
            .wait_for(elsewhere, Duration::from_millis(20))
            .await;
        assert!(started.elapsed() >= Duration::from_millis(20));
    }
}
