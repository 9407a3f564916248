//! `keyward shard`: a collection with unique indexes is sharded while Keywards serve it, and each field stays unique throughout.

use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use bson::{Document, doc};
use testbed::{Cluster, ReplicaSet};
use testkit::Keyward;
use testkit::relay::Relay;
use testkit::spread_on_two;

/// Its list of clients' constraints has those of these tests only.
static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start().unwrap());

const BY_REGION: &str = r#"{"region": 1}"#;

fn start() -> Keyward {
    start_with("[]")
}

fn start_with(constraints: &str) -> Keyward {
    let upstream = CLUSTER.uri();
    Keyward::of(&format!(
        "upstream: {upstream}\nlease: 10s\nconstraints: {constraints}\n"
    ))
    .leaving()
}

/// A command of Keyward's against `upstream`, with these constraints in its file.
fn keyward(upstream: &str, constraints: &str, arguments: &[&str]) -> (Command, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keyward.yaml");
    let settings = format!("upstream: {upstream}\nlease: 10s\nconstraints: {constraints}\n");
    std::fs::write(&file, settings).unwrap();
    let mut command = Command::new(testkit::keyward::program());
    command.args(arguments).arg("--config").arg(file);
    command.env_remove("KEYWARD_UPSTREAM").env_remove("KEYWARD_LOG");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    (command, folder)
}

/// `keyward shard` of `database.users`.
fn shard(upstream: &str, database: &str, constraints: &str, key: &str, more: &[&str]) -> (Command, tempfile::TempDir) {
    let namespace = format!("{database}.users");
    keyward(upstream, constraints, &[&["shard", &namespace, key], more].concat())
}

/// Runs it; gives its exit code and all that it said.
fn sharded(database: &str, more: &[&str]) -> (Option<i32>, String) {
    said(shard(&CLUSTER.uri(), database, "[]", BY_REGION, more))
}

fn said((mut command, _folder): (Command, tempfile::TempDir)) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// The part of a `dropIndexes` that names this index.
fn index_named(name: &str) -> Vec<u8> {
    let length = u32::try_from(name.len() + 1).unwrap().to_le_bytes();
    [b"\x02index\0", &length[..], name.as_bytes(), b"\0"].concat()
}

/// The indexes of [`create_users`] once the collection is sharded by region. One of them serves the shard key.
const SHARDED: [(&str, bool); 4] = [
    ("_id_", false),
    ("email_1", false),
    ("name_1", false),
    ("region_1_number_1", true),
];

/// What an application asks for when it boots.
fn email() -> Document {
    doc! { "key": { "email": 1 }, "name": "email_1", "unique": true, "sparse": true }
}

/// With these constraints in its file, it ends with exit code 1, and says what is `expected`.
fn assert_refused(database: &str, constraints: &str, expected: &str) {
    let (code, said) = said(shard(&CLUSTER.uri(), database, constraints, BY_REGION, &[]));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(expected), "{said}");
}

/// Two users of `database`, which isn't sharded, with unique indexes.
fn create_users(database: &str) {
    let users = [user(1, "x"), user(2, "y")];
    CLUSTER
        .run(database, doc! { "insert": "users", "documents": users })
        .unwrap();
    let indexes = [
        email(),
        doc! { "key": { "region": 1, "number": 1 }, "name": "region_1_number_1", "unique": true },
        doc! { "key": { "name": 1 }, "name": "name_1" },
    ];
    CLUSTER
        .run(database, doc! { "createIndexes": "users", "indexes": indexes.to_vec() })
        .unwrap();
}

fn user(id: i32, email: &str) -> Document {
    let region = if id % 2 == 0 { "a" } else { "z" };
    doc! { "_id": id, "region": region, "number": id, "email": email, "name": "n" }
}

/// Documents and reservations agree.
fn assert_verified(database: &str) {
    let (code, said) = self::said(keyward(
        &CLUSTER.uri(),
        "[]",
        &["verify", "--collection", &format!("{database}.users")],
    ));
    assert_eq!(code, Some(0), "{said}");
}

/// Splits the sharded collection, so that each region is on a shard of its own.
fn spread(database: &str) {
    spread_on_two(&CLUSTER, &format!("{database}.users"), doc! { "region": "m" });
}

/// The names of the indexes in a reply, each with whether it is unique.
fn indexes(reply: &Document) -> Vec<(String, bool)> {
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    let index = |index: &Document| {
        (
            index.get_str("name").unwrap().to_owned(),
            index.get_bool("unique").unwrap_or(false),
        )
    };
    let mut indexes: Vec<_> = batch.iter().map(|one| index(one.as_document().unwrap())).collect();
    indexes.sort();
    indexes
}

fn indexes_at_server(database: &str) -> Vec<(String, bool)> {
    indexes(&CLUSTER.run(database, doc! { "listIndexes": "users" }).unwrap())
}

fn owned(indexes: &[(&str, bool)]) -> Vec<(String, bool)> {
    indexes
        .iter()
        .map(|(name, unique)| ((*name).to_owned(), *unique))
        .collect()
}

#[test]
fn a_collection_with_unique_indexes_is_sharded_and_stays_unique() {
    const DATABASE: &str = "sharded_live";
    create_users(DATABASE);
    let keywards = [start(), start()];
    let namespace = format!("{DATABASE}.users");
    // What a developer meets first.
    let command = doc! { "shardCollection": &namespace, "key": { "region": 1 } };
    let refused = testkit::wire::Connection::open(&keywards[0].address).run("admin", &command);
    assert!(
        refused.get_str("errmsg").unwrap().contains("`keyward shard`"),
        "{refused}"
    );

    let (code, said) = sharded(DATABASE, &["--dry-run"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("email_1: would become a constraint"), "{said}");
    assert!(!said.contains("number_1"), "{said}");
    assert!(indexes_at_server(DATABASE).contains(&("email_1".to_owned(), true)));

    let (code, said) = sharded(DATABASE, &["--watch", "0"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&format!("{namespace} is sharded by")), "{said}");
    spread(DATABASE);
    assert_eq!(indexes_at_server(DATABASE), owned(&SHARDED));
    let shown = SHARDED.map(|(name, unique)| (name, unique || name == "email_1"));
    for (at, keyward) in keywards.iter().enumerate() {
        let listed = keyward.run(DATABASE, doc! { "listIndexes": "users" }).unwrap();
        assert_eq!(indexes(&listed), owned(&shown));
        // The e-mail of a user on the other shard.
        assert_eq!(keyward.insert(DATABASE, user(4, "x")), Err(11_000));
        assert_eq!(keyward.insert(DATABASE, user(5, "y")), Err(11_000));
        let at = i32::try_from(at).unwrap();
        keyward.insert(DATABASE, user(10 + at, &format!("new {at}"))).unwrap();
        // An application that boots asks for what it asked for before.
        let made = keyward.run(DATABASE, doc! { "createIndexes": "users", "indexes": [email()] });
        assert!(made.is_ok(), "{made:?}");
    }
    // There is nothing left to do.
    let (code, said) = sharded(DATABASE, &["--watch", "0"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("was sharded by"), "{said}");
    let (code, said) = self::said(shard(&CLUSTER.uri(), DATABASE, "[]", r#"{"number": 1}"#, &[]));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("reshardCollection"), "{said}");
    assert_verified(DATABASE);
    // Also later, it looks whether something writes past Keyward.
    let past = user(20, "past");
    CLUSTER
        .run(DATABASE, doc! { "insert": "users", "documents": [past] })
        .unwrap();
    let (code, said) = sharded(DATABASE, &["--watch", "0"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("nothing keeps its documents unique"), "{said}");
}

/// An index inherits the collection's collation, or states it, or another one. A shard key has the simple one.
#[test]
fn a_collated_collection_is_sharded() {
    const DATABASE: &str = "sharded_collated";
    let collation = doc! { "locale": "en", "strength": 2 };
    let create = doc! { "create": "users", "collation": collation.clone() };
    CLUSTER.run(DATABASE, create).unwrap();
    create_users(DATABASE);
    let plain = doc! { "key": { "code": 1 }, "name": "code_1", "unique": true, "sparse": true, "collation": { "locale": "simple" } };
    CLUSTER
        .run(DATABASE, doc! { "createIndexes": "users", "indexes": [plain.clone()] })
        .unwrap();
    CLUSTER
        .run(DATABASE, doc! { "dropIndexes": "users", "index": "region_1_number_1" })
        .unwrap();
    let keyward = start();
    let (code, said) = sharded(DATABASE, &["--watch", "0"]);
    assert_eq!(code, Some(0), "{said}");
    spread(DATABASE);
    assert_eq!(keyward.insert(DATABASE, user(4, "X")), Err(11_000));
    keyward
        .insert(DATABASE, {
            let mut one = user(6, "6");
            one.insert("code", "c");
            one
        })
        .unwrap();
    keyward
        .insert(DATABASE, {
            let mut one = user(7, "7");
            one.insert("code", "C");
            one
        })
        .unwrap();
    let mut stated = email();
    stated.insert("collation", collation);
    for index in [email(), stated, plain] {
        let made = keyward.run(DATABASE, doc! { "createIndexes": "users", "indexes": [index] });
        assert!(made.is_ok(), "{made:?}");
    }
    let (code, said) = sharded(DATABASE, &["--watch", "0"]);
    assert_eq!(code, Some(0), "{said}");
    assert_verified(DATABASE);
}

/// The server refuses the shard key once the unique indexes are gone. Keyward keeps the fields unique until there is another one.
#[test]
fn a_shard_key_that_the_server_refuses_leaves_the_fields_unique() {
    const DATABASE: &str = "sharded_by_array";
    create_users(DATABASE);
    CLUSTER
        .run(DATABASE, doc! { "dropIndexes": "users", "index": "region_1_number_1" })
        .unwrap();
    let keyward = start();
    let mut tagged = user(3, "z");
    tagged.insert("tags", vec!["a", "b"]);
    keyward.insert(DATABASE, tagged).unwrap();
    let by_tags = shard(&CLUSTER.uri(), DATABASE, "[]", r#"{"tags": 1}"#, &["--watch", "0"]);
    let (code, said) = self::said(by_tags);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the server didn't shard"), "{said}");
    assert_eq!(keyward.insert(DATABASE, user(5, "x")), Err(11_000));
    let (code, said) = sharded(DATABASE, &["--watch", "0"]);
    assert_eq!(code, Some(0), "{said}");
    spread(DATABASE);
    assert_eq!(keyward.insert(DATABASE, user(6, "x")), Err(11_000));
    assert_verified(DATABASE);
}

/// The one that drops the unique index last drops what the other one has made in its place.
#[test]
fn two_at_once_leave_the_index() {
    const DATABASE: &str = "sharded_twice";
    create_users(DATABASE);
    let keyward = start();
    let relay = Relay::start(CLUSTER.router_address());
    let held = relay.hold(&index_named("email_1"));
    let (mut command, _folder) = shard(&relay.uri(), DATABASE, "[]", BY_REGION, &["--watch", "0"]);
    let running = command.spawn().unwrap();
    held.wait();
    let (code, said) = sharded(DATABASE, &["--watch", "0"]);
    assert_eq!(code, Some(0), "{said}");
    drop(held);
    let output = running.wait_with_output().unwrap();
    let said = String::from_utf8([&output.stdout[..], &output.stderr[..]].concat()).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(indexes_at_server(DATABASE), owned(&SHARDED));
    spread(DATABASE);
    assert_eq!(keyward.insert(DATABASE, user(4, "x")), Err(11_000));
    assert_verified(DATABASE);
}

/// Else it would wait for ever, or believe that a constraint of another file were none.
#[test]
fn the_file_has_to_be_that_of_the_keywards() {
    const DATABASE: &str = "sharded_by_file";
    create_users(DATABASE);
    let refused = |constraints: &str, expected: &str| assert_refused(DATABASE, constraints, expected);
    let constraint =
        |more: &str| format!("[{{ collection: {DATABASE}.users, key: {{ email: 1 }}, sparse: true{more} }}]");
    let without = start();
    refused(&constraint(""), "no running Keyward enforces it");
    drop(without);
    let named = constraint(", name: mail");
    let of_other_name = start_with(&named);
    refused("[]", "name the Keywards' file");
    refused(&named, "give it the index's name");
    drop(of_other_name);
    let keyward = start_with(&constraint(""));
    let (code, said) = said(shard(
        &CLUSTER.uri(),
        DATABASE,
        &constraint(""),
        BY_REGION,
        &["--watch", "0"],
    ));
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(indexes_at_server(DATABASE), owned(&SHARDED));
    spread(DATABASE);
    assert_eq!(keyward.insert(DATABASE, user(4, "x")), Err(11_000));
}

/// A collection that was dropped past Keyward, and made again, isn't sharded: the server can keep its index.
#[test]
fn an_index_of_a_collection_that_was_made_anew_is_the_servers() {
    const DATABASE: &str = "sharded_formerly";
    create_users(DATABASE);
    let served = start();
    let (code, said) = sharded(DATABASE, &["--watch", "0"]);
    assert_eq!(code, Some(0), "{said}");
    CLUSTER.run(DATABASE, doc! { "drop": "users" }).unwrap();
    CLUSTER
        .run(DATABASE, doc! { "insert": "users", "documents": [user(1, "x")] })
        .unwrap();
    served
        .run(DATABASE, doc! { "createIndexes": "users", "indexes": [email()] })
        .unwrap();
    assert!(indexes_at_server(DATABASE).contains(&("email_1".to_owned(), true)));
    // And it can be taken over again, once the reservations of the former documents are gone.
    let namespace = format!("{DATABASE}.users");
    let repair = ["verify", "--repair", "--collection", &namespace];
    self::said(keyward(&CLUSTER.uri(), "[]", &repair));
    let (code, said) = sharded(DATABASE, &["--watch", "0"]);
    assert_eq!(code, Some(0), "{said}");
    spread(DATABASE);
    assert_eq!(served.insert(DATABASE, user(4, "x")), Err(11_000));
}

/// Between any two of its commands the e-mail is unique, and an index serves queries by it. The next run goes on.
#[test]
fn it_is_killed_at_each_step_and_goes_on() {
    const DATABASE: &str = "sharded_killed";
    create_users(DATABASE);
    let keyward = start();
    let relay = Relay::start(CLUSTER.router_address());
    let steps: [Vec<u8>; 5] = [
        b"keyward_meanwhile_email_1".to_vec(),
        index_named("email_1"),
        b"\x03key\0\x10\0\0\0\x10email\0\x01\0\0\0\0\x02name\0\x08\0\0\0email_1\0".to_vec(),
        index_named("keyward_meanwhile_email_1"),
        b"\x02shardCollection\0".to_vec(),
    ];
    for (at, step) in steps.iter().enumerate() {
        let held = relay.hold(step);
        let (mut command, _folder) = shard(&relay.uri(), DATABASE, "[]", BY_REGION, &["--watch", "0"]);
        let mut running = command.spawn().unwrap();
        let has_come = held.arrives_within(Duration::from_secs(60));
        running.kill().unwrap();
        let output = running.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(has_come, "step {at} didn't come: {said}");
        let id = 100 + i32::try_from(at).unwrap();
        assert_eq!(
            keyward.insert(DATABASE, user(id, "x")),
            Err(11_000),
            "killed before step {at}"
        );
        keyward.insert(DATABASE, user(id, &format!("of {at}"))).unwrap();
        let serves = |(name, _): &(String, bool)| name == "email_1" || name == "keyward_meanwhile_email_1";
        assert!(
            indexes_at_server(DATABASE).iter().any(serves),
            "killed before step {at}"
        );
        // An application that boots meanwhile gets its index, too.
        let made = keyward.run(DATABASE, doc! { "createIndexes": "users", "indexes": [email()] });
        assert!(made.is_ok(), "killed before step {at}: {made:?}");
        let mut other = email();
        other.insert("key", doc! { "mail": 1 });
        let refused = keyward.run(DATABASE, doc! { "createIndexes": "users", "indexes": [other] });
        assert_eq!(refused.err(), Some(86), "killed before step {at}");
    }
    let (code, said) = sharded(DATABASE, &["--watch", "0"]);
    assert_eq!(code, Some(0), "{said}");
    spread(DATABASE);
    assert_eq!(keyward.insert(DATABASE, user(4, "x")), Err(11_000));
    assert_eq!(indexes_at_server(DATABASE), owned(&SHARDED));
    assert_verified(DATABASE);
}

/// An application that still uses the router itself would make duplicates as soon as the server's own index is gone.
#[test]
fn a_collection_that_is_written_past_keyward_keeps_its_unique_index() {
    const DATABASE: &str = "sharded_and_written_past";
    create_users(DATABASE);
    let _keyward = start();
    let relay = Relay::start(CLUSTER.router_address());
    // It compares documents and reservations after all constraints hold, and counts them first.
    let (mut command, _folder) = shard(&relay.uri(), DATABASE, "[]", BY_REGION, &["--watch", "0"]);
    let held = relay.hold(b"\x02count\0\x06\0\0\0users\0");
    let running = command.spawn().unwrap();
    held.wait();
    CLUSTER
        .run(DATABASE, doc! { "insert": "users", "documents": [user(7, "past")] })
        .unwrap();
    drop(held);
    let output = running.wait_with_output().unwrap();
    let said = String::from_utf8([&output.stdout[..], &output.stderr[..]].concat()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("something writes past Keyward"), "{said}");
    assert!(indexes_at_server(DATABASE).contains(&("email_1".to_owned(), true)));
}

/// An audit reserves for such a document, and the comparison finds nothing any more.
#[test]
fn a_document_that_an_audit_has_repaired_counts_as_written_past() {
    const DATABASE: &str = "sharded_and_audited";
    create_users(DATABASE);
    let _keyward = start();
    let relay = Relay::start(CLUSTER.router_address());
    let (mut command, _folder) = shard(&relay.uri(), DATABASE, "[]", BY_REGION, &["--watch", "0"]);
    let held = relay.hold(b"\x02count\0\x06\0\0\0users\0");
    let running = command.spawn().unwrap();
    held.wait();
    // As an audit notes it.
    let note = doc! { "q": {}, "u": { "$inc": { "writtenPast": 1_i64 } } };
    CLUSTER
        .run(DATABASE, doc! { "update": "keyward.constraints", "updates": [note] })
        .unwrap();
    drop(held);
    let output = running.wait_with_output().unwrap();
    let said = String::from_utf8([&output.stdout[..], &output.stderr[..]].concat()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("1 finding: something writes past Keyward"), "{said}");
    assert!(indexes_at_server(DATABASE).contains(&("email_1".to_owned(), true)));
}

#[test]
fn what_cannot_be_taken_over_is_refused_and_nothing_is_changed() {
    const DATABASE: &str = "sharded_not";
    create_users(DATABASE);
    let refused = |constraints: &str, expected: &str| assert_refused(DATABASE, constraints, expected);
    let strict = format!("[{{ collection: {DATABASE}.users, key: {{ email: 1 }}, strategy: strict }}]");
    refused(&strict, "is strict");
    let expiring =
        doc! { "key": { "until": 1 }, "name": "until_1", "unique": true, "sparse": true, "expireAfterSeconds": 60 };
    CLUSTER
        .run(DATABASE, doc! { "createIndexes": "users", "indexes": [expiring] })
        .unwrap();
    refused("[]", "expireAfterSeconds");
    let beside = doc! { "key": { "email": 1 }, "name": "for_queries", "sparse": true };
    CLUSTER
        .run(DATABASE, doc! { "createIndexes": "users", "indexes": [beside] })
        .unwrap();
    CLUSTER
        .run(DATABASE, doc! { "dropIndexes": "users", "index": "until_1" })
        .unwrap();
    refused("[]", "drop for_queries");
    CLUSTER
        .run(DATABASE, doc! { "dropIndexes": "users", "index": "for_queries" })
        .unwrap();
    let before = indexes_at_server(DATABASE);
    CLUSTER
        .run(
            "sharded_capped",
            doc! { "create": "users", "capped": true, "size": 4096 },
        )
        .unwrap();
    let capped = said(shard(&CLUSTER.uri(), "sharded_capped", "[]", BY_REGION, &[]));
    assert!(capped.1.contains("is capped"), "{}", capped.1);
    let missing = said(shard(&CLUSTER.uri(), "sharded_nowhere", "[]", BY_REGION, &[]));
    assert!(missing.1.contains("doesn't exist"), "{}", missing.1);
    let replica_set = ReplicaSet::shared();
    let elsewhere = said(shard(&replica_set.uri(), DATABASE, "[]", BY_REGION, &[]));
    assert!(elsewhere.1.contains("isn't a sharded cluster"), "{}", elsewhere.1);
    let (code, said) = self::said(shard(&CLUSTER.uri(), DATABASE, "[]", "{region: 1}", &[]));
    assert_eq!(code, Some(2), "{said}");
    assert_eq!(indexes_at_server(DATABASE), before);
}

/// Nobody would keep the fields unique.
#[test]
fn without_a_keyward_it_is_refused() {
    const DATABASE: &str = "sharded_alone";
    let cluster = Cluster::alone().unwrap();
    cluster
        .run(DATABASE, doc! { "insert": "users", "documents": [user(1, "x")] })
        .unwrap();
    cluster
        .run(DATABASE, doc! { "createIndexes": "users", "indexes": [email()] })
        .unwrap();
    let refused = |shard| {
        let (code, said) = said(shard);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("no Keyward"), "{said}");
    };
    let settings = format!("upstream: {}\nlease: 10s\nconstraints: []\n", cluster.uri());
    let start = || Keyward::of_in(&settings, &[("KEYWARD_REGISTER_HASTE", "5")]);
    refused(shard(&cluster.uri(), DATABASE, "[]", BY_REGION, &[]));
    // One was killed; the register still has it.
    drop(start());
    refused(shard(&cluster.uri(), DATABASE, "[]", BY_REGION, &[]));
    // It is killed before it builds the constraint.
    let keyward = start();
    let relay = Relay::start(cluster.router_address());
    let held = relay.hold(b"\x02update\0\x12\0\0\0clientConstraints\0");
    let (mut command, _folder) = shard(&relay.uri(), DATABASE, "[]", BY_REGION, &[]);
    let running = command.spawn().unwrap();
    held.wait();
    drop(keyward);
    drop(held);
    let output = running.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("no Keyward"), "{said}");
}
