//! A transaction is committed on one shard and not yet on the other: what it gives up is reserved no more, and its document
//! still shows it.

use std::time::Duration;

use bson::{Document, doc};
use testbed::{Cluster, Prepared};

use crate::compensating::{EMAIL, assert_agreement, insert, keyward, write_errors};
use testkit::{Keyward, on_each_shard, shard_on_two};

const DATABASE: &str = "half_committed";

/// A cluster of a test's own, where nothing else commits, with 20 users on one of its shards; which one that is.
async fn twenty_users() -> (Cluster, Keyward, usize) {
    let cluster = Cluster::start().unwrap();
    shard_on_two(
        &cluster,
        &format!("{DATABASE}.users"),
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let keyward = keyward(&cluster, DATABASE, "60s", &[EMAIL]);
    let all = (0..20).map(|id| user(id, &format!("{id}@x"))).collect();
    let reply = send(&keyward.address, insert(all, true)).await;
    assert_eq!(reply.get_i32("n").unwrap(), 20, "{reply}");
    let documents = on_each_shard(cluster.shards(), DATABASE, "users").await;
    let home = documents.iter().position(|here| here.len() == 20).unwrap();
    (cluster, keyward, home)
}

fn user(id: i32, email: &str) -> Document {
    doc! { "_id": id, "region": "a", "email": email }
}

async fn send(address: &str, command: Document) -> Document {
    let address = address.to_owned();
    let sent = tokio::task::spawn_blocking(move || testkit::wire::send(&address, DATABASE, command));
    sent.await.unwrap().unwrap()
}

/// The owners of what is reserved on the shard where documents don't lie.
async fn reserved_elsewhere(cluster: &Cluster, home: usize) -> Vec<i32> {
    let reservations = on_each_shard(cluster.shards(), DATABASE, "keyward.users.email_1").await;
    let owner = |reservation: &Document| reservation.get_i32("owner").unwrap();
    reservations[1 - home].iter().map(owner).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_refused_insert_had_reserved_is_given_back() {
    let (cluster, keyward, home) = twenty_users().await;
    let address = keyward.address.clone();
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
    while !again.is_finished() && !Prepared::is_waited_for(shard, &format!("{DATABASE}.users")).unwrap() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(half_committed);
    let refused = again.await.unwrap();
    assert_eq!(write_errors(&refused), [(0, 11_000)], "{refused}");
    let updated = update.await.unwrap();
    assert_eq!(updated.get_i32("nModified").unwrap(), 1, "{updated}");
    assert_agreement(&cluster, DATABASE, "email").await;
}

/// The other way round: what the document got is committed on its shard, and its reservation is only prepared. A read that
/// passes it by finds nothing to give up, and the reservation would stay when the document has a third address.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_reserved_by_a_commit_under_way_is_given_up() {
    let (cluster, keyward, home) = twenty_users().await;
    let address = keyward.address.clone();
    let gone = reserved_elsewhere(&cluster, home).await[0];
    let id = (gone + 1) % 20;
    let delete = doc! { "delete": "users", "deletes": [{ "q": { "_id": gone, "region": "a" }, "limit": 1 }] };
    assert_eq!(send(&address, delete).await.get_i32("n").unwrap(), 1);
    let second = format!("{gone}@x");
    let update = |update: Document| {
        let mut one = doc! { "q": { "_id": id, "region": "a" } };
        one.extend(update);
        let update = doc! { "update": "users", "updates": [one] };
        let address = address.clone();
        tokio::spawn(async move { send(&address, update).await })
    };
    let shard = &cluster.shards()[1 - home];
    let half_committed = shard.fail_point("hangBeforeCommitingTxn", "alwaysOn", doc! {}).unwrap();
    let in_transaction = update(doc! { "u": [{ "$set": { "email": { "$concat": [format!("{gone}"), "@x"] } } }] });
    let has_second = async || {
        let users = on_each_shard(cluster.shards(), DATABASE, "users").await;
        users[home].contains(&user(id, &second))
    };
    while !has_second().await {
        assert!(!in_transaction.is_finished());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let plain = update(doc! { "u": { "$set": { "email": "third@x" } } });
    let proxy = format!("{DATABASE}.keyward.users.email_1");
    while !plain.is_finished() && !Prepared::is_waited_for(shard, &proxy).unwrap() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(half_committed);
    for updated in [plain, in_transaction] {
        let updated = updated.await.unwrap();
        assert_eq!(updated.get_i32("nModified").unwrap(), 1, "{updated}");
    }
    assert_agreement(&cluster, DATABASE, "email").await;
}
