//! Real drivers do through Keyward what they do without it: each script runs against the deployment itself and through
//! Keyward, and must print the same.

use std::process::Command;

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::Client;
use mongodb::options::{ClientOptions, Compressor, Credential, ServerAddress};
use testbed::{Cluster, NodeProject, ReplicaSet};

use crate::transparent::proxy::Proxy;
use testkit::scripts::{self, node, output};

/// Runs `script` against the deployment at `uri` and through a Keyward in front of it, and compares.
fn compare(uri: &str, script: impl Fn(&str) -> Command) {
    let proxy = Proxy::start(uri);
    let direct = output(&mut script(uri));
    let through = output(&mut script(&proxy.uri()));
    assert!(!direct.is_empty());
    assert_eq!(direct, through);
}

fn pymongo(uri: &str, steps: &[&str]) -> Command {
    let mut command = scripts::pymongo("transparent.py");
    command.args([uri, "by_pymongo"]).args(steps);
    command
}

fn node_driver(node: &NodeProject, uri: &str) -> Command {
    let mut command = node.script("transparent.mjs");
    command.args([uri, "by_node"]);
    command
}

fn mongosh(node: &NodeProject, uri: &str) -> Command {
    let (host, options) = uri.rsplit_once('/').unwrap();
    let uri = format!("{host}/by_mongosh{options}");
    let mut command = node.program("mongosh");
    let script = node.folder().join("shell.js");
    command.args(["--quiet", "--norc", &uri, "--file"]).arg(script);
    command
}

#[test]
fn pymongo_on_a_replica_set() {
    compare(&ReplicaSet::shared().uri(), |uri| pymongo(uri, &[]));
}

#[test]
fn pymongo_on_a_cluster() {
    // All but the retries: their fail point would hold for every test that shares the router.
    let steps = [
        "crud",
        "large",
        "unacknowledged",
        "sessions",
        "compressed",
        "change_stream",
    ];
    compare(&Cluster::shared().uri(), |uri| pymongo(uri, &steps));
}

#[test]
fn node_and_mongoose_on_a_replica_set() {
    let node = node();
    compare(&ReplicaSet::shared().uri(), |uri| node_driver(&node, uri));
}

#[test]
fn node_and_mongoose_on_a_cluster() {
    let node = node();
    compare(&Cluster::shared().uri(), |uri| node_driver(&node, uri));
}

#[test]
fn mongosh_on_a_replica_set() {
    let node = node();
    compare(&ReplicaSet::shared().uri(), |uri| mongosh(&node, uri));
}

#[test]
fn mongosh_on_a_cluster() {
    let node = node();
    compare(&Cluster::shared().uri(), |uri| mongosh(&node, uri));
}

#[tokio::test]
async fn the_rust_driver_with_each_compressor() {
    let proxy = tokio::task::spawn_blocking(|| Proxy::start(&ReplicaSet::shared().uri()))
        .await
        .unwrap();
    for compressor in [
        None,
        Some(Compressor::Snappy),
        Some(Compressor::Zlib { level: None }),
        Some(Compressor::Zstd { level: None }),
    ] {
        let mut options = ClientOptions::parse(proxy.uri()).await.unwrap();
        options.compressors = compressor.map(|compressor| vec![compressor]);
        let client = Client::with_options(options).unwrap();
        let things = client.database("by_rust").collection::<Document>("things");
        things.drop().await.unwrap();
        let documents = (0..3000).map(|n| doc! { "_id": n, "text": "x".repeat(200) });
        things.insert_many(documents).await.unwrap();
        let found: Vec<Document> = things
            .find(doc! {})
            .batch_size(100)
            .await
            .unwrap()
            .try_collect()
            .await
            .unwrap();
        assert_eq!(found.len(), 3000);
        let mut session = client.start_session().await.unwrap();
        session.start_transaction().await.unwrap();
        let insert = things.insert_one(doc! { "_id": "transaction" });
        insert.session(&mut session).await.unwrap();
        session.commit_transaction().await.unwrap();
        assert!(things.find_one(doc! { "_id": "transaction" }).await.unwrap().is_some());
        let refused = client.database("admin").run_command(doc! { "applyOps": [] }).await;
        assert!(refused.unwrap_err().to_string().contains("Keyward"));
        // Shutting down waits for what still belongs to the client.
        drop((session, things));
        client.shutdown().await;
    }
    tokio::task::spawn_blocking(|| drop(proxy)).await.unwrap();
}

#[tokio::test]
async fn scram_goes_through_untouched() {
    let start = || {
        let set = ReplicaSet::builder("secured")
            .root_user("root", "secret")
            .start()
            .unwrap();
        let proxy = Proxy::start(&set.uri());
        (set, proxy)
    };
    let (set, proxy) = tokio::task::spawn_blocking(start).await.unwrap();
    let client = |password: &str| {
        let mut credential = Credential::default();
        credential.username = Some("root".into());
        credential.password = Some(password.into());
        let options = ClientOptions::builder()
            .hosts(vec![ServerAddress::parse(&proxy.address).unwrap()])
            .credential(credential)
            .build();
        Client::with_options(options).unwrap()
    };
    let status = doc! { "connectionStatus": 1 };
    let reply = client("secret")
        .database("admin")
        .run_command(status.clone())
        .await
        .unwrap();
    let users = reply
        .get_document("authInfo")
        .unwrap()
        .get_array("authenticatedUsers")
        .unwrap();
    assert_eq!(users[0].as_document().unwrap().get_str("user").ok(), Some("root"));
    assert!(client("wrong").database("admin").run_command(status).await.is_err());
    // Who hasn't authenticated may do nothing: Keyward lends nobody its own rights.
    let anonymous = Client::with_uri_str(proxy.uri()).await.unwrap();
    let refused = anonymous
        .database("x")
        .run_command(doc! { "count": "y" })
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("requires authentication"), "{refused}");
    tokio::task::spawn_blocking(|| drop((proxy, set))).await.unwrap();
}
