//! SIGHUP, or a changed file: all of the new configuration holds, or none of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use bson::{Document, doc};
use nix::sys::signal::Signal;
use serde_json::json;
use testbed::{Cluster, ReplicaSet};

use testkit::keyward::Keyward;
use testkit::relay::Relay;
use testkit::wire::{Connection, is_ok};

/// Settings with these constraints on `users` of the database, each on one field.
pub fn settings(database: &str, fields: &[&str], more: &str) -> String {
    let uri = ReplicaSet::shared().uri();
    let mut text = format!("upstream: {uri}\nlease: 2s\nreload_interval: 0s\n{more}constraints:\n");
    for field in fields {
        text.push_str(&format!(
            "  - {{ collection: {database}.users, key: {{ {field}: 1 }} }}\n"
        ));
    }
    if fields.is_empty() {
        text = text.replace("constraints:\n", "constraints: []\n");
    }
    text
}

pub fn drop_database(database: &str) {
    ReplicaSet::shared().run(database, doc! { "dropDatabase": 1 }).unwrap();
}

pub fn user(id: impl Into<bson::Bson>, email: &str, phone: &str) -> Document {
    doc! { "_id": id.into(), "email": email, "phone": phone }
}

#[test]
fn an_invalid_file_changes_nothing_and_says_why() {
    let database = "reload_invalid";
    drop_database(database);
    let keyward = Keyward::of(&settings(database, &["email"], ""));
    assert_eq!(
        keyward.get("/reload").split("\r\n\r\n").nth(1),
        Some("{\"outcome\":\"none\"}\n")
    );
    keyward.insert(database, user(1, "a@x", "1")).unwrap();
    let invalid = settings(database, &[], "lease: 1h\nlimits: { max_connections: 1 }\n");
    let outcome = keyward.reload(&invalid);
    assert_eq!(
        (&outcome["outcome"], &outcome["generation"]),
        (&json!("refused"), &json!(1))
    );
    assert!(outcome["error"].as_str().unwrap().contains("lease"), "{outcome}");
    assert!(keyward.log().contains("configuration refused"), "{}", keyward.log());
    assert_eq!(keyward.metric("keyward_config_refused"), 1);
    assert_eq!(keyward.insert(database, user(2, "a@x", "2")), Err(11000));
    // Nor is one held back by the refusal of the one before.
    let outcome = keyward.reload(&settings(database, &["email"], "log: { level: debug }\n"));
    assert_eq!(
        (&outcome["outcome"], &outcome["generation"]),
        (&json!("applied"), &json!(2))
    );
    assert_eq!(keyward.metric("keyward_config_refused"), 0);
    keyward.run(database, doc! { "ping": 1 }).unwrap();
    keyward.until("the new level", || keyward.log().contains("connection accepted"));
}

#[test]
fn what_needs_a_restart_is_named_and_the_rest_holds() {
    let database = "reload_restart";
    let keyward = Keyward::of(&settings(database, &[], ""));
    let other = settings(database, &[], "limits: { max_connections: 1 }\nlog: { format: json }\n")
        .replace("lease: 2s", "lease: 3s");
    let outcome = keyward.reload(&other);
    assert_eq!(outcome["needsRestart"], json!(["lease", "log.format"]));
    let _first = testbed::command::Connection::open(&keyward.address).map(|mut one| {
        one.run("admin", doc! { "ping": 1 }).unwrap();
        one
    });
    assert!(
        keyward.run("admin", doc! { "ping": 1 }).is_err(),
        "one connection is the limit now"
    );
    // It is still different.
    assert_eq!(keyward.reload(&other)["needsRestart"], json!(["lease", "log.format"]));
}

#[test]
fn a_changed_file_is_loaded_without_a_signal() {
    let database = "reload_watched";
    drop_database(database);
    let often = |fields| settings(database, fields, "").replace("reload_interval: 0s", "reload_interval: 100ms");
    let keyward = Keyward::of(&often(&[]));
    keyward.rewrite(&often(&["email"]));
    let outcome = keyward.reloaded_after(0);
    assert_eq!(
        outcome["constraintsAdded"],
        json!(["reload_watched.users.email_1"]),
        "{outcome}"
    );
    keyward.insert(database, user(1, "a@x", "1")).unwrap();
    assert_eq!(keyward.insert(database, user(2, "a@x", "2")), Err(11000));
}

/// What a Keyward has written before a constraint came to it is reserved by nobody. Where it isn't backfilled after all, the
/// constraint no longer counts as enforced, whoever had seen to that before.
#[test]
fn a_reload_that_fails_midway_leaves_it_to_the_next_start() {
    let database = "reload_broken_off";
    drop_database(database);
    Keyward::of(&settings(database, &["email"], "")).stop();
    let keyward = Keyward::of(&settings(database, &[], ""));
    keyward.insert(database, user(1, "past@x", "1")).unwrap();
    let no_reads = doc! { "failCommands": ["find"], "namespace": format!("{database}.users"), "errorCode": 2 };
    let failing = ReplicaSet::shared()
        .fail_point("failCommand", "alwaysOn", no_reads)
        .unwrap();
    let outcome = keyward.reload(&settings(database, &["email"], ""));
    assert_eq!(outcome["outcome"], json!("refused"), "{outcome}");
    drop(failing);
    keyward.stop();
    let next = Keyward::of(&settings(database, &["email"], ""));
    assert_eq!(next.insert(database, user(2, "past@x", "2")), Err(11000));
}

/// One of two new constraints is violated: neither is enforced, and what is written after that isn't taken for reserved.
#[test]
fn a_reload_that_is_refused_enforces_none_of_its_constraints() {
    let database = "reload_half";
    drop_database(database);
    let keyward = Keyward::of(&settings(database, &[], ""));
    keyward.insert(database, user(1, "a@x", "1")).unwrap();
    keyward.insert(database, user(2, "b@x", "1")).unwrap();
    let outcome = keyward.reload(&settings(database, &["email", "phone"], ""));
    assert_eq!(outcome["outcome"], json!("refused"), "{outcome}");
    keyward.insert(database, user(3, "late@x", "3")).unwrap();
    keyward.stop();
    let next = Keyward::of(&settings(database, &["email"], ""));
    assert_eq!(next.insert(database, user(4, "late@x", "4")), Err(11000));
}

/// What goes on as long as the first lives, so that it ends with a test that fails, too.
fn under_way() -> (Arc<()>, Weak<()>) {
    let load = Arc::new(());
    let goes_on = Arc::downgrade(&load);
    (load, goes_on)
}

/// Writers of every kind go on while a constraint comes: none of what they write escapes it, and those that were there
/// hold all the time.
#[test]
fn a_constraint_that_comes_under_load_misses_nothing() {
    let database = "reload_load";
    drop_database(database);
    let keyward = Keyward::of(&settings(database, &["email"], ""));
    let before: Vec<Document> = (0..1_500)
        .map(|n| user(format!("before{n}"), &format!("before{n}@x"), &format!("before{n}")))
        .collect();
    keyward
        .run(database, doc! { "insert": "users", "documents": before })
        .unwrap();
    keyward.insert(database, user("held", "held@x", "held")).unwrap();
    let written = AtomicUsize::new(0);
    let outcome = thread::scope(|scope| {
        let (_load, goes_on) = under_way();
        for writer in 0..8 {
            let (keyward, goes_on, written) = (&keyward, goes_on.clone(), &written);
            scope.spawn(move || {
                let mut connection = testbed::command::Connection::open(&keyward.address).unwrap();
                for n in (0..).take_while(|_| goes_on.strong_count() > 0) {
                    let name = format!("w{writer}-{n}");
                    let document = user(name.as_str(), &format!("{name}@x"), &name);
                    let insert = doc! { "insert": "users", "documents": [document] };
                    connection.run(database, insert).unwrap();
                    let change = doc! { "q": { "_id": &name }, "u": { "$set": { "phone": format!("{name}!") } } };
                    connection.run(database, doc! { "update": "users", "updates": [change] }).unwrap();
                    if n % 3 == 0 {
                        let gone = doc! { "q": { "_id": &name }, "limit": 1 };
                        connection.run(database, doc! { "delete": "users", "deletes": [gone] }).unwrap();
                    }
                    // What holds already does so at every moment.
                    let twice = doc! { "insert": "users", "documents": [user(format!("{name}-"), "held@x", &format!("{name}-"))] };
                    let refused = connection.run(database, twice);
                    assert!(refused.is_err() || refused.unwrap().contains_key("writeErrors"));
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        keyward.until("load", || written.load(Ordering::Relaxed) > 40);
        let outcome = keyward.reload(&settings(database, &["email", "phone"], ""));
        let at = written.load(Ordering::Relaxed);
        keyward.until("more load", || written.load(Ordering::Relaxed) > at + 40);
        outcome
    });
    assert_eq!(outcome["outcome"], "applied", "{outcome}");
    assert_eq!(
        keyward.insert(database, user("twice", "twice@x", "before7")),
        Err(11000)
    );
    let metrics = keyward.get("/metrics");
    assert!(metrics.contains("keyward_constraint_ready{constraint=\"reload_load.users.phone_1\"} 1\n"));
    let (code, findings) = keyward.verify();
    assert_eq!(code, Some(0), "{findings}");
}

/// An insert that waits for its group when a constraint comes runs under the old constraints, and the reload waits for it.
#[test]
fn a_constraint_added_during_group_commits_misses_no_insert() {
    const INSERTERS: usize = 24;
    let database = "reload_together";
    drop_database(database);
    let keyward = Keyward::of(&settings(database, &["email"], ""));
    let together = || keyward.metric("keyward_group_commit_inserts_total");
    let outcome = thread::scope(|scope| {
        let (_load, goes_on) = under_way();
        for inserter in 0..INSERTERS {
            let (keyward, goes_on) = (&keyward, goes_on.clone());
            scope.spawn(move || {
                let mut connection = testbed::command::Connection::open(&keyward.address).unwrap();
                for n in (0..).take_while(|_| goes_on.strong_count() > 0) {
                    let name = format!("{inserter}-{n}");
                    let document = user(name.as_str(), &format!("{name}@x"), &name);
                    let insert = doc! { "insert": "users", "documents": [document] };
                    let inserted = connection.run(database, insert).unwrap();
                    assert_eq!(inserted.get_i32("n").unwrap(), 1, "{inserted}");
                }
            });
        }
        keyward.until("groups", || together() > 2 * INSERTERS as u64);
        let outcome = keyward.reload(&settings(database, &["email", "phone"], ""));
        let at = together();
        keyward.until("more groups", || together() > at + 2 * INSERTERS as u64);
        outcome
    });
    assert_eq!(outcome["outcome"], "applied", "{outcome}");
    let (code, findings) = keyward.verify();
    assert_eq!(code, Some(0), "{findings}");
}

#[test]
fn a_constraint_that_documents_violate_is_refused_and_the_others_hold() {
    let database = "reload_violated";
    drop_database(database);
    let keyward = Keyward::of(&settings(database, &["email"], ""));
    keyward.insert(database, user(1, "a@x", "1")).unwrap();
    keyward.insert(database, user(2, "b@x", "1")).unwrap();
    let outcome = keyward.reload(&settings(database, &["email", "phone"], ""));
    assert_eq!(outcome["outcome"], "refused");
    let error = outcome["error"].as_str().unwrap();
    assert!(
        error.contains("1 document of reload_violated.users violates unique constraint phone_1"),
        "{outcome}"
    );
    // Whose values they are is for the log.
    assert!(!error.contains("documents have"), "{outcome}");
    assert!(
        keyward.log().contains("2 documents have {\"phone\":\"1\"}"),
        "{}",
        keyward.log()
    );
    assert_eq!(keyward.insert(database, user(3, "b@x", "3")), Err(11000));
    keyward.insert(database, user(4, "c@x", "1")).unwrap();
    // Mended, it is taken.
    for id in [2, 4] {
        let delete = doc! { "delete": "users", "deletes": [{ "q": { "_id": id }, "limit": 1 }] };
        keyward.run(database, delete).unwrap();
    }
    assert_eq!(
        keyward.reload(&settings(database, &["email", "phone"], ""))["outcome"],
        "applied"
    );
    assert_eq!(keyward.insert(database, user(5, "d@x", "1")), Err(11000));
    // Another definition under the same name is no reload's business.
    let changed = settings(database, &["email", "phone"], "").replace("phone: 1 }", "phone: 1 }, sparse: true");
    assert_eq!(keyward.reload(&changed)["outcome"], "refused");
    assert_eq!(keyward.insert(database, user(6, "d@x", "1")), Err(11000));
}

#[test]
fn a_constraint_that_went_and_comes_again_takes_in_what_was_written_between() {
    let database = "reload_between";
    drop_database(database);
    let both = settings(database, &["email", "phone"], "");
    let keyward = Keyward::of(&both);
    keyward.insert(database, user(1, "a@x", "1")).unwrap();
    let outcome = keyward.reload(&settings(database, &["email"], ""));
    assert_eq!(outcome["constraintsRemoved"], json!(["reload_between.users.phone_1"]));
    assert!(!keyward.get("/metrics").contains("reload_between.users.phone_1"));
    keyward.insert(database, user(2, "b@x", "2")).unwrap();
    assert_eq!(keyward.reload(&both)["outcome"], "applied");
    assert_eq!(keyward.insert(database, user(3, "c@x", "2")), Err(11000));
    // Also where it is not this Keyward that has it again.
    keyward.reload(&settings(database, &["email"], ""));
    keyward.insert(database, user(4, "d@x", "4")).unwrap();
    keyward.stop();
    let other = Keyward::of(&both);
    assert_eq!(other.insert(database, user(5, "e@x", "4")), Err(11000));
}

/// What one Keyward writes until it knows of a constraint that another one has enforced already is backfilled, too.
#[test]
fn the_last_of_two_keywards_to_hear_of_a_constraint_completes_it() {
    let database = "reload_fleet";
    drop_database(database);
    let (without, with) = (settings(database, &[], ""), settings(database, &["email"], ""));
    let (first, second) = (Keyward::of(&without), Keyward::of(&without));
    assert_eq!(first.reload(&with)["outcome"], "applied");
    second.insert(database, user(1, "a@x", "1")).unwrap();
    assert_eq!(second.reload(&with)["outcome"], "applied");
    for (keyward, id) in [(&first, 2), (&second, 3)] {
        assert_eq!(keyward.insert(database, user(id, "a@x", "2")), Err(11000));
    }
    let (code, findings) = first.verify();
    assert_eq!(code, Some(0), "{findings}");
    second.send(Signal::SIGTERM);
}

/// What was left would have been kept unique in the other way, which trusts its lease, beside Keywards that don't.
#[test]
fn a_reload_that_takes_away_what_decides_the_strategy_is_refused() {
    let database = "reload_strategy";
    drop_database(database);
    let compensating = |fields: &[&str]| {
        settings(database, fields, "").replace("email: 1 } }", "email: 1 }, strategy: compensating }")
    };
    let keyward = Keyward::of(&compensating(&["email", "phone"]));
    keyward.insert(database, user(1, "a@x", "1")).unwrap();
    let outcome = keyward.reload(&compensating(&["email"]));
    assert_eq!(outcome["outcome"], "refused", "{outcome}");
    assert!(outcome["error"].as_str().unwrap().contains("strategy"), "{outcome}");
    assert_eq!(keyward.insert(database, user(2, "b@x", "1")), Err(11000));
    let outcome = keyward.reload(&settings(database, &["email"], ""));
    assert_eq!(outcome["outcome"], "applied", "{outcome}");
}

/// Taken for another constraint under the same name, it was there twice, and every update of a key waited for itself.
#[test]
fn a_strategy_that_is_stated_makes_no_other_constraint() {
    let database = "reload_stated";
    for collation in [doc! {}, doc! { "collation": { "locale": "en", "strength": 2 } }] {
        drop_database(database);
        let mut create = doc! { "create": "users" };
        create.extend(collation.clone());
        ReplicaSet::shared().run(database, create).unwrap();
        let plain = settings(database, &["email"], "");
        let keyward = Keyward::of(&plain);
        keyward.insert(database, user(1, "a@x", "1")).unwrap();
        let stated = plain.replace("email: 1 }", "email: 1 }, strategy: transaction");
        for settings in [&stated, &plain, &stated] {
            let outcome = keyward.reload(settings);
            assert_eq!(outcome["outcome"], "applied", "{outcome}");
            assert_eq!(outcome["constraintsAdded"], json!([]));
            assert_eq!(outcome["constraintsRemoved"], json!([]));
        }
        let name = format!("keyward_constraint_ready{{constraint=\"{database}.users.email_1\"}} 1");
        assert!(keyward.get("/metrics").contains(&name));
        let change = doc! { "q": { "_id": 1 }, "u": [{ "$set": { "email": "b@x" } }] };
        let change = doc! { "update": "users", "updates": [change], "maxTimeMS": 20_000 };
        assert_eq!(keyward.run(database, change).unwrap().get_i32("nModified").unwrap(), 1);
        let (code, findings) = keyward.verify();
        assert_eq!(code, Some(0), "{findings}");
        let simple = plain.replace("email: 1 }", "email: 1 }, collation: { locale: simple }");
        let outcome = keyward.reload(&simple);
        let expected = if collation.is_empty() { "applied" } else { "refused" };
        assert_eq!(outcome["outcome"], expected, "{outcome}");
        assert_eq!(keyward.insert(database, user(2, "b@x", "2")), Err(11000));
        let outcome = keyward.reload(&settings(database, &[], ""));
        assert_eq!(
            outcome["constraintsRemoved"],
            json!([format!("{database}.users.email_1")]),
            "{outcome}"
        );
        keyward.insert(database, user(3, "b@x", "3")).unwrap();
        keyward.stop();
    }
}

/// Its write waits behind a reply that it doesn't read, so nothing but the end of its connection shows that the write is over.
#[test]
fn a_reload_does_not_wait_for_a_client_that_reads_nothing() {
    let database = "reload_beside_unread";
    drop_database(database);
    let keyward = Keyward::of(&settings(database, &[], "limits: { message_timeout: 1s }\n"));
    keyward.insert(database, user(1, "a@x", "1")).unwrap();
    for n in 0..15 {
        let large = doc! { "_id": n, "text": "x".repeat(1_000_000) };
        let insert = doc! { "insert": "large", "documents": [large] };
        assert!(is_ok(&keyward.run(database, insert).unwrap()));
    }
    let mut client = Connection::open(&keyward.address);
    let forwarded = || keyward.metric("keyward_client_commands_forwarded_total");
    let before = forwarded();
    for _ in 0..3 {
        client.send(database, &doc! { "find": "large" }).unwrap();
    }
    let late = doc! { "insert": "users", "documents": [user(2, "b@x", "2")] };
    client.send(database, &late).unwrap();
    keyward.until("the write is forwarded", || forwarded() >= before + 4);
    let outcome = keyward.reload(&settings(database, &["email"], "limits: { message_timeout: 1s }\n"));
    assert_eq!(outcome["outcome"], "applied", "{outcome}");
    assert_eq!(keyward.insert(database, user(3, "b@x", "3")), Err(11000));
}

/// Long reads, and builds of plain indexes, change no document: a change of the constraints waits for neither.
#[test]
fn a_reload_does_not_wait_for_reads_and_index_builds() {
    let database = "reload_beside_reads";
    let relay = Relay::start(Cluster::shared().router_address());
    let settings = |fields| settings(database, fields, "").replace(&ReplicaSet::shared().uri(), &relay.uri());
    let keyward = Keyward::of(&settings(&[]));
    keyward.insert(database, user(1, "a@x", "1")).unwrap();
    let index = doc! { "key": { "other": 1 }, "name": "other_1" };
    let commands = [
        doc! { "aggregate": "users", "pipeline": [{ "$group": { "_id": "$email" } }], "cursor": {} },
        doc! { "createIndexes": "users", "indexes": [index] },
        doc! { "validate": "users" },
    ];
    for (command, fields) in commands.iter().zip([&["email"][..], &["email", "phone"], &[]]) {
        let mut client = Connection::open(&keyward.address);
        let held = relay.hold(&command.to_vec().unwrap()[4..20]);
        client.send(database, command).unwrap();
        held.wait();
        let begun = Instant::now();
        let outcome = keyward.reload(&settings(fields));
        assert_eq!(outcome["outcome"], "applied", "{command} {outcome}");
        // The relay holds it for a minute.
        assert!(
            begun.elapsed() < Duration::from_secs(45),
            "{command} {:?}",
            begun.elapsed()
        );
        drop(held);
        let reply = client.receive().unwrap();
        assert!(is_ok(&reply), "{command} {reply}");
    }
}
