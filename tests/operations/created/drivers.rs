//! Applications whose own code makes unique indexes: on a sharded collection through Keyward they see what they see on an unsharded one.

use std::process::Command;

use bson::doc;
use testbed::ReplicaSet;
use testkit::scripts::{node, output, pymongo};

use super::*;

/// Runs `script` on both sides and compares what it prints.
fn compare(database: &str, script: impl Fn(&str) -> Command) {
    let native = ReplicaSet::shared();
    let index = doc! { "createIndexes": "users", "indexes": [{ "key": { "region": 1 }, "name": "region_1" }] };
    native.run(database, index).unwrap();
    // These scripts end and make constraints again and again, and each time they would wait for the Keywards of other tests.
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, database);
    let keyward = start_at(&cluster);
    let expected = output(&mut script(&native.uri()));
    let seen = output(&mut script(&keyward.uri()));
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(lines(&seen), lines(&expected));
}

#[test]
fn mongoose_syncs_its_unique_indexes() {
    const DATABASE: &str = "created_by_mongoose";
    let node = node();
    compare(DATABASE, |uri| {
        let mut command = node.script("created-mongoose.mjs");
        command.args([uri, DATABASE]);
        command
    });
}

#[test]
fn frameworks_make_and_compare_unique_indexes() {
    const DATABASE: &str = "created_by_frameworks";
    compare(DATABASE, |uri| {
        let mut command = pymongo("created.py");
        command.args([uri, DATABASE]);
        command
    });
}

#[test]
fn the_shell_makes_shows_and_drops_unique_indexes() {
    const DATABASE: &str = "created_in_the_shell";
    let node = node();
    compare(DATABASE, |uri| {
        let (host, options) = uri.rsplit_once('/').unwrap();
        let script = node.folder().join("created-shell.js");
        let mut command = node.program("mongosh");
        command.args(["--quiet", "--norc", &format!("{host}/{DATABASE}{options}"), "--file"]);
        command.arg(script);
        command
    });
}
