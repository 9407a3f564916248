//! What Keyward refuses reaches the user in Keyward's words: drivers have texts of their own for some error codes.

mod support;

use std::path::Path;

use support::Keyward;
use testbed::{ReplicaSet, node_project};

#[test]
fn mongosh_shows_why_a_write_is_refused() {
    let constraints = "  - { collection: refusals.users, key: { email: 1 } }\n";
    let keyward = Keyward::start(&ReplicaSet::shared().uri(), constraints);
    let node = node_project(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drivers/node")).unwrap();
    let mut mongosh = node.program("mongosh");
    mongosh.args(["--quiet", "--norc", &format!("{}refusals", keyward.uri()), "--file"]);
    let output = mongosh.arg(node.folder().join("refused.js")).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{shown}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 4, "{shown}");
    assert!(
        lines
            .iter()
            .all(|line| line.contains("Keyward") && line.contains("refusals.")),
        "{shown}"
    );
}
