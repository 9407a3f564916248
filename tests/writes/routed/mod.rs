//! Statements by a unique field that go to one shard (`route: true`): the replies are those of a broadcast.

mod excluded;
mod generated;
mod left;
mod moving;
mod settings;
mod statements;

use bson::{Document, doc};
use testbed::Cluster;
use testkit::wire::Connection;
use testkit::{Keyward, shard_on_two};

/// The values of the shard key; each on a shard of its own.
const REGIONS: [&str; 2] = ["a", "z"];

/// A collection `users` on two shards, and a Keyward that routes reads by these constraints (`key: …` and options).
fn start(database: &str, constraints: &[&str]) -> Keyward {
    let cluster = Cluster::shared();
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let constraints: String = constraints
        .iter()
        .map(|constraint| format!("  - {{ collection: {namespace}, {constraint}, route: true }}\n"))
        .collect();
    Keyward::start(&cluster.uri(), &constraints)
}

/// A connection past Keyward.
fn direct() -> Connection {
    Connection::greeted(&Cluster::shared().router_address())
}

fn insert(connection: &mut Connection, database: &str, documents: Vec<Document>) {
    let reply = connection.must(database, &doc! { "insert": "users", "documents": documents });
    assert!(!reply.contains_key("writeErrors"), "{reply}");
}

/// How often each outcome of routing has occurred with this constraint: hits, misses, and those that fell back.
fn outcomes(keyward: &Keyward, constraint: &str) -> [u64; 3] {
    ["hits", "misses", "fell_back"].map(|outcome| {
        let name = format!("keyward_constraint_routed_{outcome}_total{{constraint=\"{constraint}\"}}");
        keyward.metric(&name)
    })
}

fn first_batch(reply: &Document) -> Vec<Document> {
    let cursor = reply.get_document("cursor").unwrap_or_else(|_| panic!("{reply}"));
    let batch = cursor.get_array("firstBatch").unwrap();
    batch.iter().map(|one| one.as_document().unwrap().clone()).collect()
}

fn find(filter: Document) -> Document {
    doc! { "find": "users", "filter": filter }
}
