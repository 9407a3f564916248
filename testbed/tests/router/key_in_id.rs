//! A shard key inside `_id`, as Keyward's proxy collections have it: the stand-in asks the shards that the server's own router asks.
//!
//! Each shard runs that router's code as `clusterFind`, `clusterInsert`, `clusterUpdate` and `clusterDelete`. The profiler of the
//! shards shows which of them a command reached.

use std::collections::BTreeSet;

use bson::{Document, doc};
use futures_util::TryStreamExt;
use testbed::{Cluster, Error};

const DATABASE: &str = "key_in_id";
const NUMBERS: i32 = 40;

fn id(n: i32) -> Document {
    doc! { "h": n * 1_000, "k": { "n": n } }
}

/// A collection on both shards, with documents whose `h` is from 0 to 39,000.
fn collection() -> &'static Cluster {
    let cluster = Cluster::shared();
    let namespace = format!("{DATABASE}.c");
    cluster
        .shard_collection(&namespace, doc! { "_id.h": "hashed" }, false)
        .unwrap();
    let documents: Vec<Document> = (0..NUMBERS).map(|n| doc! { "_id": id(n), "v": n }).collect();
    cluster
        .run(DATABASE, doc! { "insert": "c", "documents": documents })
        .unwrap();
    for shard in cluster.shards() {
        shard.run(DATABASE, doc! { "profile": 2 }).unwrap();
    }
    cluster
}

/// The shards that a command with this comment reached, but for the commands that run the router's code.
async fn reached(cluster: &Cluster, comment: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    for shard in cluster.shards() {
        let client = shard.direct_client().unwrap();
        let profile = client.database(DATABASE).collection::<Document>("system.profile");
        let entries = profile.find(doc! { "command.comment": comment }).await.unwrap();
        let entries: Vec<Document> = entries.try_collect().await.unwrap();
        let is_of_shard = |entry: &Document| {
            let command = entry.get_document("command").unwrap();
            !command.keys().any(|name| name.starts_with("cluster"))
        };
        if entries.iter().any(is_of_shard) {
            reached.insert(shard.name().to_owned());
        }
    }
    reached
}

/// The number of documents that a command was about, or the error of its statement.
fn outcome(reply: Result<Document, Error>) -> String {
    match reply {
        Err(Error::Command(error)) => format!("error {}", error.code().unwrap()),
        Err(error) => panic!("{error}"),
        Ok(reply) => match reply.get_i32("n") {
            Ok(n) => n.to_string(),
            Err(_) => {
                let cursor = reply.get_document("cursor").unwrap();
                cursor.get_array("firstBatch").unwrap().len().to_string()
            }
        },
    }
}

/// The commands of Keyward on a proxy collection, about the numbers from `n` on: on how many shards a document may lie, and the
/// number of documents.
fn commands(n: i32) -> Vec<(Document, usize, &'static str)> {
    let [buckets, ids] = [0, 1].map(|at| {
        (n..n + 4)
            .map(|n| match at {
                0 => bson::Bson::Int32(n * 1_000),
                _ => id(n).into(),
            })
            .collect::<Vec<_>>()
    });
    let (one_id, one_bucket) = (ids[..1].to_vec(), buckets[..1].to_vec());
    let list = |ids: &[bson::Bson], buckets: &[bson::Bson]| doc! { "_id": { "$in": ids.to_vec() }, "_id.h": { "$in": buckets.to_vec() } };
    let hint = doc! { "_id": 1 };
    let update = |change: Document| doc! { "update": "c", "updates": [{ "q": { "_id": id(n), "v": n }, "u": change }] };
    vec![
        (doc! { "find": "c", "filter": { "_id": id(n) } }, 1, "1"),
        (
            doc! { "find": "c", "filter": list(&one_id, &one_bucket), "hint": hint.clone() },
            1,
            "1",
        ),
        (
            doc! { "find": "c", "filter": list(&ids, &buckets), "hint": hint },
            2,
            "4",
        ),
        (
            doc! { "insert": "c", "documents": [{ "_id": id(n) }] },
            1,
            "error 11000",
        ),
        (update(doc! { "_id": id(n), "v": n, "w": 1 }), 1, "1"),
        (update(doc! { "$set": { "w": 2 } }), 1, "1"),
        (
            doc! { "delete": "c", "deletes": [{ "q": { "_id": id(n), "v": n }, "limit": 1 }] },
            1,
            "1",
        ),
        (doc! { "insert": "c", "documents": [{ "_id": id(n), "v": n }] }, 1, "1"),
        (
            doc! { "update": "c", "updates": [{ "q": { "_id": id(n + 100) }, "u": { "$set": { "w": 1 } }, "upsert": true }] },
            1,
            "1",
        ),
    ]
}

/// `command` as the command that has a shard run the router's code.
fn as_cluster_command(command: &Document) -> Document {
    let renamed = |(at, (name, value)): (usize, (&String, &bson::Bson))| {
        let name = match at {
            0 => format!("cluster{}{}", name[..1].to_uppercase(), &name[1..]),
            _ => name.clone(),
        };
        (name, value.clone())
    };
    command.iter().enumerate().map(renamed).collect()
}

#[tokio::test]
async fn commands_reach_the_shards_that_the_servers_router_asks() {
    let cluster = collection();
    let mut first_shards = BTreeSet::new();
    for n in [0, 5, 10, 15] {
        for (at, (command, shards_max, expected)) in commands(n).into_iter().enumerate() {
            let [mut own, mut servers] = [command.clone(), as_cluster_command(&command)];
            let [of_own, of_servers] = ["stand-in", "server"].map(|name| format!("{n} {at} {name}"));
            own.insert("comment", &of_own);
            servers.insert("comment", &of_servers);
            assert_eq!(outcome(cluster.run(DATABASE, own)), expected, "{command}");
            let shards = reached(cluster, &of_own).await;
            assert!(
                !shards.is_empty() && shards.len() <= shards_max,
                "{command}: {shards:?}"
            );
            // What the first one changed or removed, the second one finds otherwise.
            outcome(cluster.shards()[0].run(DATABASE, servers));
            assert_eq!(shards, reached(cluster, &of_servers).await, "{command}");
            first_shards.extend(shards);
        }
    }
    assert_eq!(first_shards.len(), 2, "both shards have documents");
}

/// The server's router reads `h` in an `_id`. Beside another condition on `h` it finds no shard key.
#[test]
fn the_servers_router_deletes_no_document_by_both() {
    let cluster = Cluster::shared();
    let namespace = format!("{DATABASE}_both.c");
    cluster
        .shard_collection(&namespace, doc! { "_id.h": "hashed" }, false)
        .unwrap();
    let delete = doc! { "q": { "_id": id(1), "_id.h": 1_000 }, "limit": 1 };
    let command = doc! { "clusterDelete": "c", "deletes": [delete] };
    let reply = cluster.shards()[0].run(&format!("{DATABASE}_both"), command);
    assert_eq!(outcome(reply), "error 61");
}
