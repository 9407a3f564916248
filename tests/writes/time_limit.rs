//! The time limit of a forwarded write: a router may take it twice, a replica set's primary takes it once.

use bson::{Document, doc};
use futures_util::TryStreamExt;
use testbed::{Cluster, ReplicaSet};
use testkit::{Keyward, run, shard_on_two};

use crate::own_reads::recorder::Recorder;

/// In milliseconds.
const LEASE: i64 = 20_000;

/// Inserts a document and changes its key in place.
async fn write(keyward: &Keyward, database: &str) {
    let client = keyward.client().await;
    let insert = doc! { "insert": "users", "documents": [{ "_id": 1, "region": "a", "email": "a@x" }] };
    let change = doc! { "q": { "_id": 1, "region": "a" }, "u": { "$set": { "email": "b@x" } } };
    let update = doc! { "update": "users", "updates": [change] };
    for command in [insert, update] {
        let reply = run(&client, database, command).await;
        assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    }
}

fn constraint(database: &str) -> String {
    format!("  - {{ collection: {database}.users, key: {{ email: 1 }}, strategy: compensating }}\n")
}

/// The time limit of the command on the users that has this name, in milliseconds.
fn limit_in(commands: &[Document], name: &str) -> i64 {
    let is_it = |command: &&Document| command.get_str(name).is_ok_and(|collection| collection == "users");
    let command = commands.iter().find(is_it);
    let command = command.unwrap_or_else(|| panic!("no {name} in {commands:?}"));
    let limit = command.get("maxTimeMS").unwrap();
    limit.as_i64().or(limit.as_i32().map(i64::from)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_may_take_the_limit_twice_within_the_lease() {
    let (cluster, database) = (Cluster::shared(), "limit_through_a_router");
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let recorder = Recorder::start(cluster.router_address());
    let keyward = Keyward::start_with_lease(&recorder.uri(), "20s", &constraint(database));
    write(&keyward, database).await;
    let commands = recorder.commands();
    for name in ["insert", "update"] {
        let limit = limit_in(&commands, name);
        assert!(0 < limit && 2 * limit < LEASE, "{name}: {limit}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_gets_most_of_the_lease() {
    let (set, database) = (ReplicaSet::shared(), "limit_of_a_primary");
    let users = set.client().database(database);
    users.run_command(doc! { "profile": 2 }).await.unwrap();
    let keyward = Keyward::start_with_lease(&set.uri(), "20s", &constraint(database));
    write(&keyward, database).await;
    let profile = users.collection::<Document>("system.profile");
    let commands: Vec<Document> = profile.find(doc! {}).await.unwrap().try_collect().await.unwrap();
    let commands: Vec<Document> = commands
        .iter()
        .filter_map(|entry| entry.get_document("command").ok().cloned())
        .collect();
    let limit = limit_in(&commands, "insert");
    assert!(LEASE / 2 < limit && limit < LEASE, "{limit}");
}

/// Nothing of it expires, so it may wait for a lock as long as any statement.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_reserves_nothing_needs_no_lease() {
    let (cluster, database) = (Cluster::shared(), "limit_of_a_delete");
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let recorder = Recorder::start(cluster.router_address());
    let keyward = Keyward::start_with_lease(&recorder.uri(), "20s", &constraint(database));
    write(&keyward, database).await;
    let delete = doc! { "delete": "users", "deletes": [{ "q": { "_id": 1, "region": "a" }, "limit": 1 }] };
    let reply = run(&keyward.client().await, database, delete).await;
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    let limit = limit_in(&recorder.commands(), "delete");
    assert!(LEASE < limit && 2 * limit < 60_000, "{limit}");
}

/// The same for documents that have no key of a sparse constraint. Beside one that has a key, they share its lease.
#[tokio::test(flavor = "multi_thread")]
async fn documents_that_reserve_nothing_need_no_lease() {
    let (cluster, database) = (Cluster::shared(), "limit_of_keyless");
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let recorder = Recorder::start(cluster.router_address());
    let sparse = constraint(database).replace("strategy", "sparse: true, strategy");
    let keyward = Keyward::start_with_lease(&recorder.uri(), "20s", &sparse);
    let client = keyward.client().await;
    let keyless = |id| doc! { "_id": id, "region": "a" };
    let with_key = doc! { "_id": 3, "region": "a", "email": "a@x" };
    for (documents, is_keyless) in [(vec![keyless(1)], true), (vec![keyless(2), with_key], false)] {
        let count = documents.len();
        let insert = doc! { "insert": "users", "documents": documents };
        let reply = run(&client, database, insert).await;
        assert_eq!(reply.get_i32("n").ok(), i32::try_from(count).ok(), "{reply}");
        let mut commands = recorder.commands();
        commands.reverse();
        let limit = limit_in(&commands, "insert");
        let is_longer = LEASE < limit && 2 * limit < 60_000;
        let is_within_lease = 0 < limit && 2 * limit < LEASE;
        assert!(if is_keyless { is_longer } else { is_within_lease }, "{limit}");
    }
}
