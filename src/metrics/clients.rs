//! Defines the metrics of clients' connections and commands.

use prometheus::{Histogram, IntCounter};

use super::Maker;

/// From half a millisecond, which no majority write undercuts, to more than the longest lease.
const SECONDS_BUCKETS: [f64; 13] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 600.0,
];

/// From the processor time of the shortest write, to a time that only a starved write takes.
const OWN_SECONDS_BUCKETS: [f64; 10] = [
    0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.01, 0.1, 1.0,
];

metrics! {
    /// Clients' connections.
    Connections;
    /// Connections accepted within the limits.
    pub opened: IntCounter = counter("client_connections_opened_total", "Clients' connections accepted.");
    /// Connections ended, by either side.
    pub closed: IntCounter = counter("client_connections_closed_total", "Clients' connections ended.");
    /// Connections closed at once because `limits.max_connections` were open.
    pub refused: IntCounter = counter(
        "client_connections_refused_total",
        "Clients' connections closed at once because limits.max_connections were open.",
    );
    /// Connections ended because their TLS handshake failed, or was missing.
    pub handshakes_failed: IntCounter = counter(
        "client_tls_handshakes_failed_total",
        "Clients' connections ended because their TLS handshake failed or was missing.",
    );
}

metrics! {
    /// Clients' commands, by their treatment.
    CommandMetrics;
    /// Forwarded unchanged.
    pub forwarded: IntCounter = counter("client_commands_forwarded_total", "Commands forwarded unchanged.");
    /// Answered with an error, because Keyward can't protect them.
    pub refused: IntCounter = counter("client_commands_refused_total", "Commands that can't be protected.");
    /// Answered with error 91 while Keyward stops, or with error 6 because the register doesn't let this Keyward write.
    pub turned_away: IntCounter = counter(
        "client_commands_turned_away_total",
        "Commands answered with error 91 while Keyward stops, or with error 6 because of the register.",
    );
    /// Writes on protected collections, or on collections that aren't in the register yet, that the server refused in advance, because the
    /// client lacks privileges.
    pub unauthorized: IntCounter = counter(
        "client_writes_unauthorized_total",
        "Writes that the server refused for missing privileges, before any key was reserved, or their collection entered into the register.",
    );
    /// Seconds of writes on protected collections: from when no earlier reply to the client is pending, to the reply.
    pub protected_seconds: Histogram = histogram(
        "client_protected_writes_seconds",
        "Time from a protected write's turn to its reply.",
        &SECONDS_BUCKETS,
    );
    /// Seconds of these that Keyward itself worked. In the rest it waited for the cluster and for other clients'
    /// writes.
    pub protected_proxy_seconds: Histogram = histogram(
        "client_protected_write_proxy_seconds",
        "The part of a protected write's time in which Keyward worked; the rest it waited for the cluster.",
        &OWN_SECONDS_BUCKETS,
    );
}

impl Connections {
    /// Counts a connection as opened now. It counts as closed when the result is dropped, however its task ends.
    pub fn open(&self) -> OpenConnection {
        self.opened.inc();
        OpenConnection {
            closed: self.closed.clone(),
        }
    }
}

/// A connection that is counted as closed when this is dropped.
#[derive(Debug)]
pub struct OpenConnection {
    closed: IntCounter,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.closed.inc();
    }
}
