//! Scripts for real drivers: where they are, how they are run, what they print.

use std::path::{Path, PathBuf};
use std::process::Command;

use testbed::{NodeProject, node_project, python};

fn folder(language: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/drivers")
        .join(language)
}

/// The Node project with the scripts for `mongodb`, `mongoose` and `mongosh`.
pub fn node() -> NodeProject {
    node_project(&folder("node")).unwrap()
}

/// A Python with pymongo, told to run `script`.
pub fn pymongo(script: &str) -> Command {
    let mut command = Command::new(python().unwrap());
    command.arg(folder("python").join(script));
    command
}

/// What `command` prints; it must succeed.
pub fn output(command: &mut Command) -> String {
    try_output(command).unwrap_or_else(|failed| panic!("{failed}"))
}

/// What `command` prints.
///
/// # Errors
/// The command with all that it printed, if it fails.
pub fn try_output(command: &mut Command) -> Result<String, String> {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(format!("{command:?}: {}{}", text(&output.stdout), text(&output.stderr))),
    }
}
