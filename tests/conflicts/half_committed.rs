//! A transaction is committed on one shard and not yet on the other: what it gives up is reserved no more, and its document
//! still shows it.

use std::time::Duration;

use bson::{Document, doc};
use testbed::{Cluster, ReplicaSet};

use crate::support::{on_each_shard, shard_on_two};
use crate::{EMAIL, assert_agreement, insert, keyward, write_errors};

const DATABASE: &str = "half_committed";

fn user(id: i32, email: &str) -> Document {
    doc! { "_id": id, "region": "a", "email": email }
}

async fn send(address: &str, command: Document) -> Document {
    let address = address.to_owned();
    let sent = tokio::task::spawn_blocking(move || crate::forwarder::send(&address, DATABASE, command));
    sent.await.unwrap().unwrap()
}

/// The owners of what is reserved on the shard where documents don't lie.
async fn reserved_elsewhere(cluster: &Cluster, home: usize) -> Vec<i32> {
    let reservations = on_each_shard(cluster.shards(), DATABASE, "keyward.users.email_1").await;
    let owner = |reservation: &Document| reservation.get_i32("owner").unwrap();
    reservations[1 - home].iter().map(owner).collect()
}

/// Whether somebody waits on the shard until a document is committed.
fn is_waited_for(shard: &ReplicaSet) -> bool {
    let waiting = doc! { "$currentOp": {} };
    let is_read = doc! { "$match": { "command.find": "users", "prepareReadConflicts": { "$gt": 0 } } };
    let operations = doc! { "aggregate": 1, "pipeline": [waiting, is_read], "cursor": {} };
    let reply = shard.run("admin", operations).unwrap();
    let found = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    !found.is_empty()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_refused_insert_had_reserved_is_given_back() {
    // Of its own: nothing else commits meanwhile.
    let cluster = Cluster::start().unwrap();
    shard_on_two(
        &cluster,
        &format!("{DATABASE}.users"),
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let keyward = keyward(&cluster, DATABASE, "60s", &[EMAIL]);
    let address = keyward.address.clone();
    let all = (0..20).map(|id| user(id, &format!("{id}@x"))).collect();
    let reply = send(&address, insert(all, true)).await;
    assert_eq!(reply.get_i32("n").unwrap(), 20, "{reply}");
    let documents = on_each_shard(cluster.shards(), DATABASE, "users").await;
    let home = documents.iter().position(|here| here.len() == 20).unwrap();
    let id = reserved_elsewhere(&cluster, home).await[0];

    let shard = &cluster.shards()[home];
    let half_committed = shard.fail_point("hangBeforeCommitingTxn", "alwaysOn", doc! {}).unwrap();
    let gives_it_up =
        doc! { "q": { "_id": id, "region": "a" }, "u": [{ "$set": { "email": { "$concat": ["new", "@x"] } } }] };
    let update = doc! { "update": "users", "updates": [gives_it_up] };
    let update = tokio::spawn({
        let address = address.clone();
        async move { send(&address, update).await }
    });
    while reserved_elsewhere(&cluster, home).await.contains(&id) {
        assert!(!update.is_finished());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let again = insert(vec![user(id, &format!("{id}@x"))], true);
    let again = tokio::spawn(async move { send(&address, again).await });
    while !again.is_finished() && !is_waited_for(shard) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(half_committed);
    let refused = again.await.unwrap();
    assert_eq!(write_errors(&refused), [(0, 11_000)], "{refused}");
    let updated = update.await.unwrap();
    assert_eq!(updated.get_i32("nModified").unwrap(), 1, "{updated}");
    assert_agreement(&cluster, DATABASE, "email").await;
}
