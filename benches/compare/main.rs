//! What Keyward costs, against what one would have without it: `cargo bench --bench compare`.
//!
//! Every scenario runs its targets in turn, several rounds of each, on one testbed cluster, so that what disturbs one disturbs
//! all; what counts is the ratio. `cargo bench --bench compare -- NAME` runs the scenarios whose names hold NAME;
//! `KEYWARD_BENCH_SECONDS` is the length of a turn, `KEYWARD_BENCH_ROUNDS` their number. HAProxy takes part if it is
//! installed. The last figures stand in `docs/performance.md`.

#![allow(clippy::unwrap_used, missing_docs)]

mod connection;
mod ground;
mod measure;
mod scenarios;

use std::time::Duration;

fn main() {
    let filter = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'))
        .unwrap_or_default();
    let time = Duration::from_secs_f64(from_env("KEYWARD_BENCH_SECONDS").unwrap_or(1.0));
    let rounds = from_env("KEYWARD_BENCH_ROUNDS").unwrap_or(5.0) as usize;
    let ground = ground::Ground::prepare();
    println!("{}", measure::HEAD);
    for scenario in scenarios::all(&ground) {
        if scenario.name.contains(&filter) {
            for line in measure::run(&scenario, time, rounds) {
                println!("{line}");
            }
        }
    }
}

fn from_env(name: &str) -> Option<f64> {
    Some(std::env::var(name).ok()?.parse().expect("a number"))
}
