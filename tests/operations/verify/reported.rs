//! What `keyward backfill` reports of documents that violate a constraint: grouped by key, as JSON, in a file, and
//! without reserving anything.

use std::process::Output;

use bson::{Bson, Document, doc};
use serde_json::{Value, json};
use testbed::Cluster;

use crate::verify::run::Config;

const DUPLICATES: Option<i32> = Some(65);

fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn printed(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

/// A key with the number of its documents, and the `_id`s that are named.
type KeyOfMany = (Value, u64, Vec<i64>);

/// A violation by its constraint: how many documents must change, and each key with the number of its documents and their `_id`s.
fn grouped(report: &Value) -> Vec<(String, u64, Vec<KeyOfMany>)> {
    let key = |key: &Value| {
        let ids = key["ids"].as_array().unwrap().iter().map(|id| id.as_i64().unwrap());
        let mut ids: Vec<i64> = ids.collect();
        ids.sort_unstable();
        (key["key"].clone(), key["documents"].as_u64().unwrap(), ids)
    };
    let violation = |violation: &Value| {
        let name = violation["constraint"].as_str().unwrap().to_owned();
        let mut keys: Vec<_> = violation["keys"].as_array().unwrap().iter().map(key).collect();
        keys.sort_by_key(|(key, documents, _)| (std::cmp::Reverse(*documents), key.to_string()));
        (name, violation["documentsToChange"].as_u64().unwrap(), keys)
    };
    report["violations"].as_array().unwrap().iter().map(violation).collect()
}

async fn collections(database: &str) -> Vec<String> {
    let mut names = Cluster::shared()
        .client()
        .database(database)
        .list_collection_names()
        .await
        .unwrap();
    names.sort();
    names
}

/// Documents that share keys as a native index sees them: numbers of different types, arrays, equal strings of a collation,
/// missing fields and nulls.
async fn plant(database: &str) -> Config {
    let cluster = Cluster::shared();
    testkit::shard_on_two(
        cluster,
        &format!("{database}.users"),
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let region = |id: i32| if id % 2 == 0 { "a" } else { "z" };
    let mut documents = vec![
        doc! { "phone": 1, "name": "Ann" },
        doc! { "phone": 1.0, "name": "ann", "mail": "a@x", "active": true },
        doc! { "phone": ["x", 1_i64], "name": "Bob", "mail": "a@x", "active": true },
        doc! { "phone": ["y", "x"], "name": "Cid", "mail": "a@x" },
        doc! { "phone": Bson::Null, "name": "Dan" },
        doc! { "phone": "2", "name": "Eve" },
    ];
    documents.extend((6..50).map(|id| doc! { "name": id.to_string() }));
    for (id, document) in (0_i32..).zip(&mut documents) {
        document.insert("_id", id);
        document.insert("region", region(id));
    }
    let users = cluster.client().database(database).collection::<Document>("users");
    users.insert_many(documents).await.unwrap();
    let constraints = format!(
        "  - {{ collection: {database}.users, key: {{ phone: 1 }} }}\n  \
           - {{ collection: {database}.users, key: {{ name: 1 }}, collation: {{ locale: en, strength: 2 }} }}\n  \
           - {{ collection: {database}.users, key: {{ mail: 1 }}, partialFilterExpression: {{ active: true }} }}\n  \
           - {{ collection: {database}.users, key: {{ phone: 1, name: 1 }} }}\n"
    );
    Config::new(&cluster.uri(), "2s", &constraints)
}

#[tokio::test]
async fn documents_are_grouped_by_the_key_that_a_native_index_compares() {
    let database = "reported";
    let config = plant(database).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let dry_run = config
        .run("backfill", &["--dry-run", "--json", "--report", file.to_str().unwrap()])
        .await;
    assert_eq!(dry_run.status.code(), DUPLICATES, "{}", errors(&dry_run));
    let report = printed(&dry_run);
    assert_eq!(
        serde_json::from_str::<Value>(&std::fs::read_to_string(&file).unwrap()).unwrap(),
        report
    );
    assert_eq!(collections(database).await, ["users"], "a dry run creates nothing");
    assert_eq!(report["dryRun"], true);
    assert_eq!(report["constraints"].as_array().map(Vec::len), Some(4));
    let groups = grouped(&report);
    let shown = |position: usize| {
        groups[position]
            .2
            .iter()
            .map(|(_, documents, _)| *documents)
            .collect::<Vec<_>>()
    };
    assert_eq!((&*groups[0].0, groups[0].1), ("phone_1", 44 + 2 + 1));
    assert_eq!(shown(0), [45, 3, 2], "{groups:?}");
    assert_eq!(groups[0].2[0].0, json!({ "phone": null }));
    assert_eq!(groups[0].2[0].2.len(), 5, "only some of the documents are named");
    assert_eq!(groups[0].2[1].2, [0, 1, 2], "numbers of all types are equal");
    assert_eq!(
        (&groups[0].2[2].0, &groups[0].2[2].2),
        (&json!({ "phone": "x" }), &vec![2, 3])
    );
    assert_eq!((&*groups[1].0, groups[1].1), ("name_1", 1));
    assert_eq!(groups[1].2[0].2, [0, 1], "the collation makes them equal");
    assert_eq!((&*groups[2].0, groups[2].1), ("mail_1", 1));
    assert_eq!(groups[2].2[0].2, [1, 2], "the filter leaves the third one out");
    assert_eq!(groups.len(), 3, "a compound key differs if one value does");
    let hint = report["violations"][0]["keys"][0]["hint"].as_str().unwrap();
    assert!(hint.contains("`sparse: true`"), "{hint}");

    // A backfill finds the same.
    let backfill = config.run("backfill", &["--json"]).await;
    assert_eq!(backfill.status.code(), DUPLICATES, "{}", errors(&backfill));
    // It doesn't say which of several documents has the key.
    let counts = |groups: Vec<(String, u64, Vec<KeyOfMany>)>| -> Vec<_> {
        let sizes = |keys: Vec<KeyOfMany>| -> Vec<_> {
            keys.into_iter()
                .map(|(_, documents, ids)| (documents, ids.len()))
                .collect()
        };
        let groups = groups.into_iter();
        groups.map(|(name, count, keys)| (name, count, sizes(keys))).collect()
    };
    assert_eq!(counts(grouped(&printed(&backfill))), counts(groups));
}

#[tokio::test]
async fn the_text_is_short_and_names_the_way_to_the_whole_list() {
    let config = plant("reported_text").await;
    for options in [&["--dry-run"][..], &[]] {
        let output = config.run("backfill", options).await;
        let text = errors(&output);
        assert_eq!(output.status.code(), DUPLICATES, "{text}");
        assert!(output.stdout.is_empty(), "{output:?}");
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("  ")).collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(
            lines[0].starts_with("  45 documents have {\"phone\":null}: _id 49, 48"),
            "{text}"
        );
        assert!(
            lines[0].ends_with(" and 40 more; documents without the field: `sparse: true` leaves them out"),
            "{text}"
        );
        assert!(
            text.contains("`--report FILE` writes the whole report to a file"),
            "{text}"
        );
    }
}

/// The two documents with one `_id` are the last of one batch and the first of the next one.
#[tokio::test]
async fn no_document_is_a_duplicate_of_itself() {
    let database = "reported_same_id";
    let cluster = Cluster::shared();
    testkit::shard_on_two(
        cluster,
        &format!("{database}.users"),
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let users = cluster.client().database(database).collection::<Document>("users");
    let user = |id: i32, region: &str| doc! { "_id": id, "region": region, "email": format!("{id}{region}") };
    users.insert_many((1..8_000).map(|id| user(id, "a"))).await.unwrap();
    users.insert_many([user(0, "a"), user(0, "z")]).await.unwrap();
    let constraints = format!("  - {{ collection: {database}.users, key: {{ email: 1 }} }}\n");
    let config = Config::new(&cluster.uri(), "2s", &constraints);
    let output = config.run("backfill", &["--dry-run"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        format!("no duplicates under {database}.users.email_1\n")
    );
    assert_eq!(collections(database).await, ["users"]);
    let json = config.run("backfill", &["--json"]).await;
    assert_eq!(
        (json.status.code(), printed(&json)["outcome"].clone()),
        (Some(0), json!("no duplicates"))
    );
}

#[tokio::test]
async fn a_report_that_cannot_be_written_is_refused_before_the_work() {
    let config = Config::new(
        "mongodb://127.0.0.1:1",
        "2s",
        "  - { collection: a.b, key: { c: 1 } }\n",
    );
    let output = config
        .run("backfill", &["--report", "/no/such/folder/report.json"])
        .await;
    assert_eq!(output.status.code(), Some(71));
    let text = errors(&output);
    assert!(
        text.starts_with("keyward: the report can't be written to /no/such/folder/report.json: "),
        "{text}"
    );
}

/// The documents whose `_id`s a report or a finding names, found again by these `_id`s alone.
async fn found_by_shown_ids(database: &str, shown: &Value) -> Vec<Document> {
    let users = Cluster::shared()
        .client()
        .database(database)
        .collection::<Document>("users");
    let mut found = Vec::new();
    for id in shown.as_array().unwrap() {
        let id = Bson::try_from(id.clone()).unwrap();
        found.push(
            users
                .find_one(doc! { "_id": &id })
                .await
                .unwrap()
                .unwrap_or_else(|| panic!("{id}")),
        );
    }
    found.sort_by_key(|document| document.get_i32("number").unwrap());
    found
}

/// An operator copies it into a query.
#[tokio::test]
async fn a_shown_id_finds_its_document() {
    let cluster = Cluster::shared();
    let database = "reported_ids";
    testkit::shard_on_two(
        cluster,
        &format!("{database}.users"),
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let binary = |byte: u8| bson::Binary {
        subtype: bson::spec::BinarySubtype::Generic,
        bytes: vec![byte, 2],
    };
    let ids = [
        doc! { "tenant": 5, "id": binary(1), "at": bson::DateTime::from_millis(1) },
        doc! { "tenant": i64::MAX, "id": f64::NAN, "gone": Bson::Null },
        doc! { "z": f64::INFINITY, "a": { "z": 1, "a": "1.50".parse::<bson::Decimal128>().unwrap() } },
    ];
    let documents = (0_i32..).zip(["a", "z", "a"]).zip(&ids);
    let documents: Vec<Document> = documents
        .map(|((number, region), id)| doc! { "_id": id, "region": region, "number": number, "email": "x" })
        .collect();
    let users = cluster.client().database(database).collection::<Document>("users");
    users.insert_many(&documents[..1]).await.unwrap();
    let constraints = format!("  - {{ collection: {database}.users, key: {{ email: 1 }} }}\n");
    let config = Config::new(&cluster.uri(), "2s", &constraints);
    let first = config.run("backfill", &[]).await;
    assert!(first.status.success(), "{}", errors(&first));

    // Past Keyward.
    users.insert_many(&documents[1..]).await.unwrap();
    let verified = config.verify(&[]).await;
    let duplicate = verified
        .findings
        .iter()
        .find(|finding| finding["finding"] == "duplicate");
    let duplicate = duplicate.unwrap_or_else(|| panic!("{verified:?}"));
    let mut named = found_by_shown_ids(database, &duplicate["documents"]).await;
    named.dedup();
    assert!(named.len() > 1, "{duplicate}");
    let report = printed(&config.run("backfill", &["--dry-run", "--json"]).await);
    let named = found_by_shown_ids(database, &report["violations"][0]["keys"][0]["ids"]).await;
    assert_eq!(named.len(), 3, "{report}");
}
