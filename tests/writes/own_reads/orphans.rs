//! What a chunk that has moved leaves behind on its old shard (orphans) is shown by reads of the level `available`. Such a
//! document holds no key, and stands for no other one, also where that is the cluster's default.

use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::Collection;
use mongodb::options::ReadConcern;
use testbed::Cluster;

use crate::own_reads::STRATEGIES;
use testkit::wire::send;
use testkit::{Keyward, on_each_shard, shard_on_two};

const LEASE: &str = "3s\nsweep: 1s";
const SWEPT_WITHIN: Duration = Duration::from_secs(60);

/// One that belongs to the upper shard.
fn user(id: i32, email: &str) -> Document {
    doc! { "_id": id, "region": "z", "email": email }
}

/// Puts documents of the upper shard on the lower one.
fn leave_behind(cluster: &Cluster, database: &str, documents: Vec<Document>) {
    let find = doc! { "find": "databases", "filter": { "_id": database } };
    let reply = cluster.run("config", find).unwrap();
    let found = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    let lower = found[0].as_document().unwrap().get_str("primary").unwrap().to_owned();
    let insert = doc! { "insert": "users", "documents": documents };
    cluster.shard(&lower).unwrap().run(database, insert).unwrap();
}

async fn emails(users: &Collection<Document>) -> Vec<(Bson, String)> {
    let found = users.find(doc! {}).read_concern(ReadConcern::local()).await.unwrap();
    let found: Vec<Document> = found.try_collect().await.unwrap();
    let email = |document: Document| {
        (
            document.get("_id").unwrap().clone(),
            document.get_str("email").unwrap().to_owned(),
        )
    };
    let mut emails: Vec<_> = found.into_iter().map(email).collect();
    emails.sort_by_key(|(id, _)| id.as_i32());
    emails
}

/// What is reserved, and for which document.
async fn reserved(cluster: &Cluster, database: &str) -> Vec<(Bson, String)> {
    let reservations = on_each_shard(cluster.shards(), database, "keyward.users.email_1")
        .await
        .concat();
    let pair = |document: &Document| {
        let key = document.get_document("_id").unwrap().get_document("k").unwrap();
        (
            document.get("owner").unwrap().clone(),
            key.get_str("email").unwrap().to_owned(),
        )
    };
    let mut reserved: Vec<_> = reservations.iter().map(pair).collect();
    reserved.sort_by_key(|(id, _)| id.as_i32());
    reserved
}

fn carried_out(keyward: &Keyward, database: &str, command: Document) {
    let reply = send(&keyward.address, database, command.clone()).unwrap();
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{command} {reply}");
    assert!(!reply.contains_key("writeErrors"), "{command} {reply}");
    assert_eq!(reply.get_i32("n").unwrap_or(1), 1, "{command} {reply}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_moved_chunk_left_behind_holds_no_key() {
    // Of its own: the default is the whole cluster's.
    let cluster = Cluster::start().unwrap();
    let available = doc! { "setDefaultRWConcern": 1, "defaultReadConcern": { "level": "available" } };
    cluster.run("admin", available).unwrap();
    for strategy in STRATEGIES {
        try_with(&cluster, strategy).await;
    }
}

async fn try_with(cluster: &Cluster, strategy: &str) {
    let database = format!("orphans_{strategy}");
    shard_on_two(
        cluster,
        &format!("{database}.users"),
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let past = cluster.client().database(&database).collection::<Document>("users");
    // 1 and 2 have gone from the cluster, 3 and 4 have got other keys on their new shard.
    past.insert_many([user(3, "3@x"), user(4, "4@x"), user(5, "5@x")])
        .await
        .unwrap();
    let behind = [user(1, "1@x"), user(3, "old3@x"), user(4, "old4@x")];
    leave_behind(cluster, &database, behind.to_vec());
    assert_eq!(
        past.find(doc! {})
            .await
            .unwrap()
            .try_collect::<Vec<_>>()
            .await
            .unwrap()
            .len(),
        6,
        "orphans are seen"
    );

    let constraint = format!("  - {{ collection: {database}.users, key: {{ email: 1 }}, strategy: {strategy} }}\n");
    let keyward = Keyward::start_with_lease(&cluster.uri(), LEASE, &constraint);
    let held = |ids: &[(i32, &str)]| -> Vec<(Bson, String)> {
        ids.iter()
            .map(|(id, email)| ((*id).into(), (*email).to_owned()))
            .collect()
    };
    // Taken in at the start is what is there.
    assert_eq!(
        reserved(cluster, &database).await,
        held(&[(3, "3@x"), (4, "4@x"), (5, "5@x")]),
        "{strategy}"
    );

    let insert = |document: Document| doc! { "insert": "users", "documents": [document] };
    let update = |id: i32, email: &str| {
        let set = doc! { "q": { "_id": id }, "u": { "$set": { "email": email } } };
        doc! { "update": "users", "updates": [set] }
    };
    // Keys that only an orphan has; and documents of which there is an orphan, by `_id` alone.
    carried_out(
        &keyward,
        &database,
        insert(doc! { "_id": 11, "region": "a", "email": "1@x" }),
    );
    carried_out(&keyward, &database, update(5, "old3@x"));
    carried_out(&keyward, &database, update(3, "new3@x"));
    carried_out(&keyward, &database, update(4, "3@x"));
    let client = keyward.client().await;
    let mut session = client.start_session().await.unwrap();
    // No transaction reads so. One that begins with a write doesn't begin with a read for all that Keyward does.
    session.start_transaction().await.unwrap();
    let users = client.database(&database).collection::<Document>("users");
    let change = doc! { "$set": { "email": "newer3@x" } };
    users
        .update_one(doc! { "_id": 3, "region": "z" }, change)
        .session(&mut session)
        .await
        .unwrap();
    session.commit_transaction().await.unwrap();
    // A reservation whose document has gone past Keyward, but for an orphan: whoever wants the key gets it, and of those whom
    // nobody wants the sweeper takes it away.
    carried_out(&keyward, &database, insert(user(2, "2@x")));
    carried_out(&keyward, &database, insert(user(6, "6@x")));
    past.delete_many(doc! { "_id": { "$in": [2, 6] } }).await.unwrap();
    leave_behind(cluster, &database, vec![user(2, "2@x"), user(6, "6@x")]);
    carried_out(
        &keyward,
        &database,
        insert(doc! { "_id": 12, "region": "a", "email": "2@x" }),
    );

    let there = held(&[(3, "newer3@x"), (4, "3@x"), (5, "old3@x"), (11, "1@x"), (12, "2@x")]);
    assert_eq!(emails(&past).await, there, "{strategy}");
    let begin = Instant::now();
    loop {
        let reserved = reserved(cluster, &database).await;
        if reserved == there {
            break;
        }
        assert!(begin.elapsed() < SWEPT_WITHIN, "{strategy}: {reserved:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
