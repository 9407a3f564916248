//! Defines the metrics of the deployment: whether it can be reached, and the connections that clients get to it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus::{Histogram, IntCounter, IntGauge};

use super::Maker;

/// From a server on the same machine to the longest wait for an answer.
const ROUND_TRIP_BUCKETS: [f64; 12] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5,
];

metrics! {
    /// The deployment, as Keyward reaches it.
    UpstreamMetrics;
    /// Connections opened for clients.
    pub opened: IntCounter = counter(
        "upstream_connections_opened_total",
        "Connections to the deployment opened for clients.",
    );
    /// Times that a client needed one and got none.
    pub failed: IntCounter = counter(
        "upstream_connections_failed_total",
        "Times that a client needed a connection to the deployment and got none in time.",
    );
    /// Times that the deployment was lost after it had been reached.
    pub lost: IntCounter = counter("upstream_lost_total", "Times that the deployment could no longer be reached.");
    /// The time from a probe to its answer.
    pub round_trip_seconds: Histogram = histogram(
        "upstream_round_trip_seconds",
        "Time from the probe of the deployment to its answer.",
        &ROUND_TRIP_BUCKETS,
    );
    is_reachable: IntGauge = gauge("upstream_reachable", "1 while the deployment answers.");
    changed_at: IntGauge = gauge(
        "upstream_reachable_changed_timestamp_seconds",
        "Unix time of the last change of upstream_reachable; at first, of the start.",
    );
}

impl UpstreamMetrics {
    /// Whether the deployment can be reached, and for how long that has been so.
    pub fn reachable(&self) -> (bool, Duration) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let changed_at = Duration::from_secs(u64::try_from(self.changed_at.get()).unwrap_or_default());
        let since = now.saturating_sub(changed_at);
        (self.is_reachable.get() == 1, Duration::from_secs(since.as_secs()))
    }

    /// Shows whether the deployment can be reached, from now on.
    pub fn show_reachable(&self, is_reachable: bool) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.is_reachable.set(is_reachable.into());
        self.changed_at.set(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    }
}
