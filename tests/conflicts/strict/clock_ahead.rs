//! Transaction numbers come from Keyward's clock. One that was ahead leaves high numbers behind in the sessions that it used.

use std::time::{SystemTime, UNIX_EPOCH};

use bson::{Binary, Document, doc, spec::BinarySubtype};
use testbed::{Cluster, ReplicaSet};
use testkit::Keyward;
use testkit::wire::send;

use crate::strict::one_replica_set::{plain, user};
use crate::strict::{EMAIL, insert, users, write_errors};

const YEAR_IN_MICROSECONDS: i64 = 365 * 24 * 60 * 60 * 1_000_000;

fn session(bytes: &[u8]) -> Document {
    let bytes = bytes.to_vec();
    let subtype = BinarySubtype::Uuid;
    doc! { "id": Binary { subtype, bytes } }
}

#[test]
fn a_session_that_a_clock_a_year_ahead_has_used_takes_writes() {
    let (set, database) = (ReplicaSet::shared(), "clock_ahead");
    let keyward = Keyward::start(&set.uri(), &plain(database));
    let run = |command: Document| send(&keyward.address, database, command).unwrap();
    run(insert(vec![user(0, "0@x")], true));
    let clients = rand::random::<[u8; 16]>();
    let derived = xxhash_rust::xxh3::xxh3_128(&[b"keyward", &clients[..]].concat()).to_be_bytes();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let ahead = i64::try_from(now.as_micros()).unwrap() + YEAR_IN_MICROSECONDS;
    let in_transaction = |mut command: Document, number: i64| {
        command.extend(doc! { "lsid": session(&derived), "txnNumber": number, "autocommit": false });
        command
    };
    let mut find = in_transaction(doc! { "find": "users" }, ahead);
    find.insert("startTransaction", true);
    set.run(database, find).unwrap();
    set.run("admin", in_transaction(doc! { "commitTransaction": 1 }, ahead))
        .unwrap();

    let times = |number: i64| doc! { "lsid": session(&clients), "txnNumber": number, "maxTimeMS": 30_000 };
    let mut inserted = insert(vec![user(1, "1@x")], true);
    inserted.extend(times(1));
    let reply = run(inserted);
    assert_eq!(
        (reply.get_i32("n").ok(), write_errors(&reply)),
        (Some(1), vec![]),
        "{reply}"
    );
    let email = vec![doc! { "$set": { "email": { "$concat": ["$email", "y"] } } }];
    let mut changed = doc! { "update": "users", "updates": [{ "q": { "_id": 1 }, "u": email }] };
    changed.extend(times(2));
    let reply = run(changed);
    assert_eq!(
        (reply.get_i32("n").ok(), write_errors(&reply)),
        (Some(1), vec![]),
        "{reply}"
    );
    // The first number still is too low after the connection has caught up.
    let lower = in_transaction(doc! { "find": "users", "startTransaction": true }, ahead - 1);
    let refused = set.run(database, lower).unwrap_err();
    assert!(
        matches!(&refused, testbed::Error::Command(error) if error.code() == Some(225)),
        "{refused}"
    );
}

/// The record of a statement may lie on a shard that has taken every number so far.
#[test]
fn a_shard_that_has_seen_a_clock_a_year_ahead_takes_writes_beside_another() {
    let database = "clock_ahead_shard";
    let cluster = users(database);
    let keyward = crate::strict::keyward(cluster, database, "20s", &[EMAIL]);
    for id in 0..4 {
        let clients = rand::random::<[u8; 16]>();
        let derived = xxhash_rust::xxh3::xxh3_128(&[b"keyward", &clients[..]].concat()).to_be_bytes();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let ahead = i64::try_from(now.as_micros()).unwrap() + YEAR_IN_MICROSECONDS;
        let session_of = doc! { "lsid": session(&derived), "txnNumber": ahead, "autocommit": false };
        let mut find = doc! { "find": "users", "startTransaction": true };
        find.extend(session_of.clone());
        let mut commit = doc! { "commitTransaction": 1 };
        commit.extend(session_of);
        // Regions below `m` are there.
        let shard = shard_of_a(cluster, database, id);
        shard.run(database, find).unwrap();
        shard.run("admin", commit).unwrap();
        let document = doc! { "_id": id + 10, "region": "a", "email": format!("{id}@x") };
        let mut inserted = insert(vec![document], true);
        inserted.extend(doc! { "lsid": session(&clients), "txnNumber": 1_i64, "maxTimeMS": 30_000 });
        let reply = send(&keyward.address, database, inserted).unwrap();
        assert_eq!(
            (reply.get_i32("n").ok(), write_errors(&reply)),
            (Some(1), vec![]),
            "{reply}"
        );
    }
}

/// The shard that gets a document of region `a`.
fn shard_of_a<'c>(cluster: &'c Cluster, database: &str, id: i32) -> &'c ReplicaSet {
    let probe = doc! { "insert": "users", "documents": [{ "_id": 100 + id, "region": "a" }] };
    cluster.run(database, probe).unwrap();
    let count = doc! { "count": "users", "query": { "_id": 100 + id } };
    let has_it = |shard: &&ReplicaSet| shard.run(database, count.clone()).unwrap().get_i32("n").unwrap() == 1;
    cluster.shards().iter().find(has_it).unwrap()
}
