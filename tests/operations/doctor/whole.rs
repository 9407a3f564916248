//! Deployments that are as they must be: every line has passed or gives its reason, and nothing stays.

use bson::doc;
use testbed::{Cluster, ReplicaSet};

use super::{config, doctor, lines, scratch_databases};

/// The lines that may be skipped on a healthy deployment.
fn assert_whole(output: &std::process::Output, skipped: &[&str]) {
    let lines = lines(output);
    assert_eq!(output.status.code(), Some(0), "{lines:#?} {output:?}");
    let named = |mark: &str| -> Vec<String> {
        let lines = lines.iter().filter_map(|line| line.strip_prefix(mark));
        lines.map(|line| line.split(':').next().unwrap().to_owned()).collect()
    };
    assert_eq!(named("- "), skipped, "{lines:#?}");
    assert_eq!(named("✗ "), [""; 0]);
    assert_eq!(named("‼ "), [""; 0]);
    let all = keyward::doctor::checks().len() + keyward::doctor::of_connection().len();
    assert_eq!(named("✓ ").len() + skipped.len(), all, "{lines:#?}");
}

#[test]
fn a_cluster() {
    let cluster = Cluster::alone().unwrap();
    let output = doctor(&config(&cluster.uri()), &[]).output().unwrap();
    assert_whole(&output, &["transaction lifetime"]);
    assert_eq!(scratch_databases(&cluster.router_address()), [""; 0]);
}

#[test]
fn a_replica_set() {
    let set = ReplicaSet::alone().unwrap();
    let output = doctor(&config(&set.uri()), &[]).output().unwrap();
    assert_whole(&output, &["moved statement memory", "balancer"]);
    assert_eq!(scratch_databases(&set.members()[0].address()), [""; 0]);
}

/// On one shard the examination says what it couldn't try.
#[test]
fn a_cluster_of_one_shard() {
    let cluster = Cluster::builder().shards(1).start().unwrap();
    let output = doctor(&config(&cluster.uri()), &[]).output().unwrap();
    let lines = lines(&output);
    assert_eq!(output.status.code(), Some(0), "{lines:#?}");
    let skipped = "- snapshot over shards: skipped, the cluster has one shard";
    assert!(lines.iter().any(|line| line == skipped), "{lines:#?}");
    assert_eq!(scratch_databases(&cluster.router_address()), [""; 0]);
}

/// The databases of others stay as they are.
#[test]
fn other_databases_are_not_touched() {
    let cluster = Cluster::alone().unwrap();
    let insert = doc! { "insert": "users", "documents": [{ "_id": 1, "email": "a" }] };
    cluster.run("doctored", insert).unwrap();
    let hash = || {
        let primary = cluster.shards().iter().map(|shard| {
            let reply = shard.run("doctored", doc! { "dbHash": 1 });
            reply.map(|reply| reply.get_str("md5").unwrap().to_owned()).unwrap()
        });
        primary.collect::<Vec<_>>()
    };
    let before = hash();
    let output = doctor(&config(&cluster.uri()), &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(hash(), before);
}

/// A bundle shows results and shape, and nothing that a stranger may not see.
#[test]
fn a_bundle_has_no_data() {
    let set = ReplicaSet::builder("bundled")
        .root_user("root", "pass7word")
        .start()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bundle.json");
    let uri = set.uri();
    let output = doctor(&config(&uri), &["--bundle", file.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = std::fs::read_to_string(&file).unwrap();
    for secret in ["127.0.0.1", "pass7word", "sekret"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    let bundle: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(bundle["topology"]["kind"], "replica set");
    assert_eq!(bundle["topology"]["maxWireVersion"], 17);
    assert_eq!(bundle["configuration"]["constraints"][0]["collection"], "shop.users");
    assert!(bundle["checks"].as_array().unwrap().len() > 20);
}

#[test]
fn a_wrong_configuration_ends_it() {
    let output = doctor(&config("nonsense"), &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(78), "{output:?}");
}
