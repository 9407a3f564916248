//! A client's constraint whose collection was dropped past Keyward, and created with other options.

use testkit::relay::{Relay, insert_into};

use super::*;

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
    shard_collated_on_two(&cluster, &format!("{DATABASE}.users"));

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

/// It stood still until it was out of the register. Meanwhile a client made the constraint anew, and it has yet to read that.
#[test]
fn a_keyward_that_comes_back_to_the_register_reserves_by_the_present_collation() {
    const DATABASE: &str = "created_and_collated_meanwhile";
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    let builder = start_at(&cluster);
    must(&reply(&builder, DATABASE, &create([unique_email()])));
    let (is_old, relay) = with_switched_list(&cluster);
    let settings = format!("upstream: {}\nlease: 10s\nconstraints: []\n", relay.uri());
    let late = Keyward::of(&settings).leaving();
    late.insert(DATABASE, user(1, "former")).unwrap();
    late.freeze();
    is_old.store(true, Ordering::SeqCst);
    forget(&cluster, &late);
    // Past Keyward.
    cluster.run(DATABASE, doc! { "drop": "users" }).unwrap();
    shard_collated_on_two(&cluster, &format!("{DATABASE}.users"));
    must(&reply(&builder, DATABASE, &create([unique_email()])));
    assert_eq!(builder.insert(DATABASE, user(10, "x")), Ok(()));

    late.wake();
    until_back(&late, DATABASE);
    assert_eq!(late.insert(DATABASE, user(11, "X")), Err(11_000));
    assert_eq!(builder.insert(DATABASE, user(13, "Back")), Err(11_000));
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
        shard_collated_on_two(&cluster, &format!("{DATABASE}.users"));
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

/// The definition was replaced right after the Keyward had come back to the register with the former one. The list shows it that first.
#[test]
fn a_list_with_a_constraint_made_anew_waits_for_writes_by_the_former_collation() {
    const DATABASE: &str = "created_and_collated_late";
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    let of_builder = Relay::start(cluster.router_address());
    let builder = Keyward::of(&format!(
        "upstream: {}\nlease: 10s\nconstraints: []\n",
        of_builder.uri()
    ))
    .leaving();
    must(&reply(&builder, DATABASE, &create([unique_email()])));
    let identity = first_of(&cluster, DATABASE, doc! { "find": "keyward.constraints" });
    let identity = identity.get_object_id("identity").unwrap();
    let (is_old, of_list) = with_switched_list(&cluster);
    let relay = Relay::start(of_list.address.clone());
    // The outcome of the write below becomes known within its lease.
    let late = Keyward::of(&format!("upstream: {}\nlease: 2m\nconstraints: []\n", relay.uri())).leaving();
    late.insert(DATABASE, user(1, "former")).unwrap();
    late.freeze();
    is_old.store(true, Ordering::SeqCst);
    forget(&cluster, &late);
    must(&reply(
        &builder,
        DATABASE,
        &doc! { "dropIndexes": "users", "index": "email_1" },
    ));
    // Past Keyward.
    cluster.run(DATABASE, doc! { "drop": "users" }).unwrap();
    shard_collated_on_two(&cluster, &format!("{DATABASE}.users"));
    let mut command = create([unique_email()]);
    command.insert("maxTimeMS", 20_000);
    std::thread::scope(|scope| {
        let replacing = of_builder.hold(&[&b"\x07identity\0"[..], &identity.bytes()].concat());
        let made = scope.spawn(|| reply(&builder, DATABASE, &command));
        replacing.wait();
        late.wake();
        until_back(&late, DATABASE);
        // Otherwise it may see the new definition before it reads the list.
        let polling = relay.hold(b"\x02find\0\x09\0\0\0keywards\0");
        polling.wait();
        let held = relay.hold(&insert_into("users"));
        scope.spawn(|| late.insert(DATABASE, user(2, "held")));
        held.wait();
        drop(replacing);
        late.until("the list has it again", || {
            let list = first_of(&cluster, "keyward", doc! { "find": "clientConstraints" });
            list.to_string().contains(DATABASE)
        });
        is_old.store(false, Ordering::SeqCst);
        // Until the time limit it isn't enforced.
        let made = made.join().unwrap();
        drop((polling, held));
        assert_eq!(made.get_i32("code").ok(), Some(50), "{made}");
        assert!(late.log().contains("constraints were made anew"), "{}", late.log());
    });
}

/// As after a Keyward that was killed amid a `drop`: the next insert creates the collection.
#[test]
fn a_constraint_with_the_default_collation_of_a_dropped_collection_can_be_ended() {
    const DATABASE: &str = "created_and_collated_no_more";
    let cluster = Cluster::alone().unwrap();
    shard_collated_on_two(&cluster, &format!("{DATABASE}.users"));
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
