//! What Keyward costs, against what one would have without it: `cargo bench --bench compare`.
//!
//! Every scenario runs its targets in turn, several rounds of each, on one testbed cluster, so that what disturbs one disturbs
//! all; what counts is the ratio. `-- NAME` runs what has NAME in its name
//! ("insert, 64 clients"), `-- --write` puts what it has measured into
//! `docs/performance.md` and draws it. `-- --draw` measures nothing: it draws the figures that are on the page. From the environment:
//!
//! - `KEYWARD_BENCH_SECONDS` is the length of a turn, `KEYWARD_BENCH_ROUNDS` their number;
//! - `KEYWARD_BENCH_BACKFILL` is how many documents are backfilled;
//! - `KEYWARD_BENCH_SIZE` is the largest number of reservations among which inserts are measured.
//!
//! HAProxy takes part if it is installed; its absence is told.

#![allow(clippy::unwrap_used, missing_docs)]

mod backfill;
mod distance;
mod drawing;
mod filling;
mod goal;
mod ground;
mod link;
mod measure;
mod memory;
mod page;
mod pictures;
mod routed;
mod scenarios;
mod shards;
mod size;
mod spread;
mod stored;

use std::cell::LazyCell;
use std::time::Duration;

use ground::Ground;
use measure::{Effort, Outcome, Scenario};

/// The tables of scenarios.
type Group = (&'static str, fn(&Ground) -> Vec<Scenario>);
const GROUPS: [Group; 2] = [("forwarded", scenarios::passed_on), ("protected", scenarios::protected)];
/// The other tables.
const OTHERS: [&str; 6] = ["shards", "routed", "distance", "memory", "backfill", "size"];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--draw") {
        return pictures::DRAWN.into_iter().for_each(pictures::draw);
    }
    testbed::process::use_disk();
    let write = arguments.iter().any(|argument| argument == "--write");
    let filter = arguments.iter().find(|argument| !argument.starts_with('-'));
    let filter = filter.map_or("", String::as_str);
    let is_other = OTHERS.contains(&filter);
    let is_table = is_other || GROUPS.iter().any(|(name, _)| *name == filter);
    assert!(
        !write || filter.is_empty() || is_table,
        "only whole tables are written down"
    );
    let effort = Effort {
        time: Duration::from_secs_f64(from_env("KEYWARD_BENCH_SECONDS").unwrap_or(1.0)),
        rounds: from_env("KEYWARD_BENCH_ROUNDS").unwrap_or(5.0) as usize,
    };
    let ground: LazyCell<Ground> = LazyCell::new(Ground::prepare);
    for (name, scenarios) in GROUPS {
        let filter = match filter {
            other if is_table && other != name => continue,
            own if own == name => "",
            filter => filter,
        };
        let outcomes = measured(scenarios(&ground), filter, effort);
        if !outcomes.is_empty() {
            tell(name, &table(&outcomes), write);
        }
    }
    for name in OTHERS.into_iter().filter(|name| name.contains(filter)) {
        tell(name, &other(name, effort, &ground), write);
    }
}

/// Measures one of the other tables.
fn other(name: &str, effort: Effort, ground: &LazyCell<Ground>) -> String {
    match name {
        "shards" => shards::table(effort.rounds),
        "routed" => routed::table(effort),
        "size" => {
            let largest = from_env("KEYWARD_BENCH_SIZE").unwrap_or(1e6) as u64;
            size::table(ground, largest, effort)
        }
        "backfill" => {
            let documents = from_env("KEYWARD_BENCH_BACKFILL").unwrap_or(4e5) as usize;
            backfill::table(ground, documents, effort.rounds)
        }
        "memory" => memory::table(effort.rounds),
        _ => distance::table(effort),
    }
}

/// Prints a table; puts it and its pictures into the page if `write`.
fn tell(name: &str, table: &str, write: bool) {
    println!("{table}\n");
    if write {
        page::write(name, table);
        if pictures::DRAWN.contains(&name) {
            pictures::draw(name);
        }
    }
}

fn measured(scenarios: Vec<Scenario>, filter: &str, effort: Effort) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for scenario in scenarios {
        let name = format!("{}, {} clients", scenario.name, scenario.connections);
        if name.contains(filter) {
            eprintln!("{name}");
            outcomes.push(measure::run(&scenario, effort));
        }
    }
    outcomes
}

fn table(outcomes: &[Outcome]) -> String {
    let lines = outcomes.iter().flat_map(Outcome::lines);
    std::iter::once(Outcome::HEAD.to_owned())
        .chain(lines)
        .collect::<Vec<_>>()
        .join("\n")
}

fn from_env(name: &str) -> Option<f64> {
    Some(std::env::var(name).ok()?.parse().expect("a number"))
}
