//! Transaction numbers come from Keyward's clock. One that was ahead leaves high numbers behind in the sessions that it used.

use std::time::{SystemTime, UNIX_EPOCH};

use bson::{Binary, Document, doc, spec::BinarySubtype};
use testbed::ReplicaSet;
use testkit::Keyward;
use testkit::wire::send;

use crate::strict::one_replica_set::{plain, user};
use crate::strict::{insert, write_errors};

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
