//! Turns of load, and what came of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::goal::{Figure, Goal};
use crate::spread::Spread;
use testkit::wire::Connection;

/// One operation after another, by one client.
pub type Operation = Box<dyn FnMut(&mut Connection) + Send>;

/// How long, and how often.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// The length of a turn.
    pub time: Duration,
    /// The turns of each target that count.
    pub rounds: usize,
}

/// Who is measured.
pub struct Target {
    pub name: &'static str,
    pub address: String,
    /// What a client does; each has its own.
    pub operation: Box<dyn Fn() -> Operation + Sync>,
    /// What it must reach.
    pub goals: &'static [Goal],
}

/// Targets that do the same thing.
pub struct Scenario {
    pub name: String,
    pub connections: usize,
    /// The first is what the others are measured against.
    pub targets: Vec<Target>,
}

/// What a target came to: one figure for each turn.
pub struct Measured {
    pub name: &'static str,
    pub goals: &'static [Goal],
    throughput: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
}

/// What the targets of a scenario came to.
pub struct Outcome {
    pub scenario: String,
    pub connections: usize,
    pub targets: Vec<Measured>,
}

/// Numbers that are used once in a run: values that collide with nothing.
pub fn fresh() -> i64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Scattered, as addresses are: neighbours would all go to one chunk.
    (NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 1) as i64
}

/// Measures the targets in turn, round by round.
pub fn run(scenario: &Scenario, effort: Effort) -> Outcome {
    let measured = |target: &Target| Measured {
        name: target.name,
        goals: target.goals,
        throughput: Vec::new(),
        p50: Vec::new(),
        p99: Vec::new(),
    };
    let mut targets: Vec<Measured> = scenario.targets.iter().map(measured).collect();
    // The first round warms up.
    for round in 0..=effort.rounds {
        for (target, measured) in scenario.targets.iter().zip(&mut targets) {
            let (throughput, mut latencies) = turn(target, scenario.connections, effort.time);
            if round > 0 {
                latencies.sort_unstable();
                let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize] as f64 / 1e3;
                measured.throughput.push(throughput);
                measured.p50.push(at(0.5));
                measured.p99.push(at(0.99));
            }
        }
    }
    Outcome {
        scenario: scenario.name.clone(),
        connections: scenario.connections,
        targets,
    }
}

fn turn(target: &Target, connections: usize, time: Duration) -> (f64, Vec<u64>) {
    let open = || Connection::greeted(&target.address);
    let clients: Vec<(Connection, Operation)> = (0..connections).map(|_| (open(), (target.operation)())).collect();
    let began = Instant::now();
    let latencies: Vec<u64> = std::thread::scope(|scope| {
        let work = |(mut connection, mut operation): (Connection, Operation)| {
            move || {
                let mut latencies = Vec::new();
                while began.elapsed() < time {
                    let at = Instant::now();
                    operation(&mut connection);
                    latencies.push(at.elapsed().as_nanos() as u64);
                }
                latencies
            }
        };
        let running: Vec<_> = clients.into_iter().map(|client| scope.spawn(work(client))).collect();
        running.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    (latencies.len() as f64 / began.elapsed().as_secs_f64(), latencies)
}

impl Measured {
    fn turns(&self, figure: Figure) -> &[f64] {
        match figure {
            Figure::Throughput => &self.throughput,
            Figure::P50 => &self.p50,
            Figure::P99 => &self.p99,
        }
    }

    pub fn figure(&self, figure: Figure) -> Spread {
        Spread::of(self.turns(figure).iter().copied())
    }
}

impl Outcome {
    /// A target's figure as a part of the first target's.
    pub fn ratio(&self, target: &Measured, figure: Figure) -> Spread {
        Spread::of_ratios(target.turns(figure), self.targets[0].turns(figure))
    }

    pub const HEAD: &str = "\
| scenario | clients | target | op/s | p50 µs | p99 µs | op/s, ratio | p50, ratio | p99, ratio | goal |
| --- | ---: | --- | ---: | ---: | ---: | --- | --- | --- | --- |";

    /// The lines of the table: ratios are to the first target.
    pub fn lines(&self) -> Vec<String> {
        let line = |target: &Measured| {
            let figures = Figure::ALL.map(|figure| format!("{:.0}", target.figure(figure).median));
            let ratios = Figure::ALL.map(|figure| self.ratio(target, figure).to_string());
            let verdict = |goal: &Goal| goal.verdict(self.ratio(target, goal.figure()).median);
            let goals: Vec<String> = target.goals.iter().map(verdict).collect();
            format!(
                "| {} | {} | {} | {} | {} | {} |",
                self.scenario,
                self.connections,
                target.name,
                figures.join(" | "),
                ratios.join(" | "),
                goals.join("; ")
            )
        };
        self.targets.iter().map(line).collect()
    }
}
