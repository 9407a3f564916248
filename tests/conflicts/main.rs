//! What becomes of keys when things go wrong: Keywards that die, replies that get lost, shards that refuse, clients that
//! get in each other's way. Whatever happens, documents and reservations agree once it is quiet, and a driver that sends
//! its write again writes once.

#![allow(clippy::unwrap_used)]

mod abandoned;
mod collated;
mod crash;
mod failing;
mod forwarder;
#[path = "../native_index/generate/mod.rs"]
#[allow(dead_code)]
mod generate;
mod odd_values;
mod opposites;
mod reservations;
mod retries;
#[path = "../native_index/server.rs"]
#[allow(dead_code)]
mod server;
mod set_values;
mod side_by_side;
#[path = "../support/mod.rs"]
mod support;

use bson::{Bson, Document, doc};
use support::{Keyward, shard_on_two};
use testbed::Cluster;

const EMAIL: &str = "  - { collection: DB.users, key: { email: 1 } }\n";
const PHONE: &str = "  - { collection: DB.users, key: { phone: 1 }, sparse: true }\n";

/// `users` of a database of its own, on two shards: regions below `m` on one, the others on the other.
fn users(database: &str) -> &'static Cluster {
    let cluster = Cluster::shared();
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    cluster
}

fn keyward(cluster: &Cluster, database: &str, lease: &str, constraints: &[&str]) -> Keyward {
    let constraints = constraints.concat().replace("DB", database);
    Keyward::start_with_lease(&cluster.uri(), lease, &constraints)
}

fn insert(documents: Vec<Document>, ordered: bool) -> Document {
    doc! { "insert": "users", "documents": documents, "ordered": ordered }
}

/// Every document's key for `field`, and nothing else, is reserved; a document without the field needs none.
async fn assert_agreement(cluster: &Cluster, database: &str, field: &str) {
    let keys = |document: &Document| match document.get(field) {
        Some(value) => vec![doc! { field: value.clone() }],
        None => Vec::new(),
    };
    support::assert_documents_and_reservations_agree(cluster, database, "users", &format!("{field}_1"), keys).await;
}

/// What is reserved for `field`, from the shards.
async fn reservations(cluster: &Cluster, database: &str, field: &str) -> Vec<Document> {
    let proxy = format!("keyward.users.{field}_1");
    support::on_each_shard(cluster, database, &proxy).await.concat()
}

/// The codes of a reply's write errors by their positions.
fn write_errors(reply: &Document) -> Vec<(i32, i32)> {
    let errors = reply.get_array("writeErrors").map(Vec::as_slice).unwrap_or_default();
    let number = |error: &Bson, field| error.as_document().unwrap().get_i32(field).unwrap();
    errors
        .iter()
        .map(|error| (number(error, "index"), number(error, "code")))
        .collect()
}
