//! Faults of every kind, planted past Keyward while clients write through it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use mongodb::{Client, Collection};
use testbed::Cluster;

use crate::run::Config;
use crate::support::{self, Keyward};

const CONSTRAINTS: &str = "  - { collection: verify.users, key: { email: 1 } }
  - { collection: verify.users, key: { tags: 1 }, sparse: true }
  - { collection: verify.users, key: { name: 1 }, sparse: true, collation: { locale: en, strength: 2 } }
  - { collection: verify.users, key: { nick: 1 }, partialFilterExpression: { active: true } }
  - { collection: verify.items, key: { _id: 1 } }
";
const LEASE: &str = "2s";

fn region(id: i64) -> &'static str {
    if id % 2 == 0 { "a" } else { "z" }
}

fn user(id: i64) -> Document {
    doc! { "_id": id, "region": region(id), "email": format!("{id}@x") }
}

/// Writes of every kind, over few keys, until it is told to stop; how many took effect.
async fn write_on(client: Client, writer: i64, stop: Arc<AtomicBool>, written: Arc<AtomicU64>) {
    let users = client.database("verify").collection::<Document>("users");
    let mut round = 0_i64;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let id = 1_000_000 + writer * 100 + round % 10;
        let route = doc! { "_id": id, "region": "a" };
        let shared = format!("shared{}@x", (round + writer) % 5);
        let mine = doc! { "_id": id, "region": "a", "email": shared, "tags": [round % 7, round % 3, writer], "name": format!("N{}", round % 4) };
        // Who loses is refused: that is the point.
        let outcomes = [
            users.insert_one(mine).await.is_ok(),
            users
                .update_one(
                    route.clone(),
                    doc! { "$set": { "email": format!("{writer}.{round}@x"), "nick": "n", "active": round % 2 == 0 } },
                )
                .await
                .is_ok(),
            users.delete_one(route).await.is_ok(),
        ];
        written.fetch_add(outcomes.iter().filter(|ok| **ok).count() as u64, Ordering::Relaxed);
    }
}

/// The reservation of `owner` in a proxy collection, taken out of it.
async fn take(proxy: &Collection<Document>, filter: Document) -> Document {
    let there = proxy.find_one(filter).await.unwrap().unwrap();
    let route = doc! { "_id": there.get("_id").unwrap().clone() };
    assert_eq!(proxy.delete_one(route).await.unwrap().deleted_count, 1);
    there
}

/// Until the sweeps that every Keyward begins with are over.
fn await_sweeps(keyward: &Keyward, constraints: usize) {
    let deadline = Instant::now() + Duration::from_secs(30);
    let is_done = |line: &&str| line.starts_with("keyward_constraint_sweeps_total{") && !line.ends_with(" 0");
    while keyward.metrics().lines().filter(is_done).count() < constraints {
        assert!(Instant::now() < deadline, "the first sweeps take too long");
    }
}

/// Plants the faults; gives what is to be found, as [`crate::run::Verified::listed`] lists it.
async fn plant(direct: &Client) -> Vec<&'static str> {
    let database = direct.database("verify");
    let proxy = |name: &str| database.collection::<Document>(name);
    let emails = proxy("keyward.users.email_1");
    let (tags, nicks, names) = (
        proxy("keyward.users.tags_1"),
        proxy("keyward.users.nick_1"),
        proxy("keyward.users.name_1"),
    );
    let users = proxy("users");
    // Not reserved at all; reserved for nobody; reserved for a document with another email.
    take(&emails, doc! { "owner": 10_i64 }).await;
    for (id, owner) in [(11_i64, 999_999_i64), (12, 13)] {
        let mut reservation = take(&emails, doc! { "owner": id }).await;
        reservation.insert("owner", owner);
        emails.insert_one(reservation).await.unwrap();
    }
    // Left behind: its document is gone; it is there, with another email.
    users.delete_one(doc! { "_id": 14_i64, "region": "a" }).await.unwrap();
    let change = doc! { "$set": { "email": "other@x" } };
    users
        .update_one(doc! { "_id": 15_i64, "region": "z" }, change)
        .await
        .unwrap();
    // A place where nobody looks; and no reservation.
    let mut elsewhere = take(&emails, doc! { "owner": 16_i64 }).await;
    let bucket = elsewhere.get_document("_id").unwrap().get_i32("h").unwrap();
    elsewhere
        .get_document_mut("_id")
        .unwrap()
        .insert("h", (bucket + 1) % 65_536);
    emails.insert_one(elsewhere).await.unwrap();
    emails.insert_one(doc! { "_id": 5 }).await.unwrap();
    // One key, two documents: both written past Keyward; one of them.
    users
        .insert_many([
            doc! { "_id": 2_000_i64, "region": "a", "email": "double@x" },
            doc! { "_id": 2_001_i64, "region": "z", "email": "double@x" },
            doc! { "_id": 2_002_i64, "region": "z", "email": "18@x" },
        ])
        .await
        .unwrap();
    // Moved to another shard.
    users.delete_one(doc! { "_id": 20_i64 }).await.unwrap();
    users
        .insert_one(doc! { "_id": 20_i64, "region": "z", "email": "20@x" })
        .await
        .unwrap();
    // One of several keys; one under a collation; one that a filter leaves out.
    take(&tags, doc! { "owner": 21_i64, "_id.k.tags": "b21" }).await;
    take(&names, doc! { "owner": 22_i64 }).await;
    let past = doc! { "$set": { "active": false } };
    users
        .update_one(doc! { "_id": 23_i64, "region": "z" }, past)
        .await
        .unwrap();
    assert!(nicks.find_one(doc! { "owner": 23_i64 }).await.unwrap().is_some());
    // What no key can be made of.
    let uncollatable = doc! { "_id": 2_003_i64, "region": "z", "email": "2003@x", "name": "\u{344}" };
    users.insert_one(uncollatable).await.unwrap();
    // One `_id`, two documents.
    let items = proxy("items");
    items.insert_one(doc! { "_id": 1_i64, "region": "a" }).await.unwrap();
    vec![
        "abandoned email_1 ",
        "abandoned email_1 ",
        "abandoned nick_1 ",
        "duplicate _id_ 1,1",
        "duplicate email_1 18,2002",
        "duplicate email_1 2000,2001",
        "foreign email_1 11",
        "foreign email_1 12",
        "misrouted email_1 20",
        "missing email_1 10",
        "missing email_1 15",
        "missing email_1 16",
        "missing email_1 2003",
        "missing name_1 22",
        "missing tags_1 21",
        "unindexable name_1 2003",
        "unreadable email_1 ",
        "unreadable email_1 ",
    ]
}

#[tokio::test]
async fn each_planted_fault_is_found_and_nothing_else_and_what_is_safe_is_repaired() {
    let cluster = Cluster::shared();
    for collection in ["verify.users", "verify.items"] {
        support::shard_on_two(cluster, collection, doc! { "region": 1 }, doc! { "region": "m" });
    }
    let keyward = Keyward::start_with_lease(&cluster.uri(), &format!("{LEASE}\nsweep: 1day"), CONSTRAINTS);
    let client = keyward.client().await;
    let users = client.database("verify").collection::<Document>("users");
    users.insert_many((0..300).map(user)).await.unwrap();
    let extra = [
        (21_i64, doc! { "tags": ["a21", "b21", "c21"] }),
        (22, doc! { "name": "Zoe" }),
        (23, doc! { "nick": "n23", "active": true }),
    ];
    for (id, set) in extra {
        let filter = doc! { "_id": id, "region": region(id) };
        users.update_one(filter, doc! { "$set": set }).await.unwrap();
    }
    let items = client.database("verify").collection::<Document>("items");
    items
        .insert_many((0..50_i64).map(|id| doc! { "_id": id, "region": region(id) }))
        .await
        .unwrap();
    await_sweeps(&keyward, 5);
    let config = Config::new(&cluster.uri(), LEASE, CONSTRAINTS);

    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writers: Vec<_> = (0..3)
        .map(|writer| tokio::spawn(write_on(client.clone(), writer, stop.clone(), written.clone())))
        .collect();
    let clean = config.verify(&[]).await;
    assert_eq!((clean.listed(), clean.exit), (vec![], Some(0)));

    let direct = cluster.client();
    let planted = plant(&direct).await;
    let before = written.load(Ordering::Relaxed);
    let found = config.verify(&[]).await;
    assert!(written.load(Ordering::Relaxed) > before, "nobody wrote meanwhile");
    assert_eq!(found.listed(), planted, "{:#?}", found.findings);
    assert_eq!((found.exit, &found.summary["left"]), (Some(1), &planted.len().into()));

    let repaired = config.verify(&["--repair"]).await;
    assert_eq!(repaired.listed(), planted, "{:#?}", repaired.findings);
    assert_eq!(repaired.exit, Some(1));
    let is_hopeless = |listed: &&str| {
        let kinds = ["duplicate", "unindexable", "unreadable"];
        kinds.iter().any(|kind| listed.starts_with(kind))
    };
    let hopeless: Vec<&str> = planted.iter().copied().filter(is_hopeless).collect();
    assert_eq!(repaired.listed_unrepaired(), hopeless, "{:#?}", repaired.findings);
    let left = config.verify(&["--repair"]).await;
    assert_eq!(left.listed(), hopeless);
    assert_eq!(left.exit, Some(1));

    // What is left is the operator's: after that all is clean.
    let database = direct.database("verify");
    let emails = database.collection::<Document>("keyward.users.email_1");
    emails
        .delete_many(
            doc! { "$or": [{ "_id": 5 }, { "owner": 16_i64, "_id.k.email": "16@x", "token": { "$exists": true } }] },
        )
        .await
        .unwrap();
    let past = database.collection::<Document>("users");
    past.delete_many(doc! { "_id": { "$in": [2_000_i64, 2_002, 2_003] } })
        .await
        .unwrap();
    let items = database.collection::<Document>("items");
    items.delete_one(doc! { "_id": 1_i64, "region": "a" }).await.unwrap();
    config.verify(&["--repair"]).await;
    let clean = config.verify(&[]).await;
    assert_eq!((clean.listed(), clean.exit), (vec![], Some(0)));
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    let email = |document: &Document| vec![doc! { "email": document.get("email").unwrap_or(&Bson::Null).clone() }];
    support::assert_documents_and_reservations_agree(cluster, "verify", "users", "email_1", email).await;
}
