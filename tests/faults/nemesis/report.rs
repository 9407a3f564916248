//! What a run showed, as text: the faults, the operations by their outcome, and every violation.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::time::Duration;

use crate::nemesis::checker::{COLLECTION, Evidence, Violation};
use crate::nemesis::client::is_newcomer;
use crate::nemesis::faults::Faults;
use crate::nemesis::history::Outcome;

/// So many violations are shown in full.
const SHOWN: usize = 20;

pub fn of_faults(faults: &Faults, elapsed: Duration) -> String {
    let faults = faults.all();
    let total: usize = faults.values().sum();
    let mut text = format!("{total} faults in {} s\n", elapsed.as_secs());
    for (name, count) in faults {
        writeln!(text, "  {count:5} {name}").unwrap();
    }
    text
}

pub fn of_side(mode: &str, evidence: &Evidence, violations: &[Violation]) -> String {
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    let mut kinds: BTreeMap<&str, [usize; 4]> = BTreeMap::new();
    for operation in &evidence.operations {
        let (column, outcome) = match &operation.outcome {
            Outcome::Ok => (0, "ok".to_owned()),
            Outcome::Duplicate => (1, "duplicate".to_owned()),
            Outcome::Failed(why) => (2, format!("failed: {why}")),
            Outcome::Unknown(why) => (3, format!("unknown: {why}")),
        };
        *outcomes.entry(outcome).or_default() += 1;
        kinds.entry(operation.name).or_default()[column] += 1;
    }
    let mut text = format!(
        "{mode}: {} operations, {} moments\n",
        evidence.operations.len(),
        evidence.moments.len()
    );
    for (outcome, count) in outcomes {
        writeln!(text, "  {count:7} {outcome}").unwrap();
    }
    writeln!(text, "       ok duplicate    failed   unknown").unwrap();
    for (name, counts) in kinds {
        let counts: String = counts.iter().map(|count| format!("{count:9} ")).collect();
        writeln!(text, "{counts} {name}").unwrap();
    }
    writeln!(text, "{mode}: {}", together(evidence)).unwrap();
    writeln!(text, "{mode}: {} violations", violations.len()).unwrap();
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for violation in violations {
        let name = format!("{violation:?}")
            .chars()
            .take_while(char::is_ascii_alphanumeric)
            .collect();
        *kinds.entry(name).or_default() += 1;
    }
    for (name, count) in kinds {
        writeln!(text, "  {count:7} {name}").unwrap();
    }
    for violation in violations.iter().take(SHOWN) {
        writeln!(text, "  {violation}").unwrap();
    }
    text
}

/// How many newcomers came by one transaction with others.
fn together(evidence: &Evidence) -> String {
    let mut newcomers: HashMap<&str, usize> = HashMap::new();
    for change in evidence.moments.iter().flat_map(|moment| &moment.changes) {
        if let Some(transaction) = &change.transaction
            && change.collection == COLLECTION
            && change.before.is_none()
            && is_newcomer(&change.id)
        {
            *newcomers.entry(transaction).or_default() += 1;
        }
    }
    newcomers.retain(|_, count| *count > 1);
    let inserts: usize = newcomers.values().sum();
    format!("{inserts} inserts in {} groups", newcomers.len())
}

/// Everything in the order of time, in a file of its own: for whoever looks for the cause of a violation.
pub fn dump(mode: &str, seed: u64, evidence: &Evidence) -> std::path::PathBuf {
    let operations = evidence
        .operations
        .iter()
        .map(|operation| (operation.began, format!("{operation:?}")));
    let moments = evidence
        .moments
        .iter()
        .map(|moment| (moment.wall, format!("{moment:?}")));
    let windows = evidence
        .windows
        .iter()
        .map(|window| (window.from, format!("{window:?}")));
    let mut lines: Vec<_> = operations.chain(moments).chain(windows).collect();
    lines.sort();
    let text: String = lines.iter().map(|(time, line)| format!("{time} {line}\n")).collect();
    let path = std::env::temp_dir().join(format!("nemesis-{mode}-{seed}.log"));
    std::fs::write(&path, text).unwrap();
    path
}
