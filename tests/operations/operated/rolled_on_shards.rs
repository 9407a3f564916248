//! A constraint that comes, and goes, by a rolling restart on a sharded cluster, in both modes: no Keyward calls it enforced
//! before all reserve for it, and what was written without it is found by who has it again.

use bson::doc;
use testbed::Cluster;

use crate::operated::rolled::{is_enforced, readyz, until_ready, user};
use testkit::keyward::Keyward;

/// Settings for a cluster's collection, with or without the constraint.
struct Settings {
    database: &'static str,
    strategy: &'static str,
}

impl Settings {
    fn with(&self) -> String {
        let Settings { database, strategy } = self;
        Settings::of(&format!(
            "[{{ collection: {database}.users, key: {{ z: 1 }}, strategy: {strategy} }}]"
        ))
    }

    fn without() -> String {
        Settings::of("[]")
    }

    fn of(constraints: &str) -> String {
        let uri = Cluster::shared().uri();
        format!("upstream: {uri}\nlease: 2s\nreload_interval: 0s\ndrain: 5s\nconstraints: {constraints}\n")
    }

    fn is_enforced(&self, keyward: &Keyward) -> bool {
        is_enforced(keyward, self.database)
    }

    /// No page says that the constraint is enforced, and `/readyz` says why not.
    fn assert_waiting(&self, keyward: &Keyward, other: &Keyward) {
        let waits = format!("{}.users.z_1: reserving: waits for Keyward ", self.database);
        for page in [readyz(keyward), keyward.get("/status")] {
            assert!(page.contains(&waits), "{page}");
        }
        assert!(readyz(keyward).contains(&format!("process {}", other.pid())));
        assert!(!self.is_enforced(keyward));
    }
}

/// Sharded by a field that isn't the constraint's: documents lie on both shards.
fn shard(database: &str) {
    let cluster = Cluster::shared();
    cluster.run(database, doc! { "dropDatabase": 1 }).unwrap();
    cluster.run("admin", doc! { "enableSharding": database }).unwrap();
    let users = format!("{database}.users");
    let shard = doc! { "shardCollection": &users, "key": { "_id": 1 } };
    cluster.run("admin", shard).unwrap();
    cluster
        .run("admin", doc! { "split": &users, "middle": { "_id": 100 } })
        .unwrap();
    let find = doc! { "find": "databases", "filter": { "_id": database } };
    let reply = cluster.run("config", find).unwrap();
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    let primary = batch[0].as_document().unwrap().get_str("primary").unwrap();
    let other = cluster.shards().iter().find(|shard| shard.name() != primary).unwrap();
    let to_other = doc! { "moveChunk": &users, "find": { "_id": 100 }, "to": other.name() };
    // A shard takes part in one move at a time; other tests move chunks, too.
    while let Err(error) = cluster.run("admin", to_other.clone()) {
        assert!(
            error.to_string().contains("Unable to start new balancer operation"),
            "{error}"
        );
    }
}

/// The constraint comes to one Keyward after the other; nothing is promised in between, and nothing lost.
fn comes_and_goes(settings: &Settings) {
    let database = settings.database;
    shard(database);
    let [first, second] = [(); 2].map(|()| Keyward::of(&Settings::without()));
    first.insert(database, user(1, "v")).unwrap();
    second.insert(database, user(101, "w")).unwrap();
    first.stop();
    let first = Keyward::of(&settings.with());
    settings.assert_waiting(&first, &second);
    // It reserves all the same.
    first.insert(database, user(2, "y")).unwrap();
    assert_eq!(first.insert(database, user(102, "y")), Err(11000));
    second.insert(database, user(3, "x")).unwrap();
    settings.assert_waiting(&first, &second);
    second.stop();
    let second = Keyward::of(&settings.with());
    // On the other shard than the document that holds it.
    assert_eq!(second.insert(database, user(103, "x")), Err(11000));
    for keyward in [&first, &second] {
        keyward.until("enforced", || settings.is_enforced(keyward));
        until_ready(keyward);
        for (id, z) in [(104, "v"), (4, "w"), (5, "x"), (105, "y")] {
            assert_eq!(keyward.insert(database, user(id, z)), Err(11000), "{z}");
        }
    }
    let (code, findings) = second.verify();
    assert_eq!(code, Some(0), "{findings}");

    // It goes from one after the other.
    second.stop();
    let second = Keyward::of(&Settings::without());
    second.insert(database, user(106, "x")).unwrap();
    // Before the first duplicate went on, `enforced` was taken back.
    assert!(!is_called_enforced(database));
    first.until("a reason", || readyz(&first).contains("reserving: waits for Keyward "));
    settings.assert_waiting(&first, &second);
    first.stop();
    let first = Keyward::of(&Settings::without());
    first.insert(database, user(6, "y")).unwrap();
    assert!(!is_called_enforced(database));

    // And comes back: it isn't enforced while documents violate it.
    second.stop();
    let refused = first.reload(&settings.with());
    assert_eq!(refused["outcome"], "refused", "{refused}");
    assert!(
        refused["error"].as_str().unwrap().contains("2 documents of"),
        "{refused}"
    );
    assert!(!is_called_enforced(database));
    let delete = doc! { "delete": "users", "deletes": [{ "q": { "_id": { "$in": [106, 6] } }, "limit": 0 }] };
    first.run(database, delete).unwrap();
    assert_eq!(first.reload(&settings.with())["outcome"], "applied");
    assert!(settings.is_enforced(&first) && is_called_enforced(database));
    assert_eq!(first.insert(database, user(106, "x")), Err(11000));
}

/// Whether the constraint's document in the cluster says so.
fn is_called_enforced(database: &str) -> bool {
    let find = doc! { "find": "keyward.constraints", "filter": { "_id": { "collection": "users", "name": "z_1" } } };
    let reply = Cluster::shared().run(database, find).unwrap();
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch[0].as_document().unwrap().get_str("state").unwrap() == "enforced"
}

#[test]
fn a_compensating_constraint_comes_and_goes_by_rolling_restarts() {
    comes_and_goes(&Settings {
        database: "rolled_compensating",
        strategy: "compensating",
    });
}

#[test]
fn a_strict_constraint_comes_and_goes_by_rolling_restarts() {
    comes_and_goes(&Settings {
        database: "rolled_strict",
        strategy: "transaction",
    });
}
