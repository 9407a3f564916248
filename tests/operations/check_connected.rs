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
        said.contains(
            "✗ connected.users email_1: of 4 documents in the sample, 1 violates it, counting all but one of each key\n  \
             2 documents have {\"email\":\"a@x\"}: _id "
        ),
        "{said}"
    );
    assert!(said.contains("_id 1, 4\n") || said.contains("_id 4, 1\n"), "{said}");
    assert_eq!(databases(), before);
    let collections = names(&cluster.run("connected", doc! { "listCollections": 1 }).unwrap());
    assert_eq!(collections, ["users"]);
}

/// Five lines about one missing field would hide the other duplicates.
#[test]
fn documents_are_grouped_by_their_keys_with_a_hint() {
    let set = ReplicaSet::shared();
    let mut documents: Vec<Document> = (0..40).map(|id| doc! { "_id": id }).collect();
    documents.extend((40..54).map(|id| user(id, &format!("{}@x", id / 2))));
    set.run("connected_grouped", doc! { "insert": "users", "documents": documents })
        .unwrap();
    let output = check(&set.uri(), "connected_grouped.users");
    let said = text(&output);
    assert_eq!(output.status.code(), Some(65), "{said}");
    let lines: Vec<&str> = said
        .lines()
        .skip_while(|line| !line.starts_with("✗ connected_grouped"))
        .collect();
    assert_eq!(
        lines[0],
        "✗ connected_grouped.users email_1: of 54 documents in the sample, 46 violate it, counting all but one of each key",
        "{said}"
    );
    let null = lines[1];
    assert!(
        null.starts_with("  40 documents have {\"email\":null}: _id ") && null.contains(" and 35 more; "),
        "{said}"
    );
    assert!(
        null.ends_with("documents without the field: `sparse: true` leaves them out"),
        "{said}"
    );
    assert!(
        lines[2].starts_with("  2 documents have {\"email\":\"20@x\"}: _id "),
        "{said}"
    );
    assert_eq!(lines[6], "  and 3 more keys, which 6 documents have", "{said}");
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
    assert!(
        said.contains("is upstream right? At risk: no client can be served\n"),
        "{said}"
    );
}
