//! pymongo's source distribution, which holds the suite, and how a part of it is run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use serde_json::Value;
use testbed::{python_source, python_with};
use testkit::scripts::output;

/// The driver, and the runner that its suite wants.
const DRIVER: &str = "pymongo==4.20.0";
const RUNNER: &str = "pytest==8.4.2";
/// Of `pymongo-4.20.0.tar.gz`.
const SHA256: &str = "f773b0aec28687587cdeda490463a82debc4566a4a3620dcc8dada9d2c0a1acd";
/// How long one test may take, in seconds. Each ends in less than ten, unless it hangs.
const LIMIT: &str = "30";
/// Names of tests, as `-k` of pytest wants them: only these are run.
const ONLY: &str = "KEYWARD_PUBLISHED";

/// The suite, and a Python that can run it.
pub struct Suite {
    folder: PathBuf,
    python: PathBuf,
}

/// What became of one test.
#[derive(Debug, Deserialize)]
pub struct Outcome {
    /// File, class and name.
    pub test: String,
    /// `passed`, `failed` or `skipped`.
    pub outcome: String,
    /// Why it failed.
    pub why: String,
    /// How long it took.
    pub seconds: f64,
}

impl Suite {
    pub fn fetched() -> Suite {
        Suite {
            folder: python_source(DRIVER, SHA256, "test").unwrap(),
            python: python_with(&[DRIVER, RUNNER]).unwrap(),
        }
    }

    /// Runs `files` against the router on `port`, and the one on the next port. `environment` is for the script.
    pub fn run(&self, port: u16, files: &[&str], environment: &[(&str, &str)]) -> Vec<Outcome> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compatibility/published/run.py");
        let home = tempfile::tempdir().unwrap();
        let mut command = Command::new(&self.python);
        command
            .arg(script)
            .arg(&self.folder)
            .args(files.iter().map(|file| format!("test/{file}")))
            .current_dir(home.path())
            .env("DB_IP", "127.0.0.1")
            .env("DB_PORT", port.to_string())
            .env("PUBLISHED_LIMIT", LIMIT)
            .envs(environment.iter().copied());
        if let Ok(names) = std::env::var(ONLY) {
            command.args(["-k", &names]);
        }
        let printed = output(&mut command);
        let lines = printed.lines().filter_map(|line| line.strip_prefix("outcome "));
        let outcomes: Vec<Outcome> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(!outcomes.is_empty(), "no test was run:\n{printed}");
        outcomes
    }

    /// The collections that the tests in `folder` write to, as `database.collection`.
    pub fn collections(&self, folder: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for entry in std::fs::read_dir(self.folder.join("test").join(folder)).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            let spec: Value = serde_json::from_str(&text).unwrap();
            for data in spec["initialData"].as_array().into_iter().flatten() {
                let name = |field: &str| data[field].as_str().unwrap().to_owned();
                found.insert(format!("{}.{}", name("databaseName"), name("collectionName")));
            }
        }
        assert!(!found.is_empty());
        found
    }
}
