//! `keyward constraints`: what it shows, and that it changes nothing that a Keyward counts on, whatever happens at the same moment.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use bson::oid::ObjectId;
use bson::{Document, doc};
use keyward::config::Config;
use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::{Cluster, ReplicaSet};
use testkit::keyward::Keyward;
use testkit::relay::{Relay, insert_into};
use testkit::shard_on_two;

/// Its list is complete, and its register has the Keywards of these tests only.
static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start().unwrap());

/// The update of a Keyward that renews its entry, and changes nothing else there.
const RENEWAL: &[u8] = b"\x03u\0\x1e\0\0\0\x03$max\0";

const GONE: &str = "the entry in the register of Keywards is gone";

/// Has an entry that isn't renewed forgotten after 3 s instead of 30.
const HASTE: [(&str, &str); 1] = [("KEYWARD_REGISTER_HASTE", "10")];

fn settings(upstream: &str, constraints: &str) -> String {
    format!("upstream: {upstream}\nlease: 10s\nreload_interval: 0s\nconstraints: {constraints}\n")
}

fn with(upstream: &str, database: &str) -> String {
    settings(
        upstream,
        &format!("[{{ collection: {database}.users, key: {{ email: 1 }} }}]"),
    )
}

fn strict(upstream: &str, database: &str) -> String {
    with(upstream, database).replace("email: 1 } }", "email: 1 }, strategy: strict }")
}

/// `keyward constraints` against `upstream`, which is all that its file has.
fn command(upstream: &str, arguments: &[&str]) -> (Command, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keyward.yaml");
    std::fs::write(&file, format!("upstream: {upstream}\nconstraints: []\n")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyward"));
    command.arg("constraints").args(arguments).arg("--config").arg(file);
    command.env_remove("KEYWARD_UPSTREAM").env_remove("KEYWARD_LOG");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    (command, folder)
}

fn run(upstream: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let (mut command, _folder) = command(upstream, arguments);
    said(&command.output().unwrap())
}

fn said(output: &Output) -> (Option<i32>, String) {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// What `list --json` says of `email_1` on `database.users`.
fn listed(upstream: &str, database: &str) -> Option<Value> {
    let (mut command, _folder) = command(upstream, &["list", "--json"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output).1);
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.find(|one| one["collection"] == format!("{database}.users") && one["constraint"] == "email_1")
}

fn shard(database: &str) {
    shard_on_two(
        &CLUSTER,
        &format!("{database}.users"),
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
}

fn user(id: i32, email: &str) -> Document {
    doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": email }
}

fn reservations(database: &str) -> usize {
    let find = doc! { "find": "keyward.users.email_1" };
    let reply = CLUSTER.run(database, find).unwrap();
    reply
        .get_document("cursor")
        .unwrap()
        .get_array("firstBatch")
        .unwrap()
        .len()
}

fn identity(database: &str) -> Option<ObjectId> {
    let reply = CLUSTER.run(database, doc! { "find": "keyward.constraints" }).unwrap();
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch.first()?.as_document().unwrap().get_object_id("identity").ok()
}

#[test]
fn a_constraint_is_listed_shown_and_removed_once_no_keyward_has_it() {
    let (database, upstream) = ("known", CLUSTER.uri());
    shard(database);
    let keyward = Keyward::of(&with(&upstream, database));
    keyward.insert(database, user(1, "a@x")).unwrap();
    let one = listed(&upstream, database).unwrap();
    assert_eq!(
        (&one["madeBy"], &one["strategy"], &one["state"]),
        (&"file".into(), &"compensating".into(), &"enforced".into()),
        "{one}"
    );
    assert_eq!(one["countedOnBy"][0]["process"], keyward.pid().as_raw(), "{one}");
    let (_, table) = run(&upstream, &["list"]);
    let row = table.lines().find(|line| line.starts_with("known.users ")).unwrap();
    for part in [
        r#"{ "email": 1 }"#,
        "file",
        "compensating",
        "enforced",
        &format!("process {}", keyward.pid()),
    ] {
        assert!(row.contains(part), "{part} in {table}");
    }
    let (code, all) = run(&upstream, &["show", "known.users", "email_1"]);
    assert_eq!(code, Some(0), "{all}");
    assert!(all.contains("about 1 in known.keyward.users.email_1"), "{all}");

    let (code, refused) = run(&upstream, &["remove", "known.users", "email_1"]);
    assert_eq!(code, Some(1), "{refused}");
    assert!(
        refused.contains("these Keywards count on it") && refused.contains(&format!("process {}", keyward.pid())),
        "{refused}"
    );
    assert_eq!(keyward.insert(database, user(2, "a@x")), Err(11_000));

    assert_eq!(keyward.reload(&settings(&upstream, "[]"))["outcome"], "applied");
    let (code, removed) = run(&upstream, &["remove", "known.users", "email_1"]);
    assert_eq!(code, Some(0), "{removed}");
    assert_eq!((listed(&upstream, database), reservations(database)), (None, 0));
    for arguments in [
        &["remove", "known.users", "email_1"][..],
        &["show", "known.users", "email_1"],
    ] {
        let (code, unknown) = run(&upstream, arguments);
        assert_eq!(code, Some(1), "{unknown}");
        assert!(
            unknown.contains("knows no unique constraint email_1 on known.users"),
            "{unknown}"
        );
    }
    // Back again, it holds for what was there.
    assert_eq!(keyward.reload(&with(&upstream, database))["outcome"], "applied");
    assert_eq!(keyward.insert(database, user(2, "a@x")), Err(11_000));
}

/// It has compared the definition already, and counts on the reservations; the register doesn't show it yet.
#[test]
fn a_keyward_that_starts_while_its_constraint_is_removed_makes_it_anew_before_it_serves() {
    let (database, upstream) = ("known_started", CLUSTER.uri());
    shard(database);
    let before = Keyward::of(&with(&upstream, database));
    before.insert(database, user(1, "a@x")).unwrap();
    before.stop();
    let former = identity(database).unwrap();
    let relay = Relay::start(CLUSTER.router_address());
    let listing = relay.hold(b"$addToSet");
    let keyward = std::thread::scope(|scope| {
        let started = scope.spawn(|| Keyward::of(&with(&relay.uri(), database)));
        listing.wait();
        let (code, removed) = run(&upstream, &["remove", "known_started.users", "email_1"]);
        assert_eq!(code, Some(0), "{removed}");
        drop(listing);
        started.join().unwrap()
    });
    assert_eq!(keyward.insert(database, user(2, "a@x")), Err(11_000));
    assert_ne!(identity(database).unwrap(), former);
}

#[test]
fn a_removal_that_is_overtaken_by_another_harms_no_constraint_that_is_made_anew() {
    let (database, upstream) = ("known_twice", CLUSTER.uri());
    shard(database);
    let before = Keyward::of(&with(&upstream, database));
    before.insert(database, user(1, "a@x")).unwrap();
    before.stop();
    let relay = Relay::start(CLUSTER.router_address());
    let dropping = relay.hold(b"collectionUUID");
    let (mut late, _folder) = command(&relay.uri(), &["remove", "known_twice.users", "email_1"]);
    let late = late.spawn().unwrap();
    dropping.wait();
    assert_eq!(listed(&upstream, database).unwrap()["state"], "being removed");
    let (code, removed) = run(&upstream, &["remove", "known_twice.users", "email_1"]);
    assert_eq!(code, Some(0), "{removed}");
    let keyward = Keyward::of(&with(&upstream, database));
    assert_eq!(reservations(database), 1);
    drop(dropping);
    let (code, text) = said(&late.wait_with_output().unwrap());
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(reservations(database), 1);
    assert_eq!(keyward.insert(database, user(2, "a@x")), Err(11_000));
}

#[test]
fn a_removal_that_was_cut_off_keeps_keywards_from_starting_until_it_is_done() {
    let (database, upstream) = ("known_cut_off", CLUSTER.uri());
    shard(database);
    Keyward::of(&with(&upstream, database)).stop();
    let relay = Relay::start(CLUSTER.router_address());
    let torn = relay.tear_request_with(b"collectionUUID".to_vec());
    let (code, cut) = run(&relay.uri(), &["remove", "known_cut_off.users", "email_1"]);
    assert_eq!(code, Some(69), "{cut}");
    testkit::relay::wait_until(&torn);
    let constraint = "  - { collection: known_cut_off.users, key: { email: 1 } }\n";
    let refused = Keyward::try_start(&upstream, "10s", constraint).unwrap_err();
    assert_eq!(refused.exit, Some(78), "{}", refused.errors);
    assert!(
        refused.errors.contains("is being removed from the cluster"),
        "{}",
        refused.errors
    );
    let (code, strategy) = run(&upstream, &["strategy", "known_cut_off.users", "email_1", "strict"]);
    assert_eq!(code, Some(1), "{strategy}");
    assert!(strategy.contains("is being removed"), "{strategy}");
    let (code, removed) = run(&upstream, &["remove", "known_cut_off.users", "email_1"]);
    assert_eq!(code, Some(0), "{removed}");
    Keyward::of(&with(&upstream, database));
}

#[test]
fn a_clients_constraint_ends_by_drop_indexes_and_what_it_leaves_can_be_removed() {
    // Not that of other tests: it would wait for their Keywards that were killed.
    let cluster = Cluster::start().unwrap();
    let (database, upstream) = ("known_client", cluster.uri());
    shard_on_two(
        &cluster,
        "known_client.users",
        doc! { "region": 1 },
        doc! { "region": "m" },
    );
    let keyward = Keyward::of(&settings(&upstream, "[]"));
    let index = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true };
    keyward
        .run(database, doc! { "createIndexes": "users", "indexes": [index] })
        .unwrap();
    assert_eq!(listed(&upstream, database).unwrap()["madeBy"], "client");
    let (code, refused) = run(&upstream, &["remove", "known_client.users", "email_1"]);
    assert_eq!(code, Some(1), "{refused}");
    assert!(refused.contains("with dropIndexes"), "{refused}");
    let (code, refused) = run(&upstream, &["strategy", "known_client.users", "email_1", "strict"]);
    assert_eq!(code, Some(1), "{refused}");
    assert!(refused.contains("has only constraints that clients made"), "{refused}");
    keyward
        .run(database, doc! { "dropIndexes": "users", "index": "email_1" })
        .unwrap();
    let (code, removed) = run(&upstream, &["remove", "known_client.users", "email_1"]);
    assert_eq!(code, Some(0), "{removed}");
    assert_eq!(listed(&upstream, database), None);
}

/// It stood still while its constraint was removed and made anew, by another file. It notices that its entry is gone only as it lists the
/// new identity. The definition is the same, so nothing else shows that writes of before have lost their reservations.
#[test]
fn a_keyward_whose_entry_is_gone_as_it_lists_a_constraint_waits_for_writes_of_before() {
    let (database, upstream) = ("known_late", CLUSTER.uri());
    shard(database);
    let relay = Relay::start(CLUSTER.router_address());
    // The outcome of the write below becomes known within its lease.
    let settings = with(&relay.uri(), database).replace("lease: 10s", "lease: 2m");
    let late = Keyward::of(&settings).leaving();
    late.insert(database, user(1, "former")).unwrap();
    let builder = std::thread::scope(|scope| {
        let held = relay.hold(&insert_into("users"));
        scope.spawn(|| late.insert(database, user(2, "held")));
        held.wait();
        late.freeze();
        let of_late = doc! { "q": { "pid": i64::from(late.pid().as_raw()) }, "limit": 1 };
        let delete = doc! { "delete": "keywards", "deletes": [of_late] };
        CLUSTER.run("keyward", delete).unwrap();
        let (code, removed) = run(&upstream, &["remove", "known_late.users", "email_1"]);
        assert_eq!(code, Some(0), "{removed}");
        let builder = Keyward::of(&with(&upstream, database)).leaving();
        // Otherwise it may notice it as it renews its entry.
        let renewing = relay.hold(RENEWAL);
        late.wake();
        renewing.wait();
        late.until("its entry is gone", || late.log().contains(GONE));
        drop(renewing);
        late.until("the wait", || {
            late.log()
                .contains("commands that began before a constraint was made anew are still under way")
        });
        assert_eq!(late.insert(database, user(3, "y")), Err(6));
        // It wasn't broken off as it registered anew.
        assert_eq!(late.log().matches(GONE).count(), 1, "{}", late.log());
        drop(held);
        builder
    });
    builder.until("it is enforced again", || {
        listed(&upstream, database).is_some_and(|one| one["state"] == "enforced")
    });
    assert_eq!(builder.insert(database, user(4, "held")), Err(11_000));
}

/// Such a user sees an empty list. All Keywards are stopped, so nothing else would keep the constraint.
#[test]
fn who_may_not_read_the_list_of_clients_constraints_neither_removes_nor_verifies() {
    let cluster = Cluster::alone().unwrap();
    let (database, upstream) = ("known_unread", cluster.uri());
    let namespace = format!("{database}.users");
    shard_on_two(&cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let keyward = Keyward::of(&settings(&upstream, "[]"));
    let index = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true };
    keyward
        .run(database, doc! { "createIndexes": "users", "indexes": [index] })
        .unwrap();
    keyward.stop();
    let unread = doc! { "failCommands": ["find"], "namespace": "keyward.clientConstraints", "errorCode": 13,
    "failInternalCommands": true };
    let unread = cluster
        .shards()
        .iter()
        .map(|shard| shard.fail_point("failCommand", "alwaysOn", unread.clone()).unwrap());
    let unread: Vec<_> = unread.collect();
    for arguments in [
        &["remove", &namespace, "email_1"][..],
        &["strategy", &namespace, "email_1", "strict"],
    ] {
        let (code, refused) = run(&upstream, arguments);
        assert_eq!(code, Some(1), "{refused}");
        assert!(refused.contains("may not read keyward.clientConstraints"), "{refused}");
    }
    let verify = || {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keyward.yaml");
        std::fs::write(&file, format!("upstream: {upstream}\nconstraints: []\n")).unwrap();
        let mut verify = Command::new(env!("CARGO_BIN_EXE_keyward"));
        said(&verify.args(["verify", "--config"]).arg(file).output().unwrap())
    };
    let (code, refused) = verify();
    assert_eq!(code, Some(2), "{refused}");
    assert!(
        refused.contains(&format!(
            "a client made unique constraint email_1 on {namespace}, and the user"
        )),
        "{refused}"
    );
    drop(unread);
    let (code, verified) = verify();
    assert_eq!(code, Some(0), "{verified}");
    assert_eq!(listed(&upstream, database).unwrap()["madeBy"], "client");
}

#[test]
fn the_strategy_changes_only_while_no_keyward_writes_with_the_other_one() {
    let (database, upstream) = ("known_strategy", CLUSTER.uri());
    shard(database);
    let mut keyward = Keyward::of_in(&with(&upstream, database), &HASTE);
    keyward.insert_once_permitted(database, user(1, "a@x")).unwrap();
    let change = ["strategy", "known_strategy.users", "email_1", "strict"];
    let (code, refused) = run(&upstream, &change);
    assert_eq!(code, Some(1), "{refused}");
    assert!(
        refused.contains("these Keywards write with the present strategy"),
        "{refused}"
    );
    // It stands still, and the operator takes it for gone.
    keyward.freeze();
    let id = listed(&upstream, database).unwrap()["countedOnBy"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut forget = Command::new(env!("CARGO_BIN_EXE_keyward"));
    forget.args(["forget", &id]).arg("--config").arg(keyward.file());
    assert_eq!(forget.status().unwrap().code(), Some(0));
    let (code, changed) = run(&upstream, &change);
    assert_eq!(code, Some(0), "{changed}");
    assert!(changed.contains("strategy strict for email_1"), "{changed}");
    assert_eq!(listed(&upstream, database).unwrap()["strategy"], "strict");
    let other = Keyward::of(&strict(&upstream, database));
    keyward.send(Signal::SIGCONT);
    for id in 2..5 {
        assert_eq!(keyward.insert(database, user(id, &format!("{id}@x"))), Err(6));
    }
    keyward.until("a reason", || {
        keyward.log().contains("has strategy strict in the cluster")
    });
    assert_eq!(keyward.insert(database, user(5, "5@x")), Err(6));
    assert!(
        keyward.get("/readyz").starts_with("HTTP/1.1 503 "),
        "{}",
        keyward.get("/readyz")
    );
    assert_eq!(other.insert(database, user(6, "a@x")), Err(11_000));
    keyward.kill();
    let constraint = "  - { collection: known_strategy.users, key: { email: 1 } }\n";
    let refused = Keyward::try_start(&upstream, "10s", constraint).unwrap_err();
    assert_eq!(refused.exit, Some(78), "{}", refused.errors);
    let way_out = "run `keyward constraints strategy known_strategy.users email_1 compensating`, and start";
    assert!(refused.errors.contains(way_out), "{}", refused.errors);
}

/// It has agreed on the former strategy already; the register doesn't show it yet.
#[test]
fn a_keyward_that_starts_while_its_strategy_changes_refuses_to_serve() {
    let (database, upstream) = ("known_strategy_started", CLUSTER.uri());
    shard(database);
    Keyward::of(&with(&upstream, database)).stop();
    let relay = Relay::start(CLUSTER.router_address());
    let listing = relay.hold(b"$addToSet");
    let constraint = "  - { collection: known_strategy_started.users, key: { email: 1 } }\n";
    let refused = std::thread::scope(|scope| {
        let started = scope.spawn(|| Keyward::try_start(&relay.uri(), "10s", constraint));
        listing.wait();
        let change = ["strategy", "known_strategy_started.users", "email_1", "strict"];
        let (code, changed) = run(&upstream, &change);
        assert_eq!(code, Some(0), "{changed}");
        drop(listing);
        started.join().unwrap()
    });
    let refused = refused.unwrap_err();
    assert_eq!(refused.exit, Some(78), "{}", refused.errors);
    assert!(
        refused.errors.contains("has strategy strict in the cluster"),
        "{}",
        refused.errors
    );
}

/// The other way round: it starts behind the reading of the register.
#[test]
fn a_keyward_that_starts_in_the_middle_of_a_change_of_strategy_refuses_to_serve() {
    let (database, upstream) = ("known_strategy_midway", CLUSTER.uri());
    shard(database);
    Keyward::of(&with(&upstream, database)).stop();
    let relay = Relay::start(CLUSTER.router_address());
    let reading = relay.hold(b"keywards");
    let constraint = "  - { collection: known_strategy_midway.users, key: { email: 1 } }\n";
    std::thread::scope(|scope| {
        let change = ["strategy", "known_strategy_midway.users", "email_1", "strict"];
        let uri = relay.uri();
        let changed = scope.spawn(move || run(&uri, &change));
        reading.wait();
        let refused = Keyward::try_start(&upstream, "10s", constraint).unwrap_err();
        assert_eq!(refused.exit, Some(78), "{}", refused.errors);
        assert!(
            refused.errors.contains("has strategy being changed"),
            "{}",
            refused.errors
        );
        drop(reading);
        let (code, changed) = changed.join().unwrap();
        assert_eq!(code, Some(0), "{changed}");
    });
    let strict = "  - { collection: known_strategy_midway.users, key: { email: 1 }, strategy: strict }\n";
    Keyward::start(&upstream, strict).stop();
}

/// Otherwise it would be removed under the Keywards that count on its former identity.
#[test]
fn a_change_of_strategy_that_was_cut_off_keeps_its_constraint_from_being_removed() {
    let (database, upstream) = ("known_strategy_cut_off", CLUSTER.uri());
    shard(database);
    let keyward = Keyward::of(&with(&upstream, database));
    keyward.insert(database, user(1, "a@x")).unwrap();
    let relay = Relay::start(CLUSTER.router_address());
    let reading = relay.hold(b"keywards");
    let change = ["strategy", "known_strategy_cut_off.users", "email_1", "strict"];
    let (mut changing, _folder) = command(&relay.uri(), &change);
    let mut changing = changing.spawn().unwrap();
    reading.wait();
    changing.kill().unwrap();
    changing.wait().unwrap();
    drop(reading);

    let one = listed(&upstream, database).unwrap();
    assert_eq!(one["strategy"], "being changed", "{one}");
    assert_eq!(one["countedOnBy"][0]["process"], keyward.pid().as_raw(), "{one}");
    let (code, refused) = run(&upstream, &["remove", "known_strategy_cut_off.users", "email_1"]);
    assert_eq!(code, Some(1), "{refused}");
    let way_out =
        "run `keyward constraints strategy known_strategy_cut_off.users email_1 strict`, or with `compensating`";
    assert!(refused.contains(way_out), "{refused}");
    assert_eq!(keyward.insert(database, user(2, "a@x")), Err(11_000));
    // To the end: the Keyward is found, and the former strategy comes back.
    let (code, refused) = run(&upstream, &change);
    assert_eq!(code, Some(1), "{refused}");
    let one = listed(&upstream, database).unwrap();
    assert_eq!(one["strategy"], "compensating", "{one}");
    assert_eq!(keyward.insert(database, user(2, "a@x")), Err(11_000));
}

/// The removal has seen the definition of before, and would take the change's place.
#[test]
fn a_removal_gives_way_to_a_change_of_strategy_that_begins_at_the_same_moment() {
    let (database, upstream) = ("known_removal_meets_change", CLUSTER.uri());
    shard(database);
    Keyward::of(&with(&upstream, database)).stop();
    let name = ["known_removal_meets_change.users", "email_1"];
    let [removing, changing] = [(); 2].map(|()| Relay::start(CLUSTER.router_address()));
    let beginning = removing.hold(b"update\0\x14\0\0\0keyward.constraints\0");
    std::thread::scope(|scope| {
        let uri = removing.uri();
        let removed = scope.spawn(move || run(&uri, &["remove", name[0], name[1]]));
        beginning.wait();
        let reading = changing.hold(b"keywards");
        let (mut change, _folder) = command(&changing.uri(), &["strategy", name[0], name[1], "strict"]);
        let mut change = change.spawn().unwrap();
        reading.wait();
        change.kill().unwrap();
        change.wait().unwrap();
        drop(reading);
        drop(beginning);
        let (code, removed) = removed.join().unwrap();
        assert_eq!(code, Some(1), "{removed}");
        assert!(
            removed.contains("changed the constraint at the same moment"),
            "{removed}"
        );
    });
    assert_eq!(listed(&upstream, database).unwrap()["strategy"], "being changed");
}

/// A change that finds a Keyward leaves everything as it was.
#[test]
fn a_refused_change_of_strategy_changes_nothing() {
    let (database, upstream) = ("known_strategy_refused", CLUSTER.uri());
    shard(database);
    let keyward = Keyward::of(&with(&upstream, database));
    let before = CLUSTER.run(database, doc! { "find": "keyward.constraints" }).unwrap();
    let of = |found: &Document| found.get_document("cursor").unwrap().get_array("firstBatch").unwrap()[0].clone();
    let (code, refused) = run(
        &upstream,
        &["strategy", "known_strategy_refused.users", "email_1", "strict"],
    );
    assert_eq!(code, Some(1), "{refused}");
    let after = CLUSTER.run(database, doc! { "find": "keyward.constraints" }).unwrap();
    for field in ["identity", "strategy", "changing"] {
        let field = |found: &Document| of(found).as_document().unwrap().get(field).cloned();
        assert_eq!(field(&after), field(&before));
    }
    keyward
        .insert(database, doc! { "_id": 1, "region": "a", "email": "x" })
        .unwrap();
}

#[test]
fn the_role_of_a_serving_keyward_shows_constraints_and_is_told_what_it_lacks_to_remove_one() {
    let (database, set) = (
        "known_role",
        ReplicaSet::builder("knownRole")
            .root_user("root", "root")
            .start()
            .unwrap(),
    );
    let upstream = set.uri();
    Keyward::of(&with(&upstream, database)).stop();
    let config = Config::from_text(Path::new("keyward.yaml"), &with(&upstream, database), None).unwrap();
    let privileges = keyward::prepare::privileges::needed(&config.constraints, false);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let admin = set.client().database("admin");
        let role = doc! { "createRole": "keyward", "privileges": privileges, "roles": [] };
        admin.run_command(role).await.unwrap();
        let user = doc! { "createUser": "keyward", "pwd": "keyward", "roles": ["keyward"] };
        admin.run_command(user).await.unwrap();
    });
    let as_keyward = upstream.replacen("root:root@", "keyward:keyward@", 1);
    assert_eq!(listed(&as_keyward, database).unwrap()["state"], "enforced");
    let (code, refused) = run(&as_keyward, &["remove", "known_role.users", "email_1"]);
    assert_eq!(code, Some(1), "{refused}");
    assert!(
        refused.contains("lacks dropCollection on known_role.keyward.users.email_1"),
        "{refused}"
    );
    assert_eq!(listed(&as_keyward, database).unwrap()["state"], "enforced");
    let (code, removed) = run(&upstream, &["remove", "known_role.users", "email_1"]);
    assert_eq!(code, Some(0), "{removed}");
}

/// It might be about to load a file with the constraint, and wouldn't look again.
#[test]
fn nothing_is_changed_beside_a_keyward_of_a_version_that_would_not_notice() {
    let (database, set) = ("known_old", ReplicaSet::start(1).unwrap());
    let upstream = set.uri();
    Keyward::of(&with(&upstream, database)).stop();
    let old = Keyward::of(&settings(&upstream, "[]"));
    let update = doc! { "q": {}, "u": { "$unset": { "noticesChanges": "" } } };
    set.run("keyward", doc! { "update": "keywards", "updates": [update] })
        .unwrap();
    for arguments in [
        &["remove", "known_old.users", "email_1"][..],
        &["strategy", "known_old.users", "email_1", "compensating"],
    ] {
        let (code, refused) = run(&upstream, arguments);
        assert_eq!(code, Some(1), "{refused}");
        let named = format!("process {}", old.pid());
        assert!(
            refused.contains("of a version that doesn't notice") && refused.contains(&named),
            "{refused}"
        );
    }
    assert!(listed(&upstream, database).is_some());
    old.stop();
    let (code, changed) = run(&upstream, &["strategy", "known_old.users", "email_1", "compensating"]);
    assert_eq!(code, Some(0), "{changed}");
    let (code, removed) = run(&upstream, &["remove", "known_old.users", "email_1"]);
    assert_eq!(code, Some(0), "{removed}");
    assert_eq!(listed(&upstream, database), None);
}
