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
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}
