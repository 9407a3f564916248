//! Real drivers on protected collections: each script runs against collections with native unique indexes, and through
//! Keyward against sharded ones with the same constraints. It must print the same; afterwards what is reserved is what
//! the documents hold.

#![allow(clippy::unwrap_used)]

mod page;
mod relay;

use std::fmt::Write;
use std::process::Command;

use bson::{Document, RawDocument, doc};
use keyward::constraint::{Constraint, IndexSpec};
use keyward::namespace::Namespace;
use keyward::raw::Doc;
use mongodb::Client;
use relay::Relay;
use testbed::{Cluster, ReplicaSet};
use testkit::scripts::{node, try_output};
use testkit::{Keyward, assert_documents_and_reservations_agree, shard_on_two};

/// In a script's output, signs that a connection closed which the relay hadn't cut. An error of a bulk write has only the label.
const NETWORK_ERRORS: [&str; 2] = ["MongoNetworkError", "ResetPool"];

/// A collection and its unique index.
struct Unique {
    collection: &'static str,
    index: Document,
}

/// What the scripts write to; every collection is sharded on `region`.
fn collections() -> Vec<Unique> {
    let unique = |collection, index| Unique { collection, index };
    vec![
        unique("people", doc! { "key": { "email": 1 }, "name": "email_1" }),
        unique(
            "members",
            doc! { "key": { "company_id": 1, "email": 1 }, "name": "company_id_1_email_1", "sparse": true },
        ),
        unique(
            "wallets",
            doc! {
                "key": { "accounts.bank": 1, "accounts.number": 1 },
                "name": "Unique Account",
                "partialFilterExpression": { "accounts.bank": { "$exists": true } },
            },
        ),
    ]
}

/// Runs `script` on both sides and compares; `script` gets the deployment's URI and that of a relay in front of it.
async fn compare(database: &str, script: impl Fn(&str, &str) -> Command + Send + Sync + 'static) {
    let name = database.to_owned();
    let keyward = tokio::task::spawn_blocking(move || compare_blocking(&name, script))
        .await
        .unwrap();
    for unique in collections() {
        assert_agreement(database, &unique).await;
    }
    drop(keyward);
}

fn compare_blocking(database: &str, script: impl Fn(&str, &str) -> Command) -> Keyward {
    let keyward = protect(database, &collections());
    let expected = natively(database, &script);
    let got = run(&script, &keyward.uri(), &keyward.address, "");
    let got = got.unwrap_or_else(|failed| panic!("{failed}"));
    assert_eq!(got.0, "Sharded");
    if let Some(line) = (0..).zip(expected.1.lines()).find_map(|(number, line)| {
        let other = got.1.lines().nth(number);
        (other != Some(line)).then_some(number)
    }) {
        let around = |text: &str| -> String {
            let lines: Vec<&str> = text.lines().skip(usize::saturating_sub(line, 3)).take(5).collect();
            lines.join("\n")
        };
        panic!(
            "line {line}: through Keyward\n{}\nnatively\n{}",
            around(&got.1),
            around(&expected.1)
        );
    }
    assert_eq!(got.1, expected.1);
    // What isn't lost isn't sent again.
    assert_eq!(got.2, expected.2);
    assert!(got.2 > 0);
    keyward
}

/// Runs `script` against a server that listens at `server`. Returns the topology that the driver sees, what the script prints after
/// that, and how many connections were cut; or all that it printed, if it failed.
fn run(
    script: impl Fn(&str, &str) -> Command,
    uri: &str,
    server: &str,
    options: &str,
) -> Result<(String, String, usize), String> {
    let relay = Relay::start(server);
    let printed = try_output(&mut script(uri, &format!("mongodb://{}/{options}", relay.address())))?;
    let (topology, printed) = printed.split_once('\n').unwrap();
    Ok((topology.to_owned(), printed.to_owned(), relay.cuts()))
}

/// The same on collections with native unique indexes. A driver sends a command again only once. If a connection closes that the
/// relay hasn't cut, the driver may report that; then the script runs again from the beginning.
fn natively(database: &str, script: impl Fn(&str, &str) -> Command) -> (String, String, usize) {
    let native = ReplicaSet::shared();
    for _ in 0..3 {
        native.run(database, doc! { "dropDatabase": 1 }).unwrap();
        for Unique { collection, mut index } in collections() {
            index.insert("unique", true);
            native
                .run(database, doc! { "createIndexes": collection, "indexes": [index] })
                .unwrap();
        }
        match run(&script, &native.uri(), &native.addresses()[0], "?directConnection=true") {
            Ok(expected) if !NETWORK_ERRORS.iter().any(|error| expected.1.contains(error)) => return expected,
            Ok((_, printed, _)) => eprintln!("once more: {printed}"),
            Err(failed) if failed.contains("AutoReconnect") => eprintln!("once more: {failed}"),
            Err(failed) => panic!("{failed}"),
        }
    }
    panic!("connections to the server close again and again");
}

/// Shards the collections, each with documents on two shards, and starts a Keyward with their constraints.
fn protect(database: &str, collections: &[Unique]) -> Keyward {
    let mut constraints = String::new();
    for Unique { collection, index } in collections {
        let namespace = format!("{database}.{collection}");
        shard_on_two(
            Cluster::shared(),
            &namespace,
            doc! { "region": 1 },
            doc! { "region": "m" },
        );
        let mut constraint = doc! { "collection": namespace };
        constraint.extend(index.clone());
        // A document's text is JSON, and so YAML.
        writeln!(constraints, "  - {constraint}").unwrap();
    }
    Keyward::start(&Cluster::shared().uri(), &constraints)
}

async fn assert_agreement(database: &str, unique: &Unique) {
    let index = &unique.index;
    let spec = IndexSpec {
        key: index.get_document("key").unwrap().clone(),
        name: Some(index.get_str("name").unwrap().to_owned()),
        sparse: index.get_bool("sparse").unwrap_or(false),
        partial_filter_expression: index.get_document("partialFilterExpression").ok().cloned(),
        ..IndexSpec::default()
    };
    let constraint = Constraint::new(Namespace::new(database, unique.collection), spec).unwrap();
    let keys_of = |document: &Document| {
        let bytes = document.to_vec().unwrap();
        let keys = constraint.keys(Doc::new(&bytes).unwrap()).unwrap();
        let as_reserved = keys.iter().map(|key| {
            let id: &RawDocument = &key.reservation_id();
            let id = Document::try_from(id).unwrap();
            id.get_document("k").unwrap().clone()
        });
        as_reserved.collect()
    };
    let cluster = Cluster::shared();
    assert_documents_and_reservations_agree(cluster, database, unique.collection, constraint.name(), keys_of).await;
    let uri = Client::with_uri_str(cluster.uri()).await.unwrap();
    let documents = uri.database(database).collection::<Document>(unique.collection);
    assert!(
        documents.find_one(doc! {}).await.unwrap().is_some(),
        "{} was never written to",
        unique.collection
    );
}

#[tokio::test]
async fn pymongo() {
    compare("pymongo_protected", |uri, relay| {
        let mut command = testkit::scripts::pymongo("protected.py");
        command.args([uri, relay, "pymongo_protected"]);
        command
    })
    .await;
}

#[tokio::test]
async fn the_node_driver() {
    let node = tokio::task::spawn_blocking(node).await.unwrap();
    compare("node_protected", move |uri, relay| {
        let mut command = node.script("protected.mjs");
        command.args([uri, relay, "node_protected"]);
        command
    })
    .await;
}

#[tokio::test]
async fn mongoose() {
    let node = tokio::task::spawn_blocking(node).await.unwrap();
    compare("mongoose_protected", move |uri, relay| {
        let mut command = node.script("mongoose-protected.mjs");
        command.args([uri, relay, "mongoose_protected"]);
        command
    })
    .await;
}
