//! Clustered collections, in which the server refuses bounds for a walk from the last `_id` to the first: walks that go on all the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bson::{Bson, DateTime, Document, doc};
use testbed::{Cluster, ReplicaSet};
use testkit::relay::{Fate, Relay};

use crate::verify::backfill::{done, killed_midway};
use crate::verify::run::Config;

const DOCUMENTS: i32 = 20_000;
/// The text among the `_id`s, by their places from the last one. A batch has 8,000 documents, so the first one ends amid the text.
const TEXT: std::ops::Range<i32> = 4_000..12_000;
const LAST: i32 = DOCUMENTS - 1;
const NULL: i32 = LAST - 1;
const NAN: i32 = LAST - 2;

/// The `_id` at this place from the last one: of every type that a `$lt` alone would miss.
fn id(place: i32) -> Bson {
    match place {
        0 => Bson::MaxKey,
        LAST => Bson::MinKey,
        NULL => Bson::Null,
        NAN => f64::NAN.into(),
        _ if place < TEXT.start => DateTime::from_millis((-place).into()).into(),
        _ if TEXT.contains(&place) => format!("{:05}", DOCUMENTS - place).into(),
        _ if place % 2 == 0 => f64::from(-place).into(),
        _ => (-place).into(),
    }
}

/// Creates the collection `users` on two shards, with the email of each document by its place.
async fn fill(cluster: &Cluster, database: &str, email: impl Fn(i32) -> String) {
    let clustered = doc! { "create": "users", "clusteredIndex": { "key": { "_id": 1 }, "unique": true } };
    cluster.run(database, clustered).unwrap();
    let namespace = format!("{database}.users");
    testkit::shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let region = |place: i32| if place / 2 % 2 == 0 { "a" } else { "z" };
    let user = |place| doc! { "_id": id(place), "region": region(place), "email": email(place) };
    let users = cluster.client().database(database).collection::<Document>("users");
    users
        .insert_many((0..DOCUMENTS).map(user))
        .ordered(false)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_backfill_of_a_clustered_collection_goes_on_where_it_was_killed() {
    const DATABASE: &str = "clustered_killed";
    let cluster = Cluster::shared();
    fill(cluster, DATABASE, |place| format!("{place}@x")).await;
    let constraints = format!("  - {{ collection: {DATABASE}.users, key: {{ email: 1 }} }}\n");
    // The second batch isn't read before it's killed: no reservation of it exists already.
    let relay = Relay::start(cluster.router_address());
    let held = relay.hold(b"getMore\0");
    let config = Config::new(&relay.uri(), "2s", &constraints);
    let client = cluster.client();
    assert!(killed_midway(&config, async || done(&client, DATABASE).await > 0).await);
    drop(held);
    let reached = done(&client, DATABASE).await;
    assert!(reached > TEXT.start.into() && reached < TEXT.end.into(), "{reached}");
    let output = config.run("backfill", &[]).await;
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert!(log.contains("goes on where it stopped"), "{log}");
    let email = |document: &Document| vec![doc! { "email": document.get("email").unwrap().clone() }];
    testkit::assert_documents_and_reservations_agree(cluster, DATABASE, "users", "email_1", email).await;
}

/// How many documents all shards have read so far.
fn documents_read(cluster: &Cluster) -> i64 {
    let read = |shard: &ReplicaSet| {
        let status = shard.run("admin", doc! { "serverStatus": 1 }).unwrap();
        let metrics = status.get_document("metrics").unwrap();
        let executor = metrics.get_document("queryExecutor").unwrap();
        executor.get_i64("scannedObjects").unwrap()
    };
    cluster.shards().iter().map(read).sum()
}

/// The server would read the whole collection for each look-up of several owners.
#[tokio::test]
async fn a_backfill_of_a_clustered_collection_meets_keys_that_are_reserved() {
    const DATABASE: &str = "clustered_reserved";
    let cluster = &*Cluster::alone().unwrap();
    fill(cluster, DATABASE, |place| format!("{place}@x")).await;
    let constraints = format!("  - {{ collection: {DATABASE}.users, key: {{ email: 1 }} }}\n");
    let relay = Relay::start(cluster.router_address());
    let config = Config::new(&relay.uri(), "2s", &constraints);
    // How far it is isn't stored: the next backfill begins at the first document, whose key is reserved by then.
    let held = relay.hold(b"after\0");
    assert!(killed_midway(&config, async || held.arrives_within(Duration::ZERO)).await);
    drop(held);
    let email = |document: &Document| vec![doc! { "email": document.get("email").unwrap().clone() }];
    let (_, reserved) = testkit::keys_held_and_reserved(cluster, DATABASE, "users", "email_1", email).await;
    assert!(reserved.len() >= 8_000, "{}", reserved.len());
    let before = documents_read(cluster);
    let output = config.run("backfill", &[]).await;
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{log}");
    // Each is read to wait for prepared transactions, to be backfilled, and to be looked up.
    let read = documents_read(cluster) - before;
    let most = i64::from(DOCUMENTS) * 8;
    assert!(read < most, "{read} of {most}");
    testkit::assert_documents_and_reservations_agree(cluster, DATABASE, "users", "email_1", email).await;
}

/// A document that was read twice would be listed, and so would one whose duplicate was left out not be.
#[tokio::test]
async fn a_dry_run_of_a_clustered_collection_goes_on_after_its_cursor_was_lost() {
    const DATABASE: &str = "clustered_lost";
    let cluster = Cluster::shared();
    fill(cluster, DATABASE, |place| format!("{}@x", place % LAST)).await;
    let is_lost = Arc::new(AtomicBool::new(false));
    let lost = is_lost.clone();
    let judge = move |request: &[u8]| {
        let is_next = request.windows(8).any(|bytes| bytes == b"getMore\0");
        match is_next && !lost.swap(true, Ordering::Relaxed) {
            true => Fate::Lost,
            false => Fate::Passed,
        }
    };
    let relay = Relay::judged(cluster.router_address(), judge, |_| Fate::Passed);
    let constraints = format!("  - {{ collection: {DATABASE}.users, key: {{ email: 1 }} }}\n");
    let output = Config::new(&relay.uri(), "2s", &constraints)
        .run("backfill", &["--dry-run"])
        .await;
    let report = String::from_utf8(output.stderr).unwrap();
    assert!(is_lost.load(Ordering::Relaxed), "{report}");
    assert_eq!(output.status.code(), Some(65), "{report}");
    for said in [
        "1 document of clustered_lost.users violates unique constraint email_1",
        "2 documents have {\"email\":\"0@x\"}",
    ] {
        assert!(report.contains(said), "{said}: {report}");
    }
}
