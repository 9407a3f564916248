//! Turns of load, and the table of what came of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::connection::Connection;

/// One operation after another, by one client.
pub type Operation = Box<dyn FnMut(&mut Connection) + Send>;

/// Who is measured.
pub struct Target {
    pub name: &'static str,
    pub address: String,
    /// What a client does; each has its own.
    pub operation: Box<dyn Fn() -> Operation + Sync>,
}

/// Targets that do the same thing.
pub struct Scenario {
    pub name: String,
    pub connections: usize,
    /// The first is what the others are measured against.
    pub targets: Vec<Target>,
}

/// Numbers that are used once in a run: values that collide with nothing.
pub fn fresh() -> i64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Scattered, as addresses are: neighbours would all go to one chunk.
    (NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 1) as i64
}

#[derive(Default)]
struct Turns {
    /// Operations a second, one figure for each turn.
    throughput: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
}

pub const HEAD: &str = "\
| scenario | clients | target | op/s | p50 µs | p99 µs | throughput | p50 | p99 |
| --- | ---: | --- | ---: | ---: | ---: | --- | --- | --- |";

/// Measures the targets in turn; the lines of the table. Ratios are to the first target, the median of the rounds' with the
/// smallest and the largest.
pub fn run(scenario: &Scenario, time: Duration, rounds: usize) -> Vec<String> {
    let mut turns: Vec<Turns> = scenario.targets.iter().map(|_| Turns::default()).collect();
    // The first round warms up.
    for round in 0..=rounds {
        for (target, turns) in scenario.targets.iter().zip(&mut turns) {
            let (throughput, mut latencies) = turn(target, scenario.connections, time);
            if round > 0 {
                latencies.sort_unstable();
                let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize] as f64 / 1e3;
                turns.throughput.push(throughput);
                turns.p50.push(at(0.5));
                turns.p99.push(at(0.99));
            }
        }
    }
    let first = &turns[0];
    let line = |(target, turns): (&Target, &Turns)| {
        format!(
            "| {} | {} | {} | {:.0} | {:.0} | {:.0} | {} | {} | {} |",
            scenario.name,
            scenario.connections,
            target.name,
            median(&turns.throughput),
            median(&turns.p50),
            median(&turns.p99),
            ratio(&turns.throughput, &first.throughput),
            ratio(&turns.p50, &first.p50),
            ratio(&turns.p99, &first.p99),
        )
    };
    scenario.targets.iter().zip(&turns).map(line).collect()
}

fn turn(target: &Target, connections: usize, time: Duration) -> (f64, Vec<u64>) {
    let open = || Connection::open(&target.address);
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

fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn ratio(figures: &[f64], to: &[f64]) -> String {
    let ratios: Vec<f64> = figures.iter().zip(to).map(|(figure, to)| figure / to).collect();
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(0.0, f64::max);
    format!("**{:.2}** ({least:.2} to {most:.2})", median(&ratios))
}
