//! Real drivers and a real shell, working on the router directly.

use std::path::Path;
use std::process::Command;

use testbed::{Cluster, node_project, python};

/// Runs a program that ends with the line `OK` if all went well.
fn succeeds(command: &mut Command) {
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    let last = printed.lines().map(str::trim).rfind(|line| !line.is_empty());
    assert!(output.status.success() && last == Some("OK"), "{printed}\n{complaint}");
}

fn scripts() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drivers")
}

#[test]
fn pymongo_works() {
    let mut pymongo = Command::new(python().unwrap());
    succeeds(pymongo.arg(scripts().join("router.py")).arg(Cluster::shared().uri()));
}

#[test]
fn mongoose_works() {
    let project = node_project(&scripts()).unwrap();
    succeeds(project.script("router-mongoose.mjs").arg(Cluster::shared().uri()));
}

#[test]
fn mongosh_works() {
    let project = node_project(&scripts()).unwrap();
    let mut mongosh = project.program("mongosh");
    mongosh.args(["--quiet", "--norc", &Cluster::shared().uri(), "--file"]);
    succeeds(mongosh.arg(project.folder().join("router-mongosh.js")));
}
