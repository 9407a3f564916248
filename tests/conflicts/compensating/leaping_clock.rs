//! The cluster's clock leaps: a member whose clock is ahead becomes primary, NTP sets one, a client tells a time that is still to
//! come. What comes after has a later time, and that is all that it says: nobody's lease is over for it.

use std::time::Duration;

use bson::{Binary, Document, Timestamp, doc, spec::BinarySubtype};
use testbed::{Cluster, ReplicaSet};

use crate::compensating::{EMAIL, assert_agreement, insert, keyward, write_errors};
use testkit::wire::send;
use testkit::{Keyward, shard_on_two};

const DATABASE: &str = "leaping_clock";
/// How far it leaps, in seconds.
const HOUR: u32 = 3_600;

fn user(id: i32) -> Document {
    doc! { "_id": id, "region": "a", "email": "a@x" }
}

/// Tells the shard a time that is still to come; from then on it writes later ones.
fn leap(shard: &ReplicaSet) {
    let now = shard.run("admin", doc! { "hello": 1 }).unwrap();
    let mut told = now.get_document("$clusterTime").unwrap().clone();
    let time = told.get_timestamp("clusterTime").unwrap().time + HOUR;
    told.insert("clusterTime", Timestamp { time, increment: 1 });
    let address = &shard.addresses()[0];
    send(address, "admin", doc! { "ping": 1, "$clusterTime": told }).unwrap();
    let written = shard.run("leapt", doc! { "insert": "any", "documents": [{}] }).unwrap();
    assert!(
        written.get_timestamp("operationTime").unwrap().time >= time,
        "{written}"
    );
}

/// Whether an insert into the users waits on one of the shards.
fn is_waited(cluster: &Cluster) -> bool {
    let is_insert = doc! { "$match": { "type": "op", "command.insert": "users" } };
    let operations = doc! { "aggregate": 1, "pipeline": [{ "$currentOp": {} }, is_insert], "cursor": {} };
    cluster.shards().iter().any(|shard| {
        let reply = shard.run("admin", operations.clone()).unwrap();
        let found = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        !found.is_empty()
    })
}

/// Whether somebody has waited for a reservation in flight.
fn has_waited(keyward: &Keyward) -> bool {
    let metrics = keyward.metrics();
    let mut lines = metrics.lines();
    let counted = lines.find(|line| line.starts_with("keyward_constraint_conflicts_waited_total{"));
    counted.is_some_and(|line| !line.ends_with(" 0"))
}

/// An insert waits on its shard, behind a transaction; meanwhile the clock leaps, and another wants the same key.
#[tokio::test(flavor = "multi_thread")]
async fn no_key_is_taken_from_an_insert_under_way() {
    let cluster = Cluster::start().unwrap();
    let namespace = format!("{DATABASE}.users");
    shard_on_two(&cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let keyward = keyward(&cluster, DATABASE, "30s", &[EMAIL]);
    let address = &keyward.address;
    let bytes = rand::random::<[u8; 16]>().to_vec();
    let lsid = doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } };
    let transaction = doc! { "lsid": lsid, "txnNumber": 1_i64, "autocommit": false };
    let mut in_the_way =
        doc! { "insert": "users", "documents": [{ "_id": 1, "region": "a" }], "startTransaction": true };
    in_the_way.extend(transaction.clone());
    let reply = send(&cluster.router_address(), DATABASE, in_the_way).unwrap();
    assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    std::thread::scope(|scope| {
        let first = scope.spawn(|| send(address, DATABASE, insert(vec![user(1)], true)).unwrap());
        while !is_waited(&cluster) {
            assert!(!first.is_finished());
        }
        cluster.shards().iter().for_each(leap);
        let second = scope.spawn(|| send(address, DATABASE, insert(vec![user(2)], true)).unwrap());
        while !second.is_finished() && !has_waited(&keyward) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut abort = doc! { "abortTransaction": 1 };
        abort.extend(transaction);
        let reply = send(&cluster.router_address(), "admin", abort).unwrap();
        assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
        let (first, second) = (first.join().unwrap(), second.join().unwrap());
        assert_eq!(first.get_i32("n").unwrap(), 1, "{first}");
        assert_eq!(write_errors(&second), [(0, 11000)], "both are there: {first} {second}");
    });
    assert_agreement(&cluster, DATABASE, "email").await;
}
