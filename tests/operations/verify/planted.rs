//! Faults of every kind, what they are found as, and clients that write meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bson::{Document, doc};
use mongodb::{Collection, Database};
use testbed::Cluster;
use tokio::task::JoinHandle;

const CONSTRAINTS: &str = "  - { collection: DB.users, key: { email: 1 } }
  - { collection: DB.users, key: { tags: 1 }, sparse: true }
  - { collection: DB.users, key: { name: 1 }, sparse: true, collation: { locale: en, strength: 2 } }
  - { collection: DB.users, key: { nick: 1 }, partialFilterExpression: { active: true } }
  - { collection: DB.items, key: { _id: 1 } }
";
/// The first `_id` of documents that are written past Keyward.
pub const PLANTED: i64 = 20_000_000;
pub const LEASE: &str = "2s";

/// The constraints of a database.
pub fn constraints(database: &str) -> String {
    CONSTRAINTS.replace("DB", database)
}

pub fn shard(cluster: &Cluster, database: &str) {
    for collection in ["users", "items"] {
        let namespace = format!("{database}.{collection}");
        testkit::shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    }
}

pub fn item(id: i64) -> Document {
    doc! { "_id": id, "region": region(id) }
}

fn region(id: i64) -> &'static str {
    if id % 2 == 0 { "a" } else { "z" }
}

pub fn user(id: i64) -> Document {
    doc! { "_id": id, "region": region(id), "email": format!("{id}@x") }
}

/// Clients that write through a Keyward, until they are told to stop.
pub struct Writers {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    running: Vec<JoinHandle<()>>,
}

impl Writers {
    pub fn start(database: &Database, count: i64) -> Writers {
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let start = |writer| {
            tokio::spawn(write_on(
                database.collection("users"),
                writer,
                stop.clone(),
                written.clone(),
            ))
        };
        let running = (0..count).map(start).collect();
        Writers { stop, written, running }
    }

    /// How many writes took effect so far.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    pub async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for writer in self.running {
            writer.await.unwrap();
        }
    }
}

/// Writes of every kind, over few keys.
async fn write_on(users: Collection<Document>, writer: i64, stop: Arc<AtomicBool>, written: Arc<AtomicU64>) {
    let mut round = 0_i64;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let id = 10_000_000 + writer * 100 + round % 10;
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

/// Documents that have more keys than the others have.
pub async fn adorn(users: &Collection<Document>) {
    let extra = [
        (21_i64, doc! { "tags": ["a21", "b21", "c21"] }),
        (22, doc! { "name": "Zoe" }),
        (23, doc! { "nick": "n23", "active": true }),
    ];
    for (id, set) in extra {
        let filter = doc! { "_id": id, "region": region(id) };
        users.update_one(filter, doc! { "$set": set }).await.unwrap();
    }
}

/// The reservation of `owner` in a proxy collection, taken out of it.
async fn take(proxy: &Collection<Document>, filter: Document) -> Document {
    let there = proxy.find_one(filter).await.unwrap().unwrap();
    let route = doc! { "_id": there.get("_id").unwrap().clone() };
    assert_eq!(proxy.delete_one(route).await.unwrap().deleted_count, 1);
    there
}

/// Plants the faults; gives what is to be found, as [`crate::verify::run::Verified::listed`] lists it.
pub async fn plant(database: &Database) -> Vec<&'static str> {
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
            doc! { "_id": PLANTED, "region": "a", "email": "double@x" },
            doc! { "_id": PLANTED + 1, "region": "z", "email": "double@x" },
            doc! { "_id": PLANTED + 2, "region": "z", "email": "18@x" },
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
    let uncollatable = doc! { "_id": PLANTED + 3, "region": "z", "email": "planted@x", "name": "\u{344}" };
    users.insert_one(uncollatable).await.unwrap();
    // One `_id`, two documents.
    let items = proxy("items");
    items.insert_one(doc! { "_id": 1_i64, "region": "a" }).await.unwrap();
    vec![
        "abandoned email_1 ",
        "abandoned email_1 ",
        "abandoned nick_1 ",
        "duplicate _id_ 1,1",
        "duplicate email_1 18,20000002",
        "duplicate email_1 20000000,20000001",
        "foreign email_1 11",
        "foreign email_1 12",
        "misrouted email_1 20",
        "missing email_1 10",
        "missing email_1 15",
        "missing email_1 16",
        "missing email_1 20000003",
        "missing name_1 22",
        "missing tags_1 21",
        "unindexable name_1 20000003",
        "unreadable email_1 ",
        "unreadable email_1 ",
    ]
}
