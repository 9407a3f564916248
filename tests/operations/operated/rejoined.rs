//! A Keyward whose entry was taken away, or restored, registers anew; what it tried in vain leaves no entry that others would wait for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{Document, doc, oid::ObjectId};
use keyward::fleet::{self, ClientsView, EntryTerms, Membership};
use keyward::namespace::Namespace;
use keyward::proxy_collection::StoreError;
use keyward::readiness::Readiness;
use mongodb::Client;
use testbed::ReplicaSet;

use testkit::keyward::{Keyward, PATIENCE};
use testkit::relay::Relay;
use testkit::wire::Connection;

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

/// Clients may go on with their transactions until the drain is over.
#[test]
fn it_writes_again_while_it_drains() {
    let set = ReplicaSet::start(1).unwrap();
    let settings = format!(
        "upstream: {}\nlease: 2s\ndrain: 300s\nconstraints: [{{ collection: rejoined_draining.users, key: {{ z: 1 }} }}]\n",
        set.uri()
    );
    let mut keyward = Keyward::of(&settings);
    let mut client = Connection::greeted(&keyward.address);
    let of_transaction = doc! { "lsid": { "id": bson::Uuid::new() }, "txnNumber": 1_i64, "autocommit": false };
    let mut find = doc! { "find": "users", "startTransaction": true };
    find.extend(of_transaction);
    client.must("rejoined_draining", &find);
    let [before] = <[Document; 1]>::try_from(entries(&set)).unwrap();
    keyward.send(nix::sys::signal::Signal::SIGTERM);
    keyward.until("the drain", || keyward.get("/readyz").contains("stopping"));
    let delete = doc! { "delete": "keywards", "deletes": [{ "q": { "_id": before.get("_id") }, "limit": 1 }] };
    set.run("keyward", delete).unwrap();
    let is_in_doubt = || keyward.get("/readyz").contains("was out of the register");
    keyward.until("a new entry", is_in_doubt);
    keyward.until("the permit", || !is_in_doubt());
    keyward.kill();
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

/// A constraint's document, as that of one that is enforced.
fn enforced(collection: &str, identity: ObjectId) -> Document {
    let epoch = ObjectId::new();
    doc! {
        "_id": { "collection": collection, "name": "z_1" }, "identity": identity,
        "state": "enforced", "era": epoch, "enforcedIn": epoch,
    }
}

fn insert_definitions(set: &ReplicaSet, database: &str, definitions: Vec<Document>) {
    let insert = doc! { "insert": "keyward.constraints", "documents": definitions };
    set.run(database, insert).unwrap();
}

/// How many constraints of the database are in this state.
fn count_in(set: &ReplicaSet, database: &str, state: &str) -> i32 {
    let count = doc! { "count": "keyward.constraints", "query": { "state": state } };
    set.run(database, count).unwrap().get_i32("n").unwrap()
}

/// How often constraints of the database were changed since it is profiled.
fn count_updates(set: &ReplicaSet, database: &str) -> i32 {
    let query = doc! { "op": "update", "ns": format!("{database}.keyward.constraints") };
    let count = doc! { "count": "system.profile", "query": query };
    set.run(database, count).unwrap().get_i32("n").unwrap()
}

fn lose_entries(set: &ReplicaSet) {
    let delete = doc! { "delete": "keywards", "deletes": [{ "q": {}, "limit": 0 }] };
    set.run("keyward", delete).unwrap();
}

/// With a command for each collection, nothing would be written meanwhile, for as long as all of them take.
#[test]
fn a_new_entry_costs_one_command_for_each_database() {
    let set = ReplicaSet::start(1).unwrap();
    let settings = format!("upstream: {}\nreload_interval: 0s\nconstraints: []\n", set.uri());
    let keyward = Keyward::of(&settings);
    let databases = ["rejoined_first", "rejoined_second"];
    let collections: Vec<String> = (0..10).map(|n| format!("c{n}")).collect();
    for database in databases {
        for collection in &collections {
            let delete = doc! { "delete": collection, "deletes": [{ "q": {}, "limit": 0 }] };
            keyward.run(database, delete).unwrap();
        }
        let of = |collection: &String| enforced(collection, ObjectId::new());
        let mut definitions: Vec<Document> = collections.iter().map(of).collect();
        definitions.push(enforced("never_written", ObjectId::new()));
        insert_definitions(&set, database, definitions);
        set.run(database, doc! { "profile": 2 }).unwrap();
    }
    lose_entries(&set);
    // Written in a third database, so nothing is declared anew in these.
    keyward.until("a write", || keyward.insert("rejoined_third", doc! {}).is_ok());
    for database in databases {
        assert_eq!(count_in(&set, database, "reserving"), 10);
        assert_eq!(count_in(&set, database, "enforced"), 1);
        assert_eq!(count_updates(&set, database), 1);
    }
}

/// Waits until the Keyward has an entry again.
async fn rejoined(membership: &Membership, former: ObjectId) {
    let deadline = Instant::now() + PATIENCE;
    while membership.id() == former {
        assert!(Instant::now() < deadline, "no new entry");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn joined(client: &Client) -> Arc<Membership> {
    let terms = EntryTerms {
        lease: Duration::from_secs(2),
        ..EntryTerms::of(Duration::from_secs(2))
    };
    let joined = Membership::join(client, "127.0.0.1:1".to_owned(), terms, ClientsView::default()).await;
    Arc::new(joined.unwrap())
}

/// It may have written to any of them.
#[tokio::test(flavor = "multi_thread")]
async fn past_the_limit_a_new_entry_revokes_all_constraints_that_it_lacks() {
    let database = "rejoined_everywhere";
    let set = ReplicaSet::start(1).unwrap();
    let membership = joined(&set.client()).await;
    let listed = ObjectId::new();
    let names = (0..1_001).map(|n| Namespace::new(database, format!("c{n}")));
    let declared = membership.declare_if(names, &[listed], async { Ok(true) }).await;
    assert!(declared.unwrap());
    let definitions = vec![
        enforced("c7", ObjectId::new()),
        enforced("c1000", ObjectId::new()),
        enforced("other", ObjectId::new()),
        enforced("c8", listed),
    ];
    insert_definitions(&set, database, definitions);
    set.run(database, doc! { "profile": 2 }).unwrap();
    let former = membership.id();
    lose_entries(&set);
    let renewing = tokio::spawn(fleet::renew(membership.clone(), Readiness::starting()));
    rejoined(&membership, former).await;
    renewing.abort();
    assert_eq!(count_in(&set, database, "reserving"), 3);
    assert_eq!(count_in(&set, database, "enforced"), 1);
    assert_eq!(count_updates(&set, database), 1);
}

/// What was decided before may be under way still.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_entry_lists_no_constraint_for_a_caller_who_looked_before() {
    let set = ReplicaSet::start(1).unwrap();
    let membership = joined(&set.client()).await;
    let [former, anew] = [(); 2].map(|()| ObjectId::new());
    let before = membership.rejoined();
    membership.list(&[former], before).await.unwrap();
    lose_entries(&set);
    for moment in [
        "it notices that the entry is gone",
        "there is a new one",
        "no doubt is left",
    ] {
        let listed = membership.list(&[former, anew], before).await;
        assert!(matches!(listed, Err(StoreError::Outlasted)), "{moment}: {listed:?}");
        assert_eq!(constraints_of_entry(&set), [former]);
        if moment == "there is a new one" {
            membership.confirm(membership.doubt().unwrap()).await.unwrap();
            assert_eq!(membership.doubt(), None);
        }
    }
    membership.list(&[former, anew], membership.rejoined()).await.unwrap();
    assert_eq!(constraints_of_entry(&set), [former, anew]);
}

/// The constraints that the only entry lists.
fn constraints_of_entry(set: &ReplicaSet) -> Vec<ObjectId> {
    let [entry] = <[Document; 1]>::try_from(entries(set)).unwrap();
    let listed = entry.get_array("constraints").unwrap();
    listed.iter().map(|one| one.as_object_id().unwrap()).collect()
}

/// Other Keywards would remove it, and all would begin anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_entry_is_renewed_while_constraints_are_revoked() {
    let set = ReplicaSet::start(1).unwrap();
    let relay = Relay::start(set.addresses().remove(0));
    let uri = format!("{}?directConnection=true", relay.uri());
    let membership = joined(&Client::with_uri_str(uri).await.unwrap()).await;
    let users = Namespace::new("rejoined_slowly", "users");
    let declared = membership.declare_if([users], &[], async { Ok(true) }).await;
    assert!(declared.unwrap());
    let former = membership.id();
    lose_entries(&set);
    let held = relay.hold(b"\x02update\0\x14\0\0\0keyward.constraints\0");
    let renewing = tokio::spawn(fleet::renew(membership.clone(), Readiness::starting()));
    tokio::task::block_in_place(|| held.wait());
    let [new] = <[Document; 1]>::try_from(entries(&set)).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let beat = || {
        let entries = entries(&set);
        let entry = entries.iter().find(|entry| entry.get("_id") == new.get("_id"));
        entry.expect("it was given up").get_i64("beat").unwrap()
    };
    while beat() < 3 {
        assert!(Instant::now() < deadline, "it isn't renewed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(membership.id(), former);
    drop(held);
    rejoined(&membership, former).await;
    assert_eq!(new.get_object_id("_id").unwrap(), membership.id());
    renewing.abort();
}
