//! Limits the resources that clients can use, among them the memory that they share for messages in transit.
//!
//! A buffer requests memory only if it grows past the size that every connection has anyway, so small messages cost
//! nothing here. If the memory isn't free, Keyward waits: it stops reading from this client meanwhile, and other
//! clients go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prometheus::IntGauge;
use tokio::sync::Notify;

/// Up to this many bytes, a connection's buffer isn't counted.
const UNCOUNTED_BYTES: usize = 32 * 1024;

/// The most that clients can use; the settings below `limits`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time; Keyward closes a further one at once, as `mongos` does.
    pub max_connections: usize,
    /// Bytes of a message before the client has authenticated, if it has to.
    pub max_unauthenticated_message_bytes: usize,
    /// Bytes of messages that have arrived, and of Keyward's own replies, over all connections.
    pub max_buffered_bytes: usize,
    /// Documents that one statement may change in one transaction.
    pub max_documents_per_statement: usize,
    /// How long a new connection may take until its first message has arrived.
    pub handshake_timeout: Duration,
    /// How long a client may pause within a message. Also how long it may read nothing while a message or a reply of its own
    /// takes memory.
    pub message_timeout: Duration,
    /// How long a connection may be without messages; zero is without limit.
    pub idle_timeout: Duration,
    /// How long a client may wait for its connection to the deployment.
    pub upstream_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_connections: 10_000,
            max_unauthenticated_message_bytes: 64 * 1024,
            max_buffered_bytes: 256 * 1024 * 1024,
            max_documents_per_statement: 10_000,
            handshake_timeout: Duration::from_secs(10),
            message_timeout: Duration::from_secs(30),
            idle_timeout: Duration::ZERO,
            // Below the 10 s that drivers allow for a handshake, so that the client still gets the reason.
            upstream_timeout: Duration::from_secs(8),
        }
    }
}

/// Memory that all connections share.
#[derive(Debug)]
pub struct Memory {
    used: AtomicUsize,
    max: AtomicUsize,
    freed: Notify,
    /// Shows the memory in use.
    shown: IntGauge,
}

impl Memory {
    /// Memory of `max` bytes; `shown` shows how much of it is in use.
    pub fn new(max: usize, shown: IntGauge) -> Arc<Memory> {
        Arc::new(Memory {
            used: AtomicUsize::new(0),
            max: AtomicUsize::new(max),
            freed: Notify::new(),
            shown,
        })
    }

    /// Sets the limit to `max` bytes from now on; memory in use stays in use.
    pub fn resize(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
        self.freed.notify_waiters();
    }

    fn try_take(&self, bytes: usize) -> bool {
        let max = self.max.load(Ordering::Relaxed);
        let take = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= max);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        if taken.is_ok() {
            self.shown.add(signed(bytes));
        }
        taken.is_ok()
    }

    /// Takes memory that is in use already, if need be past the limit.
    fn note_taken(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        self.shown.add(signed(bytes));
    }

    async fn take(&self, bytes: usize) {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // Registered before the check, because memory that is freed in between would be missed otherwise.
            freed.as_mut().enable();
            if self.try_take(bytes) {
                return;
            }
            freed.await;
        }
    }
}

/// One buffer's part of the memory; released when this is dropped.
#[derive(Debug)]
pub struct Share {
    memory: Option<Arc<Memory>>,
    bytes: usize,
}

impl Share {
    /// An empty share of `memory`.
    pub fn of(memory: Arc<Memory>) -> Share {
        Share {
            memory: Some(memory),
            bytes: 0,
        }
    }

    /// A share without any limit.
    pub fn unlimited() -> Share {
        Share { memory: None, bytes: 0 }
    }

    /// Sets the share to the needs of a buffer of `capacity` bytes, once enough memory is free.
    ///
    /// - Cancel: the share stays as it was.
    pub async fn cover(&mut self, capacity: usize) {
        let wanted = counted(capacity);
        if wanted <= self.bytes {
            return self.shrink(capacity);
        }
        let Some(memory) = &self.memory else { return };
        memory.take(wanted - self.bytes).await;
        self.bytes = wanted;
    }

    /// Sets the share to a buffer of `capacity` bytes that exists already. If this exceeds the limit, other buffers wait.
    pub fn hold(&mut self, capacity: usize) {
        self.shrink(capacity);
        let missing = counted(capacity) - self.bytes;
        if let Some(memory) = &self.memory {
            memory.note_taken(missing);
            self.bytes += missing;
        }
    }

    /// Releases the memory that a buffer of `capacity` bytes doesn't need.
    pub fn shrink(&mut self, capacity: usize) {
        let wanted = counted(capacity);
        if wanted < self.bytes
            && let Some(memory) = &self.memory
        {
            free(memory, self.bytes - wanted);
            self.bytes = wanted;
        }
    }

    /// Releases all of its memory.
    pub fn release(&mut self) {
        self.shrink(0);
    }

    /// Whether it holds any memory.
    pub fn is_held(&self) -> bool {
        self.bytes > 0
    }
}

/// The counted bytes of a buffer of `capacity` bytes.
fn counted(capacity: usize) -> usize {
    if capacity > UNCOUNTED_BYTES { capacity } else { 0 }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.release();
    }
}

fn free(memory: &Memory, bytes: usize) {
    memory.used.fetch_sub(bytes, Ordering::Relaxed);
    memory.shown.sub(signed(bytes));
    memory.freed.notify_waiters();
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn gauge() -> IntGauge {
        IntGauge::new("used", "bytes").unwrap()
    }

    #[tokio::test]
    async fn a_share_waits_until_enough_memory_is_free() {
        let memory = Memory::new(100_000, gauge());
        let (mut one, mut other) = (Share::of(memory.clone()), Share::of(memory.clone()));
        one.cover(90_000).await;
        assert!(other.cover(50_000).now_or_never().is_none());
        // Small buffers never wait.
        assert!(other.cover(UNCOUNTED_BYTES).now_or_never().is_some());
        let waiting = tokio::spawn(async move {
            other.cover(50_000).await;
            other
        });
        tokio::task::yield_now().await;
        one.cover(1_000).await;
        let other = waiting.await.unwrap();
        assert_eq!(memory.shown.get(), 50_000);
        drop((one, other));
        assert_eq!(memory.shown.get(), 0);
        assert!(memory.try_take(100_000));
    }

    #[test]
    fn a_buffer_that_exists_counts_past_the_limit() {
        let memory = Memory::new(50_000, gauge());
        let mut share = Share::of(memory.clone());
        share.hold(60_000);
        assert_eq!(memory.shown.get(), 60_000);
        assert!(!memory.try_take(1));
        share.hold(40_000);
        assert_eq!(memory.shown.get(), 40_000);
        share.release();
        assert!(!share.is_held() && memory.try_take(50_000));
    }

    #[tokio::test]
    async fn a_larger_limit_admits_waiting_shares() {
        let memory = Memory::new(50_000, gauge());
        let mut share = Share::of(memory.clone());
        assert!(share.cover(60_000).now_or_never().is_none());
        memory.resize(60_000);
        assert!(share.cover(60_000).now_or_never().is_some());
    }
}
