//! `keyward backfill`: killed midway it goes on where it stopped, and its report is whole all the same.

use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bson::{Document, doc};
use mongodb::Client;
use testbed::Cluster;
use testkit::relay::{Fate, Relay, insert_into};

use crate::verify::run::Config;

const DOCUMENTS: i32 = 20_000;
/// The `_id` of one of the documents that are backfilled first.
const LATE: i32 = DOCUMENTS - 7;

/// How far the cluster says that the documents of the constraint are backfilled.
pub async fn done(client: &Client, database: &str) -> i64 {
    let definitions = client.database(database).collection::<Document>("keyward.constraints");
    let found = definitions.find_one(doc! {}).await.unwrap().unwrap_or_default();
    found
        .get_document("backfill")
        .and_then(|backfill| backfill.get_i64("done"))
        .unwrap_or(0)
}

/// Starts a backfill, and kills it once `is_time`; false if it was over before.
pub async fn killed_midway(config: &Config, mut is_time: impl AsyncFnMut() -> bool) -> bool {
    let mut backfill = config.command("backfill", &[]).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_time().await {
        assert!(Instant::now() < deadline, "the backfill doesn't get on");
        if backfill.try_wait().unwrap().is_some() {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let was_running = backfill.try_wait().unwrap().is_none();
    backfill.kill().unwrap();
    backfill.wait().unwrap();
    was_running
}

async fn fill(client: &Client, database: &str, documents: i32, email: impl Fn(i32) -> String) {
    let users = client.database(database).collection::<Document>("users");
    let user = |id: i32| doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": email(id) };
    // In their order, the router would send them one by one: no two neighbours are on the same shard.
    users
        .insert_many((0..documents).map(user))
        .ordered(false)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_backfill_goes_on_where_it_was_killed() {
    let cluster = Cluster::shared();
    testkit::shard_on_two(
        cluster,
        "backfill_killed.users",
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let client = cluster.client();
    fill(&client, "backfill_killed", DOCUMENTS, |id| format!("{id}@x")).await;
    let constraints = "  - { collection: backfill_killed.users, key: { email: 1 } }\n";
    // The documents behind that one are reserved, and it can't go on before it's killed.
    let relay = Relay::start(cluster.router_address());
    let held = relay.hold(b"\x0010000@x\0");
    let config = Config::new(&relay.uri(), "2s", constraints);
    assert!(killed_midway(&config, async || done(&client, "backfill_killed").await > 0).await);
    drop(held);
    let reached = done(&client, "backfill_killed").await;
    assert!((1_000..DOCUMENTS.into()).contains(&reached), "{reached}");
    // Whatever lies before the position isn't looked at again: what is taken away there stays away.
    let reservations = client
        .database("backfill_killed")
        .collection::<Document>("keyward.users.email_1");
    reservations.delete_many(doc! { "owner": LATE }).await.unwrap();
    let output = config.run("backfill", &[]).await;
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert!(log.contains("goes on where it stopped"), "{log}");
    assert_eq!(
        reservations.count_documents(doc! {}).await.unwrap(),
        DOCUMENTS as u64 - 1
    );
    let repaired = config.verify(&["--repair"]).await;
    assert_eq!(repaired.listed(), [format!("missing email_1 {LATE}")]);
    let email = |document: &Document| vec![doc! { "email": document.get("email").unwrap().clone() }];
    testkit::assert_documents_and_reservations_agree(cluster, "backfill_killed", "users", "email_1", email).await;
}

/// A key of two fields repeats the text for each of the tags, so that the keys of one batch have 90 MB.
#[tokio::test]
async fn the_keys_of_one_batch_are_reserved_in_parts() {
    let cluster = Cluster::shared();
    let database = "backfill_many_keys";
    let namespace = format!("{database}.users");
    testkit::shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let users = cluster.client().database(database).collection::<Document>("users");
    let user = |id: i32, tags: Vec<i32>| doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "tags": tags, "text": "x".repeat(30_000) };
    let distinct = |id: i32| user(id, (id * 100..id * 100 + 100).collect());
    users.insert_many((0..30).map(distinct)).await.unwrap();
    // The first document and the last one are in different parts.
    users.insert_one(user(30, vec![7, 2_907])).await.unwrap();
    let constraint = format!("  - {{ collection: {namespace}, key: {{ tags: 1, text: 1 }} }}\n");
    let config = Config::new(&cluster.uri(), "2s", &constraint);
    let refused = config.run("backfill", &["--json"]).await;
    assert_eq!(
        refused.status.code(),
        Some(65),
        "{}",
        String::from_utf8_lossy(&refused.stderr)
    );
    let report: serde_json::Value = serde_json::from_slice(&refused.stdout).unwrap();
    let keys = report["violations"][0]["keys"].as_array().unwrap();
    assert_eq!(keys.len(), 2, "{report}");
    users.delete_one(doc! { "_id": 30, "region": "a" }).await.unwrap();
    let done = config.run("backfill", &[]).await;
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    let name = "keyward.users.tags_1_text_1";
    let reservations = cluster.client().database(database).collection::<Document>(name);
    assert_eq!(reservations.count_documents(doc! {}).await.unwrap(), 3_000);
    assert!(config.verify(&[]).await.listed().is_empty());
}

#[tokio::test]
async fn a_backfill_pauses_as_long_as_its_share_says() {
    let cluster = Cluster::shared();
    testkit::shard_on_two(
        cluster,
        "backfill_share.users",
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    // Five batches, of which three begin at once.
    fill(&cluster.client(), "backfill_share", 40_000, |id| format!("{id}@x")).await;
    let constraints = "  - { collection: backfill_share.users, key: { email: 1 } }\nbackfill: { max_share: 0.1 }\n";
    let inserted = Arc::new(Mutex::new(Vec::new()));
    let noted = inserted.clone();
    let note = move |request: &[u8]| {
        let has = |bytes: &[u8]| request.windows(bytes.len()).any(|window| window == bytes);
        if has(&insert_into("keyward.users.email_1")) {
            noted.lock().unwrap().push(Instant::now());
        }
        Fate::Passed
    };
    let relay = Relay::judged(cluster.router_address(), note, |_| Fate::Passed);
    let config = Config::new(&relay.uri(), "2s", constraints);
    let output = config.run("backfill", &[]).await;
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // A pause is nine times as long as the first batches took, and the last ones take as long again.
    let inserted = inserted.lock().unwrap().clone();
    let whole = *inserted.last().unwrap() - inserted[0];
    let pauses = inserted.windows(2).map(|pair| pair[1] - pair[0]);
    let longest = pauses.max().unwrap();
    assert!(longest > whole / 2, "{longest:?} of {whole:?}");
    let email = |document: &Document| vec![doc! { "email": document.get("email").unwrap().clone() }];
    testkit::assert_documents_and_reservations_agree(cluster, "backfill_share", "users", "email_1", email).await;
}

#[tokio::test]
async fn a_backfill_begins_anew_where_its_proxy_collection_is_another_one() {
    let cluster = Cluster::shared();
    testkit::shard_on_two(
        cluster,
        "backfill_dropped.users",
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let client = cluster.client();
    fill(&client, "backfill_dropped", DOCUMENTS, |id| format!("{id}@x")).await;
    let constraints = "  - { collection: backfill_dropped.users, key: { email: 1 } }\n";
    let config = Config::new(&cluster.uri(), "2s", constraints);
    assert!(killed_midway(&config, async || done(&client, "backfill_dropped").await > 0).await);
    let reservations = client
        .database("backfill_dropped")
        .collection::<Document>("keyward.users.email_1");
    reservations.drop().await.unwrap();
    assert!(
        done(&client, "backfill_dropped").await > 0,
        "where it stopped is still noted"
    );
    let output = config.run("backfill", &[]).await;
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let email = |document: &Document| vec![doc! { "email": document.get("email").unwrap().clone() }];
    testkit::assert_documents_and_reservations_agree(cluster, "backfill_dropped", "users", "email_1", email).await;
}

#[tokio::test]
async fn a_duplicate_found_before_it_was_killed_is_in_the_report() {
    let cluster = Cluster::shared();
    testkit::shard_on_two(
        cluster,
        "backfill_twice.users",
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let client = cluster.client();
    // 15000 and 15001 on two shards, and many more in a second constraint.
    fill(&client, "backfill_twice", DOCUMENTS, |id| {
        format!("{}@x", if id == 15_001 { 15_000 } else { id })
    })
    .await;
    let constraints = "  - { collection: backfill_twice.users, key: { email: 1 } }\n  \
                       - { collection: backfill_twice.users, key: { region: 1 }, partialFilterExpression: { _id: { $lt: 3000 } } }\n";
    let config = Config::new(&cluster.uri(), "2s", constraints);
    let reservations = client
        .database("backfill_twice")
        .collection::<Document>("keyward.users.email_1");
    let is_past_it = async || reservations.estimated_document_count().await.unwrap() > 8_000;
    assert!(killed_midway(&config, is_past_it).await);
    assert!(done(&client, "backfill_twice").await <= 5_000);
    let output = config.run("backfill", &[]).await;
    let report = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(65), "{report}");
    for said in [
        "1 document of backfill_twice.users violates unique constraint email_1",
        "2998 documents of backfill_twice.users violate unique constraint region_1",
        "1500 documents have {\"region\":\"a\"}",
        "and 1495 more",
    ] {
        assert!(report.contains(said), "{said}");
    }
    // Documents may be changed anywhere after a report: the next start looks at all of them.
    assert_eq!(done(&client, "backfill_twice").await, 0);
    let users = client.database("backfill_twice").collection::<Document>("users");
    let change = doc! { "$set": { "email": "changed@x" } };
    users
        .update_one(doc! { "_id": 15_000, "region": "a" }, change)
        .await
        .unwrap();
    let only = "  - { collection: backfill_twice.users, key: { email: 1 } }\n";
    let config = Config::new(&cluster.uri(), "2s", only);
    assert_eq!(config.run("backfill", &[]).await.status.code(), Some(0));
    let email = |document: &Document| vec![doc! { "email": document.get("email").unwrap().clone() }];
    testkit::assert_documents_and_reservations_agree(cluster, "backfill_twice", "users", "email_1", email).await;
}

/// The fleet may enforce a constraint while a backfill beside it is under way. If that took the state back, all documents would be read
/// again, and meanwhile nothing would count on the constraint.
#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_leaves_a_constraint_enforced_that_has_become_so_meanwhile() {
    let cluster = Cluster::shared();
    let database = "backfill_beside";
    let namespace = format!("{database}.users");
    testkit::shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let client = cluster.client();
    fill(&client, database, 20, |id| format!("{id}@x")).await;
    let relay = Relay::start(cluster.router_address());
    let constraints = format!("  - {{ collection: {namespace}, key: {{ email: 1 }} }}\n");
    let config = Config::new(&relay.uri(), "2s", &constraints);
    let held = relay.hold(b"\x02state\0\x0b\0\0\0backfilled\0");
    let definitions = client.database(database).collection::<Document>("keyward.constraints");
    let meanwhile = async {
        tokio::task::block_in_place(|| held.wait());
        let definition = definitions.find_one(doc! {}).await.unwrap().unwrap();
        let enforced = doc! {
            "$set": { "state": "enforced", "enforcedIn": definition.get("era").cloned() }, "$unset": { "backfill": 1 },
        };
        definitions.update_one(doc! {}, enforced).await.unwrap();
        drop(held);
    };
    let (output, ()) = tokio::join!(config.run("backfill", &[]), meanwhile);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let definition = definitions.find_one(doc! {}).await.unwrap().unwrap();
    assert_eq!(definition.get_str("state").ok(), Some("enforced"), "{definition}");
}

/// The documents that a dry run reads together.
const READ_TOGETHER: i32 = 8_000;

/// The last document of the first batch and the first one of the second have equal `_id`s by the default collation of their collection: each
/// is on another shard. Neither is read twice.
#[tokio::test]
async fn a_dry_run_counts_no_document_twice_whatever_the_order_of_its_collection() {
    let database = "dry_run_collated";
    let cluster = Cluster::shared();
    let namespace = format!("{database}.users");
    testkit::shard_collated_on_two(cluster, &namespace);
    let users = cluster.client().database(database).collection::<Document>("users");
    let user = |id: bson::Bson, region: &str, email: i32| doc! { "_id": id, "region": region, "email": email };
    // Booleans, dates and object ids come after strings, and the walk goes downwards.
    let mut all: Vec<Document> = (1..READ_TOGETHER)
        .map(|number| user(bson::oid::ObjectId::new().into(), "a", number))
        .collect();
    all.extend([
        user("x".into(), "a", -1),
        user("X".into(), "z", -2),
        user("b".into(), "a", -3),
    ]);
    users.insert_many(all).ordered(false).await.unwrap();
    let constraint = format!("  - {{ collection: {namespace}, key: {{ email: 1 }} }}\n");
    let output = Config::new(&cluster.uri(), "2s", &constraint)
        .run("backfill", &["--dry-run"])
        .await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}
