//! How proxy collections lie on the shards: the server spreads new ones, and those of earlier versions go on.

use std::collections::{BTreeMap, BTreeSet};

use bson::{Document, doc};
use futures_util::TryStreamExt;
use testbed::Cluster;
use testkit::altering::Altering;
use testkit::relay::Relay;
use testkit::wire::Connection;
use testkit::{Keyward, on_each_shard, shard_on_two, spread_on_two};

const PROXY: &str = "keyward.users.email_1";
/// Managed services give no privileges for these.
const REFUSED: [&str; 4] = ["split", "moveChunk", "moveRange", "listShards"];

/// A database with `users` on both shards.
fn users(database: &str) -> &'static Cluster {
    let cluster = Cluster::shared();
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    cluster
}

fn constraint(database: &str, more: &str) -> String {
    format!("  - {{ collection: {database}.users, key: {{ email: 1 }}{more} }}\n")
}

fn user(n: i32) -> Document {
    let region = if n % 2 == 0 { "a" } else { "z" };
    doc! { "_id": n, "region": region, "email": format!("{n}@x"), "n": n }
}

fn insert(numbers: std::ops::Range<i32>) -> Document {
    doc! { "insert": "users", "documents": numbers.map(user).collect::<Vec<_>>() }
}

/// The shard key of the database's proxy collection.
fn shard_key(cluster: &Cluster, database: &str) -> Document {
    let find = doc! { "find": "collections", "filter": { "_id": format!("{database}.{PROXY}") } };
    let reply = cluster.run("config", find).unwrap();
    let found = &reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap()[0];
    found.as_document().unwrap().get_document("key").unwrap().clone()
}

/// Shards the proxy collection as versions before the hashed layout do.
fn shard_by_id(cluster: &Cluster, database: &str) {
    let shard = doc! { "shardCollection": format!("{database}.{PROXY}"), "key": { "_id": 1 } };
    cluster.run("admin", shard).unwrap();
}

fn assert_duplicate(keyward: &Keyward, database: &str, number: i32) {
    let mut duplicate = user(number);
    duplicate.insert("_id", -number);
    assert_eq!(keyward.insert(database, duplicate), Err(11_000));
}

/// Each shard has some of the reservations, and they are those of the documents.
async fn assert_spread(cluster: &Cluster, database: &str) {
    let on_shards = on_each_shard(cluster.shards(), database, PROXY).await;
    assert!(on_shards.iter().all(|one| one.len() > 5), "{on_shards:?}");
    assert_agreement(cluster, database).await;
}

async fn assert_agreement(cluster: &Cluster, database: &str) {
    let email = |document: &Document| vec![doc! { "email": document.get("email").unwrap().clone() }];
    testkit::assert_documents_and_reservations_agree(cluster, database, "users", "email_1", email).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_needs_no_privilege_to_split_and_to_move_chunks() {
    let database = "layout_unprivileged";
    let cluster = users(database);
    let refuse = |body: &mut Document| {
        if body.keys().next().is_some_and(|name| REFUSED.contains(&name.as_str())) {
            *body = doc! { "notAllowed": 1, "$db": "admin" };
        }
    };
    let relay = Altering::start(cluster.router_address(), refuse, |_, _| {});
    let keyward = Keyward::start(&relay.uri(), &constraint(database, ""));
    Connection::greeted(&keyward.address).must(database, &insert(0..60));
    assert_duplicate(&keyward, database, 7);
    assert_eq!(shard_key(cluster, database), doc! { "_id.h": "hashed" });
    assert_spread(cluster, database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keywards_that_start_at_once_spread_it() {
    let database = "layout_at_once";
    let cluster = users(database);
    let starting = [(); 3].map(|()| {
        let (uri, constraint) = (cluster.uri(), constraint(database, ""));
        std::thread::spawn(move || Keyward::start(&uri, &constraint))
    });
    let keywards = starting.map(|starting| starting.join().unwrap());
    for (at, keyward) in (0..).zip(&keywards) {
        Connection::greeted(&keyward.address).must(database, &insert(at * 20..at * 20 + 20));
    }
    for keyward in &keywards {
        assert_duplicate(keyward, database, 7);
    }
    assert_eq!(shard_key(cluster, database), doc! { "_id.h": "hashed" });
    assert_spread(cluster, database).await;
}

/// As that of a replica set which became a shard: it isn't empty, so `shardCollection` requires the index.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_collection_with_reservations_is_sharded() {
    let [origin, database] = ["layout_origin", "layout_filled"];
    let cluster = users(origin);
    users(database);
    let first = Keyward::start(&cluster.uri(), &constraint(origin, ""));
    Connection::greeted(&first.address).must(origin, &insert(0..20));
    let reservations = on_each_shard(cluster.shards(), origin, PROXY).await.concat();
    cluster.run(database, insert(0..20)).unwrap();
    cluster
        .run(database, doc! { "insert": PROXY, "documents": reservations })
        .unwrap();
    let keyward = Keyward::start(&cluster.uri(), &constraint(database, ""));
    assert_eq!(shard_key(cluster, database), doc! { "_id.h": "hashed" });
    Connection::greeted(&keyward.address).must(database, &insert(20..30));
    assert_duplicate(&keyward, database, 7);
    assert_duplicate(&keyward, database, 27);
    assert_agreement(cluster, database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_version_may_shard_it_meanwhile() {
    let database = "layout_raced";
    let cluster = users(database);
    let relay = Relay::start(cluster.router_address());
    let namespace = format!("{database}.{PROXY}");
    let length = u32::try_from(namespace.len() + 1).unwrap().to_le_bytes();
    let held = relay.hold(&[b"\x02shardCollection\0", &length[..], namespace.as_bytes()].concat());
    let (uri, constraint) = (relay.uri(), constraint(database, ""));
    let starting = std::thread::spawn(move || Keyward::start(&uri, &constraint));
    held.wait();
    shard_by_id(cluster, database);
    drop(held);
    let keyward = starting.join().unwrap();
    assert_eq!(shard_key(cluster, database), doc! { "_id": 1 });
    Connection::greeted(&keyward.address).must(database, &insert(0..10));
    assert_duplicate(&keyward, database, 7);
    assert_agreement(cluster, database).await;
}

/// Statements of each kind, each about one key or two.
fn statements() -> Vec<Document> {
    let by_id = |n: i32| doc! { "_id": n, "region": if n % 2 == 0 { "a" } else { "z" } };
    let update = |n: i32, change: bson::Bson| doc! { "update": "users", "updates": [{ "q": by_id(n), "u": change }] };
    let email = |email: &str| doc! { "$set": { "email": email } };
    let mut statements = vec![insert(10..40)];
    for n in 0..4 {
        statements.extend([
            insert(100 + n..101 + n),
            update(n, email(&format!("changed {n}")).into()),
            update(4 + n, vec![email(&format!("by a pipeline {n}"))].into()),
            doc! { "delete": "users", "deletes": [{ "q": by_id(10 + n), "limit": 1 }] },
            doc! { "find": "users", "filter": { "email": format!("{}@x", 20 + n) } },
            doc! { "findAndModify": "users", "query": by_id(24 + n), "remove": true },
        ]);
    }
    statements
}

/// For each reservation that the shards were asked for: the shards. From their profilers; the commands that carry only one `_id` count.
async fn asked(cluster: &Cluster, database: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut asked: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for shard in cluster.shards() {
        let client = shard.direct_client().unwrap();
        let profile = client.database(database).collection::<Document>("system.profile");
        let entries = profile
            .find(doc! { "ns": format!("{database}.{PROXY}") })
            .await
            .unwrap();
        let entries: Vec<Document> = entries.try_collect().await.unwrap();
        for entry in entries {
            let command = entry.get_document("command").unwrap();
            let filter = command.get_document("filter").or_else(|_| command.get_document("q"));
            let Some(id) = filter.ok().and_then(|filter| filter.get_document("_id").ok()) else {
                continue;
            };
            assert_eq!(entry.get_str("planSummary").unwrap(), "IXSCAN { _id: 1 }", "{entry}");
            let id = match id.get_array("$in") {
                Ok(ids) if ids.len() == 1 => ids[0].as_document().unwrap(),
                Ok(_) => continue,
                Err(_) => id,
            };
            asked.entry(id.to_string()).or_default().insert(shard.name().to_owned());
        }
    }
    asked
}

/// Each shard is asked only for the reservations that lie on it.
async fn assert_one_shard_is_asked(cluster: &Cluster, database: &str, strategy: &str) {
    let more = format!(", route: true, strategy: {strategy}");
    let keyward = Keyward::start(&cluster.uri(), &constraint(database, &more));
    let mut connection = Connection::greeted(&keyward.address);
    connection.must(database, &insert(0..10));
    for shard in cluster.shards() {
        shard.run(database, doc! { "profile": 2 }).unwrap();
    }
    for statement in statements() {
        let reply = connection.must(database, &statement);
        assert!(!reply.contains_key("writeErrors"), "{statement}: {reply}");
    }
    assert_duplicate(&keyward, database, 30);
    let asked = asked(cluster, database).await;
    assert!(asked.len() > 10, "{strategy}: {asked:?}");
    for (id, shards) in &asked {
        assert_eq!(shards.len(), 1, "{strategy}, {id}: {shards:?}");
    }
    assert!(asked.values().collect::<BTreeSet<_>>().len() > 1, "{asked:?}");
    assert_spread(cluster, database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_asks_the_shard_of_its_key() {
    for strategy in ["compensating", "strict"] {
        let database = format!("layout_hashed_{strategy}");
        let cluster = users(&database);
        assert_one_shard_is_asked(cluster, &database, strategy).await;
        assert_eq!(shard_key(cluster, &database), doc! { "_id.h": "hashed" });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_collection_of_an_earlier_version_goes_on() {
    for strategy in ["compensating", "strict"] {
        let database = format!("layout_earlier_{strategy}");
        let cluster = users(&database);
        shard_by_id(cluster, &database);
        spread_on_two(cluster, &format!("{database}.{PROXY}"), doc! { "_id": { "h": 32_768 } });
        assert_one_shard_is_asked(cluster, &database, strategy).await;
        assert_eq!(shard_key(cluster, &database), doc! { "_id": 1 });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_may_reshard_it_while_keyward_serves() {
    let database = "layout_resharded";
    let cluster = Cluster::alone().unwrap();
    let namespace = format!("{database}.users");
    shard_on_two(&cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    shard_by_id(&cluster, database);
    let settings = format!(
        "upstream: {}\nconstraints:\n{}",
        cluster.uri(),
        constraint(database, "")
    );
    let start = || Keyward::of_in(&settings, &[("KEYWARD_REGISTER_HASTE", "10")]);
    let keyward = start();
    Connection::greeted(&keyward.address).must(database, &insert(0..20));
    let reshard = doc! { "reshardCollection": format!("{database}.{PROXY}"), "key": { "_id.h": "hashed" } };
    cluster.run("admin", reshard).unwrap();
    let restarted = start();
    for (keyward, at) in [(keyward, 20), (restarted, 40)] {
        // The server refuses to write to another collection than the one that was there.
        let connection = std::cell::RefCell::new(Connection::greeted(&keyward.address));
        keyward.until("writes go on", || {
            let reply = connection.borrow_mut().run(database, &insert(at..at + 20));
            assert!(!reply.to_string().contains("11000"), "{reply}");
            reply.get_i32("n").ok() == Some(20)
        });
        assert_duplicate(&keyward, database, 7);
    }
    assert_eq!(shard_key(&cluster, database), doc! { "_id.h": "hashed" });
    assert_agreement(&cluster, database).await;
}
