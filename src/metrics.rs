//! The counters and timings that Prometheus reads, made once and handed to whoever counts.
//!
//! Names follow `keyward_<subsystem>_<noun>_<unit>[_total]`; what can be opened and closed is a pair of counters, so
//! that short lives between two scrapes are seen too. Labels are enums of this file or names of configured constraints,
//! never what a client sends: there are as many series as the configuration says, however many clients come.

use std::sync::Arc;

use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};

use crate::constraint::Constraint;

/// From a tenth of a millisecond, the least that a command through a proxy takes, to the longest lease.
const SECONDS_BUCKETS: [f64; 14] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5, 10.0, 60.0,
];

/// What Keyward did with a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handling {
    /// Sent on as it came.
    Forwarded,
    /// Carried out under the constraints of its collection.
    Protected,
    /// Answered with an error because it can't be protected.
    Refused,
}

impl Handling {
    const ALL: [Handling; 3] = [Handling::Forwarded, Handling::Protected, Handling::Refused];

    fn label(self) -> &'static str {
        match self {
            Handling::Forwarded => "forwarded",
            Handling::Protected => "protected",
            Handling::Refused => "refused",
        }
    }
}

/// Whose time it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spent {
    /// Keyward's own.
    Keyward,
    /// Spent waiting for the deployment.
    Upstream,
}

impl Spent {
    const ALL: [Spent; 2] = [Spent::Keyward, Spent::Upstream];

    fn label(self) -> &'static str {
        match self {
            Spent::Keyward => "keyward",
            Spent::Upstream => "upstream",
        }
    }
}

/// Every metric of one process.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Registry,
    /// Clients' connections.
    pub connections: Connections,
    commands: IntCounterVec,
    command_seconds: HistogramVec,
    reservations: IntCounterVec,
    duplicates: IntCounterVec,
    conflicts_waited: IntCounterVec,
    takeovers: IntCounterVec,
    compensations: IntCounterVec,
    in_doubt: IntCounterVec,
    ready: IntGaugeVec,
}

/// Clients' connections.
#[derive(Debug, Clone)]
pub struct Connections {
    /// Accepted, and within the limits.
    pub opened: IntCounter,
    /// Ended, whoever ended them.
    pub closed: IntCounter,
    /// Closed at once because `limits.max_connections` were open.
    pub refused: IntCounter,
}

/// The metrics of one constraint.
#[derive(Debug, Clone)]
pub struct ConstraintMetrics {
    /// Reservations written for a client's write, takeovers included.
    pub reservations: IntCounter,
    /// Keys refused because another document holds them.
    pub duplicates: IntCounter,
    /// Conflicts with a reservation in flight whose outcome was waited for.
    pub conflicts_waited: IntCounter,
    /// Abandoned reservations taken over.
    pub takeovers: IntCounter,
    /// Reservations released because their write failed.
    pub compensations: IntCounter,
    /// Writes whose outcome was unknown.
    pub in_doubt: IntCounter,
}

impl Metrics {
    /// All metrics at zero, those of `constraints` included, so that a rate can be taken from the first event on.
    pub fn new(constraints: &[Arc<Constraint>]) -> Self {
        let make = Maker::default();
        let metrics = Metrics {
            connections: Connections {
                opened: make.counter("client_connections_opened_total", "Clients' connections accepted."),
                closed: make.counter("client_connections_closed_total", "Clients' connections ended."),
                refused: make.counter(
                    "client_connections_refused_total",
                    "Clients' connections closed at once because limits.max_connections were open.",
                ),
            },
            commands: make.counters(
                "client_commands_total",
                "Commands, by what was done with them.",
                &["handling"],
            ),
            command_seconds: make.histograms(
                "client_command_duration_seconds",
                "Time from a command's arrival to its reply, split into Keyward's own and the deployment's.",
                &["handling", "spent"],
            ),
            reservations: make.of_constraint("reservations_total", "Reservations written."),
            duplicates: make.of_constraint("duplicates_total", "Keys refused because another document holds them."),
            conflicts_waited: make.of_constraint("conflicts_waited_total", "Conflicts with a reservation in flight."),
            takeovers: make.of_constraint("takeovers_total", "Abandoned reservations taken over."),
            compensations: make.of_constraint("compensations_total", "Reservations released after a failed write."),
            in_doubt: make.of_constraint("in_doubt_total", "Writes whose outcome was unknown."),
            ready: make.gauges(
                "constraint_ready",
                "1 while the constraint is enforced.",
                &["constraint"],
            ),
            registry: make.registry.clone(),
        };
        make.gauges("build_info", "Always 1; the version is in the label.", &["version"])
            .with_label_values(&[env!("CARGO_PKG_VERSION")])
            .set(1);
        metrics.touch(constraints);
        metrics
    }

    /// Counts a command and the time it took.
    pub fn command(&self, handling: Handling, own: std::time::Duration, upstream: std::time::Duration) {
        self.commands.with_label_values(&[handling.label()]).inc();
        for (spent, time) in [(Spent::Keyward, own), (Spent::Upstream, upstream)] {
            self.command_seconds
                .with_label_values(&[handling.label(), spent.label()])
                .observe(time.as_secs_f64());
        }
    }

    /// The metrics of `constraint`; cheap enough to be asked for once a command.
    pub fn constraint(&self, constraint: &Constraint) -> ConstraintMetrics {
        let name = constraint_label(constraint);
        let of = |counters: &IntCounterVec| counters.with_label_values(&[&name]);
        ConstraintMetrics {
            reservations: of(&self.reservations),
            duplicates: of(&self.duplicates),
            conflicts_waited: of(&self.conflicts_waited),
            takeovers: of(&self.takeovers),
            compensations: of(&self.compensations),
            in_doubt: of(&self.in_doubt),
        }
    }

    /// Shows whether `constraint` is enforced.
    pub fn set_ready(&self, constraint: &Constraint, ready: bool) {
        let name = constraint_label(constraint);
        self.ready.with_label_values(&[&name]).set(ready.into());
    }

    /// Everything in Prometheus' text format, and its content type.
    ///
    /// # Errors
    /// Only if a metric was made wrongly.
    pub fn text(&self) -> Result<(String, &'static str), prometheus::Error> {
        let mut text = String::new();
        TextEncoder::new().encode_utf8(&self.registry.gather(), &mut text)?;
        Ok((text, prometheus::TEXT_FORMAT))
    }

    fn touch(&self, constraints: &[Arc<Constraint>]) {
        for handling in Handling::ALL {
            self.commands.with_label_values(&[handling.label()]);
            for spent in Spent::ALL {
                self.command_seconds
                    .with_label_values(&[handling.label(), spent.label()]);
            }
        }
        for constraint in constraints {
            self.constraint(constraint);
            self.set_ready(constraint, false);
        }
    }
}

/// How a constraint is named in metrics and in `/readyz`: `shop.users.email_1`.
pub fn constraint_label(constraint: &Constraint) -> String {
    format!("{}.{}", constraint.namespace(), constraint.name())
}

/// Makes metrics and registers them; names and labels are constants of this file, so failing to is a bug.
#[derive(Default)]
struct Maker {
    registry: Registry,
}

impl Maker {
    fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.register(IntCounter::with_opts(options(name, help)))
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.register(IntCounterVec::new(options(name, help), labels))
    }

    fn of_constraint(&self, name: &str, help: &str) -> IntCounterVec {
        self.counters(&format!("constraint_{name}"), help, &["constraint"])
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.register(IntGaugeVec::new(options(name, help), labels))
    }

    fn histograms(&self, name: &str, help: &str, labels: &[&str]) -> HistogramVec {
        let options = HistogramOpts::from(options(name, help)).buckets(SECONDS_BUCKETS.to_vec());
        self.register(HistogramVec::new(options, labels))
    }

    fn register<M: prometheus::core::Collector + Clone + 'static>(&self, metric: prometheus::Result<M>) -> M {
        let metric = metric.expect("the metric's name and labels are valid");
        self.registry
            .register(Box::new(metric.clone()))
            .expect("each metric is registered once");
        metric
    }
}

fn options(name: &str, help: &str) -> Opts {
    Opts::new(format!("keyward_{name}"), help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_is_there_before_anything_happened() {
        let metrics = Metrics::new(&[]);
        let (text, content_type) = metrics.text().unwrap();
        assert!(content_type.starts_with("text/plain"));
        assert!(text.contains("keyward_client_connections_opened_total 0\n"), "{text}");
        assert!(
            text.contains("keyward_client_commands_total{handling=\"refused\"} 0\n"),
            "{text}"
        );
        assert!(
            text.contains(
                "keyward_client_command_duration_seconds_count{handling=\"protected\",spent=\"upstream\"} 0\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_command_counts_once_and_its_time_twice() {
        let metrics = Metrics::new(&[]);
        let milliseconds = std::time::Duration::from_millis;
        metrics.command(Handling::Protected, milliseconds(1), milliseconds(20));
        let (text, _) = metrics.text().unwrap();
        assert!(
            text.contains("keyward_client_commands_total{handling=\"protected\"} 1\n"),
            "{text}"
        );
        for (spent, seconds) in [("keyward", "0.001"), ("upstream", "0.02")] {
            let series = format!("_duration_seconds_sum{{handling=\"protected\",spent=\"{spent}\"}} {seconds}\n");
            assert!(text.contains(&series), "{series} in {text}");
        }
    }

    #[test]
    fn names_follow_the_convention() {
        let (text, _) = Metrics::new(&[]).text().unwrap();
        for line in text.lines().filter(|line| line.starts_with("# TYPE ")) {
            let mut words = line.split(' ').skip(2);
            let (name, kind) = (words.next().unwrap(), words.next().unwrap());
            assert!(name.starts_with("keyward_"), "{name}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
            assert_eq!(kind == "histogram", name.ends_with("_seconds"), "{name} is a {kind}");
        }
    }
}
