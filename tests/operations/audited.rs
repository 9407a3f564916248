//! `audit: true`: what is written past Keyward is reserved, or reported.

use std::time::{Duration, Instant};

use bson::spec::ElementType;
use bson::{Bson, Document, RawDocumentBuf, doc};
use futures_util::StreamExt;
use keyward::raw::Builder;
use testbed::{Cluster, ReplicaSet};
use testkit::{Keyward, shard_on_two};

/// A Keyward that audits `database.users`, and whose turn runs out soon after it is killed. No test waits for its lease to be over: it is
/// long, so that a busy machine writes within it.
fn start(upstream: &str, database: &str) -> Keyward {
    let settings = format!(
        "upstream: {upstream}\nlease: 10s\nsweep: 1s\naudit: true\nconstraints:\n  - {{ collection: {database}.users, key: {{ email: 1 }} }}\n"
    );
    Keyward::of_in(&settings, &[("KEYWARD_REGISTER_HASTE", "10")])
}

fn metric(keyward: &Keyward, database: &str, name: &str) -> u64 {
    keyward.metric(&format!(
        "keyward_constraint_{name}{{constraint=\"{database}.users.email_1\"}}"
    ))
}

fn user(id: i32, region: &str, email: &str) -> Document {
    doc! { "_id": id, "region": region, "email": email }
}

fn insert(user: Document) -> Document {
    doc! { "insert": "users", "documents": [user] }
}

/// Waits until the audit has begun.
fn until_auditing(keyward: &Keyward, database: &str) {
    let note = format!("auditing namespace={database}.users");
    keyward.until("the audit", || keyward.log().contains(&note));
}

fn shard(database: &str) {
    let namespace = format!("{database}.users");
    shard_on_two(
        Cluster::shared(),
        &namespace,
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
}

#[test]
fn what_was_written_past_keyward_is_reserved_or_reported() {
    const DATABASE: &str = "audited";
    shard(DATABASE);
    let past = |command: Document| Cluster::shared().run(DATABASE, command).unwrap();
    let keyward = start(&Cluster::shared().uri(), DATABASE);
    until_auditing(&keyward, DATABASE);
    keyward.insert_once_permitted(DATABASE, user(1, "a", "one")).unwrap();
    past(insert(user(2, "a", "two")));
    keyward.until("the reservation", || {
        metric(&keyward, DATABASE, "audit_repaired_total") == 1
    });
    assert_eq!(
        keyward.insert_once_permitted(DATABASE, user(3, "z", "two")),
        Err(11_000)
    );
    // A change of a key, too.
    let update = doc! { "q": { "_id": 2, "region": "a" }, "u": { "$set": { "email": "three" } } };
    past(doc! { "update": "users", "updates": [update] });
    keyward.until("the reservation", || {
        metric(&keyward, DATABASE, "audit_repaired_total") == 2
    });
    assert_eq!(
        keyward.insert_once_permitted(DATABASE, user(3, "z", "three")),
        Err(11_000)
    );
    assert_eq!(keyward.insert_once_permitted(DATABASE, user(3, "z", "two")), Ok(()));
    // A duplicate can only be reported.
    past(insert(user(4, "z", "one")));
    keyward.until("the violation", || {
        metric(&keyward, DATABASE, "audit_violations_total") == 1
    });
    assert!(keyward.log().contains("violates a constraint, written past Keyward"));
    keyward.until("the status", || {
        let shown = keyward.get("/status.json");
        shown.contains(r#""audit":{"behindSeconds":0,"collections":1}"#)
            && shown.contains(r#""auditRepaired":2,"auditViolations":1}"#)
    });
    let lines = keyward.get("/status");
    assert!(
        lines.contains("; since the start 2 documents reserved, 1 violation\n"),
        "{lines}"
    );
    assert_eq!(metric(&keyward, DATABASE, "audit_repaired_total"), 2);
    // `keyward shard` counts what audits have found.
    let definitions = past(doc! { "find": "keyward.constraints" });
    let batch = definitions
        .get_document("cursor")
        .unwrap()
        .get_array("firstBatch")
        .unwrap();
    let noted = batch[0].as_document().unwrap().get_i64("writtenPast");
    assert!(noted.is_ok_and(|noted| noted >= 3), "{definitions}");
    // The sweeper releases the key of a document that was deleted past Keyward.
    past(doc! { "delete": "users", "deletes": [{ "q": { "_id": 2, "region": "a" }, "limit": 1 }] });
    keyward.until("the release", || {
        keyward.insert(DATABASE, user(5, "z", "three")) == Ok(())
    });
    keyward.until("the end of the changes", || {
        keyward.metric("keyward_audit_behind_seconds") == 0
    });
}

/// The driver can't decode such a change as a whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_with_text_that_is_not_utf_8_is_audited_like_any_other() {
    const DATABASE: &str = "audited_odd";
    shard(DATABASE);
    let database = Cluster::shared().client().database(DATABASE);
    let past = async |name: &str, list: &str, item: &dyn Fn(&mut Builder)| {
        let mut command = Builder::new();
        command
            .string(name, b"users")
            .open(ElementType::Array, list.as_bytes())
            .open(ElementType::EmbeddedDocument, b"0");
        item(&mut command);
        command.close().close();
        let command = RawDocumentBuf::from_bytes(command.finish()).unwrap();
        let reply = database.run_raw_command(command).await.unwrap();
        assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    };
    let keyward = start(&Cluster::shared().uri(), DATABASE);
    keyward.insert_once_permitted(DATABASE, user(1, "a", "one")).unwrap();
    // Without a record, an audit that begins anew would compare all documents, and find these in any case.
    let recorded = doc! { "count": "keyward.audits", "query": { "record": { "$exists": true } } };
    keyward.until("a record", || {
        let counted = Cluster::shared().run(DATABASE, recorded.clone()).unwrap();
        counted.get_i32("n").ok() == Some(1)
    });
    past("insert", "documents", &|user| {
        user.int32("_id", 2).string("region", b"a").string("email", b"two");
        user.string("name", b"\xff");
    })
    .await;
    past("update", "updates", &|update| {
        update.open(ElementType::EmbeddedDocument, b"q");
        update.int32("_id", 1).string("region", b"a").close();
        update.open(ElementType::EmbeddedDocument, b"u");
        update.open(ElementType::EmbeddedDocument, b"$set");
        update.string("email", b"three").string("name", b"\xff").close().close();
    })
    .await;
    keyward.until("the reservations", || {
        metric(&keyward, DATABASE, "audit_repaired_total") == 2
    });
    for email in ["two", "three"] {
        assert_eq!(
            keyward.insert_once_permitted(DATABASE, user(3, "z", email)),
            Err(11_000)
        );
    }
}

/// Nothing else would show that changes aren't audited.
#[test]
fn an_audit_that_fails_is_behind() {
    const DATABASE: &str = "audited_behind";
    let cluster = Cluster::alone().unwrap();
    shard_on_two(
        &cluster,
        &format!("{DATABASE}.users"),
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let keyward = start(&cluster.uri(), DATABASE);
    let behind = || keyward.metric("keyward_audit_behind_seconds");
    let recorded = doc! { "count": "keyward.audits", "query": { "record": { "$exists": true } } };
    keyward.until("a record", || {
        cluster.run(DATABASE, recorded.clone()).unwrap().get_i32("n").ok() == Some(1)
    });
    let refused = doc! {
        "failCommands": ["aggregate", "getMore"], "namespace": format!("{DATABASE}.users"), "errorCode": 20,
        "failInternalCommands": true,
    };
    let shards = cluster.shards().iter();
    let refusing = shards.map(|shard| shard.fail_point("failCommand", "alwaysOn", refused.clone()).unwrap());
    let refusing: Vec<_> = refusing.collect();
    // Longer than it takes between two tries.
    keyward.until("that it is behind", || behind() >= 5);
    assert!(keyward.log().contains("an audit was broken off"), "{}", keyward.log());
    drop(refusing);
    keyward.until("the end of the changes", || behind() == 0);
}

/// Its changes come one after the other for as long as they go on: they are audited all the same, in batches that have it several times.
#[test]
fn a_document_that_is_written_again_and_again_is_reserved_and_no_duplicate_of_itself() {
    const DATABASE: &str = "audited_without_a_pause";
    shard(DATABASE);
    let past = |command: Document| Cluster::shared().run(DATABASE, command).unwrap();
    let keyward = start(&Cluster::shared().uri(), DATABASE);
    until_auditing(&keyward, DATABASE);
    past(insert(user(1, "a", "one")));
    let again = doc! { "q": { "_id": 1, "region": "a" }, "u": { "$inc": { "n": 1 } } };
    let again = doc! { "update": "users", "updates": [again] };
    let writes = std::cell::Cell::new(0);
    keyward.until("the reservation", || {
        past(again.clone());
        writes.set(writes.get() + 1);
        metric(&keyward, DATABASE, "audit_repaired_total") == 1
    });
    assert!(writes.get() < 900, "it waited for a whole batch: {}", writes.get());
    keyward.until("it keeps up", || {
        past(again.clone());
        keyward.metric("keyward_audit_behind_seconds") <= 1
    });
    assert_eq!(metric(&keyward, DATABASE, "audit_violations_total"), 0);
}

/// A shard that refuses for a while makes it later, not never.
#[test]
fn what_could_not_be_reserved_is_tried_again() {
    const DATABASE: &str = "audited_again";
    let cluster = Cluster::alone().unwrap();
    shard_on_two(
        &cluster,
        &format!("{DATABASE}.users"),
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let keyward = start(&cluster.uri(), DATABASE);
    until_auditing(&keyward, DATABASE);
    let recorded = doc! { "count": "keyward.audits", "query": { "record": { "$exists": true } } };
    keyward.until("a record", || {
        cluster.run(DATABASE, recorded.clone()).unwrap().get_i32("n").ok() == Some(1)
    });
    let refused = doc! {
        "failCommands": ["insert"], "namespace": format!("{DATABASE}.keyward.users.email_1"), "errorCode": 20,
        "failInternalCommands": true,
    };
    let shards = cluster.shards().iter();
    let refusing = shards.map(|shard| shard.fail_point("failCommand", "alwaysOn", refused.clone()).unwrap());
    let refusing: Vec<_> = refusing.collect();
    // A key that only one document has, and one that two have.
    for (id, email) in [(1, "one"), (2, "two"), (3, "two")] {
        cluster.run(DATABASE, insert(user(id, "a", email))).unwrap();
    }
    keyward.until("a try", || keyward.log().contains("an audit was broken off"));
    assert_eq!(metric(&keyward, DATABASE, "audit_repaired_total"), 0);
    drop(refusing);
    keyward.until("the violation", || {
        metric(&keyward, DATABASE, "audit_violations_total") == 1
    });
    assert!(metric(&keyward, DATABASE, "audit_repaired_total") > 0);
    assert!(!keyward.log().contains("comparing all documents"));
    for email in ["one", "two"] {
        assert_eq!(
            keyward.insert_once_permitted(DATABASE, user(4, "z", email)),
            Err(11_000)
        );
    }
}

/// Else a key that can't be reserved would keep all later documents without theirs.
#[test]
fn an_audit_goes_on_without_a_key_that_is_refused_again_and_again() {
    const DATABASE: &str = "audited_without";
    let cluster = Cluster::alone().unwrap();
    shard_on_two(
        &cluster,
        &format!("{DATABASE}.users"),
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let keyward = start(&cluster.uri(), DATABASE);
    until_auditing(&keyward, DATABASE);
    let recorded = doc! { "count": "keyward.audits", "query": { "record": { "$exists": true } } };
    let records = || cluster.run(DATABASE, recorded.clone()).unwrap().get_i32("n").unwrap();
    keyward.until("a record", || records() == 1);
    let refused = doc! {
        "failCommands": ["insert"], "namespace": format!("{DATABASE}.keyward.users.email_1"), "errorCode": 20,
        "failInternalCommands": true,
    };
    let shards = cluster.shards().iter();
    let refusing = shards.map(|shard| shard.fail_point("failCommand", "alwaysOn", refused.clone()).unwrap());
    let refusing: Vec<_> = refusing.collect();
    cluster.run(DATABASE, insert(user(1, "a", "one"))).unwrap();
    keyward.until("the key that is left", || {
        metric(&keyward, DATABASE, "audit_violations_total") > 0
    });
    keyward.until("the end of the changes", || {
        keyward.metric("keyward_audit_behind_seconds") == 0
    });
    assert!(keyward.log().contains("the audit goes on"), "{}", keyward.log());
    drop(refusing);
    cluster.run(DATABASE, insert(user(2, "a", "two"))).unwrap();
    keyward.until("the later document", || {
        metric(&keyward, DATABASE, "audit_repaired_total") > 0
    });
    keyward.until("no record", || records() == 0);
}

#[test]
fn another_keyward_goes_on_where_a_killed_one_stopped() {
    const DATABASE: &str = "audited_by_two";
    shard(DATABASE);
    let mut first = start(&Cluster::shared().uri(), DATABASE);
    until_auditing(&first, DATABASE);
    let audits = || {
        let found = Cluster::shared()
            .run(DATABASE, doc! { "find": "keyward.audits" })
            .unwrap();
        let batch = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        batch.first().and_then(Bson::as_document).cloned().unwrap_or_default()
    };
    first.until("a note", || audits().contains_key("record"));
    let second = start(&Cluster::shared().uri(), DATABASE);
    first.kill();
    // Nobody audits now.
    for id in 0..50 {
        let past = insert(user(id, ["a", "z"][usize::from(id % 2 == 0)], &format!("{id}")));
        Cluster::shared().run(DATABASE, past).unwrap();
    }
    second.until("the reservations", || {
        metric(&second, DATABASE, "audit_repaired_total") == 50
    });
    assert!(!second.log().contains("comparing all documents"));
}

#[tokio::test(flavor = "multi_thread")]
async fn all_documents_are_compared_if_the_history_is_gone() {
    const DATABASE: &str = "audited_without_history";
    let native = ReplicaSet::shared();
    // The record of a change that the stream of `users` doesn't have, as if the servers had it no more.
    let database = native.client().database(DATABASE);
    let others = database.collection("others");
    let mut changes = others.watch().await.unwrap();
    others.insert_one(doc! { "_id": 1 }).await.unwrap();
    let lost = bson::serialize_to_bson(&changes.next().await.unwrap().unwrap().id).unwrap();
    let audits = database.collection("keyward.audits");
    audits
        .insert_one(doc! { "_id": "users", "record": { "token": &lost, "constraints": ["email_1"] } })
        .await
        .unwrap();
    // The start reads the first document.
    native.run(DATABASE, insert(user(1, "a", "one"))).unwrap();
    let keyward = start(&native.uri(), DATABASE);
    keyward.until("the comparison", || keyward.log().contains("comparing all documents"));
    // This one came before the stream, or after.
    native.run(DATABASE, insert(user(2, "a", "two"))).unwrap();
    // Both the comparison and the audit of this change may find it.
    keyward.until("the reservation", || {
        metric(&keyward, DATABASE, "audit_repaired_total") >= 1
    });
    assert_eq!(
        keyward.insert_once_permitted(DATABASE, user(3, "a", "two")),
        Err(11_000)
    );
    assert_eq!(
        keyward.insert_once_permitted(DATABASE, user(3, "a", "one")),
        Err(11_000)
    );
    keyward.until("a new record", || {
        let found = native.run(DATABASE, doc! { "find": "keyward.audits" }).unwrap();
        !found.to_string().contains(&lost.to_string())
    });
}

/// Another Keyward may write without the constraint: its documents weren't written past Keyward. Later ones are.
#[test]
fn nothing_is_reported_before_the_constraint_is_enforced() {
    const DATABASE: &str = "audited_before";
    shard(DATABASE);
    let uri = Cluster::shared().uri();
    let haste = [("KEYWARD_REGISTER_HASTE", "10")];
    let without = format!("upstream: {uri}\nconstraints: []\n");
    let without = Keyward::of_in(&without, &haste);
    for (id, email) in [(1, "one"), (2, "two"), (3, "two")] {
        without.insert_once_permitted(DATABASE, user(id, "a", email)).unwrap();
    }
    let keyward = start(&uri, DATABASE);
    until_auditing(&keyward, DATABASE);
    let past = |command: Document| Cluster::shared().run(DATABASE, command).unwrap();
    let reserved = || past(doc! { "count": "keyward.users.email_1" }).get_i32("n").unwrap();
    keyward.until("the reservations", || reserved() == 2);
    keyward.until("the duplicate", || keyward.log().contains("isn't enforced yet"));
    // Another Keyward that went on from a record wouldn't know of the duplicate.
    let recorded = doc! { "count": "keyward.audits", "query": { "record": { "$exists": true } } };
    assert_eq!(past(recorded).get_i32("n").ok(), Some(0));
    assert!(
        keyward.get("/readyz").contains("waits for Keyward"),
        "{}",
        keyward.log()
    );
    let assert_nothing_is_reported = || {
        assert_eq!(metric(&keyward, DATABASE, "audit_repaired_total"), 0);
        assert_eq!(metric(&keyward, DATABASE, "audit_violations_total"), 0);
        assert!(!keyward.log().contains("written past Keyward"), "{}", keyward.log());
    };
    assert_nothing_is_reported();
    past(doc! { "delete": "users", "deletes": [{ "q": { "_id": 3 }, "limit": 0 }] });
    without.stop();
    // By then it compares all documents: it has found one that violated the constraint.
    keyward.until("the second comparison", || {
        keyward
            .log()
            .contains("a constraint is enforced by now: comparing all documents")
    });
    assert_nothing_is_reported();
    past(insert(user(4, "z", "one")));
    // Both the comparison and the audit of this change may find it.
    keyward.until("the violation", || {
        metric(&keyward, DATABASE, "audit_violations_total") >= 1
    });
}

/// The auditor was killed while a clock was ahead by a day.
#[test]
fn a_turn_that_was_noted_while_a_clock_was_ahead_keeps_no_one_from_auditing() {
    const DATABASE: &str = "audited_clock";
    shard(DATABASE);
    let tomorrow = vec![doc! { "$set": { "until": { "$add": ["$$NOW", 86_400_000_i64] }, "by": "another" } }];
    let noted = doc! { "q": { "_id": "users" }, "u": tomorrow, "upsert": true };
    let noted = doc! { "update": "keyward.audits", "updates": [noted] };
    Cluster::shared().run(DATABASE, noted).unwrap();
    let keyward = start(&Cluster::shared().uri(), DATABASE);
    until_auditing(&keyward, DATABASE);
}

/// An audit's read of changes has a connection for a second. Writes don't wait for that.
#[test]
fn audits_leave_writes_their_connections() {
    const DATABASE: &str = "audited_beside_writes";
    const COLLECTIONS: usize = 6;
    let collections: Vec<String> = (0..COLLECTIONS).map(|n| format!("{DATABASE}.users{n}")).collect();
    let mut settings = format!(
        "upstream: {}/?maxPoolSize=2\nlease: 10s\naudit: true\nconstraints:\n",
        Cluster::shared().uri().trim_end_matches('/')
    );
    for collection in &collections {
        shard_on_two(
            Cluster::shared(),
            collection,
            doc! { "region": 1 },
            doc! { "region": "m" },
        );
        settings += &format!("  - {{ collection: {collection}, key: {{ email: 1 }} }}\n");
    }
    let keyward = Keyward::of(&settings);
    let is_audited = |collection: &String| {
        let note = format!("auditing namespace={collection}");
        keyward.log().contains(&note)
    };
    keyward.until("all audits", || collections.iter().all(is_audited));
    let insert = |id: i32| {
        let document = doc! { "_id": id, "region": "a", "email": id };
        let begun = Instant::now();
        let command = doc! { "insert": "users0", "documents": [document] };
        keyward.run_once_permitted(DATABASE, command).unwrap();
        begun.elapsed()
    };
    // The middle one of several: the machine is busy.
    let mut times: Vec<Duration> = (0..7).map(insert).collect();
    times.sort();
    assert!(times[3] < Duration::from_millis(800), "{times:?}");
}
