//! A transaction is committed on one shard and not yet on the other: what it gives up is reserved no more, and its document
//! still shows it.

use std::time::Duration;

use bson::{Document, doc};
use testbed::{Cluster, Prepared, ReplicaSet};

use crate::compensating::{EMAIL, assert_agreement, insert, keyward, users_on, write_errors};
use testkit::{Keyward, on_each_shard};

/// 20 users on one shard of a cluster where nothing else commits; which shard that is.
async fn twenty_users(cluster: &Cluster, database: &'static str) -> (Keyward, usize) {
    users_on(cluster, database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let all = (0..20).map(|id| user(id, &format!("{id}@x"))).collect();
    let reply = send(&keyward.address, database, insert(all, true)).await;
    assert_eq!(reply.get_i32("n").unwrap(), 20, "{reply}");
    let documents = on_each_shard(cluster.shards(), database, "users").await;
    let home = documents.iter().position(|here| here.len() == 20).unwrap();
    (keyward, home)
}

fn user(id: i32, email: &str) -> Document {
    doc! { "_id": id, "region": "a", "email": email }
}

async fn send(address: &str, database: &'static str, command: Document) -> Document {
    let address = address.to_owned();
    let sent = tokio::task::spawn_blocking(move || testkit::wire::send(&address, database, command));
    sent.await.unwrap().unwrap()
}

/// The users whose first address is reserved on the shard where documents don't lie. Which shard holds any other address
/// depends on that shard's number, so a user may have that one there as well.
async fn reserved_elsewhere(cluster: &Cluster, database: &str, home: usize) -> Vec<i32> {
    let reservations = on_each_shard(cluster.shards(), database, "keyward.users.email_1").await;
    let whose = |reservation: &Document| {
        let key = reservation.get_document("_id").unwrap().get_document("k").unwrap();
        key.get_str("email").unwrap().strip_suffix("@x").unwrap().parse().ok()
    };
    reservations[1 - home].iter().filter_map(whose).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_refused_insert_had_reserved_is_given_back() {
    let database = "half_committed";
    let alone = Cluster::alone().unwrap();
    let cluster: &Cluster = &alone;
    let (keyward, home) = twenty_users(cluster, database).await;
    let address = keyward.address.clone();
    let id = reserved_elsewhere(cluster, database, home).await[0];

    let shard = &cluster.shards()[home];
    let half_committed = shard.fail_point("hangBeforeCommitingTxn", "alwaysOn", doc! {}).unwrap();
    let gives_it_up =
        doc! { "q": { "_id": id, "region": "a" }, "u": [{ "$set": { "email": { "$concat": ["new", "@x"] } } }] };
    let update = doc! { "update": "users", "updates": [gives_it_up] };
    let update = tokio::spawn({
        let address = address.clone();
        async move { send(&address, database, update).await }
    });
    while reserved_elsewhere(cluster, database, home).await.contains(&id) {
        assert!(!update.is_finished());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let again = insert(vec![user(id, &format!("{id}@x"))], true);
    let again = tokio::spawn(async move { send(&address, database, again).await });
    while !again.is_finished() && !Prepared::is_waited_for(shard, &format!("{database}.users")).unwrap() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(half_committed);
    let refused = again.await.unwrap();
    assert_eq!(write_errors(&refused), [(0, 11_000)], "{refused}");
    let updated = update.await.unwrap();
    assert_eq!(updated.get_i32("nModified").unwrap(), 1, "{updated}");
    assert_agreement(cluster, database, "email").await;
}

/// The other way round: what the document got is committed on its shard, and its reservation is only prepared. A read that
/// passes it by finds nothing to give up, and the reservation would stay when the document has a third address.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_reserved_by_a_commit_under_way_is_given_up() {
    is_given_up("committed_half", doc! { "u": { "$set": { "email": "third@x" } } }).await;
}

/// A transaction's own deletion passes it by, too, and says only in its count that it deleted nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_gives_it_up_too() {
    let third = doc! { "u": [{ "$set": { "email": { "$concat": ["third", "@x"] } } }] };
    is_given_up("committed_half_of_two", third).await;
}

/// `third` gives the document its third address.
async fn is_given_up(database: &'static str, third: Document) {
    let alone = Cluster::alone().unwrap();
    let cluster: &Cluster = &alone;
    let (keyward, home) = twenty_users(cluster, database).await;
    let address = keyward.address.clone();
    let gone = reserved_elsewhere(cluster, database, home).await[0];
    let id = (gone + 1) % 20;
    let delete = doc! { "delete": "users", "deletes": [{ "q": { "_id": gone, "region": "a" }, "limit": 1 }] };
    assert_eq!(send(&address, database, delete).await.get_i32("n").unwrap(), 1);
    let second = format!("{gone}@x");
    let update = |update: Document| {
        let mut one = doc! { "q": { "_id": id, "region": "a" } };
        one.extend(update);
        let update = doc! { "update": "users", "updates": [one] };
        let address = address.clone();
        tokio::spawn(async move { send(&address, database, update).await })
    };
    let shard = &cluster.shards()[1 - home];
    let half_committed = shard.fail_point("hangBeforeCommitingTxn", "alwaysOn", doc! {}).unwrap();
    let in_transaction = update(doc! { "u": [{ "$set": { "email": { "$concat": [format!("{gone}"), "@x"] } } }] });
    let has_second = async || {
        let users = on_each_shard(cluster.shards(), database, "users").await;
        users[home].contains(&user(id, &second))
    };
    while !has_second().await {
        assert!(!in_transaction.is_finished());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let third = update(third);
    let proxy = format!("{database}.keyward.users.email_1");
    while !third.is_finished() && !Prepared::is_waited_for(shard, &proxy).unwrap() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(half_committed);
    for updated in [third, in_transaction] {
        let updated = updated.await.unwrap();
        assert_eq!(updated.get_i32("nModified").unwrap(), 1, "{updated}");
    }
    assert_agreement(cluster, database, "email").await;
}

/// A read passes by a document whose transaction is about to commit, but a write waits for it, as without Keyward. So an upsert inserts no
/// other document.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_a_commit_under_way_gives_is_changed_and_deleted() {
    let database = "half_committed_document";
    let set = ReplicaSet::alone().unwrap();
    // On a replica set that isn't the default.
    let compensating = format!("  - {{ collection: {database}.users, key: {{ email: 1 }}, strategy: compensating }}\n");
    let keyward = Keyward::start_with_lease(&set.uri(), "60s", &compensating);
    set.run(database, doc! { "create": "users" }).unwrap();
    let statement = |change: Document| {
        let mut statement = doc! { "q": { "_id": 1 } };
        statement.extend(change);
        statement
    };
    let update = statement(doc! { "u": { "$set": { "email": "b@x" } } });
    let update = doc! { "update": "users", "updates": [update] };
    let find_and_modify =
        doc! { "findAndModify": "users", "query": { "_id": 1 }, "update": { "$set": { "email": "c@x" } } };
    let delete = doc! { "delete": "users", "deletes": [statement(doc! { "limit": 1 })] };
    let upsert = doc! { "q": { "region": "a" }, "u": { "$set": { "email": "d@x" } }, "upsert": true };
    let upsert = doc! { "update": "users", "updates": [upsert] };
    for command in [update, find_and_modify, delete, upsert] {
        let undecided = Prepared::insert(&set, database, "users", user(1, "a@x")).unwrap();
        let sent = tokio::spawn({
            let (address, command) = (keyward.address.clone(), command.clone());
            async move { send(&address, database, command).await }
        });
        while !Prepared::is_waited_for(&set, &format!("{database}.users")).unwrap() {
            assert!(!sent.is_finished(), "{command}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        undecided.commit().unwrap();
        let reply = sent.await.unwrap();
        let n = reply
            .get_i32("n")
            .or_else(|_| reply.get_document("lastErrorObject").unwrap().get_i32("n"));
        assert_eq!(n.unwrap(), 1, "{command}: {reply}");
        assert!(!reply.contains_key("upserted"), "{command}: {reply}");
        // Directly: no other key is reserved then.
        set.client()
            .database(database)
            .collection::<Document>("users")
            .delete_many(doc! {})
            .await
            .unwrap();
    }
}

/// On shards, too, by a field that isn't unique.
#[tokio::test(flavor = "multi_thread")]
async fn an_upsert_on_shards_waits_for_a_document_that_a_commit_under_way_gives() {
    let database = "half_committed_upsert_on_shards";
    let alone = Cluster::alone().unwrap();
    let cluster: &Cluster = &alone;
    let (keyward, home) = twenty_users(cluster, database).await;
    let shard = &cluster.shards()[home];
    let mut named = user(30, "30@x");
    named.insert("name", "n");
    let undecided = Prepared::insert(shard, database, "users", named).unwrap();
    let statement = doc! { "q": { "region": "a", "name": "n" }, "u": { "$set": { "email": "b@x" } }, "upsert": true };
    let update = doc! { "update": "users", "updates": [statement] };
    let sent = tokio::spawn({
        let address = keyward.address.clone();
        async move { send(&address, database, update).await }
    });
    while !Prepared::is_waited_for(shard, &format!("{database}.users")).unwrap() {
        assert!(!sent.is_finished(), "{:?}", sent.await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    undecided.commit().unwrap();
    let reply = sent.await.unwrap();
    assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{reply}");
}
