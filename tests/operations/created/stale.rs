//! Keywards whose view of the list of clients' constraints is older than what a client was told.

use std::collections::HashMap;
use std::sync::{RwLock, mpsc};

use bson::doc;
use testkit::altering::Altering;
use testkit::relay::{Fate, Relay, insert_into, wait_until};
use testkit::wire::Connection;

use super::*;

fn user(id: i32, region: &str, email: &str) -> Document {
    doc! { "insert": "users", "documents": [{ "_id": id, "region": region, "email": email }] }
}

/// Sends `command` to `keyward` while it stands still, after `meanwhile`, and gives the reply. The command is there before the Keyward can
/// read the list.
fn sent_to_frozen(keyward: &Keyward, database: &str, command: &Document, meanwhile: impl FnOnce()) -> Document {
    let mut connection = Connection::greeted(&keyward.address);
    keyward.freeze();
    meanwhile();
    connection.send(database, command).unwrap();
    keyward.wake();
    connection.receive().unwrap()
}

#[test]
fn a_keyward_enforces_it_from_its_first_write_on() {
    const DATABASE: &str = "created_before_first_write";
    shard_users(DATABASE);
    let keywards = [start(), start()];
    write_first(&keywards[0], DATABASE);
    let reply = sent_to_frozen(&keywards[1], DATABASE, &user(2, "z", "x"), || {
        must(&reply(&keywards[0], DATABASE, &create([unique_email()])));
    });
    assert!(reply.to_string().contains("11000"), "{reply}");
}

#[test]
fn a_drop_ends_constraints_that_its_keyward_does_not_know_yet() {
    const DATABASE: &str = "created_before_drop";
    shard_users(DATABASE);
    let [quick, late] = [start(), start()];
    let reply = sent_to_frozen(&late, DATABASE, &doc! { "dropDatabase": 1 }, || {
        must(&reply(&quick, DATABASE, &create([unique_email()])));
    });
    must(&reply);
    // Only the proxy collection is left.
    let list = doc! { "listDatabases": 1, "nameOnly": true, "filter": { "name": DATABASE } };
    let is_listed = |list: Document| list.to_string().contains(DATABASE);
    assert!(is_listed(CLUSTER.run("admin", list.clone()).unwrap()));
    for keyward in [&late, &start()] {
        assert!(!is_listed(keyward.run("admin", list.clone()).unwrap()));
    }
    shard_users(DATABASE);
    until_no_constraint(&quick, DATABASE);
}

/// Two Keywards, and a client's constraint that both apply.
fn two_with_unique_email(database: &str) -> (Keyward, Keyward) {
    shard_users_of(&QUIET, database);
    let orders = format!("{database}.orders");
    shard_on_two(&QUIET, &orders, doc! { "region": 1 }, doc! { "region": "m" });
    let quick = start_at(&QUIET);
    must(&reply(&quick, database, &create([unique_email()])));
    (quick, start_at(&QUIET))
}

/// Drops that constraint, and makes one on another collection, before `late` can read the list. Then its first write to the former
/// collection must go on.
fn assert_first_write_goes_on(late: &Keyward, quick: &Keyward, database: &str) {
    let reply = sent_to_frozen(late, database, &user(1, "a", "x"), || {
        let drop = doc! { "dropIndexes": "users", "index": "email_1" };
        must(&reply(quick, database, &drop));
        let number = doc! { "key": { "number": 1 }, "name": "number_1", "unique": true };
        let create = doc! { "createIndexes": "orders", "indexes": [number] };
        must(&reply(quick, database, &create));
    });
    assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
}

/// The Keyward applies the list first. For that it waits for the end of what the constraints before decided, but not for this write.
#[test]
fn a_first_write_does_not_hold_up_the_list_that_it_waits_for() {
    const DATABASE: &str = "created_elsewhere";
    let (quick, late) = two_with_unique_email(DATABASE);
    assert_first_write_goes_on(&late, &quick, DATABASE);
}

/// The Keyward ends what was dropped before it waits for transactions, as a new constraint makes it do.
#[test]
fn a_first_write_does_not_wait_for_transactions() {
    const DATABASE: &str = "created_amid_transactions";
    let (quick, late) = two_with_unique_email(DATABASE);
    let of_transaction = doc! { "lsid": { "id": bson::Uuid::new() }, "txnNumber": 1_i64, "autocommit": false };
    let mut connection = Connection::open(&late.address);
    let mut find = doc! { "find": "orders", "startTransaction": true };
    find.extend(of_transaction.clone());
    must(&connection.run(DATABASE, &find));
    let mut commit = doc! { "commitTransaction": 1 };
    commit.extend(of_transaction);
    must(&connection.run("admin", &commit));
    assert_first_write_goes_on(&late, &quick, DATABASE);
}

/// It has written nothing there, so nothing of it is without a reservation.
#[test]
fn a_keyward_that_applies_the_list_late_takes_no_constraint_back() {
    const DATABASE: &str = "created_before_it_is_known";
    shard_users_of(&QUIET, DATABASE);
    let builder = start_at(&QUIET);
    write_first(&builder, DATABASE);
    let late = start_at(&QUIET);
    let epoch = || {
        let found = QUIET.run(DATABASE, doc! { "find": "keyward.constraints" }).unwrap();
        let batch = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        let constraint = batch[0].as_document().unwrap();
        (
            constraint.get_str("state").unwrap().to_owned(),
            constraint.get("era").cloned(),
        )
    };
    late.freeze();
    must(&reply(&builder, DATABASE, &create([unique_email()])));
    let before = epoch();
    assert_eq!(before.0, "enforced");
    late.wake();
    let has_applied = |line: &str| line.contains("clients' constraints applied") && line.contains(DATABASE);
    late.until("the list applied", || late.log().lines().any(has_applied));
    assert_eq!(epoch(), before);
    assert_first_is_held(&late, DATABASE);
}

/// The list's primary was deposed and doesn't know it yet. Here a relay shows its old list, except to a linearizable read, which such a
/// primary can't answer.
#[test]
fn a_first_write_misses_no_constraint_that_a_deposed_primary_lacks() {
    const DATABASE: &str = "created_behind_deposed";
    shard_users_of(&QUIET, DATABASE);
    let is_deposed = Arc::new(AtomicBool::new(false));
    let deposed = is_deposed.clone();
    // What was read before: a list, or a version.
    let before = Mutex::new(HashMap::new());
    let relay = Altering::replies(QUIET.router_address(), move |request, reply| {
        if request.get_str("find").ok() != Some("clientConstraints") {
            return;
        }
        let concern = request.get_document("readConcern").unwrap();
        if concern.get_str("level").ok() == Some("linearizable") {
            deposed.store(false, Ordering::SeqCst);
            return;
        }
        let read = request.get_document("projection").is_err();
        let cursor = reply.get_document_mut("cursor").unwrap();
        match deposed.load(Ordering::SeqCst) {
            true => drop(cursor.insert("firstBatch", before.lock().unwrap().get(&read).cloned())),
            false => drop(
                before
                    .lock()
                    .unwrap()
                    .insert(read, cursor.get("firstBatch").unwrap().clone()),
            ),
        }
    });
    let behind = format!("upstream: {}\nlease: 10s\nconstraints: []\n", relay.uri());
    let keywards = [start_at(&QUIET), Keyward::of(&behind).leaving()];
    write_first(&keywards[0], DATABASE);
    is_deposed.store(true, Ordering::SeqCst);
    must(&reply(&keywards[0], DATABASE, &create([unique_email()])));
    assert_first_is_held(&keywards[1], DATABASE);
    assert!(
        !is_deposed.load(Ordering::SeqCst),
        "the list was read only as an old primary has it"
    );
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
    until_no_constraint(&keywards[0], DATABASE);
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
    first_of(&CLUSTER, "keyward", doc! { "find": "clientConstraints" })
}

/// The reply to a command that joins the build of another client's command, which then ends. `violated` says whether documents violate
/// the constraint.
fn joined_reply(database: &str, violated: bool) -> Document {
    shard_users(database);
    // The third builds the one, and stands still.
    let [keyward, third] = [start(), start()];
    keyward
        .insert(database, doc! { "_id": 1, "region": "a", "email": "x", "name": "x" })
        .unwrap();
    must(&reply(
        &keyward,
        database,
        &create([doc! { "key": { "other": 1 }, "name": "other_1", "unique": true, "sparse": true }]),
    ));
    let of_third = doc! { "pid": i64::from(third.pid().as_raw()) };
    let registered = first_of(&CLUSTER, "keyward", doc! { "find": "keywards", "filter": of_third });
    let registered = registered.get_object_id("_id").unwrap();
    third.freeze();
    let id = bson::oid::ObjectId::new();
    let named = doc! { "listCollections": 1, "filter": { "name": "users" } };
    let users = first_of(&CLUSTER, database, named);
    let uuid = users.get_document("info").unwrap().get("uuid").unwrap().clone();
    let entry = doc! { "id": id, "command": id, "collection": format!("{database}.users"), "name": "email_1", "key": { "email": 1 }, "uuid": uuid, "builder": registered };
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
        let both = scope.spawn(|| reply(&keyward, database, &create([unique_email(), name])));
        keyward.until("the second is built", || {
            let list = list();
            list.get_array("constraints").unwrap().iter().any(|one| {
                let one = one.as_document().unwrap();
                one.get_str("collection")
                    .is_ok_and(|one| one == format!("{database}.users"))
                    && one.get_str("name").is_ok_and(|one| one == "name_1")
                    && !one.contains_key("builder")
            })
        });
        let error = doc! { "ok": 0.0, "errmsg": "planted", "code": 11_000, "codeName": "DuplicateKey" };
        change(
            doc! { "$pull": { "constraints": { "id": id } }, "$push": { "ended": { "id": id, "reply": error, "violated": violated } }, "$inc": { "version": 1_i64 } },
        );
        both.join().unwrap()
    });
    third.wake();
    both
}

#[test]
fn a_command_fails_whole_if_documents_violate_what_it_joined() {
    let both = joined_reply("created_by_two", true);
    assert_eq!(both.get_i32("code").ok(), Some(11_000), "{both}");
}

/// The other client gave up, or another index of its command failed.
#[test]
fn a_command_goes_on_with_a_build_that_another_client_ended() {
    must(&joined_reply("created_by_one_of_two", false));
}

#[test]
fn an_index_that_a_files_constraint_contradicts_is_refused() {
    const DATABASE: &str = "created_against_file";
    shard_users(DATABASE);
    let _file = Keyward::start(
        &CLUSTER.uri(),
        &format!("  - {{ collection: {DATABASE}.users, key: {{ email: 1 }}, sparse: true }}\n"),
    )
    .leaving();
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

/// Also if the collection was restored with its index, and so looks as if it had been resharded.
#[test]
fn documents_of_a_collection_created_anew_are_read() {
    for (database, has_index) in [("created_and_loaded", false), ("created_and_restored", true)] {
        shard_users_of(&QUIET, database);
        let keyward = start_at(&QUIET);
        must(&reply(&keyward, database, &create([unique_email()])));
        // Past Keyward.
        QUIET.run(database, doc! { "drop": "users" }).unwrap();
        shard_users_of(&QUIET, database);
        if has_index {
            QUIET
                .run(database, create([doc! { "key": { "email": 1 }, "name": "email_1" }]))
                .unwrap();
        }
        for (id, region) in [(1, "a"), (2, "z")] {
            QUIET.run(database, user(id, region, "x")).unwrap();
        }
        let refused = reply(&keyward, database, &create([unique_email()]));
        assert_eq!(refused.get_i32("code").ok(), Some(11_000), "{refused}");
        let delete = doc! { "delete": "users", "deletes": [{ "q": { "_id": 2 }, "limit": 0 }] };
        must(&reply(&keyward, database, &delete));
        must(&reply(&keyward, database, &create([unique_email()])));
        assert_eq!(
            keyward.insert(database, doc! { "_id": 3, "region": "z", "email": "x" }),
            Err(11_000)
        );
    }
}

/// One that is slow to end a constraint doesn't count as one that reserves for its successor.
#[test]
fn a_constraint_made_again_waits_for_who_ends_the_one_before() {
    const DATABASE: &str = "created_again";
    // Another test would wait for the slow one, too.
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    shard_users_of(&cluster, "created_again_other");
    let quick = start_at(&cluster);
    let settings = format!("upstream: {}\nlease: 10s\nconstraints: []\n", cluster.uri());
    let slow = Keyward::of_in(&settings, &[("KEYWARD_TRANSACTIONS_HASTE", "4")]).leaving();
    must(&reply(&quick, DATABASE, &create([unique_email()])));
    write_first(&slow, DATABASE);
    assert_first_is_held(&slow, DATABASE);
    // A transaction of a client makes it wait before it applies a further constraint, and with it the end of this one.
    let lsid = doc! { "id": bson::Uuid::new() };
    let mut connection = Connection::greeted(&slow.address);
    let begun = doc! { "find": "things", "lsid": lsid.clone(), "txnNumber": 1_i64, "autocommit": false, "startTransaction": true };
    connection.must("created_again_things", &begun);
    slow.freeze();
    std::thread::scope(|scope| {
        let dropped = scope.spawn(|| reply(&quick, DATABASE, &doc! { "dropIndexes": "users", "index": "email_1" }));
        let is_in = |database: &str| {
            let list = cluster.run("keyward", doc! { "find": "clientConstraints" }).unwrap();
            list.to_string().contains(&format!("{database}.users"))
        };
        quick.until("the end", || !is_in(DATABASE));
        let other = scope.spawn(|| reply(&quick, "created_again_other", &create([unique_email()])));
        quick.until("another", || is_in("created_again_other"));
        slow.wake();
        must(&dropped.join().unwrap());
        must(&reply(&quick, DATABASE, &create([unique_email()])));
        // Until the slow one has applied the list, and right after.
        slow.until("the other constraint", || {
            assert_first_is_held(&slow, DATABASE);
            slow.log()
                .contains("applied added=\"created_again_other.users.email_1\"")
        });
        for _ in 0..20 {
            assert_first_is_held(&slow, DATABASE);
        }
        must(&other.join().unwrap());
    });
}

/// It was out of the register meanwhile, so nothing waited for it.
#[test]
fn a_keyward_that_comes_back_applies_drops_and_other_options_at_once() {
    const DATABASE: &str = "created_again_otherwise";
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    let builder = start_at(&cluster);
    let number = doc! { "key": { "number": 1 }, "name": "number_1", "unique": true, "sparse": true };
    must(&reply(&builder, DATABASE, &create([unique_email(), number])));
    let late = start_at(&cluster);
    write_first(&late, DATABASE);
    late.freeze();
    forget(&cluster, &late);
    let both = doc! { "dropIndexes": "users", "index": ["email_1", "number_1"] };
    must(&reply(&builder, DATABASE, &both));
    let sparse = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true, "sparse": true };
    must(&reply(&builder, DATABASE, &create([sparse])));
    late.wake();
    until_back(&late, DATABASE);
    for keyward in [&builder, &late] {
        assert_first_is_held(keyward, DATABASE);
        assert_eq!(unique_indexes(keyward, DATABASE), ["email_1"]);
    }
    let equal = |id: i32| doc! { "_id": id, "region": "a", "number": 1 };
    for (keyward, id) in [(&builder, 10), (&late, 11)] {
        assert_eq!(keyward.insert(DATABASE, equal(id)), Ok(()));
    }
}

/// Others took the Keyward for gone meanwhile, and enforced a constraint without it. Here it has yet to read that.
#[test]
fn a_command_from_before_its_keyward_was_out_of_the_register_writes_nothing() {
    const DATABASE: &str = "created_amid_a_claim";
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    let builder = start_at(&cluster);
    must(&reply(&builder, DATABASE, &create([unique_email()])));
    let (is_old, of_list) = with_switched_list(&cluster);
    let gate = Arc::new(RwLock::new(()));
    let of_relay = gate.clone();
    let (arrived, claims) = mpsc::channel();
    let claim = insert_into("keyward.users.email_1");
    let pass = move |request: &[u8]| {
        if request.windows(claim.len()).any(|bytes| bytes == claim) {
            arrived.send(()).unwrap();
            drop(of_relay.read());
        }
        Fate::Passed
    };
    let relay = Relay::judged(of_list.address.clone(), pass, |_| Fate::Passed);
    let late = Keyward::of(&format!("upstream: {}\nlease: 2m\nconstraints: []\n", relay.uri())).leaving();
    write_first(&late, DATABASE);
    wait_until(&claims);
    let called = |id: i32, region: &str| doc! { "_id": id, "region": region, "email": id.to_string(), "phone": 1 };
    let late = &late;
    std::thread::scope(|scope| {
        let closed = gate.write().unwrap();
        let command = doc! { "insert": "users", "documents": [called(10, "a")] };
        let insert = scope.spawn(move || reply(late, DATABASE, &command));
        wait_until(&claims);
        late.freeze();
        is_old.store(true, Ordering::SeqCst);
        forget(&cluster, late);
        let phone = doc! { "key": { "phone": 1 }, "name": "phone_1", "unique": true, "sparse": true };
        must(&reply(&builder, DATABASE, &create([phone])));
        assert_eq!(builder.insert(DATABASE, called(11, "z")), Ok(()));
        late.wake();
        // It may write again, elsewhere.
        until_back(late, "created_amid_a_claim_elsewhere");
        drop(closed);
        let refused = insert.join().unwrap();
        assert!(refused.to_string().contains("register"), "{refused}");
    });
    let found = doc! { "count": "users", "query": { "phone": 1 } };
    assert_eq!(cluster.run(DATABASE, found).unwrap().get_i32("n").ok(), Some(1));
}

/// The names of a collection and an index may be one text together, and so may those of others.
#[test]
fn an_index_whose_reservations_would_lie_among_those_of_another_is_refused() {
    const DATABASE: &str = "created_in_one_place";
    shard_users(DATABASE);
    let address = format!("{DATABASE}.users.address");
    shard_on_two(&CLUSTER, &address, doc! { "region": 1 }, doc! { "region": "m" });
    let keyward = start();
    let nested = doc! { "key": { "address.city": 1 }, "name": "address.city_1", "unique": true };
    must(&reply(&keyward, DATABASE, &create([nested])));
    let city = doc! { "key": { "city": 1 }, "name": "city_1", "unique": true };
    let on_address = doc! { "createIndexes": "users.address", "indexes": [city] };
    let refused = reply(&keyward, DATABASE, &on_address);
    assert_eq!(refused.get_i32("code").ok(), Some(67), "{refused}");
    let told = refused.get_str("errmsg").unwrap();
    assert!(
        told.contains("address.city_1") && told.contains("another name"),
        "{told}"
    );
    let listed = doc! { "listIndexes": "users.address" };
    let listed = CLUSTER.run(DATABASE, listed).unwrap().to_string();
    assert!(!listed.contains("city_1"), "the index was made: {listed}");
    // It is in the way of no other one.
    must(&reply(&keyward, DATABASE, &create([unique_email()])));
}

/// It was dropped past Keyward, or Keyward was killed before it ended its constraints: they are in nobody's way.
#[test]
fn a_collection_created_anew_can_have_other_constraints() {
    const DATABASE: &str = "created_otherwise";
    shard_users_of(&QUIET, DATABASE);
    let keyward = start_at(&QUIET);
    must(&reply(&keyward, DATABASE, &create([unique_email()])));
    QUIET.run(DATABASE, doc! { "drop": "users" }).unwrap();
    shard_users_of(&QUIET, DATABASE);
    let sparse = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true, "sparse": true };
    must(&reply(&keyward, DATABASE, &create([sparse])));
    for id in [10, 11] {
        keyward.insert(DATABASE, doc! { "_id": id, "region": "a" }).unwrap();
    }
    write_first(&keyward, DATABASE);
    assert_first_is_held(&keyward, DATABASE);
}

/// A constraint that only this Keyward's file states doesn't hold yet.
#[test]
fn a_constraint_of_one_keywards_file_is_waited_for() {
    const DATABASE: &str = "created_by_file";
    shard_users(DATABASE);
    let other = start();
    write_first(&other, DATABASE);
    let of_file = Keyward::start(
        &CLUSTER.uri(),
        &format!("  - {{ collection: {DATABASE}.users, key: {{ email: 1 }} }}\n"),
    );
    let mut command = create([unique_email()]);
    command.insert("maxTimeMS", 5_000);
    let refused = reply(&of_file, DATABASE, &command);
    assert_eq!(refused.get_i32("code").ok(), Some(50), "{refused}");
    other.stop();
    must(&reply(&of_file, DATABASE, &create([unique_email()])));
}

/// An operator may leave that privilege out. What clients made before must hold all the same.
#[test]
fn a_keyward_that_may_not_read_the_list_writes_nothing_past_it() {
    const DATABASE: &str = "created_and_not_to_be_read";
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    let follower = start_at(&cluster);
    write_first(&follower, DATABASE);
    must(&reply(&follower, DATABASE, &create([unique_email()])));
    let not_to_be_read = doc! { "failCommands": ["find"], "namespace": "keyward.clientConstraints",
    "errorCode": 13, "failInternalCommands": true };
    let refusing = cluster.shards().iter().map(|shard| {
        shard
            .fail_point("failCommand", "alwaysOn", not_to_be_read.clone())
            .unwrap()
    });
    let refusing: Vec<_> = refusing.collect();
    let other = start_at(&cluster);
    drop(refusing);
    // Also while it isn't enforced: a Keyward that follows late makes it begin anew.
    let u = doc! { "$set": { "state": "reserving" }, "$unset": { "enforcedIn": 1 } };
    let suspended = doc! { "update": "keyward.constraints", "updates": [{ "q": {}, "u": u }] };
    cluster.run(DATABASE, suspended).unwrap();
    let refused = reply(&other, DATABASE, &user(2, "z", "x"));
    assert_eq!(refused.get_i32("code").ok(), Some(6), "{refused}");
    let told = refused.get_str("errmsg").unwrap();
    assert!(
        told.contains("constraint email_1 on") && told.contains("keyward.clientConstraints"),
        "{told}"
    );
    let elsewhere = doc! { "insert": "orders", "documents": [{ "_id": 1 }] };
    must(&reply(&other, DATABASE, &elsewhere));
    assert_first_is_held(&follower, DATABASE);

    // Once it is dropped, nothing is left that the other could miss.
    must(&reply(
        &follower,
        DATABASE,
        &doc! { "dropIndexes": "users", "index": "email_1" },
    ));
    must(&reply(&other, DATABASE, &user(2, "z", "x")));
}
