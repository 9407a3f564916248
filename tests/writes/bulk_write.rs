//! `bulkWrite`, which the servers here don't know yet, on protected collections: the replies are written down as the
//! specification and a server of version 8.0 have them, the errors are those of a native unique index.

#![expect(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use bson::{Binary, Bson, Document, doc, spec::BinarySubtype};
use keyward::wire::{Draft, Flags, OpMsg, OutSequence};
use testbed::{Cluster, python};
use testkit::wire::Connection;
use testkit::{Keyward, assert_documents_and_reservations_agree, comparable, on_each_shard, shard_on_two};

const EMAIL: &str = "  - { collection: DB.users, key: { email: 1 } }\n";

/// `users`, protected, on two shards, and `orders`, neither.
fn users(database: &str) -> (&'static Cluster, Keyward) {
    users_with_lease(database, "10s")
}

fn users_with_lease(database: &str, lease: &str) -> (&'static Cluster, Keyward) {
    let cluster = Cluster::shared();
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let constraints = EMAIL.replace("DB", database);
    (cluster, Keyward::start_with_lease(&cluster.uri(), lease, &constraints))
}

fn bulk(database: &str, operations: Vec<Document>) -> Document {
    let namespaces = [
        doc! { "ns": format!("{database}.users") },
        doc! { "ns": format!("{database}.orders") },
    ];
    doc! { "bulkWrite": 1, "ops": operations, "nsInfo": namespaces.to_vec() }
}

fn user(id: i32, email: &str) -> Document {
    doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": email }
}

fn insert(id: i32, email: &str) -> Document {
    doc! { "insert": 0, "document": user(id, email) }
}

fn entries(reply: &Document) -> Vec<Document> {
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch.iter().map(|entry| entry.as_document().unwrap().clone()).collect()
}

/// nErrors, nInserted, nMatched, nModified, nUpserted, nDeleted.
fn counts(reply: &Document) -> [i32; 6] {
    ["nErrors", "nInserted", "nMatched", "nModified", "nUpserted", "nDeleted"].map(|name| reply.get_i32(name).unwrap())
}

fn duplicate(database: &str, index: i32, email: &str, update: bool) -> Document {
    let text = format!(
        "E11000 duplicate key error collection: {database}.users index: email_1 dup key: {{ email: \"{email}\" }}"
    );
    let mut entry = doc! {
        "ok": 0.0, "idx": index, "code": 11_000, "errmsg": text, "keyPattern": { "email": 1 },
        "keyValue": { "email": email }, "n": 0,
    };
    if update {
        entry.insert("nModified", 0);
    }
    entry
}

fn session(number: u8) -> Document {
    let bytes = vec![number; 16];
    doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } }
}

async fn assert_agreement(cluster: &Cluster, database: &str) {
    let key = |user: &Document| vec![doc! { "email": user.get("email").unwrap().clone() }];
    assert_documents_and_reservations_agree(cluster, database, "users", "email_1", key).await;
}

#[tokio::test]
async fn every_operation_is_carried_out_in_order_and_answered_for() {
    let database = "bulk_order";
    let (cluster, keyward) = users(database);
    let mut keyward = Connection::open(&keyward.address);
    let operations = vec![
        insert(1, "1@x"),
        insert(2, "2@x"),
        doc! { "insert": 1, "document": { "_id": 1, "of": 1 } },
        doc! { "update": 0, "filter": { "_id": 1 }, "updateMods": { "$set": { "email": "one@x" } } },
        doc! { "update": 0, "filter": { "_id": 1 }, "updateMods": { "$set": { "name": "one" } } },
        insert(3, "1@x"),
        doc! { "update": 0, "filter": { "_id": 4, "region": "a" }, "updateMods": { "$set": { "email": "4@x" } }, "upsert": true },
        doc! { "update": 0, "filter": {}, "updateMods": [{ "$set": { "name": "all" } }], "multi": true },
        doc! { "update": 1, "filter": { "_id": 1 }, "updateMods": { "of": 2 } },
        doc! { "delete": 0, "filter": { "email": "2@x" } },
        doc! { "delete": 0, "filter": { "name": "all" }, "multi": true },
        insert(5, "one@x"),
    ];
    let reply = keyward.must("admin", &bulk(database, operations));
    let one = |index: i32| doc! { "ok": 1.0, "idx": index, "n": 1 };
    let changed = |index: i32, n: i32| doc! { "ok": 1.0, "idx": index, "n": n, "nModified": n };
    let expected = [
        one(0),
        one(1),
        one(2),
        changed(3, 1),
        changed(4, 1),
        one(5),
        doc! { "ok": 1.0, "idx": 6, "n": 1, "nModified": 0, "upserted": { "_id": 4 } },
        changed(7, 4),
        changed(8, 1),
        one(9),
        doc! { "ok": 1.0, "idx": 10, "n": 3 },
        one(11),
    ];
    assert_eq!(entries(&reply), expected);
    assert_eq!(counts(&reply), [0, 5, 7, 7, 1, 4]);
    let fields: Vec<&str> = reply.keys().map(String::as_str).collect();
    assert_eq!(fields[..2], ["cursor", "nErrors"]);
    assert!(
        ["ok", "$clusterTime", "operationTime"]
            .iter()
            .all(|field| fields.contains(field)),
        "{fields:?}"
    );
    assert_eq!(
        reply.get_document("cursor").unwrap().get_str("ns").ok(),
        Some("admin.$cmd.bulkWrite")
    );
    assert_eq!(keyward.all(database, "users"), [user(5, "one@x")]);
    assert_eq!(keyward.all(database, "orders"), [doc! { "_id": 1, "of": 2 }]);
    assert_agreement(cluster, database).await;
}

#[tokio::test]
async fn the_first_error_ends_an_ordered_command_and_no_other() {
    let database = "bulk_errors";
    let (cluster, keyward) = users(database);
    let mut keyward = Connection::open(&keyward.address);
    let operations = || {
        vec![
            insert(1, "1@x"),
            insert(2, "1@x"),
            insert(3, "3@x"),
            doc! { "update": 0, "filter": { "_id": 3 }, "updateMods": { "$set": { "email": "1@x" } } },
            doc! { "update": 0, "filter": { "_id": 3 }, "updateMods": { "$set": { "email": "three@x" } } },
            doc! { "delete": 0, "filter": { "_id": 1 } },
        ]
    };
    let reply = keyward.must("admin", &bulk(database, operations()));
    let first = doc! { "ok": 1.0, "idx": 0, "n": 1 };
    assert_eq!(entries(&reply), [first.clone(), duplicate(database, 1, "1@x", false)]);
    assert_eq!(counts(&reply), [1, 1, 0, 0, 0, 0]);
    keyward.must(
        database,
        &doc! { "delete": "users", "deletes": [{ "q": {}, "limit": 0 }] },
    );
    let mut unordered = bulk(database, operations());
    unordered.insert("ordered", false);
    let reply = keyward.must("admin", &unordered);
    let duplicates = [
        duplicate(database, 1, "1@x", false),
        duplicate(database, 3, "1@x", true),
    ];
    let expected = [
        first,
        duplicates[0].clone(),
        doc! { "ok": 1.0, "idx": 2, "n": 1 },
        duplicates[1].clone(),
        doc! { "ok": 1.0, "idx": 4, "n": 1, "nModified": 1 },
        doc! { "ok": 1.0, "idx": 5, "n": 1 },
    ];
    assert_eq!(entries(&reply), expected);
    assert_eq!(counts(&reply), [2, 2, 1, 1, 0, 1]);
    keyward.must(
        database,
        &doc! { "delete": "users", "deletes": [{ "q": {}, "limit": 0 }] },
    );
    unordered.insert("errorsOnly", true);
    let reply = keyward.must("admin", &unordered);
    assert_eq!(entries(&reply), duplicates);
    assert_eq!(counts(&reply), [2, 2, 1, 1, 0, 1]);
    assert_eq!(keyward.all(database, "users"), [user(3, "three@x")]);
    assert_agreement(cluster, database).await;
}

#[tokio::test]
async fn a_retry_finds_every_operation_done_that_was_done() {
    let database = "bulk_retry";
    let (cluster, keyward) = users(database);
    let mut keyward = Connection::open(&keyward.address);
    let operations = [
        insert(1, "1@x"),
        doc! { "update": 0, "filter": { "_id": 1, "region": "z" }, "updateMods": { "$set": { "email": "one@x" }, "$inc": { "n": 1 } } },
        doc! { "insert": 1, "document": { "_id": 1, "n": 0 } },
        doc! { "update": 0, "filter": { "_id": 1, "region": "z" }, "updateMods": { "$inc": { "n": 1 } } },
        doc! { "update": 1, "filter": { "_id": 1 }, "updateMods": { "$inc": { "n": 1 } } },
        insert(2, "1@x"),
        doc! { "delete": 0, "filter": { "_id": 2, "region": "a" } },
        insert(3, "1@x"),
    ];
    let expected = [user_with(1, "one@x", 2), user(3, "1@x")];
    // As far as a Keyward came that was killed midway, then the whole, twice.
    for (count, errors_only) in [(3, false), (8, false), (8, true)] {
        let mut command = bulk(database, operations[..count].to_vec());
        command.insert("lsid", session(1));
        command.insert("txnNumber", 1_i64);
        command.insert("errorsOnly", errors_only);
        let reply = keyward.must("admin", &command);
        let of_all = if count == 3 {
            [0, 2, 1, 1, 0, 0]
        } else {
            [0, 4, 3, 3, 0, 1]
        };
        assert_eq!(counts(&reply), of_all, "{reply}");
        assert_eq!(entries(&reply).len(), if errors_only { 0 } else { count }, "{reply}");
    }
    assert_eq!(keyward.all(database, "users"), expected);
    assert_eq!(keyward.all(database, "orders"), [doc! { "_id": 1, "n": 1 }]);
    assert_agreement(cluster, database).await;
}

fn user_with(id: i32, email: &str, n: i32) -> Document {
    let mut user = user(id, email);
    user.insert("n", n);
    user
}

#[tokio::test]
async fn in_a_transaction_it_commits_or_aborts_with_the_rest() {
    let database = "bulk_transaction";
    let (cluster, keyward) = users(database);
    let mut keyward = Connection::open(&keyward.address);
    keyward.must(database, &doc! { "create": "orders" });
    let within = |mut command: Document, number: i64, first: bool| {
        command.extend(doc! { "lsid": session(2), "txnNumber": number, "autocommit": false });
        if first {
            command.insert("startTransaction", true);
        }
        command
    };
    for (number, end) in [(1, "abortTransaction"), (2, "commitTransaction")] {
        let operations = vec![
            insert(1, "1@x"),
            doc! { "insert": 1, "document": { "_id": 1 } },
            doc! { "update": 0, "filter": { "_id": 1 }, "updateMods": { "$set": { "email": "one@x" } } },
        ];
        let reply = keyward.must("admin", &within(bulk(database, operations), number, true));
        assert_eq!(counts(&reply), [0, 2, 1, 1, 0, 0]);
        let more = within(bulk(database, vec![insert(2, "1@x")]), number, false);
        assert_eq!(counts(&keyward.must("admin", &more)), [0, 1, 0, 0, 0, 0]);
        keyward.must("admin", &within(doc! { end: 1 }, number, false));
        let expected = if number == 1 {
            vec![]
        } else {
            vec![user(1, "one@x"), user(2, "1@x")]
        };
        assert_eq!(keyward.all(database, "users"), expected);
        assert_agreement(cluster, database).await;
    }
    let operations = vec![insert(3, "3@x"), insert(4, "1@x"), insert(5, "5@x")];
    let mut command = within(bulk(database, operations), 3, true);
    command.insert("ordered", false);
    let reply = keyward.must("admin", &command);
    let expected = [
        doc! { "ok": 1.0, "idx": 0, "n": 1 },
        duplicate(database, 1, "1@x", false),
    ];
    assert_eq!(entries(&reply), expected);
    let ended = keyward.run("admin", &within(doc! { "commitTransaction": 1 }, 3, false));
    assert_eq!(ended.get_i32("code").ok(), Some(251), "{ended}");
    assert_eq!(keyward.all(database, "users").len(), 2);
    assert_agreement(cluster, database).await;
}

/// Without it the client can't ask another router whether its transaction was committed.
#[tokio::test]
async fn a_transaction_can_be_recovered_after_a_write_of_any_kind() {
    let database = "bulk_recovered";
    let (cluster, keyward) = users(database);
    let mut direct = Connection::open(&cluster.router_address());
    let mut keyward = Connection::open(&keyward.address);
    keyward.must(
        database,
        &doc! { "insert": "users", "documents": [user(1, "1@x"), user(2, "2@x")] },
    );
    let set = |id: i32, email: &str| doc! { "q": user_at(id), "u": { "$set": { "email": email } } };
    let operation = doc! { "update": 0, "filter": user_at(1), "updateMods": { "$set": { "email": "three@x" } } };
    let commands = [
        (database, doc! { "update": "users", "updates": [set(1, "one@x")] }),
        (
            database,
            doc! { "update": "users", "updates": [set(1, "two@x"), { "q": user_at(1), "u": { "$set": { "n": 1 } } }] },
        ),
        ("admin", bulk(database, vec![operation])),
        (
            database,
            doc! { "findAndModify": "users", "query": user_at(1), "update": { "$set": { "email": "four@x" } } },
        ),
        (
            database,
            doc! { "delete": "users", "deletes": [{ "q": user_at(1), "limit": 1 }] },
        ),
        (database, doc! { "insert": "users", "documents": [user(3, "3@x")] }),
    ];
    for (number, (database, mut command)) in (1_i64..).zip(commands) {
        let within = doc! { "lsid": session(4), "txnNumber": number, "autocommit": false };
        command.extend(within.clone());
        command.insert("startTransaction", true);
        let reply = keyward.must(database, &command);
        let token = reply.get_document("recoveryToken").unwrap().clone();
        token.get_str("recoveryShardId").unwrap();
        let mut commit = doc! { "commitTransaction": 1, "recoveryToken": token };
        commit.extend(within);
        keyward.must("admin", &commit);
        direct.must("admin", &commit);
    }
    assert_eq!(keyward.all(database, "users"), [user(2, "2@x"), user(3, "3@x")]);
    assert_agreement(cluster, database).await;
}

fn user_at(id: i32) -> Document {
    let mut user = user(id, "");
    user.remove("email");
    user
}

#[tokio::test]
async fn what_the_server_would_refuse_is_refused_before_anything_is_done() {
    let database = "bulk_refused";
    let (_, keyward) = users(database);
    let mut keyward = Connection::open(&keyward.address);
    let good = || insert(1, "1@x");
    let with = |field: &str, value: Bson| {
        let mut command = bulk(database, vec![good()]);
        command.insert(field, value);
        command
    };
    for (command, code) in [
        (bulk(database, vec![]), 16),
        (bulk(database, vec![good(), doc! { "insert": 2, "document": {} }]), 2),
        (bulk(database, vec![good(), doc! { "insert": -1, "document": {} }]), 2),
        (bulk(database, vec![good(), doc! { "insert": 0 }]), 40_414),
        (bulk(database, vec![good(), doc! { "update": 0, "filter": {} }]), 40_414),
        (bulk(database, vec![good(), doc! { "delete": 0 }]), 40_414),
        (
            bulk(database, vec![good(), doc! { "delete": 0, "filter": {}, "limit": 1 }]),
            40_415,
        ),
        (bulk(database, vec![good(), doc! { "upsert": 0, "filter": {} }]), 40_415),
        (bulk(database, vec![good(), doc! { "insert": 0, "document": 1 }]), 14),
        (with("ops", 1.into()), 14),
        (
            with(
                "nsInfo",
                vec![doc! { "ns": format!("{database}.users") }, doc! { "ns": "x" }].into(),
            ),
            73,
        ),
        (
            with(
                "nsInfo",
                vec![
                    doc! { "ns": format!("{database}.users") },
                    doc! { "ns": format!("{database}.keyward.users.email_1") },
                ]
                .into(),
            ),
            115,
        ),
    ] {
        let reply = keyward.run("admin", &command);
        assert_eq!(reply.get_i32("code").ok(), Some(code), "{command}: {reply}");
    }
    let elsewhere = keyward.run(database, &bulk(database, vec![good()]));
    assert_eq!(elsewhere.get_i32("code").ok(), Some(13), "{elsewhere}");
    // Results that might be longer than a reply can be.
    let large = doc! {
        "update": 0, "filter": { "_id": "x".repeat(1 << 20), "region": "a" }, "updateMods": { "$set": { "email": 1 } },
        "upsert": true,
    };
    let reply = keyward.run("admin", &bulk(database, vec![large; 12]));
    assert_eq!(reply.get_i32("code").ok(), Some(115), "{:?}", reply.get_str("errmsg"));
    assert_eq!(keyward.all(database, "users"), Vec::<Document>::new());
    // On other collections it's the server's to answer.
    let mut unprotected = bulk(database, vec![doc! { "insert": 0, "document": {} }]);
    unprotected.insert("nsInfo", vec![doc! { "ns": format!("{database}.orders") }]);
    let reply = keyward.run("admin", &unprotected);
    let mut directly = Connection::open(
        Cluster::shared()
            .uri()
            .trim_start_matches("mongodb://")
            .trim_end_matches('/'),
    );
    let expected = directly.run("admin", &unprotected);
    assert_eq!(comparable(reply), comparable(expected));
}

/// It would become a field of the commands for the operations: Keyward would write in a transaction of the client's that it doesn't follow.
#[tokio::test(flavor = "multi_thread")]
async fn the_fields_of_a_command_are_refused_in_a_namespace() {
    let database = "bulk_fields_of_namespace";
    let (_, keyward) = users(database);
    let mut keyward = Connection::open(&keyward.address);
    for (name, value) in [
        ("autocommit", Bson::Boolean(false)),
        ("txnNumber", Bson::Int64(1)),
        ("lsid", session(1).into()),
        ("bypassDocumentValidation", Bson::Boolean(true)),
    ] {
        let mut command = bulk(database, vec![insert(1, "1@x")]);
        command.insert("nsInfo", vec![doc! { "ns": format!("{database}.users"), name: value }]);
        let reply = keyward.run("admin", &command);
        assert_eq!(reply.get_i32("code").ok(), Some(40_415), "{name}: {reply}");
    }
    let all = doc! { "update": 0, "filter": {}, "updateMods": { "$set": { "email": "1@x" } }, "multi": true };
    let mut command = bulk(database, vec![all]);
    command.extend(doc! { "lsid": session(1), "txnNumber": 1_i64, "stmtIds": [-1] });
    let reply = keyward.run("admin", &command);
    assert_eq!(reply.get_i32("code").ok(), Some(72), "{reply}");
    assert_eq!(keyward.all(database, "users"), Vec::<Document>::new());
}

/// Otherwise it could count as another value: a server would have refused to delete anything.
#[tokio::test(flavor = "multi_thread")]
async fn an_option_of_another_type_is_refused() {
    let database = "bulk_option_types";
    let (_, keyward) = users(database);
    let mut keyward = Connection::open(&keyward.address);
    let inserted = [insert(1, "1@x"), insert(2, "2@x")];
    keyward.run("admin", &bulk(database, inserted.to_vec()));
    let of_multi = |multi: Bson| bulk(database, vec![doc! { "delete": 0, "filter": {}, "multi": multi }]);
    let mut of_errors_only = of_multi(true.into());
    of_errors_only.insert("errorsOnly", 1);
    for command in [of_multi("no".into()), of_multi(1.into()), of_errors_only] {
        let reply = keyward.run("admin", &command);
        assert_eq!(reply.get_i32("code").ok(), Some(14), "{command}: {reply}");
        assert_eq!(keyward.all(database, "users").len(), 2, "{command}");
    }
    let reply = keyward.run("admin", &of_multi(Bson::Null));
    assert_eq!(counts(&reply)[5], 1, "{reply}");
}

/// As drivers send it: `ops` and `nsInfo` beside the body, and without wanting a reply.
#[tokio::test]
async fn an_unacknowledged_one_is_carried_out_in_silence() {
    let database = "bulk_silent";
    let (cluster, keyward) = users(database);
    let operations = [insert(1, "1@x"), insert(2, "1@x"), insert(3, "3@x")].map(|op| op.to_vec().unwrap());
    let namespaces = doc! { "ns": format!("{database}.users") }.to_vec().unwrap();
    let body =
        doc! { "bulkWrite": 1, "ordered": false, "errorsOnly": true, "writeConcern": { "w": 0 }, "$db": "admin" };
    let body = body.to_vec().unwrap();
    let draft = Draft {
        flags: Flags(Flags::MORE_TO_COME),
        body: &body,
        sequences: vec![
            OutSequence {
                name: b"ops",
                documents: operations.iter().map(|op| &op[..]).collect(),
            },
            OutSequence {
                name: b"nsInfo",
                documents: vec![&namespaces],
            },
        ],
    };
    let mut socket = TcpStream::connect(&keyward.address).unwrap();
    socket.write_all(&draft.frame(1, 0).unwrap().to_vec()).unwrap();
    let ping = doc! { "ping": 1, "$db": "admin" }.to_vec().unwrap();
    socket
        .write_all(&Draft::of_body(&ping).frame(2, 0).unwrap().to_vec())
        .unwrap();
    let mut header = [0; 16];
    socket.read_exact(&mut header).unwrap();
    assert_eq!(header[8..12], 2_i32.to_le_bytes(), "the only reply is the ping's");
    let mut rest = vec![0; i32::from_le_bytes(header[..4].try_into().unwrap()) as usize - 16];
    socket.read_exact(&mut rest).unwrap();
    let reply = [&header[..], &rest].concat();
    assert!(OpMsg::parse(&reply).is_ok());
    let mut ids: Vec<i32> = on_each_shard(cluster.shards(), database, "users")
        .await
        .concat()
        .iter()
        .map(|user| user.get_i32("_id").unwrap())
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 3]);
    assert_agreement(cluster, database).await;
}

/// A driver that takes the deployment for one of version 8.0.
#[test]
fn pymongos_bulk_write_works() {
    // The default lease: the router carries out thousands of ordered inserts one by one within it.
    let (_, keyward) = users_with_lease("bulk_pymongo", "30s");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drivers/python/bulk_write.py");
    let output = Command::new(python().unwrap())
        .arg(script)
        .args([&keyward.uri(), "bulk_pymongo"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
