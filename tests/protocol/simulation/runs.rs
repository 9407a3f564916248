//! Many seeds, one after the other; a seed that fails is run again, and told.
//!
//! `KEYWARD_SEED=… cargo test --test protocol simulation -- --nocapture` runs one alone, and tells it; `KEYWARD_SIMULATIONS=1000000`
//! says how many there are to be.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use testkit::given;

use crate::simulation::checker::Violation;
use crate::simulation::history::{FAULTS, History};
use crate::simulation::workload::run;
use crate::under_test::rules::Rules;

/// So many for each mode, every day.
const SEEDS: u64 = 2_000;
/// What lacks a guard has to fail within so many.
const SEEDS_WITHOUT_A_GUARD: u64 = 100_000;
const THREADS: usize = 2;

/// None of the seeds may break anything.
pub fn holds(rules: Rules) {
    if let Some(seed) = given::number("KEYWARD_SEED") {
        let history = run(rules, seed, true);
        println!("{}", history.told());
        assert_eq!(history.violation, None, "KEYWARD_SEED={seed}, {rules:?}");
        return;
    }
    let started = Instant::now();
    let seeds = given::number("KEYWARD_SIMULATIONS").unwrap_or(SEEDS);
    let sum = run_all(rules, seeds);
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{:?}: {sum} in {seconds:.1} s, {:.0} seeds/s",
        rules.mode,
        sum.seeds as f64 / seconds
    );
    if let Some((seed, violation)) = sum.failed {
        let told = run(rules, seed, true).told();
        panic!("{told}{violation:?}\n{rules:?}\nKEYWARD_SEED={seed} replays it alone");
    }
}

/// One of the seeds has to break something: a guard is missing.
pub fn finds(rules: Rules) {
    let started = Instant::now();
    for seed in 0..SEEDS_WITHOUT_A_GUARD {
        if let Some(violation) = run(rules, seed, false).violation {
            println!("{rules:?}: {violation:?} by seed {seed}, {:.1?}", started.elapsed());
            return;
        }
    }
    panic!("{rules:?}: nothing was found in {SEEDS_WITHOUT_A_GUARD} seeds");
}

#[derive(Debug, Default)]
struct Sum {
    seeds: u64,
    operations: u64,
    faults: [u64; FAULTS],
    failed: Option<(u64, Violation)>,
}

impl Sum {
    fn add(&mut self, seed: u64, history: History) {
        self.seeds += 1;
        self.operations += history.operations;
        self.faults
            .iter_mut()
            .zip(history.faults)
            .for_each(|(sum, count)| *sum += count);
        if let Some(violation) = history.violation
            && self.failed.as_ref().is_none_or(|(first, _)| seed < *first)
        {
            self.failed = Some((seed, violation));
        }
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let faults: u64 = self.faults.iter().sum();
        write!(
            f,
            "{} seeds, {} operations, {faults} faults {:?}",
            self.seeds, self.operations, self.faults
        )
    }
}

fn run_all(rules: Rules, seeds: u64) -> Sum {
    let next = AtomicU64::new(0);
    let sum = Mutex::new(Sum::default());
    let started = Instant::now();
    let told = Mutex::new(Instant::now());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return;
            }
            let history = run(rules, seed, false);
            let has_failed = history.violation.is_some();
            let Ok(mut sum) = sum.lock() else { return };
            sum.add(seed, history);
            if has_failed {
                next.store(seeds, Ordering::Relaxed);
            }
            if let Ok(mut told) = told.lock()
                && told.elapsed() > Duration::from_secs(10)
            {
                *told = Instant::now();
                println!("{:?}: {sum} after {:.0?}", rules.mode, started.elapsed());
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(work);
        }
    });
    sum.into_inner().unwrap_or_default()
}
