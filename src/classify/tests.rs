//! Tests classification by tables: each line is a command and its expected outcome.

use bson::{Bson, Document, doc};

use super::*;
use crate::constraint::{Constraint, IndexSpec};
use crate::fleet::Guard;
use crate::namespace::Namespace;
use crate::wire::{Draft, OpMsg, OutSequence};

/// `shop.users` and `shop.ledger` are protected, `shop.keyward.*` are proxy collections.
struct Shop;

impl Protection for Shop {
    fn protects(&self, database: &[u8], collection: &[u8]) -> bool {
        database == b"shop" && [b"users".as_slice(), b"ledger"].contains(&collection)
    }

    fn has_constraints(&self, database: &[u8], collection: &[u8]) -> bool {
        self.protects(database, collection)
    }

    /// `ledger` has a constraint of the file and two of clients; `users` has one of the file.
    fn removal(&self, _: &[u8], collection: &[u8]) -> ConstraintRemoval {
        let is_ledger = collection == b"ledger";
        let constraint = |name: &str, is_clients: bool| {
            let spec = IndexSpec {
                key: doc! { name: 1 },
                client_entry: is_clients.then(bson::oid::ObjectId::new),
                ..IndexSpec::default()
            };
            Constraint::new(Namespace::new("shop", "any"), spec).unwrap()
        };
        let constraints = [("email", false), ("phone", true), ("name", true)].map(|(name, is)| constraint(name, is));
        ConstraintRemoval::of(&constraints[..if is_ledger { 3 } else { 1 }])
    }

    /// `ledger` is in strict mode.
    fn strict_constraint(&self, database: &[u8], collection: &[u8]) -> Option<String> {
        (database == b"shop" && collection == b"ledger").then(|| "number_1".to_owned())
    }

    fn is_keywards_own(&self, _: &[u8], collection: &[u8]) -> bool {
        collection.starts_with(b"keyward.")
    }

    /// The collection had no collation.
    fn other_collation(
        &self,
        database: &[u8],
        collection: &[u8],
        collation: Option<&Element<'_>>,
    ) -> Option<OtherCollation> {
        (self.protects(database, collection) && collation.is_some()).then(|| OtherCollation {
            constraint: "email_1".to_owned(),
            had: "none".to_owned(),
            removal: self.removal(database, collection),
        })
    }

    fn encrypted(&self, database: &[u8], collection: &[u8], fields: &EncryptedFields) -> Option<EncryptedField> {
        let spec = IndexSpec {
            key: doc! { "email": 1 },
            ..IndexSpec::default()
        };
        let constraint = Constraint::new(Namespace::new("shop", "users"), spec).unwrap();
        self.protects(database, collection)
            .then(|| fields.read_by([&constraint].into_iter()))?
    }
}

fn encrypting(command: &str, collection: &str, path: &str) -> Document {
    doc! { command: collection, "encryptedFields": { "fields": [{ "path": path }] } }
}

/// The outcome of a command, without its details.
#[derive(Debug, Clone, Copy, PartialEq)]
enum VerdictKind {
    Forward,
    Hello,
    BalancedHello,
    Write,
    List,
    Index,
    Operation,
    Merge,
    Unprotectable,
    KeywardsOwn,
    OtherRefusal,
}
use VerdictKind::*;

fn outcome(verdict: &Verdict<'_>) -> VerdictKind {
    match verdict {
        Verdict::Forward => Forward,
        Verdict::Hello(Handshake::Direct) => Hello,
        Verdict::Hello(Handshake::LoadBalanced) => BalancedHello,
        Verdict::Write(_) => Write,
        Verdict::List(_) => List,
        Verdict::Index(_) => Index,
        Verdict::Operation(_) => Operation,
        Verdict::Merge(_) => Merge,
        Verdict::Refuse(CommandRefusal::Unprotectable { .. }) => Unprotectable,
        Verdict::Refuse(CommandRefusal::KeywardsOwn { .. }) => KeywardsOwn,
        Verdict::Refuse(_) => OtherRefusal,
    }
}

/// Classifies a body of raw bytes with at most one sequence.
fn check_bytes(body: &[u8], sequence: Option<(&str, &[Document])>, expected: VerdictKind) {
    let documents: Vec<Vec<u8>> = sequence
        .iter()
        .flat_map(|(_, documents)| documents.iter().map(|document| document.to_vec().unwrap()))
        .collect();
    let mut draft = Draft::of_body(body);
    if let Some((name, _)) = sequence {
        draft.sequences.push(OutSequence {
            name: name.as_bytes(),
            documents: documents.iter().map(|bytes| &bytes[..]).collect(),
        });
    }
    let bytes = draft.frame(1, 0).unwrap().to_vec();
    let message = Message::Msg(OpMsg::parse(&bytes).unwrap());
    let verdict = classify(&message, &Shop).unwrap();
    assert_eq!(outcome(&verdict), expected, "{message:?}");
}

fn check_in(database: &str, mut command: Document, expected: VerdictKind) {
    command.insert("$db", database);
    check_bytes(&command.to_vec().unwrap(), None, expected);
}

/// Classifies a command whose batch `field` comes in the body, and then as a document sequence.
fn check_batch(database: &str, mut body: Document, field: &str, batch: &[Document], expected: VerdictKind) {
    body.insert("$db", database);
    check_bytes(&body.to_vec().unwrap(), Some((field, batch)), expected);
    body.insert(field, batch);
    check_bytes(&body.to_vec().unwrap(), None, expected);
}

fn check(command: Document, expected: VerdictKind) {
    check_in("shop", command, expected);
}

#[test]
fn reads_and_unprotected_writes_go_on() {
    for name in ["find", "count", "distinct", "collStats", "collMod"] {
        check(doc! { name: "users" }, Forward);
    }
    for name in ["listIndexes", "createIndexes", "dropIndexes", "deleteIndexes"] {
        check(doc! { name: "users" }, Index);
        check(
            doc! { name: "orders" },
            if name.starts_with("list") || name.starts_with("create") {
                Forward
            } else {
                Index
            },
        );
    }
    let unique = doc! { "createIndexes": "orders", "indexes": [{ "key": { "a": 1 }, "name": "a_1", "unique": true }] };
    check(unique, Index);
    for (option, expected) in [("unique", Index), ("prepareUnique", Index), ("hidden", Forward)] {
        check(
            doc! { "collMod": "orders", "index": { "name": "a_1", option: true } },
            expected,
        );
        check(
            doc! { "collMod": "orders", "index": { "name": "a_1", option: false } },
            Forward,
        );
    }
    for (name, expected) in [("listCollections", List), ("listDatabases", List), ("dbStats", Forward)] {
        check(doc! { name: 1 }, expected);
    }
    let watch = doc! { "aggregate": 1, "pipeline": [{ "$changeStream": {} }], "cursor": {} };
    check(watch, List);
    check(
        doc! { "aggregate": "orders", "pipeline": [{ "$changeStream": {} }] },
        Forward,
    );
    for (first, expected) in [("$currentOp", Operation), ("$listLocalSessions", Forward)] {
        check(
            doc! { "aggregate": 1, "pipeline": [{ first: {} }], "cursor": {} },
            expected,
        );
    }
    check(doc! { "aggregate": 1, "pipeline": [] }, Forward);
    check(doc! { "currentOp": 1 }, Forward);
    check_in("admin", doc! { "currentOp": 1 }, Operation);
    for (op, expected) in [("keyward:600000000101010101010101", Operation), ("shard:7", Forward)] {
        check(doc! { "killOp": 1, "op": op }, Forward);
        check_in("admin", doc! { "killOp": 1, "op": op }, expected);
    }
    for name in ["find", "count", "aggregate"] {
        check(doc! { name: "keyward.users.email_1" }, Forward);
    }
    for name in ["insert", "update", "delete", "findAndModify", "drop", "unheardOf"] {
        check(doc! { name: "orders" }, Forward);
        check(doc! { name: "Users" }, Forward);
        check_in("Shop", doc! { name: "users" }, Forward);
        check_in("admin", doc! { name: "users" }, Forward);
    }
    check(doc! { "explain": { "insert": "users" } }, Forward);
    check(doc! { "unheardOf": 1 }, Forward);
    check(doc! { "create": "users" }, Forward);
    check(doc! { "create": "orders", "collation": {} }, Forward);
    check_in("other", doc! { "dropDatabase": 1 }, Write);
}

#[test]
fn writes_to_protected_collections_go_to_the_write_path() {
    for name in ["insert", "update", "delete", "findAndModify", "findandmodify", "drop"] {
        check(doc! { name: "users" }, Write);
        check(doc! { name: Bson::Symbol("users".into()) }, Write);
        check(doc! { name: "users\0x" }, Unprotectable);
        check(doc! { name: "keyward.users.email_1" }, KeywardsOwn);
        check(doc! { name: bson::Uuid::new() }, OtherRefusal);
        // The server refuses these itself.
        check(doc! { name: 1 }, Forward);
    }
    check(doc! { "dropDatabase": 1 }, Write);
}

#[test]
fn a_change_of_a_protected_collections_shard_key_is_a_write() {
    // A unique index may keep a collection from being sharded: Keyward then says what to do.
    for (name, others) in [
        ("shardCollection", Index),
        ("shardcollection", Index),
        ("refineCollectionShardKey", Forward),
    ] {
        for (namespace, expected) in [
            ("shop.users", Write),
            ("shop.orders", others),
            ("shop.keyward.users.a", KeywardsOwn),
        ] {
            check_in("admin", doc! { name: namespace, "key": { "_id": 1 } }, expected);
        }
    }
}

#[test]
fn bulk_write_is_judged_by_its_namespaces() {
    for (namespaces, expected) in [
        (&["shop.orders"][..], Forward),
        (&["shop.orders", "shop.users"], Write),
        (&["shop.users", "shop.keyward.users.a"], KeywardsOwn),
        (&["users"], Forward),
    ] {
        let entries: Vec<_> = namespaces.iter().map(|ns| doc! { "ns": *ns }).collect();
        for operations in [
            vec![],
            (0..2).map(|index| doc! { "insert": index, "document": {} }).collect(),
        ] {
            let body = doc! { "bulkWrite": 1, "ops": operations };
            check_batch("admin", body, "nsInfo", &entries, expected);
        }
    }
}

/// A client needs no rights on the other collections, so it mustn't be able to have them registered.
#[test]
fn a_bulk_write_writes_only_where_its_operations_say() {
    let insert = |index: Bson| doc! { "insert": index, "document": {} };
    for (operations, asks) in [
        (vec![], false),
        (vec![insert(1.into())], false),
        (vec![insert(0.into())], true),
        (vec![insert(Bson::Double(0.0))], true),
        // Those that can't be read may write anywhere.
        (vec![insert(Bson::Double(0.5))], true),
        (vec![doc! { "document": {}, "insert": 1 }], true),
    ] {
        let body =
            doc! { "bulkWrite": 1, "ops": operations.clone(), "nsInfo": [{ "ns": "shop.orders" }], "$db": "admin" };
        let body = body.to_vec().unwrap();
        let bytes = Draft::of_body(&body).frame(1, 0).unwrap().to_vec();
        let guard = Guard::new(&Shop, None);
        classify(&Message::Msg(OpMsg::parse(&bytes).unwrap()), &guard).unwrap();
        assert_eq!(guard.is_asked(), asks, "{operations:?}");
    }
}

#[test]
fn pipelines_may_not_end_in_protected_collections() {
    for (database, stage, expected) in [
        ("shop", doc! { "$out": "users" }, Unprotectable),
        ("shop", doc! { "$out": "others" }, Forward),
        ("other", doc! { "$out": "users" }, Forward),
        (
            "other",
            doc! { "$out": { "db": "shop", "coll": "users" } },
            Unprotectable,
        ),
        ("shop", doc! { "$out": { "coll": "users" } }, Unprotectable),
        ("shop", doc! { "$out": { "db": "other", "coll": "users" } }, Forward),
        (
            "shop",
            doc! { "$out": { "db": "other", "coll": "users", "x": 1 } },
            Unprotectable,
        ),
        ("shop", doc! { "$out": { "db": "", "coll": "users" } }, Unprotectable),
        (
            "shop",
            doc! { "$merge": { "into": { "db": "", "coll": "users" } } },
            Unprotectable,
        ),
        (
            "shop",
            doc! { "$out": { "db": Bson::Symbol("other".to_owned()), "coll": "users" } },
            Unprotectable,
        ),
        (
            "shop",
            doc! { "$out": { "db": "other", "coll": "others", "replace": "users" } },
            Unprotectable,
        ),
        (
            "shop",
            doc! { "$merge": { "into": { "db": "other", "coll": "users" }, "let": { "into": "users" } } },
            Forward,
        ),
        ("shop", doc! { "$merge": { "into": "orders", "on": "users" } }, Forward),
        (
            "shop",
            doc! { "$merge": { "into": "users\0", "let": { "coll": "users" } } },
            Unprotectable,
        ),
        ("shop", doc! { "$merge": "users", "$limit": 1 }, Unprotectable),
        (
            "other",
            doc! { "$merge": { "into": { "coll": "keyward.users.a", "db": "shop" } } },
            KeywardsOwn,
        ),
        ("shop", doc! { "$facet": { "a": [{ "$out": "users" }] } }, Unprotectable),
        (
            "shop",
            doc! { "$lookup": { "from": "x", "pipeline": [{ "$merge": { "into": "users" } }], "as": "y" } },
            Unprotectable,
        ),
        (
            "shop",
            doc! { "$out": { "coll": "x", "y": [{ "$out": "users" }] } },
            Unprotectable,
        ),
        (
            "other",
            doc! { "$merge": { "into": { "$out": { "coll": "users" }, "db": "shop" } } },
            Unprotectable,
        ),
        ("shop", doc! { "$match": { "out": "users" } }, Forward),
    ] {
        let pipeline = [doc! { "$match": {} }, stage];
        let body = doc! { "aggregate": "orders", "cursor": {} };
        check_batch(database, body, "pipeline", &pipeline, expected);
    }
}

#[test]
fn a_merge_into_a_protected_collection_is_carried_out() {
    for (database, stage) in [
        ("shop", doc! { "$merge": "users" }),
        ("shop", doc! { "$merge": { "into": "users", "whenMatched": "fail" } }),
        ("shop", doc! { "$merge": { "into": { "coll": "users" } } }),
        (
            "other",
            doc! { "$merge": { "into": { "db": "shop", "coll": "users" }, "on": "_id" } },
        ),
    ] {
        let pipeline = vec![doc! { "$match": {} }, stage.clone()];
        let merge = doc! { "aggregate": "orders", "pipeline": &pipeline, "cursor": {} };
        check_in(database, merge.clone(), Merge);
        let mut explained = merge.clone();
        explained.insert("explain", true);
        check_in(database, explained, Forward);
        // Servers differ in whether a collation counts for stated fields.
        let states_on = pipeline[1]
            .get_document("$merge")
            .is_ok_and(|stage| stage.contains_key("on"));
        let mut collated = merge.clone();
        collated.insert("collation", doc! { "locale": "en" });
        check_in(database, collated, if states_on { Unprotectable } else { Merge });
        let mut later = merge;
        later.insert("cursor", doc! { "batchSize": 0 });
        check_in(database, later, OtherRefusal);
        // Not as drivers send it, and not as the last stage, which the server refuses.
        let mut body = doc! { "aggregate": "orders", "cursor": {} };
        body.insert("$db", database);
        check_bytes(&body.to_vec().unwrap(), Some(("pipeline", &pipeline)), Unprotectable);
        body.insert("pipeline", vec![stage.clone(), doc! { "$match": {} }]);
        check_bytes(&body.to_vec().unwrap(), None, Unprotectable);
        body.insert("pipeline", vec![stage.clone(), stage]);
        check_bytes(&body.to_vec().unwrap(), None, Unprotectable);
    }
}

#[test]
fn an_aggregate_that_writes_does_so_at_once() {
    for (stage, size, expected) in [
        (doc! { "$out": "others" }, Bson::from(0), OtherRefusal),
        (doc! { "$merge": { "into": "others" } }, 0.5.into(), OtherRefusal),
        (doc! { "$out": "users" }, 0.into(), Unprotectable),
        (doc! { "$out": "others" }, 1.into(), Forward),
        (doc! { "$out": "others" }, "0".into(), Forward),
        (doc! { "$match": {} }, 0.into(), Forward),
    ] {
        let body = doc! { "aggregate": "orders", "cursor": { "batchSize": size } };
        check_batch("shop", body, "pipeline", &[stage], expected);
    }
    let explained = doc! { "aggregate": "orders", "explain": true, "cursor": { "batchSize": 0 } };
    check_batch("shop", explained, "pipeline", &[doc! { "$out": "others" }], Forward);
}

#[test]
fn map_reduce_may_not_write_into_protected_collections() {
    for (database, out, expected) in [
        ("shop", Bson::from("users"), Unprotectable),
        ("shop", Bson::from("others"), Forward),
        ("shop", doc! { "inline": 1 }.into(), Forward),
        ("shop", doc! { "merge": "users" }.into(), Unprotectable),
        ("other", doc! { "reduce": "users" }.into(), Forward),
        ("other", doc! { "reduce": "users", "db": "shop" }.into(), Unprotectable),
        ("shop", doc! { "reduce": "users", "db": "other" }.into(), Forward),
        ("shop", doc! { "reduce": "users", "db": "" }.into(), Unprotectable),
        (
            "other",
            doc! { "db": "shop", "replace": "keyward.users.a" }.into(),
            KeywardsOwn,
        ),
    ] {
        for name in ["mapReduce", "mapreduce"] {
            check_in(database, doc! { name: "orders", "out": out.clone() }, expected);
        }
    }
}

#[test]
fn commands_that_cannot_be_protected_are_refused() {
    for (database, command, expected) in [
        (
            "admin",
            doc! { "renameCollection": "shop.users", "to": "shop.x" },
            Unprotectable,
        ),
        (
            "admin",
            doc! { "renameCollection": "shop.x", "to": "shop.users" },
            Unprotectable,
        ),
        ("admin", doc! { "renameCollection": "shop.x", "to": "shop.y" }, Forward),
        (
            "admin",
            doc! { "renameCollection": "shop.keyward.users.a", "to": "shop.y" },
            KeywardsOwn,
        ),
        ("admin", doc! { "unshardCollection": "shop.users" }, Unprotectable),
        (
            "admin",
            doc! { "moveCollection": "shop.users", "toShard": "a" },
            Unprotectable,
        ),
        (
            "admin",
            doc! { "reshardCollection": "shop.ledger", "key": {} },
            OtherRefusal,
        ),
        (
            "admin",
            doc! { "reshardCollection": "shop.keyward.users.a", "key": {} },
            KeywardsOwn,
        ),
        ("admin", doc! { "shardCollection": "shop.keyward.users.a" }, KeywardsOwn),
        ("shop", doc! { "convertToCapped": "users" }, Unprotectable),
        (
            "shop",
            doc! { "cloneCollectionAsCapped": "x", "toCollection": "users" },
            Unprotectable,
        ),
        ("shop", doc! { "create": "users", "viewOn": "x" }, Unprotectable),
        ("shop", doc! { "create": "users", "timeseries": {} }, Unprotectable),
        ("shop", doc! { "create": "users", "encryptedFields": {} }, Unprotectable),
        (
            "shop",
            doc! { "collMod": "users", "encryptedFields": {} },
            Unprotectable,
        ),
        ("shop", doc! { "create": "others", "encryptedFields": {} }, Forward),
        (
            "shop",
            doc! { "create": "users", "viewOn": null, "timeseries": Bson::Undefined, "encryptedFields": null },
            Forward,
        ),
        ("shop", doc! { "collMod": "users", "encryptedFields": null }, Forward),
        (
            "admin",
            doc! { "shardCollection": "shop.users", "key": {}, "timeseries": null },
            Write,
        ),
        ("shop", encrypting("create", "users", "email"), OtherRefusal),
        ("shop", encrypting("create", "users", "email.local"), OtherRefusal),
        ("shop", encrypting("collMod", "users", "email"), OtherRefusal),
        ("shop", encrypting("create", "users", "phone"), Forward),
        ("shop", encrypting("create", "others", "email"), Forward),
        ("shop", encrypting("create", "keyward.users.a", "email"), KeywardsOwn),
        (
            "admin",
            doc! { "shardCollection": "shop.users", "key": {}, "timeseries": {} },
            Unprotectable,
        ),
        (
            "admin",
            doc! { "shardCollection": "shop.others", "key": {}, "timeseries": {} },
            Forward,
        ),
        ("shop", doc! { "create": "users", "collation": {} }, OtherRefusal),
        ("other", doc! { "create": "users", "collation": {} }, Forward),
        ("shop", doc! { "create": "keyward.users.a" }, KeywardsOwn),
        ("shop", doc! { "collMod": "keyward.users.a" }, KeywardsOwn),
        ("shop", doc! { "createIndexes": "keyward.users.a" }, KeywardsOwn),
        ("admin", doc! { "applyOps": [] }, OtherRefusal),
        ("shop", doc! { "eval": "f()" }, OtherRefusal),
        ("shop", doc! { "unheardOf": "users" }, Unprotectable),
        ("admin", doc! { "unheardOf": "shop.users" }, Unprotectable),
        (
            "admin",
            doc! { "unheardOf": 1, "x": [{ "to": "shop.users" }] },
            Unprotectable,
        ),
        ("shop", doc! { "clusterInsert": "users" }, Unprotectable),
        ("shop", doc! { "unheardOf": "keyward.users.a" }, KeywardsOwn),
    ] {
        check_in(database, command, expected);
    }
    let entries = [doc! { "ns": "shop.users" }];
    let body = doc! { "unheardOf": 1, "$db": "admin" }.to_vec().unwrap();
    check_bytes(&body, Some(("things", &entries)), Unprotectable);
}

/// The way out names other commands only where they do the same, and ends each constraint where it was made.
#[test]
fn a_refusal_names_the_ways_out() {
    let out_of_file = "take unique constraint email_1 out of Keyward's configuration first";
    let both = "take unique constraint email_1 out of Keyward's configuration and end unique constraints phone_1, name_1 with \
                dropIndexes first";
    for (command, ways_out) in [
        (
            doc! { "unheardOf": "users" },
            format!("; use insert, update and delete commands, or {out_of_file}"),
        ),
        (doc! { "convertToCapped": "users" }, format!("; {out_of_file}")),
        (doc! { "convertToCapped": "ledger" }, format!("; {both}")),
        (
            doc! { "aggregate": "others", "pipeline": [{ "$out": "ledger" }], "cursor": {} },
            format!("; use $merge, after a delete of the documents that are to go, or {both}"),
        ),
        (
            doc! { "mapReduce": "others", "out": "users" },
            format!("; use aggregate with $merge, or {out_of_file}"),
        ),
        (
            doc! { "renameCollection": "shop.users", "to": "shop.others" },
            format!(
                "; copy the documents with $merge into the collection with the new name and drop the other one, or {out_of_file}"
            ),
        ),
        (
            doc! { "create": "ledger", "collation": { "locale": "en" } },
            format!("; create it with that one, or {both}"),
        ),
    ] {
        let mut body = command.clone();
        body.insert("$db", "shop");
        let message = Draft::of_body(&body.to_vec().unwrap()).frame(1, 0).unwrap().to_vec();
        match classify(&Message::Msg(OpMsg::parse(&message).unwrap()), &Shop).unwrap() {
            Verdict::Refuse(refusal) => assert!(refusal.to_string().ends_with(&ways_out), "{refusal}"),
            other => panic!("{command}: {other:?}"),
        }
    }
}

/// Keyward registers each collection to which a command may write.
#[test]
fn an_unknown_command_with_very_many_texts_is_refused() {
    let verdict_on = |texts: Vec<String>| {
        let body = doc! { "unheardOf": 1, "x": texts, "$db": "shop" }.to_vec().unwrap();
        let message = Draft::of_body(&body).frame(1, 0).unwrap().to_vec();
        let message = Message::Msg(OpMsg::parse(&message).unwrap());
        match classify(&message, &Shop).unwrap() {
            Verdict::Forward => None,
            Verdict::Refuse(refusal) => Some(refusal),
            other => panic!("{other:?}"),
        }
    };
    let texts = |count: usize| (0..count).map(|number| format!("text {number}")).collect::<Vec<_>>();
    assert_eq!(verdict_on(texts(99)), None, "99 texts and the database's name");
    assert_eq!(verdict_on([texts(99), texts(99)].concat()), None);
    let too_many = Some(CommandRefusal::TooManyTexts {
        command: "unheardOf".to_owned(),
        max: 100,
    });
    assert_eq!(verdict_on(texts(100)), too_many);
    // Each could name a collection of this database, or one of database `dotted`.
    let dotted = |count: usize| {
        (0..count)
            .map(|number| format!("dotted.text {number}"))
            .collect::<Vec<_>>()
    };
    assert_eq!(verdict_on(dotted(99)), None, "they count once");
    assert_eq!(verdict_on(dotted(100)), too_many);
    assert_eq!(verdict_on(texts(100_000)), too_many);
    let protected = verdict_on([vec!["users".to_owned()], texts(200)].concat());
    assert!(
        matches!(protected, Some(CommandRefusal::Unprotectable { .. })),
        "{protected:?}"
    );
}

/// Each of the names could belong to each of the databases.
#[test]
fn an_output_with_very_many_targets_is_refused() {
    let databases: Vec<_> = (0..60).map(|number| doc! { "db": format!("d{number}") }).collect();
    let collections: Vec<_> = (0..60).map(|number| doc! { "coll": format!("c{number}") }).collect();
    for (databases, collections, expected) in [
        (&databases[..9], &collections[..9], Forward),
        (&databases[..10], &collections[..9], OtherRefusal),
        (&databases[..], &collections[..], OtherRefusal),
    ] {
        let stage = doc! { "$merge": { "x": databases, "y": collections } };
        let body = doc! { "aggregate": "orders", "cursor": {} };
        check_batch("other", body, "pipeline", &[stage], expected);
    }
    let facet: Document = (0..101)
        .map(|number| (number.to_string(), doc! { "$out": "x" }.into()))
        .collect();
    let body = doc! { "aggregate": "orders", "cursor": {} };
    check_batch("other", body, "pipeline", &[doc! { "$facet": facet }], OtherRefusal);
}

#[test]
fn two_databases_are_refused_and_none_is_the_servers_to_refuse() {
    let twice = bson::RawDocumentBuf::from_iter([
        (bson::cstr!("insert"), "users"),
        (bson::cstr!("$db"), "other"),
        (bson::cstr!("$db"), "shop"),
    ]);
    check_bytes(twice.as_bytes(), None, OtherRefusal);
    check_bytes(&doc! { "insert": "users" }.to_vec().unwrap(), None, Forward);
    check_bytes(&doc! { "insert": "users", "$db": 1 }.to_vec().unwrap(), None, Forward);
    check_bytes(&doc! {}.to_vec().unwrap(), None, Forward);
}

#[test]
fn the_handshake_is_known_in_all_spellings() {
    for name in ["hello", "isMaster", "ismaster"] {
        for value in [Bson::from(1), Bson::from(true), Bson::from(1.0), Bson::from(0)] {
            check_in("admin", doc! { name: value }, Hello);
        }
        check_in("admin", doc! { name: 1, "loadBalanced": false }, Hello);
        check_in("admin", doc! { name: 1, "loadBalanced": true }, BalancedHello);
    }
}

#[test]
fn clients_log_in_and_none_as_keyward() {
    for name in ["saslStart", "saslContinue", "authenticate", "logout"] {
        check_in("admin", doc! { name: 1, "mechanism": "SCRAM-SHA-256" }, Forward);
    }
    let x509 = || doc! { "authenticate": 1, "mechanism": "MONGODB-X509", "db": "$external" };
    check_in("$external", x509(), OtherRefusal);
    check_in(
        "$external",
        doc! { "saslStart": 1, "mechanism": "MONGODB-X509" },
        OtherRefusal,
    );
    for name in ["hello", "isMaster", "ismaster"] {
        check_in(
            "admin",
            doc! { name: 1, "speculativeAuthenticate": x509() },
            OtherRefusal,
        );
        let scram = doc! { "saslStart": 1, "mechanism": "SCRAM-SHA-256" };
        check_in("admin", doc! { name: 1, "speculativeAuthenticate": scram }, Hello);
    }
}
