//! A client's constraint whose collection was dropped past Keyward, and created with other options.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use testkit::relay::{Relay, insert_into};

use super::*;

/// Creates `users` with the default collation that ignores case, sharded over two shards.
fn shard_collated_users(cluster: &Cluster, database: &str) {
    let create = doc! { "create": "users", "collation": { "locale": "en", "strength": 2 } };
    cluster.run(database, create).unwrap();
    let namespace = format!("{database}.users");
    let shard = doc! { "shardCollection": &namespace, "key": { "region": 1 }, "collation": { "locale": "simple" } };
    cluster.run("admin", shard).unwrap();
    testkit::spread_on_two(cluster, &namespace, doc! { "region": "m" });
}

fn user(id: i32, email: &str) -> Document {
    doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": email }
}

/// Removes every Keyward from the register, and waits until each writes again.
fn forget_all(cluster: &Cluster, keywards: &[&Keyward], database: &str) {
    let delete = doc! { "delete": "keywards", "deletes": [{ "q": {}, "limit": 0 }] };
    must(&cluster.run("keyward", delete).unwrap());
    let is_known = |keyward: &Keyward| keyward.log().contains("the entry in the register of Keywards is gone");
    for (id, keyward) in (1_000..).zip(keywards) {
        keyward.until("its entry is gone", || is_known(keyward));
        keyward.until("its next entry", || {
            keyward.insert(database, user(id, &id.to_string())) == Ok(())
        });
    }
}

/// It is in the way of no other constraint, of no start, and of no Keyward that comes back to the register. All Keywards keep it as it was.
#[test]
fn a_constraint_outlives_the_default_collation_of_its_collection() {
    const DATABASE: &str = "created_and_collated";
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    let orders = format!("{DATABASE}.orders");
    shard_on_two(&cluster, &orders, doc! { "region": 1 }, doc! { "region": "m" });
    let before = start_at(&cluster);
    must(&reply(&before, DATABASE, &create([unique_email()])));
    before.insert(DATABASE, user(1, "former")).unwrap();
    // Past Keyward.
    cluster.run(DATABASE, doc! { "drop": "users" }).unwrap();
    shard_collated_users(&cluster, DATABASE);

    let after = start_at(&cluster);
    let number = doc! { "key": { "number": 1 }, "name": "number_1", "unique": true };
    must(&reply(
        &before,
        DATABASE,
        &doc! { "createIndexes": "orders", "indexes": [number] },
    ));
    forget_all(&cluster, &[&before, &after], DATABASE);
    assert_eq!(before.insert(DATABASE, user(10, "x")), Ok(()));
    for keyward in [&before, &after] {
        assert_eq!(keyward.insert(DATABASE, user(11, "x")), Err(11_000));
    }
    assert_eq!(after.insert(DATABASE, user(11, "X")), Ok(()));
    assert!(
        after.log().contains("the constraint keeps its collation"),
        "{}",
        after.log()
    );

    // A client makes it anew, as the collection is now.
    let violated = reply(&after, DATABASE, &create([unique_email()]));
    assert_eq!(violated.get_i32("code").ok(), Some(11_000), "{violated}");
    let delete = doc! { "delete": "users", "deletes": [{ "q": { "_id": 11 }, "limit": 0 }] };
    must(&reply(&after, DATABASE, &delete));
    must(&reply(&after, DATABASE, &create([unique_email()])));
    for keyward in [&before, &after] {
        assert_eq!(keyward.insert(DATABASE, user(11, "X")), Err(11_000));
    }
}

/// Removes this Keyward from the register.
fn forget(cluster: &Cluster, keyward: &Keyward) {
    let of_keyward = doc! { "q": { "pid": i64::from(keyward.pid().as_raw()) }, "limit": 1 };
    let delete = doc! { "delete": "keywards", "deletes": [of_keyward] };
    must(&cluster.run("keyward", delete).unwrap());
}

/// It stood still until it was out of the register. Meanwhile a client made the constraint anew, and it has yet to read that.
#[test]
fn a_keyward_that_comes_back_to_the_register_reserves_by_the_present_collation() {
    const DATABASE: &str = "created_and_collated_meanwhile";
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    let builder = start_at(&cluster);
    must(&reply(&builder, DATABASE, &create([unique_email()])));
    let is_old = Arc::new(AtomicBool::new(false));
    let shows_old = is_old.clone();
    let relay = with_old_list(&cluster, move |_| shows_old.load(Ordering::SeqCst));
    let settings = format!("upstream: {}\nlease: 10s\nconstraints: []\n", relay.uri());
    let late = Keyward::of(&settings).leaving();
    late.insert(DATABASE, user(1, "former")).unwrap();
    late.freeze();
    is_old.store(true, Ordering::SeqCst);
    forget(&cluster, &late);
    // Past Keyward.
    cluster.run(DATABASE, doc! { "drop": "users" }).unwrap();
    shard_collated_users(&cluster, DATABASE);
    must(&reply(&builder, DATABASE, &create([unique_email()])));
    assert_eq!(builder.insert(DATABASE, user(10, "x")), Ok(()));

    late.wake();
    late.until("its entry is gone", || {
        late.log().contains("the entry in the register of Keywards is gone")
    });
    late.until("its next entry", || late.insert(DATABASE, user(12, "y")) == Ok(()));
    assert_eq!(late.insert(DATABASE, user(11, "X")), Err(11_000));
    assert_eq!(builder.insert(DATABASE, user(13, "Y")), Err(11_000));
}

/// Writes from before may take effect after the constraint was made anew, so other Keywards don't count on this one before they end.
#[test]
fn a_keyward_that_comes_back_to_the_register_waits_for_writes_by_the_former_collation() {
    const DATABASE: &str = "created_and_collated_amid";
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    let builder = start_at(&cluster);
    must(&reply(&builder, DATABASE, &create([unique_email()])));
    let relay = Relay::start(cluster.router_address());
    // The outcome of the write below becomes known within its lease.
    let late = Keyward::of(&format!("upstream: {}\nlease: 2m\nconstraints: []\n", relay.uri())).leaving();
    late.insert(DATABASE, user(1, "former")).unwrap();
    std::thread::scope(|scope| {
        let held = relay.hold(&insert_into("users"));
        scope.spawn(|| late.insert(DATABASE, user(2, "held")));
        held.wait();
        late.freeze();
        forget(&cluster, &late);
        cluster.run(DATABASE, doc! { "drop": "users" }).unwrap();
        shard_collated_users(&cluster, DATABASE);
        must(&reply(&builder, DATABASE, &create([unique_email()])));
        late.wake();
        late.until("the wait", || {
            late.log()
                .contains("commands that began before a constraint was made anew are still under way")
        });
        assert_eq!(late.insert(DATABASE, user(3, "y")), Err(6));
        drop(held);
    });
    late.until("its next entry", || late.insert(DATABASE, user(3, "y")) == Ok(()));
    assert_eq!(builder.insert(DATABASE, user(4, "Y")), Err(11_000));
}

/// As after a Keyward that was killed amid a `drop`: the next insert creates the collection.
#[test]
fn a_constraint_with_the_default_collation_of_a_dropped_collection_can_be_ended() {
    const DATABASE: &str = "created_and_collated_no_more";
    let cluster = Cluster::alone().unwrap();
    shard_collated_users(&cluster, DATABASE);
    let before = start_at(&cluster);
    must(&reply(&before, DATABASE, &create([unique_email()])));
    before.insert(DATABASE, user(1, "former")).unwrap();
    cluster.run(DATABASE, doc! { "drop": "users" }).unwrap();
    let absent = start_at(&cluster);
    must(&cluster.run(DATABASE, doc! { "create": "users" }).unwrap());
    let after = start_at(&cluster);
    forget_all(&cluster, &[&before, &absent, &after], DATABASE);
    assert_eq!(before.insert(DATABASE, user(10, "x")), Ok(()));
    for keyward in [&before, &absent, &after] {
        assert_eq!(keyward.insert(DATABASE, user(11, "X")), Err(11_000));
    }
    let dropped = reply(&after, DATABASE, &doc! { "dropIndexes": "users", "index": "email_1" });
    assert_eq!(dropped.get_i32("code").ok(), Some(27), "{dropped}");
    for keyward in [&before, &absent, &after] {
        until_no_constraint(keyward, DATABASE);
    }
}

/// Nothing can compare encrypted values, but other constraints can hold.
#[test]
fn a_constraint_on_a_field_that_is_encrypted_now_stops_no_other() {
    const DATABASE: &str = "created_and_encrypted";
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    let before = start_at(&cluster);
    must(&reply(&before, DATABASE, &create([unique_email()])));
    cluster.run(DATABASE, doc! { "drop": "users" }).unwrap();
    let field = doc! { "keyId": bson::Uuid::new(), "path": "email", "bsonType": "string" };
    let create = doc! { "create": "users", "encryptedFields": { "fields": [field] } };
    cluster.run(DATABASE, create).unwrap();
    let after = start_at(&cluster);
    assert!(
        after.log().contains("that Queryable Encryption encrypts now"),
        "{}",
        after.log()
    );
    let dropped = reply(&after, DATABASE, &doc! { "dropIndexes": "users", "index": "email_1" });
    assert_eq!(dropped.get_i32("code").ok(), Some(27), "{dropped}");
    let left = first_of(&cluster, "keyward", doc! { "find": "clientConstraints" });
    assert!(!left.to_string().contains(DATABASE), "{left}");
}
