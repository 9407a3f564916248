//! Many Keywards that start at once, on a cluster that is busy with itself: its balancer is on, a chunk moves to and fro, one shard is
//! draining, and a zone is set.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};

use bson::{Document, doc};
use testbed::Cluster;
use testkit::given;
use testkit::keyward::Keyward;

use crate::operated::rolled::until_ready;

const DATABASE: &str = "fleet_started";
/// How many, unless `KEYWARD_FLEET` says so.
const KEYWARDS: u64 = 12;
const DOCUMENTS: i32 = 4_000;

/// Sets a zone, lets a shard drain, and turns the balancer on. The shard stays draining, because a database stays on it until an operator moves
/// it.
fn make_busy(cluster: &Cluster) {
    let [first, .., last] = cluster.shards() else {
        panic!("three shards")
    };
    let namespace = format!("{DATABASE}.users");
    for command in [
        doc! { "addShardToZone": first.name(), "zone": "A" },
        doc! { "updateZoneKeyRange": namespace, "min": { "region": "a" }, "max": { "region": "b" }, "zone": "A" },
        doc! { "enableSharding": "fleet_stays", "primaryShard": last.name() },
        doc! { "shardCollection": "fleet_moved.documents", "key": { "_id": 1 } },
        doc! { "removeShard": last.name() },
        doc! { "balancerStart": 1 },
    ] {
        cluster
            .run("admin", command.clone())
            .unwrap_or_else(|error| panic!("{command}: {error}"));
    }
}

/// Moves a chunk to and fro until all is done.
fn move_chunks(cluster: &Cluster, is_done: &AtomicBool) {
    for shard in [0, 1].into_iter().cycle() {
        if is_done.load(Ordering::Relaxed) {
            return;
        }
        let to = cluster.shards()[shard].name();
        let command = doc! { "moveChunk": "fleet_moved.documents", "find": { "_id": 0 }, "to": to };
        // It is refused while the balancer moves a chunk from or to one of these shards, which is as good.
        let _ = cluster.run("admin", command);
    }
}

/// How many chunks have been moved, by the balancer or by hand.
async fn chunks_moved(cluster: &Cluster) -> u64 {
    let changes = cluster.client().database("config").collection::<Document>("changelog");
    let moved = changes.count_documents(doc! { "what": "moveChunk.commit" }).await;
    moved.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_keywards_start_at_once_while_chunks_move_and_a_shard_drains() {
    let cluster = Cluster::builder().shards(3).start().unwrap();
    testkit::shard_on_two(
        &cluster,
        &format!("{DATABASE}.users"),
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let region = |id: i32| if id % 2 == 0 { "a" } else { "z" };
    let user = |id: i32| doc! { "_id": id, "region": region(id), "email": format!("{id}@x"), "phone": id };
    let client = cluster.client();
    let users = client.database(DATABASE).collection::<Document>("users");
    users
        .insert_many((0..DOCUMENTS).map(user))
        .ordered(false)
        .await
        .unwrap();
    let moved = client.database("fleet_moved").collection::<Document>("documents");
    moved
        .insert_many((0..2_000).map(|id| doc! { "_id": id }))
        .await
        .unwrap();
    make_busy(&cluster);
    let count = given::number("KEYWARD_FLEET").unwrap_or(KEYWARDS);
    let is_done = AtomicBool::new(false);
    let constraint = |field| format!("  - {{ collection: {DATABASE}.users, key: {{ {field}: 1 }} }}\n");
    let constraints = ["email", "phone"].map(constraint).concat();
    let uri = cluster.uri();
    let moved_before = chunks_moved(&cluster).await;
    let keywards: Vec<Keyward> = thread::scope(|scope| {
        scope.spawn(|| move_chunks(&cluster, &is_done));
        let started: Vec<_> = (0..count)
            .map(|_| scope.spawn(|| Keyward::start(&uri, &constraints)))
            .collect();
        let started: Vec<_> = started.into_iter().map(ScopedJoinHandle::join).collect();
        is_done.store(true, Ordering::Relaxed);
        started.into_iter().map(Result::unwrap).collect()
    });
    assert!(chunks_moved(&cluster).await > moved_before, "no chunk was moved");
    let draining = doc! { "removeShard": cluster.shards()[2].name() };
    let draining = cluster.run("admin", draining).unwrap();
    assert_eq!(draining.get_str("state").unwrap(), "ongoing", "{draining}");
    cluster.run("admin", doc! { "balancerStop": 1 }).unwrap();
    for (keyward, id) in keywards.iter().zip(DOCUMENTS..) {
        until_ready(keyward);
        let twice = doc! { "_id": id, "region": region(id), "email": "5@x", "phone": id };
        assert_eq!(keyward.insert_once_permitted(DATABASE, twice), Err(11000));
    }
    let (exit, findings) = keywards[0].verify();
    assert_eq!(exit, Some(0), "{findings}");
}
