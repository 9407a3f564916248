//! Existing documents that have a field of a key twice: the server doesn't show a reader the fields behind it. Some of them could be
//! parts of a key.

use bson::{RawDocumentBuf, doc, rawdoc};
use serde_json::Value;
use testbed::Cluster;

use crate::verify::run::Config;

const DATABASE: &str = "verify_repeated";
const VIOLATED: Option<i32> = Some(65);

/// Documents that have a field of a key twice: in front of the shard key, and behind everything else.
fn repeated() -> [RawDocumentBuf; 2] {
    [
        rawdoc! { "_id": 1, "email": "a@x", "email": "b@x", "region": "a" },
        rawdoc! { "_id": 2, "region": "z", "email": "c@x", "email": "d@x" },
    ]
}

#[tokio::test]
async fn existing_documents_that_have_a_field_of_a_key_twice_are_named() {
    let cluster = Cluster::shared();
    let namespace = format!("{DATABASE}.users");
    testkit::shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let constraints = format!("  - {{ collection: {namespace}, key: {{ email: 1 }} }}\n");
    let config = Config::new(&cluster.uri(), "2s", &constraints);
    let users = cluster
        .client()
        .database(DATABASE)
        .collection::<RawDocumentBuf>("users");
    // The first one has a field twice that no key is made of.
    let others = [
        rawdoc! { "_id": 3, "region": "a", "name": "x", "name": "y", "email": "e@x" },
        rawdoc! { "_id": 4, "region": "z", "email": "f@x" },
    ];
    users.insert_many(others).await.unwrap();
    users.insert_many(repeated()).await.unwrap();
    for options in [&["--dry-run", "--json"][..], &["--json"]] {
        let output = config.run("backfill", options).await;
        assert_eq!(output.status.code(), VIOLATED, "{options:?}: {output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let violation = &report["violations"][0];
        assert_eq!(violation["documentsWithoutKey"], 2, "{options:?}: {report}");
        let named = violation["withoutKey"].as_array().unwrap();
        let mut ids: Vec<i64> = named.iter().map(|one| one["id"].as_i64().unwrap()).collect();
        ids.sort_unstable();
        assert_eq!(ids, [1, 2], "{options:?}: {report}");
        assert!(named[0].to_string().contains("the field email twice"), "{report}");
    }
    // As if they were written past Keyward later.
    users.delete_many(doc! { "_id": { "$lt": 3 } }).await.unwrap();
    let backfill = config.run("backfill", &[]).await;
    assert!(backfill.status.success(), "{backfill:?}");
    users.insert_many(repeated()).await.unwrap();
    let verified = config.verify(&[]).await;
    let found = verified.listed();
    assert_eq!(
        found,
        ["unindexable email_1 1", "unindexable email_1 2"],
        "{verified:?}"
    );
    let reason = verified.findings[0]["reason"].as_str().unwrap();
    assert!(reason.contains("the field email twice"), "{reason}");
    let checked = config.run("check", &["--connect"]).await;
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(said.contains("of 4 documents in the sample, 2 violate it"), "{said}");
}
