//! Two clients' commands about one index, through two Keywards at once.

use testkit::relay::{Held, Relay};

use super::*;

/// The `dropIndexes` of the unique index.
fn drop_email() -> Document {
    doc! { "dropIndexes": "users", "index": "email_1" }
}

/// A Keyward whose way to the cluster is `relay`.
fn start_behind(relay: &Relay) -> Keyward {
    Keyward::of(&format!("upstream: {}\nlease: 10s\nconstraints: []\n", relay.uri())).leaving()
}

/// Holds back the next command of this name on this collection that comes through `relay`.
fn hold(relay: &Relay, command: &str, collection: &str) -> Held {
    let length = i32::try_from(collection.len() + 1).unwrap().to_le_bytes();
    let parts = [
        &b"\x02"[..],
        command.as_bytes(),
        b"\0",
        &length,
        collection.as_bytes(),
        b"\0",
    ];
    relay.hold(&parts.concat())
}

/// Holds back the next change of the list that comes through `relay`.
fn hold_change(relay: &Relay) -> Held {
    hold(relay, "update", "clientConstraints")
}

/// Otherwise the client has its reply, and nothing holds.
#[test]
fn an_index_made_again_amid_its_drop_stays_a_constraint() {
    const DATABASE: &str = "created_amid_drop";
    shard_users(DATABASE);
    let relay = Relay::start(CLUSTER.router_address());
    let [quick, slow] = [start(), start_behind(&relay)];
    must(&reply(&quick, DATABASE, &create([unique_email()])));
    std::thread::scope(|scope| {
        let held = hold_change(&relay);
        let dropped = scope.spawn(|| reply(&slow, DATABASE, &drop_email()));
        held.wait();
        must(&reply(&quick, DATABASE, &create([unique_email()])));
        drop(held);
        must(&dropped.join().unwrap());
    });
    for keyward in [&quick, &slow] {
        assert_eq!(unique_indexes(keyward, DATABASE), ["email_1"]);
    }
    assert_eq!(insert_pair(&slow, DATABASE, 1, "x"), [Ok(()), Err(11_000)]);
    must(&reply(&slow, DATABASE, &drop_email()));
    assert_eq!(insert_pair(&slow, DATABASE, 3, "y"), [Ok(()), Ok(())]);
}

/// Otherwise the other one would go on to hold without its index.
#[test]
fn a_constraint_made_before_all_indexes_are_dropped_ends_with_the_others() {
    const DATABASE: &str = "created_before_all_dropped";
    shard_users(DATABASE);
    let relay = Relay::start(CLUSTER.router_address());
    let [quick, slow] = [start(), start_behind(&relay)];
    let number = doc! { "key": { "number": 1 }, "name": "number_1", "unique": true, "sparse": true };
    must(&reply(&quick, DATABASE, &create([number])));
    std::thread::scope(|scope| {
        let held = hold(&relay, "dropIndexes", "users");
        let drop_all = doc! { "dropIndexes": "users", "index": "*" };
        let dropped = scope.spawn(move || reply(&slow, DATABASE, &drop_all));
        held.wait();
        must(&reply(&quick, DATABASE, &create([unique_email()])));
        drop(held);
        must(&dropped.join().unwrap());
    });
    assert_eq!(unique_indexes(&quick, DATABASE), [""; 0]);
    assert_eq!(insert_pair(&quick, DATABASE, 1, "x"), [Ok(()), Ok(())]);
}

/// Otherwise the constraint holds, but no client sees it, and queries have no index.
#[test]
fn an_index_dropped_before_its_constraint_is_listed_is_made_again() {
    const DATABASE: &str = "created_and_dropped_before";
    shard_users(DATABASE);
    let relay = Relay::start(CLUSTER.router_address());
    let [quick, slow] = [start(), start_behind(&relay)];
    std::thread::scope(|scope| {
        let held = hold_change(&relay);
        let made = scope.spawn(|| reply(&slow, DATABASE, &create([unique_email()])));
        held.wait();
        must(&reply(&quick, DATABASE, &drop_email()));
        drop(held);
        must(&made.join().unwrap());
    });
    assert_eq!(unique_indexes(&slow, DATABASE), ["email_1"]);
    assert_eq!(insert_pair(&quick, DATABASE, 1, "x"), [Ok(()), Err(11_000)]);
}

/// Between the two, Keywards may have written without it. So the state that it had under its former number says nothing.
#[test]
fn a_constraint_dropped_amid_its_command_is_made_again_under_another_number() {
    const DATABASE: &str = "created_and_dropped_amid";
    shard_users(DATABASE);
    let relay = Relay::start(CLUSTER.router_address());
    let [quick, slow] = [start(), start_behind(&relay)];
    let number = || {
        let list = first_of(&CLUSTER, "keyward", doc! { "find": "clientConstraints" });
        let mut entries = list.get_array("constraints").unwrap().iter();
        let collection = format!("{DATABASE}.users");
        let entry = entries.find_map(|one| {
            let entry = one.as_document().unwrap();
            (entry.get_str("collection").unwrap() == collection).then(|| entry.get_object_id("id").unwrap())
        });
        entry.unwrap()
    };
    let former = std::thread::scope(|scope| {
        let held = hold_change(&relay);
        let made = scope.spawn(|| reply(&slow, DATABASE, &create([unique_email()])));
        held.wait();
        // The next one comes after the constraint holds.
        let listing = hold(&relay, "listIndexes", "users");
        drop(held);
        listing.wait();
        let former = number();
        must(&reply(&quick, DATABASE, &drop_email()));
        drop(listing);
        must(&made.join().unwrap());
        former
    });
    assert_ne!(number(), former);
    assert_eq!(unique_indexes(&slow, DATABASE), ["email_1"]);
    assert_eq!(insert_pair(&quick, DATABASE, 1, "x"), [Ok(()), Err(11_000)]);
}

/// The other Keyward doesn't know the constraint yet, so it can't end it.
#[test]
fn a_collection_dropped_before_its_constraint_is_listed_leaves_nothing() {
    const DATABASE: &str = "created_on_dropped";
    shard_users(DATABASE);
    let relay = Relay::start(CLUSTER.router_address());
    let [quick, slow] = [start(), start_behind(&relay)];
    let refused = std::thread::scope(|scope| {
        let held = hold_change(&relay);
        let made = scope.spawn(|| reply(&slow, DATABASE, &create([unique_email()])));
        held.wait();
        must(&reply(&quick, DATABASE, &doc! { "drop": "users" }));
        drop(held);
        made.join().unwrap()
    });
    assert_eq!(refused.get_f64("ok").ok(), Some(0.0), "{refused}");
    let named = doc! { "listCollections": 1, "filter": { "name": "users" } };
    let found = CLUSTER.run(DATABASE, named).unwrap();
    let batch = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    assert!(batch.is_empty(), "{found}");
    let list = first_of(&CLUSTER, "keyward", doc! { "find": "clientConstraints" });
    let of_database = |one: &bson::Bson| {
        let collection = one.as_document().unwrap().get_str("collection").unwrap();
        collection.starts_with(&format!("{DATABASE}."))
    };
    assert!(
        !list.get_array("constraints").unwrap().iter().any(of_database),
        "{list}"
    );
}

/// The collection is created anew meanwhile, and the constraint kept for it: under the same number, because the index was restored, too.
#[test]
fn a_constraint_kept_for_a_new_collection_outlives_a_slow_drop_of_the_former_one() {
    const DATABASE: &str = "created_amid_collections_drop";
    shard_users(DATABASE);
    let relay = Relay::start(CLUSTER.router_address());
    let [quick, slow] = [start(), start_behind(&relay)];
    must(&reply(&quick, DATABASE, &create([unique_email()])));
    std::thread::scope(|scope| {
        let held = hold_change(&relay);
        let dropped = scope.spawn(|| reply(&slow, DATABASE, &doc! { "drop": "users" }));
        held.wait();
        let namespace = format!("{DATABASE}.users");
        shard_on_two(&CLUSTER, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
        let plain = create([doc! { "key": { "email": 1 }, "name": "email_1" }]);
        must(&CLUSTER.run(DATABASE, plain).unwrap());
        must(&reply(&quick, DATABASE, &create([unique_email()])));
        drop(held);
        must(&dropped.join().unwrap());
    });
    assert_eq!(unique_indexes(&slow, DATABASE), ["email_1"]);
    assert_eq!(insert_pair(&slow, DATABASE, 1, "x"), [Ok(()), Err(11_000)]);
}

#[test]
fn a_failed_command_leaves_the_index_of_a_later_one() {
    const DATABASE: &str = "created_after_failed";
    shard_users(DATABASE);
    let relay = Relay::start(CLUSTER.router_address());
    let [quick, slow] = [start(), start_behind(&relay)];
    assert_eq!(insert_pair(&slow, DATABASE, 1, "x"), [Ok(()), Ok(())]);
    std::thread::scope(|scope| {
        let held = hold(&relay, "dropIndexes", "users");
        let failed = scope.spawn(|| reply(&slow, DATABASE, &create([unique_email()])));
        held.wait();
        let delete = doc! { "delete": "users", "deletes": [{ "q": { "_id": 1, "region": "a" }, "limit": 1 }] };
        quick.run(DATABASE, delete).unwrap();
        must(&reply(&quick, DATABASE, &create([unique_email()])));
        drop(held);
        assert_eq!(failed.join().unwrap().get_i32("code").ok(), Some(11_000));
    });
    assert_eq!(unique_indexes(&quick, DATABASE), ["email_1"]);
    assert_eq!(
        quick.insert(DATABASE, doc! { "_id": 3, "region": "a", "email": "x" }),
        Err(11_000)
    );
}

/// One client's constraint must not stop all others.
#[test]
fn a_view_in_the_place_of_a_collection_stops_no_other_constraint() {
    const DATABASE: &str = "created_below_view";
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    let orders = format!("{DATABASE}.orders");
    shard_on_two(&cluster, &orders, doc! { "region": 1 }, doc! { "region": "m" });
    let keyward = start_at(&cluster);
    must(&reply(&keyward, DATABASE, &create([unique_email()])));
    // Past Keyward.
    cluster.run(DATABASE, doc! { "drop": "users" }).unwrap();
    let view = doc! { "create": "users", "viewOn": "orders", "pipeline": [] };
    cluster.run(DATABASE, view).unwrap();
    let number = doc! { "key": { "number": 1 }, "name": "number_1", "unique": true };
    let mut on_orders = doc! { "createIndexes": "orders", "indexes": [number], "maxTimeMS": 60_000 };
    must(&reply(&keyward, DATABASE, &on_orders));
    let second = start_at(&cluster);
    assert!(
        second.log().contains("is a view or a time series now"),
        "{}",
        second.log()
    );
    let order = |id: i32, region: &str| doc! { "insert": "orders", "documents": [{ "_id": id, "region": region, "number": 1 }] };
    must(&reply(&second, DATABASE, &order(1, "a")));
    let refused = reply(&keyward, DATABASE, &order(2, "z"));
    assert!(refused.to_string().contains("11000"), "{refused}");
    let refused = reply(&keyward, DATABASE, &drop_email());
    assert_eq!(refused.get_i32("code").ok(), Some(166), "{refused}");
    let list = first_of(&cluster, "keyward", doc! { "find": "clientConstraints" });
    let listed = list.get_array("constraints").unwrap();
    let is_on_view = |one: &bson::Bson| {
        let collection = one.as_document().unwrap().get_str("collection");
        collection.is_ok_and(|collection| collection == format!("{DATABASE}.users"))
    };
    assert!(!listed.iter().any(is_on_view), "{list}");
    on_orders = doc! { "dropIndexes": "orders", "index": "number_1" };
    must(&reply(&keyward, DATABASE, &on_orders));
}
