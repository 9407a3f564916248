//! Keywards whose view of the list of clients' constraints is older than what a client was told.

use std::cell::Cell;
use std::thread::sleep;
use std::time::Duration;

use bson::doc;
use testkit::wire::Connection;

use super::*;

fn user(id: i32, region: &str, email: &str) -> Document {
    doc! { "insert": "users", "documents": [{ "_id": id, "region": region, "email": email }] }
}

/// Sends `command` through `keyward` while it stands still, does `meanwhile`, and gives the reply.
fn sent_to_frozen(keyward: &Keyward, database: &str, command: &Document, meanwhile: impl FnOnce()) -> Document {
    let mut connection = Connection::greeted(&keyward.address);
    keyward.freeze();
    meanwhile();
    std::thread::scope(|scope| {
        let sent = scope.spawn(move || connection.run(database, command));
        // Most likely it is there before the Keyward reads the list. If not, less is tested.
        sleep(Duration::from_millis(200));
        keyward.wake();
        sent.join().unwrap()
    })
}

#[test]
fn a_keyward_enforces_it_from_its_first_write_on() {
    const DATABASE: &str = "created_before_first_write";
    shard_users(DATABASE);
    let keywards = [start(), start()];
    keywards[0]
        .insert(DATABASE, doc! { "_id": 1, "region": "a", "email": "x" })
        .unwrap();
    let reply = sent_to_frozen(&keywards[1], DATABASE, &user(2, "z", "x"), || {
        must(&reply(&keywards[0], DATABASE, &create([unique_email()])));
    });
    assert!(reply.to_string().contains("11000"), "{reply}");
}

#[test]
fn an_index_is_dropped_with_its_constraint_through_any_keyward() {
    const DATABASE: &str = "created_and_dropped_elsewhere";
    shard_users(DATABASE);
    let keywards = [start(), start()];
    let drop = doc! { "dropIndexes": "users", "index": "email_1" };
    let reply = sent_to_frozen(&keywards[1], DATABASE, &drop, || {
        must(&reply(&keywards[0], DATABASE, &create([unique_email()])));
    });
    must(&reply);
    let id = Cell::new(0);
    keywards[0].until("no constraint", || {
        id.set(id.get() + 2);
        insert_pair(&keywards[0], DATABASE, id.get(), &format!("{}@x", id.get()))
            .iter()
            .all(Result::is_ok)
    });
}

#[test]
fn a_drop_that_the_server_refuses_ends_no_constraint() {
    const DATABASE: &str = "created_and_not_dropped";
    shard_users(DATABASE);
    let keyward = start();
    must(&reply(&keyward, DATABASE, &create([unique_email()])));
    let dropped = reply(
        &keyward,
        DATABASE,
        &doc! { "dropIndexes": "users", "index": ["email_1", "nope"] },
    );
    assert_eq!(dropped.get_i32("code").ok(), Some(27), "{dropped}");
    assert_eq!(unique_indexes(&keyward, DATABASE), ["email_1"]);
    assert_eq!(insert_pair(&keyward, DATABASE, 10, "new"), [Ok(()), Err(11_000)]);
}

/// The list as it is.
fn list() -> Document {
    let found = CLUSTER.run("keyward", doc! { "find": "clientConstraints" }).unwrap();
    let batch = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch[0].as_document().unwrap().clone()
}

#[test]
fn a_command_fails_whole_if_a_build_that_it_joined_fails() {
    const DATABASE: &str = "created_by_two";
    shard_users(DATABASE);
    // The third builds the one, and stands still.
    let [keyward, third] = [start(), start()];
    keyward
        .insert(DATABASE, doc! { "_id": 1, "region": "a", "email": "x", "name": "x" })
        .unwrap();
    must(&reply(
        &keyward,
        DATABASE,
        &create([doc! { "key": { "other": 1 }, "name": "other_1", "unique": true, "sparse": true }]),
    ));
    let registered = CLUSTER
        .run(
            "keyward",
            doc! { "find": "keywards", "filter": { "pid": i64::from(third.pid().as_raw()) } },
        )
        .unwrap();
    let registered = registered
        .get_document("cursor")
        .unwrap()
        .get_array("firstBatch")
        .unwrap()[0]
        .as_document()
        .unwrap()
        .get_object_id("_id")
        .unwrap();
    third.freeze();
    let id = bson::oid::ObjectId::new();
    let existing = CLUSTER
        .run(DATABASE, doc! { "listCollections": 1, "filter": { "name": "users" } })
        .unwrap();
    let uuid = existing
        .get_document("cursor")
        .unwrap()
        .get_array("firstBatch")
        .unwrap()[0]
        .as_document()
        .unwrap()
        .get_document("info")
        .unwrap()
        .get("uuid")
        .unwrap()
        .clone();
    let entry = doc! { "id": id, "command": id, "collection": format!("{DATABASE}.users"), "name": "email_1", "key": { "email": 1 }, "uuid": uuid, "builder": registered };
    let change = |u: Document| {
        CLUSTER
            .run(
                "keyward",
                doc! { "update": "clientConstraints", "updates": [{ "q": { "_id": "list" }, "u": u }] },
            )
            .unwrap()
    };
    change(doc! { "$push": { "constraints": entry }, "$inc": { "version": 1_i64 } });
    let name = doc! { "key": { "name": 1 }, "name": "name_1", "unique": true };
    let both = std::thread::scope(|scope| {
        let both = scope.spawn(|| reply(&keyward, DATABASE, &create([unique_email(), name])));
        keyward.until("the second is built", || {
            let list = list();
            list.get_array("constraints").unwrap().iter().any(|one| {
                let one = one.as_document().unwrap();
                one.get_str("collection")
                    .is_ok_and(|one| one == format!("{DATABASE}.users"))
                    && one.get_str("name").is_ok_and(|one| one == "name_1")
                    && !one.contains_key("builder")
            })
        });
        let error = doc! { "ok": 0.0, "errmsg": "planted", "code": 11_000, "codeName": "DuplicateKey" };
        change(
            doc! { "$pull": { "constraints": { "id": id } }, "$push": { "ended": { "id": id, "reply": error } }, "$inc": { "version": 1_i64 } },
        );
        both.join().unwrap()
    });
    third.wake();
    assert_eq!(both.get_i32("code").ok(), Some(11_000), "{both}");
}

#[test]
fn an_index_that_a_files_constraint_contradicts_is_refused() {
    const DATABASE: &str = "created_against_file";
    shard_users(DATABASE);
    let _file = Keyward::start(
        &CLUSTER.uri(),
        &format!("  - {{ collection: {DATABASE}.users, key: {{ email: 1 }}, sparse: true }}\n"),
    );
    let keyward = start();
    let refused = reply(&keyward, DATABASE, &create([unique_email()]));
    assert_eq!(refused.get_i32("code").ok(), Some(86), "{refused}");
}

#[test]
fn a_long_duplicate_is_reported() {
    const DATABASE: &str = "created_on_long_duplicates";
    shard_users(DATABASE);
    let keyward = start();
    let email = format!("x{}", "\u{e9}".repeat(200));
    for (id, region) in [(1, "a"), (2, "z")] {
        keyward
            .insert(DATABASE, doc! { "_id": id, "region": region, "email": &email })
            .unwrap();
    }
    let refused = reply(&keyward, DATABASE, &create([unique_email()]));
    assert_eq!(refused.get_i32("code").ok(), Some(11_000), "{refused}");
}

#[test]
fn documents_of_a_collection_created_anew_are_read() {
    const DATABASE: &str = "created_and_loaded";
    shard_users_of(&QUIET, DATABASE);
    let keyward = start_at(&QUIET);
    must(&reply(&keyward, DATABASE, &create([unique_email()])));
    // Past Keyward.
    QUIET.run(DATABASE, doc! { "drop": "users" }).unwrap();
    shard_users_of(&QUIET, DATABASE);
    for (id, region) in [(1, "a"), (2, "z")] {
        QUIET.run(DATABASE, user(id, region, "x")).unwrap();
    }
    let refused = reply(&keyward, DATABASE, &create([unique_email()]));
    assert_eq!(refused.get_i32("code").ok(), Some(11_000), "{refused}");
}

/// One that is slow to end a constraint doesn't count as one that reserves for its successor.
#[test]
fn a_constraint_made_again_waits_for_who_ends_the_one_before() {
    const DATABASE: &str = "created_again";
    shard_users_of(&QUIET, DATABASE);
    shard_users_of(&QUIET, "created_again_other");
    let quick = start_at(&QUIET);
    let settings = format!("upstream: {}\nlease: 10s\nconstraints: []\n", QUIET.uri());
    let slow = Keyward::of_in(&settings, &[("KEYWARD_TRANSACTIONS_HASTE", "4")]);
    must(&reply(&quick, DATABASE, &create([unique_email()])));
    slow.insert(DATABASE, doc! { "_id": 1, "region": "a", "email": "x" })
        .unwrap();
    assert_eq!(
        slow.insert(DATABASE, doc! { "_id": 2, "region": "z", "email": "x" }),
        Err(11_000)
    );
    // A transaction of a client makes it wait before it applies a further constraint, and with it the end of this one.
    let lsid = doc! { "id": bson::Uuid::new() };
    let mut connection = Connection::greeted(&slow.address);
    let begun = doc! { "find": "things", "lsid": lsid.clone(), "txnNumber": 1_i64, "autocommit": false, "startTransaction": true };
    connection.must("created_again_things", &begun);
    slow.freeze();
    std::thread::scope(|scope| {
        let dropped = scope.spawn(|| reply(&quick, DATABASE, &doc! { "dropIndexes": "users", "index": "email_1" }));
        let is_in = |database: &str| {
            let list = QUIET.run("keyward", doc! { "find": "clientConstraints" }).unwrap();
            list.to_string().contains(&format!("{database}.users"))
        };
        quick.until("the end", || !is_in(DATABASE));
        let other = scope.spawn(|| reply(&quick, "created_again_other", &create([unique_email()])));
        quick.until("another", || is_in("created_again_other"));
        slow.wake();
        must(&dropped.join().unwrap());
        must(&reply(&quick, DATABASE, &create([unique_email()])));
        for id in 10..200 {
            let found = slow.insert(DATABASE, doc! { "_id": id, "region": "z", "email": "x" });
            assert_eq!(found, Err(11_000), "{id}");
            sleep(Duration::from_millis(20));
        }
        must(&other.join().unwrap());
    });
}
