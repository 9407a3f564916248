//! Follows whether the deployment can be reached: in `/readyz`, in the log and in the metrics.
//!
//! Keyward learns it from the driver's monitoring and from a probe ([`Probe`]). A deployment that can't be reached for a second is
//! lost, so an election of a new primary that takes less time changes nothing.

use std::time::Duration;

use tokio::time::Instant;

use crate::metrics::UpstreamMetrics;
use crate::readiness::{Obstacle, Readiness};
use crate::upstream::{Probe, Upstream};

/// How long the deployment may be unreachable before it is lost.
const GRACE: Duration = Duration::from_secs(1);

/// Follows the deployment at `upstream`, which is shown as `name`, without end.
///
/// - Cancel: at any time; the last state stays shown.
pub(super) async fn follow(upstream: Upstream, name: String, readiness: Readiness, metrics: UpstreamMetrics) {
    let mut probe = Probe::of(&upstream);
    let mut reachability = Reachability::of(name, readiness, metrics, Instant::now());
    loop {
        let asked_at = Instant::now();
        match probe.ask(reachability.is_lost()).await {
            Ok(round_trip) => {
                reachability
                    .metrics
                    .round_trip_seconds
                    .observe(round_trip.as_secs_f64());
                reachability.note_answer(Instant::now());
            }
            Err(reason) => reachability.note_failure(asked_at, Instant::now(), &reason),
        }
        probe.pause().await;
    }
}

/// The known state of the deployment.
#[derive(Debug)]
struct Reachability {
    name: String,
    readiness: Readiness,
    metrics: UpstreamMetrics,
    state: State,
    /// Whether it has answered since the start.
    was_reached: bool,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// It has answered the last time.
    Reachable,
    /// It has not answered since, for less than [`GRACE`].
    Failing { since: Instant },
    /// It is lost since, which is shown.
    Lost { since: Instant },
}

impl Reachability {
    fn of(name: String, readiness: Readiness, metrics: UpstreamMetrics, now: Instant) -> Reachability {
        Reachability {
            name,
            readiness,
            metrics,
            state: State::Failing { since: now },
            was_reached: false,
        }
    }

    fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost { .. })
    }

    fn note_answer(&mut self, now: Instant) {
        if let State::Lost { since } = self.state {
            let after = humantime::format_duration(Duration::from_secs((now - since).as_secs()));
            tracing::info!(upstream = self.name, %after, "the deployment answers again");
        }
        if self.is_lost() || !self.was_reached {
            self.metrics.show_reachable(true);
            self.readiness.unblock(&Obstacle::Upstream);
        }
        (self.state, self.was_reached) = (State::Reachable, true);
    }

    /// Notes that the question of `asked_at` has no answer `now`.
    fn note_failure(&mut self, asked_at: Instant, now: Instant, reason: &str) {
        let since = match self.state {
            State::Reachable => asked_at,
            State::Failing { since } => since,
            State::Lost { .. } => return self.readiness.block(Obstacle::Upstream, reason),
        };
        if now - since < GRACE {
            self.state = State::Failing { since };
            return;
        }
        // This comes before the log line: an operator who reads the line may ask `/readyz` at once.
        self.readiness.block(Obstacle::Upstream, reason);
        tracing::warn!(upstream = self.name, reason, "the deployment does not answer");
        if self.was_reached {
            self.metrics.lost.inc();
            self.metrics.show_reachable(false);
        }
        self.state = State::Lost { since };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    fn reachability(now: Instant) -> (Reachability, Readiness, Metrics) {
        let (readiness, metrics) = (Readiness::starting(), Metrics::new(&[]));
        readiness.unblock(&Obstacle::Startup);
        let reachability = Reachability::of("a:1".to_owned(), readiness.clone(), metrics.upstream.clone(), now);
        (reachability, readiness, metrics)
    }

    fn is_shown_reachable(metrics: &Metrics) -> bool {
        let (text, _) = metrics.text().unwrap();
        text.contains("\nkeyward_upstream_reachable 1\n")
    }

    #[test]
    fn a_deployment_is_lost_after_a_second_without_an_answer() {
        let start = Instant::now();
        let (mut reachability, readiness, metrics) = reachability(start);
        let fail = |reachability: &mut Reachability, after: Duration, reason: &str| {
            reachability.note_failure(start + after, start + after, reason);
        };
        assert!(!is_shown_reachable(&metrics));
        reachability.note_answer(start);
        assert!(is_shown_reachable(&metrics) && readiness.obstacles().is_empty());
        // A short election.
        fail(&mut reachability, Duration::ZERO, "no primary");
        fail(&mut reachability, GRACE / 2, "no primary");
        assert!(readiness.obstacles().is_empty());
        reachability.note_answer(start + GRACE / 2);
        fail(&mut reachability, GRACE, "no primary");
        assert!(readiness.obstacles().is_empty() && is_shown_reachable(&metrics));
        fail(&mut reachability, GRACE * 2, "refused");
        assert_eq!(readiness.obstacles(), [(Obstacle::Upstream, "refused".to_owned())]);
        assert!(!is_shown_reachable(&metrics));
        fail(&mut reachability, GRACE * 3, "another reason");
        assert_eq!(readiness.obstacles()[0].1, "another reason");
        reachability.note_answer(start + GRACE * 4);
        assert!(readiness.obstacles().is_empty() && is_shown_reachable(&metrics));
        assert_eq!(metrics.upstream.lost.get(), 1);
    }

    #[test]
    fn a_deployment_that_hangs_is_lost_when_the_probe_gives_up() {
        let start = Instant::now();
        let (mut reachability, readiness, _) = reachability(start);
        reachability.note_answer(start);
        reachability.note_failure(start, start + GRACE * 2, "no answer");
        assert_eq!(readiness.obstacles(), [(Obstacle::Upstream, "no answer".to_owned())]);
    }

    #[test]
    fn a_deployment_that_never_answered_is_not_counted_as_lost() {
        let start = Instant::now();
        let (mut reachability, readiness, metrics) = reachability(start);
        reachability.note_failure(start, start + GRACE, "refused");
        assert_eq!(readiness.obstacles()[0].1, "refused");
        assert_eq!(metrics.upstream.lost.get(), 0);
    }
}
