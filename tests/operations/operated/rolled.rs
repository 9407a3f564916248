//! A constraint that comes, or goes, by a rolling restart: it isn't called enforced while a Keyward may write without it.

use std::process::Command;
use std::time::{Duration, Instant};

use bson::oid::ObjectId;
use bson::{Bson, Document, doc};
use nix::sys::signal::Signal;
use testbed::ReplicaSet;

use testkit::keyward::Keyward;

/// Makes the terms of an entry shorter: a Keyward with this in its environment is gone after 12.5 s instead of 125. It reads
/// documents that violated a constraint again after 3 s.
const HASTE: [(&str, &str); 1] = [("KEYWARD_REGISTER_HASTE", "10")];
/// The same with a permit to write of 6 s instead of 3: its entry is seen to be renewed within that, also on a busy machine.
const LESS_HASTE: [(&str, &str); 1] = [("KEYWARD_REGISTER_HASTE", "5")];
/// What others wait for it at least, and at most on a loaded machine.
const GONE: [Duration; 2] = [Duration::from_millis(12_400), Duration::from_secs(60)];

fn settings(constraints: &str) -> String {
    let uri = ReplicaSet::shared().uri();
    format!("upstream: {uri}\nlease: 2s\nreload_interval: 0s\ndrain: 5s\nconstraints: {constraints}\n")
}

fn with(database: &str) -> String {
    settings(&format!("[{{ collection: {database}.users, key: {{ z: 1 }} }}]"))
}

fn with_compensating(database: &str) -> String {
    settings(&format!(
        "[{{ collection: {database}.users, key: {{ z: 1 }}, strategy: compensating }}]"
    ))
}

fn drop_database(database: &str) {
    ReplicaSet::shared().run(database, doc! { "dropDatabase": 1 }).unwrap();
}

pub fn user(id: i32, z: &str) -> Document {
    doc! { "_id": id, "z": z }
}

/// What `/readyz` says below its head. Its first line is `ready` if the status is 200. A busy machine may make it another one for a while:
/// no server has answered, or the entry isn't renewed in time.
pub fn readyz(keyward: &Keyward) -> String {
    let answer = keyward.get("/readyz");
    answer.split("\r\n\r\n").nth(1).unwrap().to_owned()
}

/// Waits until it is ready and every constraint is enforced, and sees that the status says so, too.
pub fn until_ready(keyward: &Keyward) {
    keyward.until("ready", || {
        let answer = keyward.get("/readyz");
        answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nready\n")
    });
}

/// Waits until it is ready although `/readyz` says `why` a constraint isn't enforced.
fn until_ready_with(keyward: &Keyward, why: &str) {
    keyward.until(why, || {
        let answer = keyward.get("/readyz");
        answer.starts_with("HTTP/1.1 200 ") && answer.contains("\r\n\r\nready\n") && answer.contains(why)
    });
}

pub fn is_enforced(keyward: &Keyward, database: &str) -> bool {
    let metrics = keyward.get("/metrics");
    let line = format!("keyward_constraint_ready{{constraint=\"{database}.users.z_1\"}} 1");
    metrics.lines().any(|one| one == line)
}

/// The entries of the register that have a collection of this database.
fn entries(database: &str) -> Vec<Document> {
    let find = doc! { "find": "keywards", "filter": { "collections": format!("{database}.users") } };
    let reply = ReplicaSet::shared().run("keyward", find).unwrap();
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch.iter().map(|entry| entry.as_document().unwrap().clone()).collect()
}

#[test]
fn a_constraint_that_comes_by_a_rolling_restart_lets_no_duplicate_in() {
    let database = "rolled";
    drop_database(database);
    let [first, second] = [(); 2].map(|()| Keyward::of(&settings("[]")));
    second.insert(database, user(1, "w")).unwrap();
    first.stop();
    let first = Keyward::of(&with(database));
    let said = readyz(&first);
    let waits = format!("{database}.users.z_1: reserving: waits for Keyward ");
    assert!(said.contains(&waits), "{said}");
    assert!(said.contains(&format!("process {}", second.pid())), "{said}");
    assert!(first.get("/status").contains(&waits), "{}", first.get("/status"));
    assert!(!is_enforced(&first, database));
    until_ready_with(&first, &waits);
    // It reserves all the same.
    first.insert(database, user(2, "y")).unwrap();
    assert_eq!(first.insert(database, user(3, "y")), Err(11000));
    second.insert(database, user(4, "x")).unwrap();
    second.stop();
    let second = Keyward::of(&with(database));
    assert_eq!(second.insert(database, user(5, "x")), Err(11000));
    assert_eq!(second.insert(database, user(6, "y")), Err(11000));
    for keyward in [&first, &second] {
        keyward.until("enforced", || is_enforced(keyward, database));
        until_ready(keyward);
    }
    let (code, findings) = second.verify();
    assert_eq!(code, Some(0), "{findings}");
}

/// It had written nothing to the collection when the constraint came: nobody waited for it.
#[test]
fn who_begins_to_write_without_a_constraint_takes_enforced_back() {
    let database = "rolled_lazily";
    drop_database(database);
    let second = Keyward::of(&settings("[]"));
    let first = Keyward::of_in(&with(database), &HASTE);
    until_ready(&first);
    assert!(is_enforced(&first, database));
    second.insert(database, user(1, "x")).unwrap();
    first.until("reserving", || !is_enforced(&first, database));
    until_ready_with(&first, "reserving: waits for Keyward ");
    // Nobody has reserved it; and it isn't promised.
    first.insert_once_permitted(database, user(2, "x")).unwrap();
    second.stop();
    until_ready_with(&first, "1 document of rolled_lazily.users violates");
    assert!(!is_enforced(&first, database));
    let delete = doc! { "delete": "users", "deletes": [{ "q": { "_id": 2 }, "limit": 1 }] };
    first.run_once_permitted(database, delete).unwrap();
    first.until("enforced", || is_enforced(&first, database));
    assert_eq!(first.insert_once_permitted(database, user(3, "x")), Err(11000));
    until_ready(&first);
}

/// As `movePrimary` may lose a change of the definition, or a backup that an operator puts back.
#[test]
fn enforced_is_taken_back_again_if_the_cluster_has_lost_that() {
    let database = "rolled_lost";
    drop_database(database);
    let second = Keyward::of(&settings("[]"));
    let first = Keyward::of_in(&with(database), &HASTE);
    until_ready(&first);
    let find = doc! { "find": "keyward.constraints" };
    let found = ReplicaSet::shared().run(database, find).unwrap();
    let definitions = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    let [Bson::Document(enforced)] = &definitions[..] else {
        panic!("one definition: {found}")
    };
    second.insert(database, user(1, "x")).unwrap();
    first.until("reserving", || !is_enforced(&first, database));
    let put_back = doc! { "q": {}, "u": enforced };
    let put_back = doc! { "update": "keyward.constraints", "updates": [put_back] };
    ReplicaSet::shared().run(database, put_back).unwrap();
    first.until("enforced", || is_enforced(&first, database));
    first.until("reserving", || !is_enforced(&first, database));
    until_ready_with(&first, "reserving: waits for Keyward ");
    let log = first.log();
    assert!(
        log.contains("a Keyward may write without an enforced constraint"),
        "{log}"
    );
    second.stop();
    until_ready(&first);
    assert_eq!(first.insert_once_permitted(database, user(2, "x")), Err(11000));
}

#[test]
fn a_violated_constraint_keeps_no_other_from_being_enforced() {
    let database = "rolled_violated";
    drop_database(database);
    let lacking = Keyward::of(&settings("[]"));
    for id in [1, 2] {
        let order = doc! { "insert": "orders", "documents": [{ "_id": id, "n": 1 }] };
        lacking.run(database, order).unwrap();
    }
    lacking.insert(database, user(1, "x")).unwrap();
    let both = format!(
        "[{{ collection: {database}.orders, key: {{ n: 1 }} }}, {{ collection: {database}.users, key: {{ z: 1 }} }}]"
    );
    let keyward = Keyward::of_in(&settings(&both), &HASTE);
    let waits = |collection: &str| {
        let label = format!("{database}.{collection}.");
        let shown = readyz(&keyward);
        shown
            .lines()
            .any(|line| line.starts_with(&label) && line.contains("waits for Keyward"))
    };
    assert!(waits("orders") && waits("users"), "{}", readyz(&keyward));
    lacking.stop();
    keyward.until("enforced", || is_enforced(&keyward, database));
    until_ready_with(&keyward, "1 document of rolled_violated.orders violates");
    assert!(!waits("orders") && !waits("users"), "{}", readyz(&keyward));
    assert_eq!(keyward.insert_once_permitted(database, user(2, "x")), Err(11000));
    let delete = doc! { "delete": "orders", "deletes": [{ "q": { "_id": 2 }, "limit": 1 }] };
    keyward.run_once_permitted(database, delete).unwrap();
    until_ready(&keyward);
}

#[test]
fn a_reload_waits_for_the_others_as_a_restart_does() {
    let database = "rolled_reloaded";
    drop_database(database);
    let [first, second] = [(); 2].map(|()| Keyward::of(&settings("[]")));
    second.insert(database, user(1, "w")).unwrap();
    let label = format!("{database}.users.z_1");
    let reloaded = first.reload(&with(database));
    assert_eq!(reloaded["outcome"], "applied", "{reloaded}");
    assert_eq!(reloaded["constraintsWaiting"], serde_json::json!([label]), "{reloaded}");
    second.insert(database, user(2, "x")).unwrap();
    assert_eq!(second.reload(&with(database))["outcome"], "applied");
    assert_eq!(second.insert(database, user(3, "x")), Err(11000));
    first.until("enforced", || is_enforced(&first, database));
    // Taken out of one of them, it isn't enforced any more.
    assert_eq!(second.reload(&settings("[]"))["outcome"], "applied");
    first.until("reserving", || !is_enforced(&first, database));
}

#[test]
fn a_killed_keyward_does_not_hold_the_others_up_for_ever() {
    let database = "rolled_killed";
    drop_database(database);
    let second = Keyward::of_in(&settings("[]"), &HASTE);
    second.insert_once_permitted(database, user(1, "x")).unwrap();
    // It goes by what the entry says, and not by what it would wait itself.
    let begun = Instant::now();
    let first = Keyward::of(&with_compensating(database));
    drop(second);
    assert!(!is_enforced(&first, database));
    first.until_within(GONE[1], "enforced", || is_enforced(&first, database));
    assert!(begun.elapsed() > GONE[0], "that was no proof: {:?}", begun.elapsed());
    assert_eq!(first.insert(database, user(2, "x")), Err(11000));
    assert_eq!(entries(database).len(), 1);
}

/// A strict constraint believes no clock: the operator says that it is gone.
#[test]
fn a_killed_keyward_is_forgotten_for_a_strict_constraint() {
    let database = "rolled_forgotten";
    drop_database(database);
    let second = Keyward::of_in(&settings("[]"), &HASTE);
    second.insert_once_permitted(database, user(1, "x")).unwrap();
    drop(second);
    let first = Keyward::of_in(&with(database), &LESS_HASTE);
    assert!(readyz(&first).contains("see `keyward forget`"), "{}", readyz(&first));
    let id = entries(database)
        .iter()
        .find(|entry| entry.get_bool("pinned").unwrap_or(false))
        .and_then(|entry| entry.get_object_id("_id").ok())
        .unwrap();
    let forget = |id: ObjectId| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyward"));
        command.arg("forget").arg(id.to_hex()).arg("--config").arg(first.file());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let own = entries(database).iter().find_map(|entry| {
        let other = entry.get_object_id("_id").ok()?;
        (other != id).then_some(other)
    });
    assert_eq!(forget(own.unwrap()), (Some(1), String::new()), "it lives");
    assert_eq!(
        forget(id),
        (Some(0), format!("took Keyward {id} out of the register\n"))
    );
    first.until("enforced", || is_enforced(&first, database));
    assert_eq!(first.insert_once_permitted(database, user(2, "x")), Err(11000));
    assert_eq!(forget(id), (Some(1), String::new()));
}

/// Its process stands still for longer than it may write; its entry is taken away meanwhile.
#[test]
fn who_has_slept_does_not_write_before_it_is_registered_anew() {
    let database = "rolled_asleep";
    drop_database(database);
    let second = Keyward::of_in(&settings("[]"), &HASTE);
    second.insert_once_permitted(database, user(1, "w")).unwrap();
    let [old] = <[Document; 1]>::try_from(entries(database)).unwrap();
    second.send(Signal::SIGSTOP);
    let first = Keyward::of(&with_compensating(database));
    first.until_within(GONE[1], "enforced", || is_enforced(&first, database));
    let held = std::thread::scope(|scope| {
        let insert = scope.spawn(|| second.insert(database, user(2, "x")));
        second.send(Signal::SIGCONT);
        insert.join().unwrap()
    });
    // Either it was held back, or it came after a new entry had taken `enforced` back.
    let again: Vec<Document> = entries(database);
    assert!(
        again.iter().all(|entry| entry.get("_id") != old.get("_id")),
        "{again:?}"
    );
    match held {
        Err(code) => assert_eq!(code, 6),
        Ok(()) => first.until("reserving", || !is_enforced(&first, database)),
    }
    first.until("a new entry", || entries(database).len() == 2);
    first.until("reserving", || !is_enforced(&first, database));
}

#[test]
fn clients_change_nothing_in_the_register() {
    let keyward = Keyward::of(&settings("[]"));
    let delete = doc! { "delete": "keywards", "deletes": [{ "q": {}, "limit": 0 }] };
    assert_eq!(keyward.run("keyward", delete).unwrap_err(), 115);
    assert_eq!(keyward.run("keyward", doc! { "dropDatabase": 1 }).unwrap_err(), 115);
    assert!(keyward.run("keyward", doc! { "find": "keywards" }).is_ok());
}
