//! Merges that the server refuses: Keyward gives the server's own errors, and writes nothing.

use bson::{Binary, Document, bson, doc, spec::BinarySubtype};
use testkit::in_one_order;
use testkit::wire::Connection;

use super::{fill, merge, native, unsharded};

fn documents() -> Vec<Document> {
    vec![doc! { "_id": 1, "email": "a" }, doc! { "_id": 2, "email": "b" }]
}

fn with(mut command: Document, more: Document) -> Document {
    command.extend(more);
    command
}

/// A command of a transaction that it begins.
fn in_transaction(command: Document) -> Document {
    let bytes = rand::random::<[u8; 16]>().to_vec();
    let lsid = doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } };
    let transaction = doc! { "lsid": lsid, "txnNumber": 1_i64, "startTransaction": true, "autocommit": false };
    with(command, transaction)
}

fn commands() -> Vec<Document> {
    let stage = |more: Document| merge(with(doc! { "into": "users" }, more));
    vec![
        stage(doc! { "on": "missing" }),
        stage(doc! { "on": [] }),
        stage(doc! { "on": 1 }),
        stage(doc! { "on": ["email", "email"] }),
        stage(doc! { "whenMatched": "keepExisting", "whenNotMatched": "discard" }),
        stage(doc! { "whenMatched": "keepExisting", "whenNotMatched": "fail" }),
        stage(doc! { "whenMatched": "fail", "whenNotMatched": "discard" }),
        stage(doc! { "whenMatched": "other" }),
        stage(doc! { "whenNotMatched": "other" }),
        stage(doc! { "unknown": 1 }),
        stage(doc! { "let": { "a": 1 } }),
        stage(doc! { "whenMatched": [], "let": { "new": 1 } }),
        stage(doc! { "whenMatched": [{ "$group": { "_id": 1 } }] }),
        with(stage(doc! {}), doc! { "unknown": 1 }),
        with(stage(doc! {}), doc! { "hint": "no such index" }),
        with(stage(doc! {}), doc! { "maxTimeMS": -1 }),
        with(stage(doc! {}), doc! { "cursor": { "unknown": 1 } }),
        with(stage(doc! {}), doc! { "readConcern": { "level": "unknown" } }),
        with(
            stage(doc! {}),
            doc! { "pipeline": [{ "$unknown": 1 }, { "$merge": "users" }] },
        ),
        // The pipeline fails while it runs.
        with(
            stage(doc! {}),
            doc! { "pipeline": [{ "$set": { "a": { "$divide": [1, { "$subtract": ["$_id", 1] }] } } }, { "$merge": "users" }] },
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_finds_the_faults_of_a_merge() {
    let database = "merge_faults";
    let (_set, keyward) = unsharded(database);
    let (mut native, mut keyward) = (native(database).await, Connection::open(&keyward.address));
    for connection in [&mut native, &mut keyward] {
        fill(connection, database, "source", &documents());
    }
    for command in commands() {
        let [got, expected] = [&mut keyward, &mut native].map(|connection| connection.run(database, &command));
        assert_eq!(
            in_one_order(got.clone()),
            in_one_order(expected.clone()),
            "{command}\nKeyward  {got}\nnatively {expected}"
        );
        assert_eq!(expected.get_f64("ok").ok(), Some(0.0), "{command}");
        assert_eq!(keyward.all(database, "users"), []);
    }
}

/// Their texts differ: Keyward asks the server in a form that can't write.
#[tokio::test(flavor = "multi_thread")]
async fn a_merge_in_a_transaction_or_with_a_linearizable_read_is_impossible() {
    let database = "merge_impossible";
    let (_set, keyward) = unsharded(database);
    let (mut native, mut keyward) = (native(database).await, Connection::open(&keyward.address));
    for connection in [&mut native, &mut keyward] {
        fill(connection, database, "source", &documents());
        connection.run(database, &doc! { "create": "users" });
    }
    let transaction = in_transaction(merge(doc! { "into": "users" }));
    let linearizable = with(
        merge(doc! { "into": "users" }),
        doc! { "readConcern": { "level": "linearizable" } },
    );
    for (command, code) in [(&transaction, 263), (&linearizable, 72)] {
        for connection in [&mut native, &mut keyward] {
            let reply = connection.run(database, command);
            assert_eq!(reply.get_i32("code").ok(), Some(code), "{command}: {reply}");
        }
        assert_eq!(keyward.all(database, "users"), []);
    }
    // The server has ended the transaction.
    let mut commit = doc! { "commitTransaction": 1, "autocommit": false };
    for field in ["lsid", "txnNumber"] {
        commit.insert(field, transaction.get(field).unwrap().clone());
    }
    for connection in [&mut native, &mut keyward] {
        let reply = connection.run("admin", &commit);
        assert_eq!(reply.get_i32("code").ok(), Some(251), "{reply}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn options_of_the_command_count_as_natively() {
    let database = "merge_options";
    let (_set, keyward) = unsharded(database);
    let (mut native, mut keyward) = (native(database).await, Connection::open(&keyward.address));
    let validated = doc! { "collMod": "users", "validator": { "email": { "$ne": "b" } } };
    for connection in [&mut native, &mut keyward] {
        connection.run(database, &doc! { "create": "users" });
        connection.must(database, &validated);
        connection.must(database, &doc! { "create": "seen", "viewOn": "source", "pipeline": [] });
    }
    let into = || merge(doc! { "into": "users" });
    let strict = doc! { "apiVersion": "1", "apiStrict": true };
    let elsewhere = doc! { "into": { "db": database, "coll": "users" }, "whenMatched": "replace" };
    for command in [
        into(),
        with(into(), doc! { "bypassDocumentValidation": true }),
        with(
            into(),
            doc! { "bypassDocumentValidation": true, "writeConcern": { "w": 0 } },
        ),
        with(
            into(),
            doc! { "bypassDocumentValidation": true, "readConcern": { "level": "majority" } },
        ),
        with(
            into(),
            doc! { "bypassDocumentValidation": true, "maxTimeMS": 60_000, "comment": "mine" },
        ),
        with(into(), doc! { "bypassDocumentValidation": true, "aggregate": "seen" }),
        with(into(), doc! { "bypassDocumentValidation": true, "aggregate": "none" }),
        with(merge(elsewhere), doc! { "bypassDocumentValidation": true }),
        with(with(into(), strict.clone()), doc! { "bypassDocumentValidation": true }),
        with(
            with(
                merge(doc! { "into": "users", "whenMatched": [{ "$set": { "a": "$$new" } }] }),
                strict,
            ),
            doc! { "bypassDocumentValidation": true },
        ),
        with(
            into(),
            doc! { "aggregate": 1, "pipeline": [{ "$documents": [{ "_id": 8, "email": "h" }] }, { "$merge": "users" }] },
        ),
        with(into(), doc! { "explain": false, "bypassDocumentValidation": true }),
    ] {
        for connection in [&mut native, &mut keyward] {
            fill(connection, database, "source", &documents());
            fill(connection, database, "users", &[doc! { "_id": 1, "email": "z" }]);
        }
        let [got, expected] = [&mut keyward, &mut native].map(|connection| connection.run(database, &command));
        assert_eq!(
            in_one_order(got.clone()),
            in_one_order(expected.clone()),
            "{command}\nKeyward  {got}\nnatively {expected}"
        );
        let [left, expected] = [&mut keyward, &mut native].map(|connection| connection.all(database, "users"));
        assert_eq!(left, expected, "{command}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_into_the_collection_that_it_reads_changes_each_document() {
    let database = "merge_itself";
    let (_set, keyward) = unsharded(database);
    let (mut native, mut keyward) = (native(database).await, Connection::open(&keyward.address));
    let stages = bson!([
        { "$set": { "email": { "$concat": ["$email", "x"] } } },
        { "$merge": { "into": "users", "whenMatched": "replace" } },
    ]);
    let command = doc! { "aggregate": "users", "pipeline": stages, "cursor": {} };
    let left = [&mut native, &mut keyward].map(|connection| {
        fill(connection, database, "users", &documents());
        connection.must(database, &command);
        connection.all(database, "users")
    });
    assert_eq!(left[0], left[1]);
    assert_eq!(left[1][0], doc! { "_id": 1, "email": "ax" });
}

#[tokio::test(flavor = "multi_thread")]
async fn an_explanation_writes_nothing() {
    let database = "merge_explained";
    let (_set, keyward) = unsharded(database);
    let mut keyward = Connection::open(&keyward.address);
    fill(&mut keyward, database, "source", &documents());
    let stage = merge(doc! { "into": "users" });
    let explained = with(stage.clone(), doc! { "explain": true });
    for command in [explained, doc! { "explain": stage, "verbosity": "executionStats" }] {
        let reply = keyward.must(database, &command);
        assert!(reply.contains_key("stages"), "{reply}");
        assert_eq!(keyward.all(database, "users"), []);
    }
}
