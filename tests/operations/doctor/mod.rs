//! `keyward doctor`: all lines on deployments that are as they must be, and each line once where its assumption doesn't hold.

mod broken;
mod ended;
mod privileges;
mod start;
mod whole;

use std::io::Write as _;
use std::process::{Command, Output};

use serde_json::Value;
use testbed::command;

/// A configuration file for the deployment at `upstream`.
pub fn config(upstream: &str) -> tempfile::NamedTempFile {
    config_with(upstream, "")
}

/// The same with further settings.
pub fn config_with(upstream: &str, settings: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let constraint = "{ collection: shop.users, key: { email: 1 }, partialFilterExpression: { state: sekret } }";
    let text = format!(
        "upstream: {upstream}\nlog: {{ level: warn }}\nlease: 10s\n{settings}\nconstraints:\n  - {constraint}\n"
    );
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// The command for it, with these further arguments.
pub fn doctor(config: &tempfile::NamedTempFile, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyward"));
    command
        .args(["doctor", "--config"])
        .arg(config.path())
        .args(arguments)
        .env_remove("KEYWARD_UPSTREAM")
        .env_remove("KEYWARD_LOG");
    command
}

/// What it says for people.
pub fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(str::to_owned).collect()
}

/// Its results as JSON: exit code, and each check's result and what was seen.
pub fn examined(upstream: &str) -> (i32, Vec<(String, String, String)>) {
    let output = doctor(&config(upstream), &["--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let of = |line: &Value, field: &str| line[field].as_str().unwrap().to_owned();
    let checks = report["checks"].as_array().unwrap().iter();
    let checks = checks.map(|line| (of(line, "check"), of(line, "result"), of(line, "seen")));
    (output.status.code().unwrap(), checks.collect())
}

/// The scratch databases at a server.
pub fn scratch_databases(address: &str) -> Vec<String> {
    let list = bson::doc! { "listDatabases": 1, "nameOnly": true };
    let reply = command::run(address, "admin", list).unwrap();
    let databases = reply.get_array("databases").unwrap().iter();
    let names = databases.map(|one| one.as_document().unwrap().get_str("name").unwrap().to_owned());
    names.filter(|name| name.starts_with(keyward::doctor::PREFIX)).collect()
}
