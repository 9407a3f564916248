//! Defines the counters and timings for Prometheus, created once and shared by every part that counts.
//!
//! Names follow `keyward_<subsystem>_<noun>_<unit>[_total]`. Objects that open and close have a pair of counters, so
//! that short lives between two scrapes are visible, too. Labels are enums of this file or names of configured
//! constraints, never client input. So the configuration alone sets the number of series, however many clients connect.

use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use crate::constraint::Constraint;

/// Makes a struct of metrics. Each row has a field, the method of [`Maker`] that makes its metric, the metric's name, its help, and the
/// buckets of a histogram.
macro_rules! metrics {
    (
        $(#[$about:meta])* $name:ident;
        $($(#[$doc:meta])* $visibility:vis $field:ident: $type:ty = $make:ident $arguments:tt;)*
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone)]
        pub struct $name {
            $($(#[$doc])* $visibility $field: $type,)*
        }

        impl $name {
            pub(in crate::metrics) fn new(make: &Maker) -> Self {
                $name {
                    $($field: make.$make $arguments,)*
                }
            }
        }
    };
}

mod clients;
mod upstream;

pub use clients::{CommandMetrics, Connections, OpenConnection};
pub use upstream::UpstreamMetrics;

/// Every metric of one process; clones share the same counts.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Registry,
    /// Clients' connections.
    pub connections: Connections,
    /// Clients' commands.
    pub commands: CommandMetrics,
    /// Reloads of the configuration.
    pub config: ReloadMetrics,
    /// Strict inserts of several clients in one transaction.
    pub group_commit: GroupCommit,
    /// Counted bytes of clients' messages and Keyward's own replies in transit.
    pub buffered_bytes: IntGauge,
    /// Certificates for clients' connections.
    pub certificates: Certificates,
    /// The deployment.
    pub upstream: UpstreamMetrics,
    of_constraints: ConstraintFamilies,
    /// For how long changes have waited for the audit of a collection that this Keyward audits.
    pub audit_behind_seconds: IntGauge,
    /// The number of Keywards in the register.
    pub keywards: IntGauge,
    ready: IntGaugeVec,
    waits_for: IntGaugeVec,
}

metrics! {
    /// Reloads of the certificates for clients' connections.
    Certificates;
    /// Times that the certificates found are in use.
    pub done: IntCounter = counter("tls_reloads_total", "New certificates taken into use.");
    /// Times that the certificates found can't be used, and nothing has changed.
    pub failed: IntCounter = counter("tls_reloads_failed_total", "New certificates that can't be used.");
    /// Whether the files, as last read, can't be used.
    pub is_refused: IntGauge = gauge("tls_refused", "1 while the certificates' files, as last read, can't be used.");
}

metrics! {
    /// Reloads of the configuration.
    ReloadMetrics;
    /// The number of the current configuration; the start's is 1.
    pub generation: IntGauge = gauge("config_generation", "The number of the configuration that holds; 1 is that of the start.");
    /// Times that another configuration was loaded and holds.
    pub applied: IntCounter = counter("config_reloads_applied_total", "Configurations loaded again that hold.");
    /// Times that a configuration was refused, and the one before still holds.
    pub refused: IntCounter = counter("config_reloads_refused_total", "Configurations loaded again and refused.");
    /// Whether the file was refused when it was last loaded.
    pub is_refused: IntGauge = gauge("config_refused", "1 while the file, as last loaded, is refused.");
}

metrics! {
    /// Strict inserts of several clients in one transaction.
    GroupCommit;
    /// Transactions that took effect.
    pub transactions: IntCounter = counter(
        "group_commit_transactions_total",
        "Transactions that took effect with strict inserts of several clients.",
    );
    /// Inserts in these transactions, counted as commands (or slices of large ones).
    pub inserts: IntCounter = counter("group_commit_inserts_total", "Clients' strict inserts that took effect in them.");
    /// Transactions that had no effect: each insert is then sent alone.
    pub failed: IntCounter = counter(
        "group_commit_failed_total",
        "Transactions with strict inserts of several clients that had no effect.",
    );
    /// Transactions of unknown outcome: the connection of each insert was closed.
    pub lost: IntCounter = counter(
        "group_commit_lost_total",
        "Transactions with strict inserts of several clients whose outcome is unknown.",
    );
}

/// Makes the counters of one constraint. Each row has a field, the metric's name, and its help.
macro_rules! constraint_counters {
    ($($(#[$doc:meta])* $field:ident, $name:literal, $help:literal;)*) => {
        /// The metrics of one constraint.
        #[derive(Debug, Clone)]
        pub struct ConstraintMetrics {
            $($(#[$doc])* pub $field: IntCounter,)*
        }

        /// The metrics of all constraints.
        #[derive(Debug, Clone)]
        struct ConstraintFamilies {
            $($field: IntCounterVec,)*
        }

        impl ConstraintFamilies {
            fn new(make: &Maker) -> Self {
                ConstraintFamilies {
                    $($field: make.of_constraint($name, $help),)*
                }
            }

            fn named(&self, name: &str) -> ConstraintMetrics {
                ConstraintMetrics {
                    $($field: self.$field.with_label_values(&[name]),)*
                }
            }

            /// Stops showing those of the constraint `name`. A missing label was removed before.
            fn forget(&self, name: &str) {
                $(let _ = self.$field.remove_label_values(&[name]);)*
            }
        }
    };
}

constraint_counters! {
    /// Reservations written, including takeovers and backfills.
    reservations, "reservations_total", "Reservations written.";
    /// Reservations released because their write didn't happen, or because their document no longer holds the key.
    released, "released_total", "Reservations released.";
    /// Abandoned reservations taken over.
    takeovers, "takeovers_total", "Abandoned reservations taken over.";
    /// Keys refused because another document holds them.
    duplicates, "duplicates_total", "Keys refused because another document holds them.";
    /// Conflicts with a reservation in flight, for whose outcome a write waited.
    conflicts_waited, "conflicts_waited_total", "Conflicts with a reservation in flight.";
    /// Reservations that stay until they are checked, because the outcome of their write is unknown.
    in_doubt, "in_doubt_total", "Reservations whose write has an unknown outcome.";
    /// Times that a command or a part of it was refused because the cluster gave no sure answer about a key.
    unsure, "unsure_total", "Refusals because the cluster gave no sure answer about a key.";
    /// Sweeps that this Keyward completed.
    sweeps, "sweeps_total", "Sweeps brought to their end.";
    /// Reservations without an owner that its sweeps and audits deleted.
    swept, "swept_total", "Reservations without an owner that a sweep or an audit deleted.";
    /// Reads by the key that the owner's shard alone answered, and statements that found their document there.
    routed_hits, "routed_hits_total", "Reads by the key that one shard answered.";
    /// Reads and statements by the key that went on unchanged because no usable reservation was found in time.
    routed_misses, "routed_misses_total", "Reads by the key without a reservation.";
    /// Reads and statements by the key that found nothing at the owner, and then went on unchanged.
    routed_fell_back, "routed_fell_back_total", "Reads by the key that found nothing there.";
    /// Keys that one statement gave to two documents, because another client had changed the shard key.
    given_twice, "given_twice_total", "Keys that one statement gave to two documents.";
    /// Documents written past Keyward whose keys its audits reserved.
    audit_repaired, "audit_repaired_total", "Documents written by others whose keys an audit reserved.";
    /// Documents that its audits found to violate the constraint.
    audit_violations, "audit_violations_total", "Documents that an audit found to violate the constraint.";
}

impl Metrics {
    /// All metrics at zero, including those of `constraints`, so that a rate can be taken from the first event on.
    pub fn new(constraints: &[Arc<Constraint>]) -> Self {
        let make = Maker::default();
        let metrics = Metrics {
            connections: Connections::new(&make),
            certificates: Certificates::new(&make),
            commands: CommandMetrics::new(&make),
            config: ReloadMetrics::new(&make),
            group_commit: GroupCommit::new(&make),
            upstream: UpstreamMetrics::new(&make),
            buffered_bytes: make.gauge(
                "client_buffered_bytes",
                "Bytes of clients' messages, and of served replies, on their way.",
            ),
            of_constraints: ConstraintFamilies::new(&make),
            audit_behind_seconds: make.gauge(
                "audit_behind_seconds",
                "The longest time for which changes have waited for an audit here.",
            ),
            keywards: make.gauge("fleet_keywards", "Keywards in the register, this one included."),
            ready: make.gauge_of_constraint("ready", "1 while the constraint is enforced."),
            waits_for: make.gauge_of_constraint(
                "waits_for",
                "Keywards that may write without the constraint, which isn't enforced before they have it or are gone.",
            ),
            registry: make.registry.clone(),
        };
        make.build_info();
        metrics.config.generation.set(1);
        metrics.upstream.show_reachable(false);
        for constraint in constraints {
            metrics.constraint(constraint);
            metrics.set_ready(constraint, false);
            metrics.set_waits_for(constraint, 0);
        }
        metrics
    }

    /// The metrics of `constraint`.
    pub fn constraint(&self, constraint: &Constraint) -> ConstraintMetrics {
        self.of_constraints.named(&constraint_label(constraint))
    }

    /// The constraints that have metrics, by their name here, with whether each is enforced.
    pub fn constraints(&self) -> Vec<(String, bool, ConstraintMetrics)> {
        let families = self.ready.collect();
        let series = families.iter().flat_map(|family| family.get_metric());
        let of = |series: &prometheus::proto::Metric| {
            let name = series.get_label().first()?.value().to_owned();
            let is_ready = series.get_gauge().get_value() > 0.0;
            let metrics = self.of_constraints.named(&name);
            Some((name, is_ready, metrics))
        };
        let mut constraints: Vec<_> = series.filter_map(of).collect();
        constraints.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        constraints
    }

    /// Shows whether `constraint` is enforced.
    pub fn set_ready(&self, constraint: &Constraint, ready: bool) {
        let name = constraint_label(constraint);
        self.ready.with_label_values(&[&name]).set(ready.into());
    }

    /// Shows the number of Keywards for which `constraint` waits.
    pub fn set_waits_for(&self, constraint: &Constraint, keywards: usize) {
        let name = constraint_label(constraint);
        let waits_for = self.waits_for.with_label_values(&[&name]);
        waits_for.set(i64::try_from(keywards).unwrap_or(i64::MAX));
    }

    /// Stops showing the metrics of `constraint`.
    pub fn forget(&self, constraint: &Constraint) {
        let name = constraint_label(constraint);
        self.of_constraints.forget(&name);
        let _ = self.ready.remove_label_values(&[&name]);
        let _ = self.waits_for.remove_label_values(&[&name]);
    }

    /// Everything in Prometheus' text format, and its content type.
    ///
    /// # Errors
    /// Only if a metric is invalid.
    pub fn text(&self) -> Result<(String, &'static str), prometheus::Error> {
        let mut text = String::new();
        TextEncoder::new().encode_utf8(&self.registry.gather(), &mut text)?;
        Ok((text, prometheus::TEXT_FORMAT))
    }
}

/// The name of a constraint in metrics and in `/readyz`: `shop.users.email_1`.
pub fn constraint_label(constraint: &Constraint) -> String {
    format!("{}.{}", constraint.namespace(), constraint.name())
}

/// The names of constraints in metrics and in `/readyz`.
pub fn constraint_labels<'c>(constraints: impl IntoIterator<Item = &'c Arc<Constraint>>) -> Vec<String> {
    let constraints = constraints.into_iter();
    constraints.map(|constraint| constraint_label(constraint)).collect()
}

/// Makes metrics and registers them. Names and labels are constants of this file, so a failure is a bug.
#[derive(Default)]
struct Maker {
    registry: Registry,
}

impl Maker {
    fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.register(IntCounter::with_opts(options(name, help)))
    }

    fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.register(IntGauge::with_opts(options(name, help)))
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Histogram {
        let options = HistogramOpts::from(options(name, help)).buckets(buckets.to_vec());
        self.register(Histogram::with_opts(options))
    }

    fn of_constraint(&self, name: &str, help: &str) -> IntCounterVec {
        self.register(IntCounterVec::new(
            options(&format!("constraint_{name}"), help),
            &["constraint"],
        ))
    }

    fn gauge_of_constraint(&self, name: &str, help: &str) -> IntGaugeVec {
        self.register(IntGaugeVec::new(
            options(&format!("constraint_{name}"), help),
            &["constraint"],
        ))
    }

    fn build_info(&self) {
        let options = options("build_info", "Always 1; the version is in the label.");
        let info = self.register(IntGaugeVec::new(options, &["version"]));
        info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    }

    fn register<M: Collector + Clone + 'static>(&self, metric: prometheus::Result<M>) -> M {
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
        let (text, content_type) = Metrics::new(&[]).text().unwrap();
        assert!(content_type.starts_with("text/plain"));
        assert!(text.contains("keyward_client_connections_opened_total 0\n"), "{text}");
        assert!(
            text.contains("keyward_client_protected_writes_seconds_count 0\n"),
            "{text}"
        );
    }

    #[test]
    fn a_connection_is_open_as_long_as_its_guard_lives() {
        let metrics = Metrics::new(&[]);
        let open = metrics.clone().connections.open();
        let counted = || (metrics.connections.opened.get(), metrics.connections.closed.get());
        assert_eq!(counted(), (1, 0));
        drop(open);
        assert_eq!(counted(), (1, 1));
    }

    #[test]
    fn names_follow_the_convention() {
        let (text, _) = Metrics::new(&[]).text().unwrap();
        for line in text.lines().filter(|line| line.starts_with("# TYPE ")) {
            let mut words = line.split(' ').skip(2);
            let (name, kind) = (words.next().unwrap(), words.next().unwrap());
            assert!(name.starts_with("keyward_"), "{name}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
            let is_duration = name.ends_with("_seconds") && !name.ends_with("_timestamp_seconds");
            // A gauge may show an age.
            let may_be_duration = ["histogram", "gauge"].contains(&kind);
            assert!(!is_duration || may_be_duration, "{name} is a {kind}");
            assert!(kind != "histogram" || is_duration, "{name} is a {kind}");
        }
    }
}
