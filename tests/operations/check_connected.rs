//! `keyward check --connect`: what it says of a deployment and of a sample of its documents, and that it creates nothing.

use std::process::{Command, Output};

use bson::{Document, doc};
use testbed::{Cluster, ReplicaSet};
use testkit::shard_on_two;

fn check(upstream: &str, collection: &str) -> Output {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let constraint = format!("{{ collection: {collection}, key: {{ email: 1 }} }}");
    let text = format!("upstream: {upstream}\nlog: {{ level: warn }}\nlease: 10s\nconstraints:\n  - {constraint}\n");
    std::fs::write(file.path(), text).unwrap();
    Command::new(env!("CARGO_BIN_EXE_keyward"))
        .args(["check", "--connect", "--config"])
        .arg(file.path())
        .env_remove("KEYWARD_UPSTREAM")
        .env_remove("KEYWARD_LOG")
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8([&output.stdout[..], &output.stderr[..]].concat()).unwrap()
}

/// A list that a command gives, of what has a name.
fn names(reply: &Document) -> Vec<String> {
    let batch = match reply.get_document("cursor") {
        Ok(cursor) => cursor.get_array("firstBatch").unwrap(),
        Err(_) => reply.get_array("databases").unwrap(),
    };
    let name = |one: &bson::Bson| one.as_document().unwrap().get_str("name").unwrap().to_owned();
    batch.iter().map(name).collect()
}

fn user(id: i32, email: &str) -> Document {
    doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": email }
}

#[test]
fn duplicates_on_two_shards_are_found_and_named_and_nothing_is_created() {
    // Nobody else makes databases there meanwhile.
    let cluster = Cluster::alone().unwrap();
    shard_on_two(
        &cluster,
        "connected.users",
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let insert =
        |documents: Vec<Document>| cluster.run("connected", doc! { "insert": "users", "documents": documents });
    insert(vec![user(1, "a@x"), user(2, "b@x"), user(3, "c@x")]).unwrap();
    let databases = || {
        names(
            &cluster
                .run("admin", doc! { "listDatabases": 1, "nameOnly": true })
                .unwrap(),
        )
    };
    let before = databases();
    let output = check(&cluster.uri(), "connected.users");
    let said = text(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains(": no problems\n") && said.contains("✓ deployment answers: mongos"),
        "{said}"
    );
    assert!(said.contains("✓ wire version") && said.contains("✓ role"), "{said}");
    let sampled = "✓ connected.users email_1: no duplicates in 3 documents, all that were found";
    assert!(said.contains(sampled), "{said}");

    insert(vec![user(4, "a@x")]).unwrap();
    let output = check(&cluster.uri(), "connected.users");
    let said = text(&output);
    assert_eq!(output.status.code(), Some(65), "{said}");
    assert!(
        said.contains("✗ connected.users email_1: 1 of 4 documents that were read violates it"),
        "{said}"
    );
    assert!(
        said.contains("_id 1") && said.contains("_id 4") && said.contains("a@x"),
        "{said}"
    );
    assert_eq!(databases(), before);
    let collections = names(&cluster.run("connected", doc! { "listCollections": 1 }).unwrap());
    assert_eq!(collections, ["users"]);
}

/// A sample may give a document twice, and isn't the whole.
#[test]
fn a_sample_of_a_large_collection_proves_nothing_and_says_so() {
    let set = ReplicaSet::shared();
    for first in (0..15_000).step_by(5_000) {
        let documents: Vec<Document> = (first..first + 5_000).map(|id| user(id, &format!("{id}@x"))).collect();
        set.run("connected_large", doc! { "insert": "users", "documents": documents })
            .unwrap();
    }
    let output = check(&set.uri(), "connected_large.users");
    let said = text(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("documents of about 15000") || said.contains("of about 15000 documents"),
        "{said}"
    );
    assert!(said.contains("proves nothing about the others"), "{said}");
}

#[test]
fn a_deployment_that_is_not_there_is_an_error_of_the_deployment() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let output = check(
        &format!("mongodb://{nobody}/?serverSelectionTimeoutMS=500"),
        "connected.users",
    );
    let said = text(&output);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(said.contains("✗ deployment answers: "), "{said}");
}
