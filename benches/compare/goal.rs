//! What a figure must reach, and whether it does.

use std::fmt;

/// The figures of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    Throughput,
    P50,
    P99,
}

impl Figure {
    pub const ALL: [Figure; 3] = [Figure::Throughput, Figure::P50, Figure::P99];
}

impl fmt::Display for Figure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Figure::Throughput => "op/s",
            Figure::P50 => "p50",
            Figure::P99 => "p99",
        })
    }
}

/// A limit of the ratio to the first target.
#[derive(Debug, Clone, Copy)]
pub enum Goal {
    AtLeast(Figure, f64),
    AtMost(Figure, f64),
}

impl Goal {
    /// Traffic that is only passed on, against HAProxy.
    pub const AS_HAPROXY: &[Goal] = &[
        Goal::AtLeast(Figure::Throughput, 0.97),
        Goal::AtMost(Figure::P50, 1.05),
        Goal::AtMost(Figure::P99, 1.05),
    ];

    /// A goal as a table states it: `op/s ≥ 0.97: met`.
    pub fn read(text: &str) -> Option<Goal> {
        let (goal, _) = text.split_once(':')?;
        let [figure, sign, limit] = goal.split(' ').collect::<Vec<_>>().try_into().ok()?;
        let figure = Figure::ALL.into_iter().find(|known| known.to_string() == figure)?;
        let limit = limit.parse().ok()?;
        match sign {
            "≥" => Some(Goal::AtLeast(figure, limit)),
            "≤" => Some(Goal::AtMost(figure, limit)),
            _ => None,
        }
    }

    pub fn figure(self) -> Figure {
        match self {
            Goal::AtLeast(figure, _) | Goal::AtMost(figure, _) => figure,
        }
    }

    pub fn limit(self) -> f64 {
        match self {
            Goal::AtLeast(_, limit) | Goal::AtMost(_, limit) => limit,
        }
    }

    pub fn is_met(self, ratio: f64) -> bool {
        match self {
            Goal::AtLeast(_, limit) => ratio >= limit,
            Goal::AtMost(_, limit) => ratio <= limit,
        }
    }

    /// The goal, and what became of it.
    pub fn verdict(self, ratio: f64) -> String {
        let sign = match self {
            Goal::AtLeast(..) => '≥',
            Goal::AtMost(..) => '≤',
        };
        let met = verdict(self.is_met(ratio));
        format!("{} {sign} {:.2}: {met}", self.figure(), self.limit())
    }
}

/// How tables say whether a goal is met.
pub fn verdict(is_met: bool) -> &'static str {
    match is_met {
        true => "met",
        false => "**missed**",
    }
}
