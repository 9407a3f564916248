//! Collections and databases that come and go under running Keywards: what was in them is free again at once, and nothing
//! that is there is ever without its reservations.

#![expect(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

use std::time::{Duration, Instant};

use bson::{Document, doc};
use futures_util::future::join_all;
use mongodb::Client;
use rand::seq::IndexedRandom;
use testbed::{Cluster, ReplicaSet};
use testkit::{Keyward, assert_documents_and_reservations_agree, comparable, on_each_shard, run, shard_on_two};

const EMAIL: &str = "  - { collection: DB.users, key: { email: 1 } }\n";
const NAME: &str = "  - { collection: DB.places, key: { name: 1 } }\n";
/// Longer than any test may wait: whoever waits for a lease fails.
const LEASE: &str = "60s";
const AT_ONCE: Duration = Duration::from_secs(30);

fn users(database: &str) -> &'static Cluster {
    let cluster = Cluster::shared();
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    cluster
}

fn keyward(upstream: &str, database: &str, constraints: &[&str]) -> Keyward {
    Keyward::start_with_lease(upstream, LEASE, &constraints.concat().replace("DB", database))
}

fn user(id: i32) -> Document {
    doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": format!("{id}@x") }
}

fn insert(ids: std::ops::Range<i32>) -> Document {
    doc! { "insert": "users", "documents": ids.map(user).collect::<Vec<_>>() }
}

/// Inserts users, who all must be taken, without anybody waiting for a lease.
async fn insert_at_once(client: &Client, database: &str, ids: std::ops::Range<i32>) {
    let count = i32::try_from(ids.len()).unwrap();
    let begun = Instant::now();
    let reply = run(client, database, insert(ids)).await;
    assert_eq!(reply.get_i32("n").ok(), Some(count), "{reply}");
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
}

async fn assert_duplicate(client: &Client, database: &str, mut document: Document) {
    document.insert("_id", "another");
    let reply = run(client, database, doc! { "insert": "users", "documents": [document] }).await;
    let errors = reply.get_array("writeErrors").unwrap();
    assert_eq!(
        errors[0].as_document().unwrap().get_i32("code").ok(),
        Some(11_000),
        "{reply}"
    );
}

async fn assert_agreement(cluster: &Cluster, database: &str) {
    let key = |user: &Document| vec![doc! { "email": user.get("email").unwrap().clone() }];
    assert_documents_and_reservations_agree(cluster, database, "users", "email_1", key).await;
}

async fn reservations(cluster: &Cluster, database: &str) -> Vec<Document> {
    on_each_shard(cluster.shards(), database, "keyward.users.email_1")
        .await
        .concat()
}

/// The names of what a database holds.
async fn collections(client: &Client, database: &str) -> Vec<String> {
    let mut names = client.database(database).list_collection_names().await.unwrap();
    names.sort();
    names
}

#[tokio::test]
async fn what_a_dropped_collection_held_is_free_at_once_and_through_every_keyward() {
    let database = "dropped";
    let cluster = users(database);
    let keywards = [
        keyward(&cluster.uri(), database, &[EMAIL]),
        keyward(&cluster.uri(), database, &[EMAIL]),
    ];
    let [one, other] = [keywards[0].client().await, keywards[1].client().await];
    insert_at_once(&one, database, 0..200).await;
    let through_keyward = comparable(run(&one, database, doc! { "drop": "users" }).await);
    assert_eq!(reservations(cluster, database).await, Vec::<Document>::new());
    insert_at_once(&other, database, 0..200).await;
    assert_agreement(cluster, database).await;
    for client in [&one, &other] {
        assert_duplicate(client, database, user(7)).await;
    }
    // What is there again has its keys, also when a drop is refused or finds nothing.
    let refused = doc! { "drop": "users", "writeConcern": { "w": "no such mode" } };
    assert_eq!(run(&one, database, refused.clone()).await.get_f64("ok").ok(), Some(0.0));
    assert_agreement(cluster, database).await;
    let client = cluster.client();
    run(&client, database, doc! { "create": "plain" }).await;
    let directly = comparable(run(&client, database, doc! { "drop": "plain" }).await);
    assert_eq!(through_keyward.get("ok"), directly.get("ok"));
    let nothing = doc! { "drop": "users" };
    run(&one, database, nothing.clone()).await;
    let again = comparable(run(&one, database, nothing).await);
    assert_eq!(
        again,
        comparable(run(&client, database, doc! { "drop": "plain" }).await)
    );
}

/// Without them the other Keyward's next write would be reserved anew, and one that is on its way would not be.
#[tokio::test]
async fn a_keyward_without_the_constraints_leaves_their_reservations_alone() {
    let database = "dropped_elsewhere";
    let cluster = users(database);
    let one = keyward(&cluster.uri(), database, &[EMAIL]);
    let other = keyward(&cluster.uri(), "dropped_elsewhere_too", &[EMAIL]);
    let [one, other] = [one.client().await, other.client().await];
    insert_at_once(&one, database, 0..4).await;
    let proxy = "keyward.users.email_1";
    let all = doc! { "q": {}, "limit": 0 };
    for command in [doc! { "delete": proxy, "deletes": [all] }, doc! { "drop": proxy }] {
        let reply = run(&other, database, command.clone()).await;
        assert_eq!(reply.get_f64("ok").ok(), Some(0.0), "{command}: {reply}");
    }
    assert_agreement(cluster, database).await;
    let reply = run(&other, database, doc! { "dropDatabase": 1 }).await;
    assert_eq!(reply.get_str("dropped").ok(), Some(database), "{reply}");
    let left = collections(&cluster.client(), database).await;
    for own in [proxy, "keyward.constraints"] {
        assert!(left.iter().any(|name| name == own), "{left:?}");
    }
    assert!(!left.iter().any(|name| name == "users"), "{left:?}");
    // Where no Keyward has a constraint, the server drops the whole.
    let unprotected = "dropped_elsewhere_plain";
    run(&other, unprotected, doc! { "create": "plain" }).await;
    let reply = run(&other, unprotected, doc! { "dropDatabase": 1 }).await;
    assert_eq!(reply.get_str("dropped").ok(), Some(unprotected), "{reply}");
    assert_eq!(collections(&cluster.client(), unprotected).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_drop_answers_as_the_server_does() {
    let database = "drop_replies";
    let set = ReplicaSet::shared();
    let direct = set.client();
    direct.database(database).drop().await.unwrap();
    let keyward = keyward(&set.uri(), database, &[EMAIL]);
    let client = keyward.client().await;
    for setting_up in [doc! { "create": "users" }, doc! { "create": "plain" }] {
        run(&direct, database, setting_up).await;
    }
    for _ in 0..2 {
        let mut expected = comparable(run(&direct, database, doc! { "drop": "plain" }).await);
        if let Ok(namespace) = expected.get_str("ns") {
            let namespace = namespace.replace("plain", "users");
            expected.insert("ns", namespace);
        }
        let got = comparable(run(&client, database, doc! { "drop": "users" }).await);
        assert_eq!(got.to_string(), expected.to_string());
    }
    let elsewhere = "drop_replies_directly";
    run(&direct, elsewhere, doc! { "create": "plain" }).await;
    let mut expected = comparable(run(&direct, elsewhere, doc! { "dropDatabase": 1 }).await);
    expected.insert("dropped", database);
    let got = comparable(run(&client, database, doc! { "dropDatabase": 1 }).await);
    assert_eq!(got.to_string(), expected.to_string());
}

/// The set has fewer members.
#[tokio::test]
async fn a_dropped_database_says_that_its_write_concern_is_not_met() {
    let database = "drop_unconcerned";
    let keyward = keyward(&ReplicaSet::shared().uri(), database, &[EMAIL]);
    let client = keyward.client().await;
    insert_at_once(&client, database, 0..1).await;
    let concern = doc! { "w": 40, "wtimeout": 100 };
    let reply = run(&client, database, doc! { "dropDatabase": 1, "writeConcern": concern }).await;
    assert_eq!(reply.get_str("dropped").ok(), Some(database), "{reply}");
    let error = reply
        .get_document("writeConcernError")
        .expect("the concern can't be met");
    assert_eq!(error.get_i32("code").ok(), Some(100), "{reply}");
}

#[tokio::test]
async fn a_dropped_database_keeps_what_keeps_its_keys_apart() {
    let database = "dropped_whole";
    let cluster = users(database);
    let constraints = [EMAIL, NAME];
    let keywards = [
        keyward(&cluster.uri(), database, &constraints),
        keyward(&cluster.uri(), database, &constraints),
    ];
    let [one, other] = [keywards[0].client().await, keywards[1].client().await];
    for round in 0..3 {
        insert_at_once(&one, database, 0..50).await;
        let place = doc! { "insert": "places", "documents": [{ "_id": 1, "name": "here" }] };
        assert_eq!(run(&other, database, place.clone()).await.get_i32("n").ok(), Some(1));
        run(&one, database, doc! { "insert": "plain", "documents": [{ "_id": 1 }] }).await;
        run(
            &one,
            database,
            doc! { "create": "view", "viewOn": "users", "pipeline": [] },
        )
        .await;
        let reply = run(&one, database, doc! { "dropDatabase": 1 }).await;
        assert_eq!(
            comparable(reply),
            doc! { "ok": 1.0, "dropped": database },
            "round {round}"
        );
        assert_eq!(collections(&one, database).await, Vec::<String>::new());
        let left = collections(&cluster.client(), database).await;
        assert!(left.iter().all(|name| name.starts_with("keyward.")), "{left:?}");
        assert!(left.contains(&"keyward.users.email_1".to_owned()), "{left:?}");
        assert_eq!(reservations(cluster, database).await, Vec::<Document>::new());
        // The other Keyward, which nobody told, writes right after.
        insert_at_once(&other, database, 0..50).await;
        assert_duplicate(&one, database, user(3)).await;
        assert_agreement(cluster, database).await;
        run(&other, database, doc! { "dropDatabase": 1 }).await;
    }
    // Still spread over the shards.
    let proxy = doc! { "_id": format!("{database}.keyward.users.email_1") };
    let sharded = cluster
        .client()
        .database("config")
        .collection::<Document>("collections");
    assert!(sharded.find_one(proxy).await.unwrap().is_some());
}

#[tokio::test]
async fn a_collection_that_is_sharded_while_keyward_runs_has_its_owners_looked_up_on_one_shard() {
    let database = "sharded_later";
    let cluster = Cluster::shared();
    cluster.run("admin", doc! { "enableSharding": database }).unwrap();
    let keyward = keyward(&cluster.uri(), database, &[EMAIL]);
    let client = keyward.client().await;
    let route = |reservations: Vec<Document>| reservations[0].get_document("route").ok().cloned();
    insert_at_once(&client, database, 0..1).await;
    assert_eq!(route(reservations(cluster, database).await), None);
    run(&client, database, doc! { "drop": "users" }).await;
    let shard = doc! { "shardCollection": format!("{database}.users"), "key": { "region": 1 } };
    assert_eq!(run(&client, "admin", shard).await.get_f64("ok").ok(), Some(1.0));
    insert_at_once(&client, database, 0..1).await;
    assert_eq!(
        route(reservations(cluster, database).await),
        Some(doc! { "region": "a" })
    );
    run(&client, database, doc! { "drop": "users" }).await;
    insert_at_once(&client, database, 0..1).await;
    assert_eq!(route(reservations(cluster, database).await), None);
    assert_duplicate(&client, database, user(0)).await;
}

#[tokio::test]
async fn a_dropped_collections_stale_routes_mislead_nobody() {
    let database = "stale_routes";
    let cluster = users(database);
    let keywards = [
        keyward(&cluster.uri(), database, &[EMAIL]),
        keyward(&cluster.uri(), database, &[EMAIL]),
    ];
    let [one, other] = [keywards[0].client().await, keywards[1].client().await];
    run(&one, database, doc! { "drop": "users" }).await;
    // The other one still writes routes by region, into a collection that has none any more.
    insert_at_once(&other, database, 0..20).await;
    let moved = doc! { "q": {}, "u": { "$set": { "region": "k" } }, "multi": true };
    let reply = run(&one, database, doc! { "update": "users", "updates": [moved] }).await;
    assert_eq!(reply.get_i32("nModified").ok(), Some(20), "{reply}");
    for client in [&one, &other] {
        for id in 0..20 {
            assert_duplicate(client, database, user(id)).await;
        }
        let renamed = doc! { "q": { "email": "1@x" }, "u": { "$set": { "email": "new@x" } } };
        let back = doc! { "q": { "email": "new@x" }, "u": { "$set": { "email": "1@x" } } };
        let reply = run(client, database, doc! { "update": "users", "updates": [renamed, back] }).await;
        assert_eq!(reply.get_i32("nModified").ok(), Some(2), "{reply}");
    }
    assert_agreement(cluster, database).await;
    let reply = run(
        &other,
        database,
        doc! { "delete": "users", "deletes": [{ "q": {}, "limit": 0 }] },
    )
    .await;
    assert_eq!(reply.get_i32("n").ok(), Some(20), "{reply}");
    assert_agreement(cluster, database).await;
}

/// Writers want few addresses through two Keywards, while the collection and the whole database are dropped again and
/// again; whatever the order, no address is ever held twice, and in the end documents and reservations agree.
#[tokio::test(flavor = "multi_thread")]
async fn drops_race_with_writers_through_two_keywards() {
    const WRITERS: i32 = 8;
    const WRITES: i32 = 60;
    const DROPS: usize = 6;
    let database = "drop_races";
    let cluster = users(database);
    let constraints = EMAIL.replace("DB", database);
    let keywards = [
        Keyward::start_sweeping(&cluster.uri(), &constraints),
        Keyward::start_sweeping(&cluster.uri(), &constraints),
    ];
    let clients = [keywards[0].client().await, keywards[1].client().await];
    let write = |writer: i32| {
        let client = clients[writer as usize % 2].clone();
        async move {
            for round in 0..WRITES {
                let id = writer * WRITES + round;
                let email = format!("{}@x", ["a", "b", "c", "d"].choose(&mut rand::rng()).unwrap());
                let user = doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": &email };
                let insert = doc! { "insert": "users", "documents": [user] };
                let rename = doc! { "q": { "email": &email }, "u": { "$set": { "email": "e@x" } } };
                let delete = doc! { "q": { "email": &email }, "limit": 1 };
                let command = match round % 4 {
                    0 | 2 => insert,
                    1 => doc! { "update": "users", "updates": [rename] },
                    _ => doc! { "delete": "users", "deletes": [delete] },
                };
                // Some are told that the collection went away under them; what counts is what is there afterwards.
                let _ = client.database(database).run_command(command).await;
            }
        }
    };
    let drop_both_ways = async {
        for round in 0..DROPS {
            let command = match round % 2 {
                0 => doc! { "drop": "users" },
                _ => doc! { "dropDatabase": 1 },
            };
            let reply = run(&clients[round % 2], database, command).await;
            assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
            assert_unique(cluster, database).await;
        }
    };
    tokio::join!(join_all((0..WRITERS).map(write)), drop_both_ways);
    assert_unique(cluster, database).await;
    // Those that were in flight are settled after their lease.
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let documents = on_each_shard(cluster.shards(), database, "users").await.concat().len();
        if reservations(cluster, database).await.len() == documents || Instant::now() > deadline {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_agreement(cluster, database).await;
}

/// No address stands twice on one shard, at one moment.
async fn assert_unique(cluster: &Cluster, database: &str) {
    for shard in cluster.shards() {
        let find = doc! { "find": "users", "readConcern": { "level": "snapshot" } };
        let reply = run(&shard.client(), database, find).await;
        // Made or dropped just then, it has no snapshot.
        let Ok(cursor) = reply.get_document("cursor") else {
            assert_eq!(reply.get_i32("code").ok(), Some(246), "{reply}");
            continue;
        };
        let users = cursor.get_array("firstBatch").unwrap();
        let email = |user: &bson::Bson| user.as_document().unwrap().get_str("email").unwrap().to_owned();
        let mut emails: Vec<String> = users.iter().map(email).collect();
        emails.sort_unstable();
        emails.dedup();
        assert_eq!(emails.len(), users.len(), "{users:?}");
    }
}
