//! A constraint holds for all Keywards from the moment on when the client has its reply, and is gone for all when it is dropped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bson::doc;
use testkit::wire::Connection;

use super::*;

#[test]
fn a_unique_index_is_a_constraint_for_every_keyward() {
    const DATABASE: &str = "created_everywhere";
    shard_users(DATABASE);
    let keywards = [start(), start()];
    for (at, keyward) in keywards.iter().enumerate() {
        let at = i32::try_from(at).unwrap();
        keyward
            .insert(DATABASE, doc! { "_id": at, "region": "a", "email": format!("{at}@x") })
            .unwrap();
    }
    let made = reply(&keywards[0], DATABASE, &create([unique_email()]));
    must(&made);
    assert!(made.contains_key("raw"), "as a mongos shapes it: {made}");
    // The index of the old documents, of a new one, and of one that the other Keyward inserts.
    assert_eq!(
        keywards[1].insert(DATABASE, doc! { "_id": 2, "region": "z", "email": "0@x" }),
        Err(11_000)
    );
    keywards[1]
        .insert(DATABASE, doc! { "_id": 3, "region": "z", "email": "new" })
        .unwrap();
    assert_eq!(
        keywards[0].insert(DATABASE, doc! { "_id": 4, "region": "a", "email": "new" }),
        Err(11_000)
    );
    for keyward in &keywards {
        assert_eq!(unique_indexes(keyward, DATABASE), ["email_1"]);
    }
    // A pod that boots later.
    let third = start();
    let again = reply(&third, DATABASE, &create([unique_email()]));
    must(&again);
    assert_eq!(
        third.insert(DATABASE, doc! { "_id": 5, "region": "a", "email": "new" }),
        Err(11_000)
    );

    let dropped = reply(&third, DATABASE, &doc! { "dropIndexes": "users", "index": "email_1" });
    must(&dropped);
    for keyward in &keywards {
        assert_eq!(indexes(keyward, DATABASE).len(), 2, "_id and the shard key's");
    }
    assert_eq!(insert_pair(&keywards[0], DATABASE, 10, "new"), [Ok(()), Ok(())]);
    assert_eq!(insert_pair(&keywards[1], DATABASE, 12, "new"), [Ok(()), Ok(())]);
}

/// Each insert that was acknowledged has its e-mail alone, although the constraint came in their midst.
#[test]
fn writers_meet_no_error_but_duplicates_while_the_constraint_is_built() {
    const DATABASE: &str = "created_amid_writes";
    const WRITERS: i32 = 4;
    shard_users(DATABASE);
    let keywards = [start(), start()];
    let is_made = AtomicBool::new(false);
    let counts = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (keyward, is_made) = (&keywards[usize::try_from(writer % 2).unwrap()], &is_made);
                scope.spawn(move || {
                    let (mut at, mut since) = (0, 0);
                    // Some writes after the constraint holds, too.
                    while since < 50 {
                        since += i32::from(is_made.load(Ordering::Acquire));
                        let id = writer * 1_000_000 + at;
                        let region = ["a", "z"][usize::try_from(at % 2).unwrap()];
                        let user = doc! { "_id": id, "region": region, "email": format!("{writer}.{at}") };
                        assert_eq!(keyward.insert(DATABASE, user), Ok(()));
                        at += 1;
                    }
                    at
                })
            })
            .collect();
        let made = reply(&keywards[0], DATABASE, &create([unique_email()]));
        must(&made);
        is_made.store(true, Ordering::Release);
        writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .collect::<Vec<_>>()
    });
    for (writer, count) in (0..).zip(counts) {
        // The first, the last, and one from the middle: each has its reservation.
        for at in [0, count / 2, count - 1] {
            let user = doc! { "_id": -1, "region": "a", "email": format!("{writer}.{at}") };
            assert_eq!(keywards[1].insert(DATABASE, user), Err(11_000), "{writer}.{at}");
        }
    }
}

#[test]
fn a_dropped_collection_takes_its_constraints_along() {
    const DATABASE: &str = "created_and_dropped";
    shard_users_of(&QUIET, DATABASE);
    let keyward = start_at(&QUIET);
    must(&reply(&keyward, DATABASE, &create([unique_email()])));
    keyward.run(DATABASE, doc! { "drop": "users" }).unwrap();
    shard_users_of(&QUIET, DATABASE);
    // The same name with other options would conflict if the constraint were still there.
    let sparse = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true, "sparse": true };
    let made = reply(&keyward, DATABASE, &create([sparse]));
    must(&made);
    for id in [1, 2] {
        keyward.insert(DATABASE, doc! { "_id": id, "region": "a" }).unwrap();
    }
    assert_eq!(insert_pair(&keyward, DATABASE, 3, "x"), [Ok(()), Err(11_000)]);
}

/// The constraint ends with the drop, as a native index does.
#[test]
fn a_new_collection_of_the_same_name_has_no_constraint_from_the_first_write_on() {
    const DATABASE: &str = "created_and_dropped_at_once";
    let keywards = [start_at(&QUIET), start_at(&QUIET)];
    for (round, drop) in [
        doc! { "drop": "users" },
        doc! { "dropDatabase": 1 },
        doc! { "drop": "users" },
    ]
    .into_iter()
    .enumerate()
    {
        shard_users_of(&QUIET, DATABASE);
        let [dropping, writing] = match round {
            0 => [0, 0],
            _ => [0, 1],
        };
        must(&reply(&keywards[0], DATABASE, &create([unique_email()])));
        for keyward in &keywards {
            assert_eq!(insert_pair(keyward, DATABASE, 1, "x")[1], Err(11_000));
        }
        keywards[dropping].run(DATABASE, drop).unwrap();
        assert_eq!(insert_pair(&keywards[writing], DATABASE, 1, "x"), [Ok(()), Ok(())]);
        let plain = doc! { "key": { "email": 1 }, "name": "email_1" };
        must(&reply(&keywards[writing], DATABASE, &create([plain])));
        keywards[dropping].run(DATABASE, doc! { "drop": "users" }).unwrap();
    }
}

/// An option of a wrong type, and an index on `_id` that is to be unique.
#[test]
fn the_server_answers_for_indexes_that_no_server_makes() {
    const DATABASE: &str = "created_by_no_server";
    shard_users(DATABASE);
    let keyward = start();
    for index in [
        doc! { "key": { "email": 1 }, "name": "email_1", "unique": "yes" },
        doc! { "key": { "email": 1 }, "name": "email_1", "unique": {} },
        doc! { "key": { "_id": 1 }, "name": "_id_", "unique": true },
        doc! { "key": { "_id": 1 }, "name": "other", "unique": true },
    ] {
        let command = create([index]);
        let through = reply(&keyward, DATABASE, &command);
        let native = Connection::open(&CLUSTER.router_address()).run(DATABASE, &command);
        assert!(!testkit::wire::is_ok(&native), "{native}");
        for field in ["code", "codeName"] {
            assert_eq!(through.get(field), native.get(field), "{command}: {through}");
        }
    }
    assert_eq!(unique_indexes(&keyward, DATABASE), [""; 0]);
    let list = CLUSTER.run("keyward", doc! { "find": "clientConstraints" }).unwrap();
    assert!(!list.to_string().contains(DATABASE), "{list}");
}

/// What the server itself can keep unique stays its own.
#[test]
fn an_index_that_begins_with_the_shard_key_is_the_servers() {
    const DATABASE: &str = "created_by_server";
    shard_users(DATABASE);
    let keyward = start();
    let native = doc! { "key": { "region": 1, "email": 1 }, "name": "native", "unique": true };
    let both = reply(&keyward, DATABASE, &create([native, unique_email()]));
    must(&both);
    assert_eq!(unique_indexes(&keyward, DATABASE), ["native", "email_1"]);
    let direct = CLUSTER.run(DATABASE, doc! { "listIndexes": "users" }).unwrap();
    assert!(
        direct.to_string().contains(r#""name": "native", "unique": true"#),
        "{direct}"
    );
    assert!(direct.to_string().contains(r#""name": "email_1" }"#), "{direct}");
    // A collection that isn't sharded has native indexes only.
    let native = doc! { "createIndexes": "people", "indexes": [unique_email()] };
    must(&reply(&keyward, DATABASE, &native));
    let direct = CLUSTER.run(DATABASE, doc! { "listIndexes": "people" }).unwrap();
    assert!(
        direct.to_string().contains(r#""name": "email_1", "unique": true"#),
        "{direct}"
    );
}

#[test]
fn clients_that_make_it_at_once_make_one() {
    const DATABASE: &str = "created_at_once";
    shard_users(DATABASE);
    let keywards = [start(), start()];
    std::thread::scope(|scope| {
        for client in 0..8 {
            let keyward = &keywards[client % 2];
            scope.spawn(move || must(&reply(keyward, DATABASE, &create([unique_email()]))));
        }
    });
    for keyward in &keywards {
        assert_eq!(unique_indexes(keyward, DATABASE), ["email_1"]);
    }
    assert_eq!(insert_pair(&keywards[1], DATABASE, 1, "x"), [Ok(()), Err(11_000)]);
    let list = CLUSTER.run("keyward", doc! { "find": "clientConstraints" }).unwrap();
    assert_eq!(list.to_string().matches(&format!("{DATABASE}.users")).count(), 1);
}

/// A Keyward looks at its constraints once a second. A client that has made one doesn't wait for the next look.
#[test]
fn the_reply_comes_as_soon_as_all_documents_are_reserved() {
    const DATABASE: &str = "created_promptly";
    shard_users(DATABASE);
    let keyward = start();
    // The shortest of several: the machine is busy.
    let waits = (0..4).map(|_| {
        must(&reply(&keyward, DATABASE, &create([unique_email()])));
        let replied = SystemTime::now();
        let dropped = doc! { "dropIndexes": "users", "index": "email_1" };
        must(&reply(&keyward, DATABASE, &dropped));
        replied.duration_since(last_enforced(&keyward)).unwrap_or_default()
    });
    let shortest = waits.min().unwrap();
    assert!(shortest < Duration::from_secs(1), "{shortest:?}");
}

/// When this Keyward last logged that a constraint is enforced.
fn last_enforced(keyward: &Keyward) -> SystemTime {
    let log = keyward.log();
    let mut lines = log.lines().filter(|line| line.contains("constraint enforced"));
    let time = lines.next_back().and_then(|line| line.split(' ').next());
    humantime::parse_rfc3339(time.unwrap_or_default()).unwrap()
}
