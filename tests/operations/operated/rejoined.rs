//! A Keyward whose entry was taken away, or restored, registers anew; what it tried in vain leaves no entry that others would wait for.

use bson::{Document, doc};
use testbed::ReplicaSet;

use testkit::keyward::Keyward;

pub fn entries(set: &ReplicaSet) -> Vec<Document> {
    let reply = set.run("keyward", doc! { "find": "keywards" }).unwrap();
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch.iter().map(|entry| entry.as_document().unwrap().clone()).collect()
}

#[test]
fn a_new_entry_that_came_to_nothing_is_taken_away() {
    // Nobody else's: its fail points are everybody's.
    let set = ReplicaSet::start(1).unwrap();
    let settings = format!("upstream: {}\nreload_interval: 0s\nconstraints: []\n", set.uri());
    let keyward = Keyward::of(&settings);
    keyward.insert("rejoined", doc! { "_id": 1 }).unwrap();
    let [first] = <[Document; 1]>::try_from(entries(&set)).unwrap();
    // What it lacks can't be noted: each try ends after the new entry was written.
    let unnoted = set
        .fail_point(
            "failCommand",
            "alwaysOn",
            doc! { "failCommands": ["update"], "namespace": "rejoined.keyward.constraints", "errorCode": 2 },
        )
        .unwrap();
    let delete = doc! { "delete": "keywards", "deletes": [{ "q": { "_id": first.get("_id") }, "limit": 1 }] };
    set.run("keyward", delete).unwrap();
    let mut tried = std::collections::HashSet::new();
    let tries = std::cell::RefCell::new(&mut tried);
    keyward.until("three tries", || {
        let all = entries(&set);
        // Each takes away what the one before left.
        assert!(all.len() <= 1, "{all:?}");
        let ids = all.iter().map(|entry| entry.get_object_id("_id").unwrap());
        let mut tries = tries.borrow_mut();
        tries.extend(ids);
        tries.len() >= 3
    });
    assert_eq!(keyward.insert("rejoined", doc! { "_id": 2 }), Err(6));
    drop(unnoted);
    keyward.until("a new entry", || keyward.get("/readyz").starts_with("HTTP/1.1 200 "));
    keyward.insert("rejoined", doc! { "_id": 3 }).unwrap();
    // Long before others would see that nobody renews them.
    keyward.until("one entry", || entries(&set).len() == 1);
    let [own] = <[Document; 1]>::try_from(entries(&set)).unwrap();
    assert_eq!(own.get("collections"), first.get("collections"));
    keyward.stop();
    assert_eq!(entries(&set), []);
}

/// Otherwise no Keyward would wait for it, although it writes.
#[test]
fn an_entry_restored_to_an_earlier_state_is_replaced() {
    let set = ReplicaSet::start(1).unwrap();
    let settings = format!("upstream: {}\nreload_interval: 0s\nconstraints: []\n", set.uri());
    let keyward = Keyward::of(&settings);
    let [early] = <[Document; 1]>::try_from(entries(&set)).unwrap();
    keyward.insert("restored_register", doc! { "_id": 1 }).unwrap();
    keyward.until("an update", || entries(&set)[0].get("beat") != early.get("beat"));
    let q = doc! { "_id": early.get("_id") };
    let restore = doc! { "update": "keywards", "updates": [{ "q": q, "u": early.clone() }] };
    set.run("keyward", restore).unwrap();
    keyward.until("a new entry", || {
        let all = entries(&set);
        all.len() == 1 && all[0].get("_id") != early.get("_id")
    });
    let [own] = <[Document; 1]>::try_from(entries(&set)).unwrap();
    let collections = own.get_array("collections").unwrap();
    assert_eq!(collections, &["restored_register.users".into()]);
    keyward.until("the permit", || {
        keyward.insert("restored_register", doc! { "_id": 2 }).is_ok()
    });
}

/// A reload reads all documents of a new constraint, which may take hours.
#[test]
fn it_writes_again_while_a_reload_is_under_way() {
    let set = ReplicaSet::start(1).unwrap();
    let settings = |constraints: &str| {
        format!(
            "upstream: {}\nlease: 2s\nreload_interval: 0s\nconstraints: [{{ collection: rejoined_amid.users, key: {{ z: 1 }} }}{constraints}]\n",
            set.uri()
        )
    };
    let more = settings(", { collection: rejoined_amid.orders, key: { n: 1 } }");
    let keyward = Keyward::of(&settings(""));
    // The definition stays when the constraint goes.
    for constraints in [&more, &settings("")] {
        assert_eq!(keyward.reload(constraints)["outcome"], "applied");
    }
    // Another Keyward reads the documents: the reload waits for it.
    let claim = |until: Document| {
        let set_claim = doc! { "$set": { "claim": { "by": bson::oid::ObjectId::new(), "until": until } } };
        let updates = vec![doc! { "q": { "_id.collection": "orders" }, "u": [set_claim] }];
        set.run(
            "rejoined_amid",
            doc! { "update": "keyward.constraints", "updates": updates },
        )
        .unwrap();
    };
    let in_seconds = |seconds: i64| doc! { "$add": ["$$NOW", seconds * 1_000] };
    claim(in_seconds(50));
    keyward.rewrite(&more);
    let reloads = keyward.count_reloads();
    keyward.send(nix::sys::signal::Signal::SIGHUP);
    let is_reading = || entries(&set)[0].get_array("constraints").unwrap().len() == 2;
    keyward.until("the reload", is_reading);
    let [before] = <[Document; 1]>::try_from(entries(&set)).unwrap();
    let delete = doc! { "delete": "keywards", "deletes": [{ "q": { "_id": before.get("_id") }, "limit": 1 }] };
    set.run("keyward", delete).unwrap();
    keyward.until("a new entry", || {
        entries(&set).iter().any(|entry| entry.get("_id") != before.get("_id"))
    });
    keyward.until("a write", || {
        keyward.insert("rejoined_amid", doc! { "_id": 1, "z": 1 }).is_ok()
    });
    assert!(
        keyward.get("/reload").contains("under way"),
        "{}",
        keyward.get("/reload")
    );
    claim(in_seconds(0));
    assert_eq!(keyward.reloaded_after(reloads)["outcome"], "applied");
}

/// Another Keyward may have enforced the constraint while there was no entry. A write from before the first loss may still go on.
#[test]
fn each_new_entry_revokes_the_constraints_that_it_lacks() {
    let set = ReplicaSet::start(1).unwrap();
    let settings = format!("upstream: {}\nreload_interval: 0s\nconstraints: []\n", set.uri());
    let keyward = Keyward::of(&settings);
    keyward.insert("rejoined_twice", doc! { "_id": 1 }).unwrap();
    for loss in ["first", "second"] {
        let epoch = bson::oid::ObjectId::new();
        let enforced = doc! {
            "_id": { "collection": "users", "name": "z_1" }, "identity": bson::oid::ObjectId::new(),
            "state": "enforced", "era": epoch, "enforcedIn": epoch,
        };
        let q = doc! { "_id": enforced.get("_id") };
        let updates = vec![doc! { "q": q, "u": enforced, "upsert": true }];
        let update = doc! { "update": "keyward.constraints", "updates": updates };
        set.run("rejoined_twice", update).unwrap();
        let delete = doc! { "delete": "keywards", "deletes": [{ "q": {}, "limit": 0 }] };
        set.run("keyward", delete).unwrap();
        // Into another collection, so nothing is declared anew for this one. Keyward writes there once it has another entry.
        let other = doc! { "insert": format!("{loss}_other"), "documents": [{}] };
        keyward.until("a write", || keyward.run("rejoined_twice", other.clone()).is_ok());
        let [own] = <[Document; 1]>::try_from(entries(&set)).unwrap();
        let collections = own.get_array("collections").unwrap();
        assert!(collections.contains(&"rejoined_twice.users".into()), "{collections:?}");
        let found = set
            .run("rejoined_twice", doc! { "find": "keyward.constraints" })
            .unwrap();
        let batch = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        let state = batch[0].as_document().unwrap().get_str("state").unwrap();
        assert_eq!(state, "reserving", "after the {loss} loss");
    }
}
