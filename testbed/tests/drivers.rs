//! Real drivers, fetched where they are missing, work against what the testbed starts.

use std::path::Path;
use std::process::Command;

use testbed::{Cluster, NodeProject, ReplicaSet, node_project, python};

const WITH_PYMONGO: &str = "
import pymongo, sys
users = pymongo.MongoClient(sys.argv[1]).python.users
users.insert_one({'_id': 1, 'name': 'Ada'})
print(users.find_one({'_id': 1})['name'])
";

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn drivers() -> NodeProject {
    node_project(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drivers")).unwrap()
}

/// What the drivers are tried on: a cluster's router, and a plain replica set.
fn deployments() -> [String; 2] {
    [Cluster::shared().uri(), ReplicaSet::shared().uri()]
}

#[test]
fn pymongo_writes_and_reads() {
    for uri in deployments() {
        let mut python = Command::new(python().unwrap());
        assert_eq!(output(python.args(["-c", WITH_PYMONGO, &uri])), "Ada");
    }
}

#[test]
fn the_node_driver_writes_and_reads() {
    let drivers = drivers();
    for uri in deployments() {
        assert_eq!(output(drivers.script("insert.mjs").arg(uri)), "Ada");
    }
}

#[test]
fn mongoose_writes_and_reads() {
    let drivers = drivers();
    for uri in deployments() {
        assert_eq!(output(drivers.script("mongoose.mjs").arg(uri)), "Ada");
    }
}

#[test]
fn mongosh_evaluates() {
    let drivers = drivers();
    let script = "db.users.insertOne({_id: 1, name: 'Ada'}); print(db.users.findOne().name)";
    for uri in deployments() {
        let mut mongosh = drivers.program("mongosh");
        mongosh.args(["--quiet", "--norc", &uri, "--eval", script]);
        assert!(output(&mut mongosh).ends_with("Ada"));
    }
}
