//! Transaction numbers come from Keyward's clock. One that was ahead leaves high numbers behind in the sessions that it used.

use std::time::{SystemTime, UNIX_EPOCH};

use bson::{Binary, Document, doc, spec::BinarySubtype};
use keyward::server::own_session::derived_session;
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

/// A driver's session, which a Keyward with a clock a year ahead has used.
struct UsedAhead {
    clients: [u8; 16],
    number: i64,
}

impl UsedAhead {
    /// `server` has seen a transaction of Keyward's in it.
    fn at(server: &ReplicaSet, database: &str) -> UsedAhead {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let used = UsedAhead {
            clients: rand::random(),
            number: i64::try_from(now.as_micros()).unwrap() + YEAR_IN_MICROSECONDS,
        };
        let find = doc! { "find": "users", "startTransaction": true };
        server.run(database, used.in_transaction(find, used.number)).unwrap();
        let commit = used.in_transaction(doc! { "commitTransaction": 1 }, used.number);
        server.run("admin", commit).unwrap();
        used
    }

    /// A command of Keyward's own transaction in the session that Keyward derives from it.
    fn in_transaction(&self, mut command: Document, number: i64) -> Document {
        command.extend(
            doc! { "lsid": session(&derived_session(&self.clients)), "txnNumber": number, "autocommit": false },
        );
        command
    }

    /// Sends the client's retryable `command`, which must take effect.
    fn carries_out(&self, keyward: &Keyward, database: &str, mut command: Document, number: i64) {
        command.extend(doc! { "lsid": session(&self.clients), "txnNumber": number, "maxTimeMS": 30_000 });
        let reply = send(&keyward.address, database, command).unwrap();
        let outcome = (reply.get_i32("n").ok(), write_errors(&reply));
        assert_eq!(outcome, (Some(1), vec![]), "{reply}");
    }
}

#[test]
fn a_session_that_a_clock_a_year_ahead_has_used_takes_writes() {
    let (set, database) = (ReplicaSet::shared(), "clock_ahead");
    let keyward = Keyward::start(&set.uri(), &plain(database));
    send(&keyward.address, database, insert(vec![user(0, "0@x")], true)).unwrap();
    let used = UsedAhead::at(set, database);
    used.carries_out(&keyward, database, insert(vec![user(1, "1@x")], true), 1);
    let email = vec![doc! { "$set": { "email": { "$concat": ["$email", "y"] } } }];
    let change = doc! { "update": "users", "updates": [{ "q": { "_id": 1 }, "u": email }] };
    used.carries_out(&keyward, database, change, 2);
    // The session has remembered the high number all the time.
    let lower = doc! { "find": "users", "startTransaction": true };
    let refused = set.run(database, used.in_transaction(lower, used.number - 1));
    let refused = refused.unwrap_err();
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
        let used = UsedAhead::at(shard_of_a(cluster, database, id), database);
        let document = doc! { "_id": id + 10, "region": "a", "email": format!("{id}@x") };
        used.carries_out(&keyward, database, insert(vec![document], true), 1);
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
