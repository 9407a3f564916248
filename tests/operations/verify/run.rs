//! Runs `keyward verify` and reads what it says.

use std::io::Write;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

/// One that takes longer stands still.
const ENDED_WITHIN: Duration = Duration::from_secs(600);

/// A configuration file for one-time commands.
pub struct Config {
    file: tempfile::NamedTempFile,
}

/// How a verification ended.
#[derive(Debug)]
pub struct Verified {
    pub exit: Option<i32>,
    pub findings: Vec<Value>,
    pub summary: Value,
    pub errors: String,
}

impl Config {
    pub fn new(upstream: &str, lease: &str, constraints: &str) -> Config {
        let mut file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        let text = format!("upstream: {upstream}\nlease: {lease}\nconstraints:\n{constraints}");
        file.write_all(text.as_bytes()).unwrap();
        Config { file }
    }

    pub fn command(&self, command: &str, options: &[&str]) -> Command {
        let mut keyward = Command::new(env!("CARGO_BIN_EXE_keyward"));
        keyward.args([command, "--config"]).arg(self.file.path()).args(options);
        // A claim to a backfill lasts for 3 s after its Keyward was killed, instead of 30.
        keyward.env("KEYWARD_REGISTER_HASTE", "10");
        keyward
    }

    /// Runs a command to its end.
    pub async fn run(&self, command: &str, options: &[&str]) -> Output {
        let mut command = tokio::process::Command::from(self.command(command, options));
        let ended = timeout(ENDED_WITHIN, command.kill_on_drop(true).output()).await;
        ended.expect("the command comes to an end").unwrap()
    }

    /// Verifies with `--json`.
    pub async fn verify(&self, options: &[&str]) -> Verified {
        Verified::of(self.run("verify", &[&["--json"], options].concat()).await)
    }
}

impl Verified {
    pub fn of(output: Output) -> Verified {
        let errors = String::from_utf8(output.stderr).unwrap();
        // Shown by a failing test only.
        println!("{errors}");
        let lines = String::from_utf8(output.stdout).unwrap();
        let mut lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        Verified {
            exit: output.status.code(),
            summary: lines.pop().map(|mut last| last["summary"].take()).unwrap_or_default(),
            findings: lines,
            errors,
        }
    }

    /// `kind constraint documents` of each finding, sorted.
    pub fn listed(&self) -> Vec<String> {
        list(self.findings.iter())
    }

    /// The same of those that aren't repaired.
    pub fn listed_unrepaired(&self) -> Vec<String> {
        list(self.findings.iter().filter(|finding| finding["repaired"] == false))
    }
}

fn list<'f>(findings: impl Iterator<Item = &'f Value>) -> Vec<String> {
    let of = |finding: &Value| {
        let documents = finding["documents"].as_array().unwrap();
        let mut documents: Vec<String> = documents.iter().map(Value::to_string).collect();
        documents.sort();
        let text = |field: &str| finding[field].as_str().unwrap().to_owned();
        format!("{} {} {}", text("finding"), text("constraint"), documents.join(","))
    };
    let mut listed: Vec<String> = findings.map(of).collect();
    listed.sort();
    listed
}
