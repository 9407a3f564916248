//! `failing.txt`: the tests that fail, each with the reason. A line is a run, a test and a reason.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::suite::Outcome;

/// Writes what fails to the list instead of comparing it.
const ACCEPT: &str = "KEYWARD_FAILING";
/// The reason begins so if the test may also pass.
const SOMETIMES: &str = "sometimes: ";
/// The reason of a failure that was accepted, until it is written.
const UNEXPLAINED: &str = "?";
const SEPARATOR: &str = " | ";

const HEAD: &str = "\
# Tests of pymongo's suite that fail: the run, the test, the reason. A reason that begins with \"sometimes\" belongs to a test that may also
# pass. KEYWARD_FAILING=accept writes the list; the reason of each new line must then be written by hand. See tests/README.md.
";

/// The list: reasons by run and test.
pub struct List(BTreeMap<(String, String), String>);

/// How an outcome compares with the list.
pub enum Verdict {
    AsListed,
    NewFailure,
    PassesNow,
}

pub fn is_to_be_accepted() -> bool {
    std::env::var(ACCEPT).is_ok_and(|value| value == "accept")
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compatibility/published/failing.txt")
}

impl List {
    pub fn read() -> List {
        let text = std::fs::read_to_string(file()).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let entries = lines.map(|line| {
            let mut parts = line.splitn(3, SEPARATOR).map(ToOwned::to_owned);
            let mut part = || parts.next().unwrap_or_else(|| panic!("three parts in {line}"));
            ((part(), part()), part())
        });
        List(entries.collect())
    }

    pub fn verdict(&self, run: &str, outcome: &Outcome) -> Verdict {
        let reason = self.0.get(&(run.to_owned(), outcome.test.clone()));
        match (reason, outcome.outcome.as_str()) {
            (None, "failed") => Verdict::NewFailure,
            (Some(reason), "passed" | "skipped") if !reason.starts_with(SOMETIMES) => Verdict::PassesNow,
            _ => Verdict::AsListed,
        }
    }

    /// The tests of `run` whose reason is not written yet.
    pub fn without_reason(&self, run: &str) -> Vec<&str> {
        let unexplained = self.0.iter().filter(|(_, reason)| *reason == UNEXPLAINED);
        let of_run = unexplained.filter(|((of, _), _)| of == run);
        of_run.map(|((_, test), _)| test.as_str()).collect()
    }

    /// Writes the list with what failed in `run` now. Tests that weren't run keep their lines, and so do those that fail sometimes.
    pub fn accept(self, run: &str, outcomes: &[Outcome]) {
        static WRITING: Mutex<()> = Mutex::new(());
        let _one_at_a_time = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        // Another run may have written it meanwhile.
        let mut list = List::read();
        for outcome in outcomes {
            let place = (run.to_owned(), outcome.test.clone());
            match list.verdict(run, outcome) {
                Verdict::AsListed => {}
                Verdict::NewFailure => drop(list.0.insert(place, UNEXPLAINED.to_owned())),
                Verdict::PassesNow => drop(list.0.remove(&place)),
            }
        }
        let lines = list.0.iter();
        let lines = lines.map(|((run, test), reason)| format!("{run}{SEPARATOR}{test}{SEPARATOR}{reason}\n"));
        std::fs::write(file(), HEAD.to_owned() + &lines.collect::<String>()).unwrap();
    }
}
