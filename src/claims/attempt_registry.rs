//! Wakes attempts that wait for another attempt of this Keyward, once its outcome is known.
//!
//! This is only a short cut: decisions are always read from the cluster, so a lost entry costs a wait, never correctness.

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::Notify;

use crate::reservation::{AttemptId, Token};

/// The attempts under way in this process.
#[derive(Debug, Clone, Default)]
pub struct AttemptRegistry {
    attempts: Arc<DashMap<AttemptId, Arc<Notify>>>,
}

/// An attempt under way. When it is dropped, it wakes all attempts that wait for it.
#[derive(Debug)]
pub struct AttemptGuard {
    attempt: AttemptId,
    all: AttemptRegistry,
    notify: Arc<Notify>,
}

/// The token of an attempt that isn't registered: a transaction writes its reservations, and other attempts conflict with that
/// transaction instead of waiting for it.
pub fn unregistered_token() -> Token {
    Token::of(AttemptId(rand::random()))
}

impl AttemptRegistry {
    /// Begins an attempt with a fresh id.
    pub fn begin(&self) -> AttemptGuard {
        let attempt = AttemptId(rand::random());
        let notify = Arc::new(Notify::new());
        self.attempts.insert(attempt, notify.clone());
        AttemptGuard {
            attempt,
            all: self.clone(),
            notify,
        }
    }

    /// Waits until something about `attempt` may have changed, but no longer than `at_most`. It always waits that long for
    /// attempts of other processes, which can't notify it.
    pub async fn wait_for(&self, attempt: AttemptId, at_most: Duration) {
        let notify = self.attempts.get(&attempt).map(|entry| entry.value().clone());
        let Some(notify) = notify else {
            return tokio::time::sleep(at_most).await;
        };
        let changed = notify.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        // It may have ended between the look-up and the subscription.
        if self.attempts.contains_key(&attempt) {
            let _ = tokio::time::timeout(at_most, changed).await;
        }
    }
}

impl AttemptGuard {
    /// Its id.
    pub fn id(&self) -> AttemptId {
        self.attempt
    }

    /// Wakes the attempts that wait for this one: some of its documents are decided.
    pub fn announce(&self) {
        self.notify.notify_waiters();
    }
}

impl Drop for AttemptGuard {
    fn drop(&mut self) {
        self.all.attempts.remove(&self.attempt);
        self.notify.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_waiter_wakes_when_the_attempt_ends() {
        let registry = AttemptRegistry::default();
        let attempt = registry.begin();
        let far_away = Duration::from_secs(3_600);
        let waiting = registry.wait_for(attempt.id(), far_away);
        tokio::pin!(waiting);
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        drop(attempt);
        waiting.await;
    }

    #[tokio::test]
    async fn an_unknown_attempt_takes_the_whole_time() {
        let started = tokio::time::Instant::now();
        let elsewhere = AttemptId([0; 16]);
        AttemptRegistry::default()
            .wait_for(elsewhere, Duration::from_millis(20))
            .await;
        assert!(started.elapsed() >= Duration::from_millis(20));
    }
}
