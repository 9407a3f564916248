//! `$merge` as drivers and the shell send it.

use std::process::Command;

use testbed::ReplicaSet;
use testkit::{Keyward, scripts};

use super::email;

fn merged_by(database: &str, script: impl FnOnce(String) -> Command) {
    ReplicaSet::shared()
        .run(database, bson::doc! { "dropDatabase": 1 })
        .unwrap();
    let keyward = Keyward::start(&ReplicaSet::shared().uri(), &email(database));
    let mut script = script(format!("{}{database}", keyward.uri()));
    assert_eq!(scripts::output(&mut script).trim(), "2 merged, 11000");
}

#[test]
fn pymongo_merges() {
    merged_by("merge_pymongo", |uri| {
        let mut script = scripts::pymongo("merge.py");
        script.arg(uri);
        script
    });
}

#[test]
fn mongosh_merges() {
    let node = scripts::node();
    merged_by("merge_mongosh", |uri| {
        let mut script = node.program("mongosh");
        script.args(["--quiet", "--norc", &uri, "--file"]);
        script.arg(node.folder().join("merge.js"));
        script
    });
}
