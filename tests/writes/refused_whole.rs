//! Commands that a server refuses as a whole, or for sure: nothing of them takes effect, and no key stays reserved for them. The judge is
//! a native unique index.

use bson::oid::ObjectId;
use bson::{Binary, Bson, Document, Timestamp, Uuid, doc, spec::BinarySubtype};
use testbed::ReplicaSet;
use testkit::Keyward;
use testkit::wire::send;

/// `users` with a native unique index, and `users` of another database behind a Keyward, both with the same two documents.
struct Both {
    native: String,
    keyward: Keyward,
    database: String,
}

impl Both {
    fn start(database: &str, strategy: &str) -> Both {
        let set = ReplicaSet::shared();
        let database = format!("{database}_{strategy}");
        let constraint = format!("  - {{ collection: {database}.users, key: {{ email: 1 }}, strategy: {strategy} }}\n");
        let both = Both {
            native: set.primary().unwrap().address(),
            keyward: Keyward::start_with_lease(&set.uri(), "60s", &constraint),
            database,
        };
        let index = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true };
        let made = both.natively(&doc! { "createIndexes": "users", "indexes": [index] });
        assert!(!made.contains_key("errmsg"), "{made}");
        for reply in both.run(&doc! { "insert": "users", "documents": [user(1, "one"), user(2, "two")] }) {
            assert_eq!(reply.get_i32("n").ok(), Some(2), "{reply}");
        }
        both
    }

    fn natively(&self, command: &Document) -> Document {
        let database = format!("{}_native", self.database);
        send(&self.native, &database, command.clone()).unwrap()
    }

    /// In another session: both sides are on one server.
    fn through_keyward(&self, command: &Document) -> Document {
        let mut command = command.clone();
        if let Ok(session) = command.get_document_mut("lsid")
            && let Some(Bson::Binary(id)) = session.get_mut("id")
        {
            id.bytes.reverse();
        }
        send(&self.keyward.address, &self.database, command).unwrap()
    }

    fn run(&self, command: &Document) -> [Document; 2] {
        [self.natively(command), self.through_keyward(command)]
    }

    /// The documents on either side.
    fn documents(&self) -> [Document; 2] {
        let all = doc! { "find": "users", "sort": { "_id": 1 } };
        self.run(&all)
            .map(|reply| doc! { "all": reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap() })
    }
}

fn user(id: i32, email: &str) -> Document {
    doc! { "_id": id, "email": email }
}

fn session() -> Document {
    let bytes = rand::random::<[u8; 16]>().to_vec();
    let subtype = BinarySubtype::Uuid;
    doc! { "id": Binary { subtype, bytes } }
}

/// The parts of a reply that tell what took effect.
fn effects(reply: &Document) -> Document {
    let shown = ["ok", "n", "nModified", "code", "codeName", "writeErrors"];
    let shown = reply.iter().filter(|(name, _)| shown.contains(&name.as_str()));
    let mut shown: Document = shown.map(|(name, value)| (name.clone(), value.clone())).collect();
    if let Ok(errors) = shown.get_array("writeErrors") {
        let codes: Vec<_> = errors
            .iter()
            .map(|error| error.as_document().unwrap().get("code").cloned())
            .collect();
        shown.insert("writeErrors", codes);
    }
    shown
}

fn a_part_that_no_server_parses_refuses_the_batch(strategy: &str) {
    let both = Both::start("refused_whole", strategy);
    let first = doc! { "q": { "_id": 1 }, "u": { "$set": { "email": "changed" } } };
    for odd in [
        doc! { "sort": { "_id": 1 } },
        doc! { "arrayFilters": [5] },
        doc! { "u": [5] },
        doc! { "multi": f64::NAN },
    ] {
        let mut second = doc! { "q": { "_id": 2 }, "u": { "$set": { "email": "too" } } };
        second.extend(odd.clone());
        let [native, reply] = both.run(&doc! { "update": "users", "updates": [first.clone(), second] });
        assert!(native.contains_key("code"), "{odd}: {native}");
        assert_eq!(effects(&reply), effects(&native), "{odd}");
        let [native, documents] = both.documents();
        assert_eq!(documents, native, "{odd}");
    }
}

#[test]
fn a_part_that_no_server_parses_refuses_the_batch_compensating() {
    a_part_that_no_server_parses_refuses_the_batch("compensating");
}

#[test]
fn a_part_that_no_server_parses_refuses_the_batch_strictly() {
    a_part_that_no_server_parses_refuses_the_batch("strict");
}

/// Arguments that contradict each other or their types. The server checks some of them only in a command as a whole, and Keyward carries
/// commands out in parts.
fn odd_arguments() -> Vec<Document> {
    let numbered = || doc! { "lsid": session(), "txnNumber": 1_i64 };
    let with = |mut fields: Document, more: Document| {
        fields.extend(more);
        fields
    };
    let hash = |bytes: usize| Binary {
        subtype: BinarySubtype::Generic,
        bytes: vec![0; bytes],
    };
    let long_ago = Timestamp { time: 1, increment: 1 };
    let signed = |hash: Binary| doc! { "clusterTime": long_ago, "signature": { "hash": hash, "keyId": 0_i64 } };
    let mut odd = vec![
        doc! { "stmtIds": [] },
        doc! { "stmtIds": [1, 2, 3] },
        doc! { "stmtIds": [3.0] },
        doc! { "stmtId": 5, "stmtIds": [5] },
        with(numbered(), doc! { "stmtId": 5, "stmtIds": [5] }),
        with(numbered(), doc! { "stmtIds": [5] }),
        doc! { "startTransaction": true },
        doc! { "startTransaction": false },
        doc! { "autocommit": false, "startTransaction": true },
        doc! { "autocommit": false, "startTransaction": true, "lsid": session() },
        with(numbered(), doc! { "startTransaction": true }),
        with(numbered(), doc! { "autocommit": true }),
        with(numbered(), doc! { "autocommit": false, "startTransaction": false }),
        with(numbered(), doc! { "autocommit": Bson::Null, "startTransaction": true }),
        doc! { "$clusterTime": {} },
        doc! { "$clusterTime": { "clusterTime": 5 } },
        doc! { "$clusterTime": { "clusterTime": long_ago } },
        doc! { "$clusterTime": signed(hash(2)) },
        doc! { "$clusterTime": signed(hash(20)) },
    ];
    for preference in [
        doc! { "mode": "near" },
        doc! { "mode": "nearest" },
        doc! { "mode": "primary", "maxStalenessSeconds": 100 },
        doc! { "mode": "primary", "tags": [{ "a": "b" }] },
        doc! { "mode": "secondary", "tags": 5 },
        doc! { "mode": "secondary", "hedge": 5 },
    ] {
        odd.push(doc! { "$readPreference": preference });
    }
    for wait in [
        Bson::Int64(1 << 40),
        Bson::Int64(1 << 31),
        Bson::Int64(-1 << 40),
        Bson::Double(8.6e9),
        Bson::Double(5.5),
        Bson::String("x".to_owned()),
    ] {
        odd.push(doc! { "writeConcern": { "w": 1, "wtimeout": wait } });
    }
    odd.push(doc! { "writeConcern": { "w": 0, "wtimeout": 1_i64 << 40 } });
    odd
}

fn odd_arguments_take_effect_as_on_the_server(strategy: &str) {
    let both = Both::start("odd_arguments", strategy);
    for odd in odd_arguments() {
        let email = ObjectId::new().to_hex();
        let change = |email: &str| doc! { "$set": { "email": email } };
        let computed = vec![doc! { "$set": { "email": { "$concat": [&email, "c"] } } }];
        for command in [
            doc! { "insert": "users", "documents": [user(3, &email)] },
            doc! { "insert": "users", "documents": [user(4, &format!("{email}4")), user(5, &format!("{email}5"))] },
            doc! { "update": "users", "updates": [{ "q": { "_id": 1 }, "u": change(&format!("{email}1")) }] },
            doc! { "update": "users", "updates": [{ "q": { "_id": 1 }, "u": computed }] },
            doc! { "delete": "users", "deletes": [{ "q": { "_id": 3 }, "limit": 1 }] },
            doc! { "findAndModify": "users", "query": { "_id": 2 }, "update": change(&format!("{email}2")) },
        ] {
            let mut command = command;
            for (name, value) in odd.clone() {
                // Each command has a session of its own, so that it isn't taken for a retry.
                command.insert(name.clone(), if name == "lsid" { session().into() } else { value });
            }
            let [native, reply] = both.run(&command);
            // A command with several faults may get the error about another one of them.
            let took = |reply: &Document| {
                let mut effects = effects(reply);
                effects.remove("code");
                effects.remove("codeName");
                effects
            };
            assert_eq!(took(&reply), took(&native), "{command}: {reply}: {native}");
            let [native, documents] = both.documents();
            assert_eq!(documents, native, "{command}");
        }
        let added = doc! { "delete": "users", "deletes": [{ "q": { "_id": { "$gt": 2 } }, "limit": 0 }] };
        let [native, reply] = both.run(&added);
        assert_eq!(effects(&reply), effects(&native), "{odd}");
    }
}

#[test]
fn odd_arguments_take_effect_as_on_the_server_compensating() {
    odd_arguments_take_effect_as_on_the_server("compensating");
}

#[test]
fn odd_arguments_take_effect_as_on_the_server_strictly() {
    odd_arguments_take_effect_as_on_the_server("strict");
}

/// To the server, -1 means that the statement isn't retryable. So it carries out one about many documents.
#[test]
fn a_negative_statement_number_is_refused() {
    let both = Both::start("negative_number", "compensating");
    let everywhere = doc! { "q": {}, "u": { "$set": { "email": "one" } }, "multi": true };
    for mut command in [
        doc! { "update": "users", "updates": [&everywhere], "stmtIds": [-1] },
        doc! { "update": "users", "updates": [&everywhere], "stmtId": -1 },
        doc! { "insert": "users", "documents": [user(3, "three"), user(4, "four")], "stmtIds": [-1, -1] },
        doc! { "delete": "users", "deletes": [{ "q": {}, "limit": 0 }], "stmtIds": [-1] },
        doc! { "findAndModify": "users", "query": {}, "update": { "$set": { "email": "one" } }, "stmtId": -1 },
    ] {
        command.extend(doc! { "lsid": session(), "txnNumber": 1_i64 });
        let before = both.documents();
        let reply = both.through_keyward(&command);
        assert_eq!(reply.get_i32("code").ok(), Some(72), "{command}: {reply}");
        assert_eq!(both.documents(), before, "{command}");
    }
}

/// To the server, anything but a number is 0: it deletes all.
#[test]
fn a_limit_that_is_no_number_deletes_as_on_the_server() {
    let both = Both::start("odd_limit", "compensating");
    let tiny: bson::Decimal128 = "1E-400".parse().unwrap();
    let limits = [
        true.into(),
        false.into(),
        "1".into(),
        Bson::Document(doc! {}),
        Bson::Null,
        tiny.into(),
        1.0.into(),
        1_i64.into(),
        0.5.into(),
        2.into(),
    ];
    for limit in limits {
        let users = [3, 4, 5].map(|id| user(id, &ObjectId::new().to_hex()));
        both.run(&doc! { "insert": "users", "documents": users.to_vec() });
        let delete =
            |limit: Bson| doc! { "delete": "users", "deletes": [{ "q": { "_id": { "$gt": 2 } }, "limit": limit }] };
        let [native, reply] = both.run(&delete(limit.clone()));
        assert_eq!(effects(&reply), effects(&native), "{limit}");
        let [native, documents] = both.documents();
        // Which one it deletes is open.
        let count = |documents: &Document| documents.get_array("all").unwrap().len();
        assert_eq!(count(&documents), count(&native), "{limit}");
        both.run(&delete(0.into()));
    }
}

/// Keyward may send each operation as a command of its own, with all fields beside the operations.
#[test]
fn many_operations_with_a_large_comment_are_refused() {
    let both = Both::start("large_comment", "compensating");
    let comment = "x".repeat(8 << 20);
    let update = |count: usize| {
        let statement = doc! { "q": { "_id": 1 }, "u": { "$set": { "email": "changed" } } };
        doc! { "update": "users", "updates": vec![statement; count], "comment": &comment }
    };
    let deletes = vec![doc! { "q": {}, "limit": 0 }; 300];
    let users: Vec<_> = (3..303).map(|id| user(id, &id.to_string())).collect();
    let before = both.documents();
    for command in [
        update(300),
        doc! { "delete": "users", "deletes": deletes, "comment": &comment },
        doc! { "insert": "users", "documents": users, "comment": &comment },
    ] {
        let reply = both.through_keyward(&command);
        assert_eq!(reply.get_i32("code").ok(), Some(115), "{reply}");
    }
    let bulk = doc! {
        "bulkWrite": 1, "ops": vec![doc! { "delete": 0, "filter": {}, "multi": true }; 300], "comment": &comment,
        "nsInfo": [{ "ns": format!("{}.users", both.database) }],
    };
    let reply = send(&both.keyward.address, "admin", bulk).unwrap();
    assert_eq!(reply.get_i32("code").ok(), Some(115), "{reply}");
    assert_eq!(both.documents(), before);
    let reply = both.through_keyward(&update(2));
    assert_eq!(reply.get_i32("n").ok(), Some(2), "{reply}");
}

/// The server takes such a field for missing. Keyward refuses it: its commands would run outside a transaction.
#[test]
fn a_transaction_without_its_mark_is_refused() {
    let both = Both::start("unmarked", "compensating");
    for mut command in [
        doc! { "insert": "users", "documents": [user(3, "three")] },
        doc! { "update": "users", "updates": [{ "q": { "_id": 1 }, "u": [{ "$set": { "email": "changed" } }] }] },
    ] {
        command.insert("autocommit", Bson::Null);
        let reply = both.through_keyward(&command);
        assert_eq!(reply.get_i32("code").ok(), Some(14), "{reply}");
    }
    let documents = both.documents();
    assert_eq!(documents[0], documents[1]);
}

/// The lease is longer than the other client waits.
#[test]
fn a_definite_refusal_gives_the_key_back() {
    let both = Both::start("refused_for_sure", "compensating");
    let session = session();
    let numbered = |number: i64| doc! { "lsid": session.clone(), "txnNumber": number };
    let mut latest = doc! { "insert": "users", "documents": [user(3, "three")] };
    latest.extend(numbered(9));
    for reply in both.run(&latest) {
        assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    }
    let ahead = doc! { "clusterTime": Timestamp { time: u32::MAX / 2, increment: 1 }, "signature": {
        "hash": Binary { subtype: BinarySubtype::Generic, bytes: vec![0; 20] }, "keyId": 0_i64,
    } };
    let odd = [
        numbered(3),
        doc! { "$clusterTime": ahead },
        doc! { "$readPreference": { "mode": "secondary", "maxStalenessSeconds": 1 } },
        doc! { "collectionUUID": Uuid::new() },
        doc! { "apiStrict": true },
    ];
    for (position, odd) in (0..).zip(odd) {
        let email = ObjectId::new().to_hex();
        let statement = doc! { "q": { "_id": 1 }, "u": { "$set": { "email": &email } } };
        for (id, mut command) in [
            (
                10,
                doc! { "insert": "users", "documents": [user(10 + position, &email)] },
            ),
            (20, doc! { "update": "users", "updates": [statement] }),
        ] {
            command.extend(odd.clone());
            let [native, reply] = both.run(&command);
            let is_refused = native.contains_key("code") || native.contains_key("writeErrors");
            assert!(is_refused, "{odd}: {native}");
            assert_eq!(effects(&reply), effects(&native), "{odd}");
            let other = doc! {
                "insert": "users", "documents": [user(1000 + id + position, &email)], "maxTimeMS": 15_000,
            };
            let [_, reply] = both.run(&other);
            assert_eq!(reply.get_i32("n").ok(), Some(1), "{odd}: {command}: {reply}");
            let delete = doc! { "delete": "users", "deletes": [{ "q": { "email": &email }, "limit": 1 }] };
            for reply in both.run(&delete) {
                assert_eq!(reply.get_i32("n").ok(), Some(1), "{odd}: {reply}");
            }
        }
    }
}

fn a_write_to_the_journal_is_acknowledged(strategy: &str) {
    let both = Both::start("journalled", strategy);
    for concern in [doc! { "w": 0, "j": true }, doc! { "w": 0, "fsync": true }] {
        let email = ObjectId::new().to_hex();
        for mut command in [
            doc! { "insert": "users", "documents": [user(3, "one")] },
            doc! { "insert": "users", "documents": [user(3, "three")] },
            doc! { "update": "users", "updates": [{ "q": { "_id": 2 }, "u": { "$set": { "email": &email } } }] },
            doc! { "delete": "users", "deletes": [{ "q": { "_id": 3 }, "limit": 1 }] },
        ] {
            command.insert("writeConcern", concern.clone());
            let [native, reply] = both.run(&command);
            assert_eq!(effects(&reply), effects(&native), "{command}");
        }
    }
}

#[test]
fn a_write_to_the_journal_is_acknowledged_compensating() {
    a_write_to_the_journal_is_acknowledged("compensating");
}

#[test]
fn a_write_to_the_journal_is_acknowledged_strictly() {
    a_write_to_the_journal_is_acknowledged("strict");
}

/// The server has forgotten whether it carried the first one out.
#[test]
fn a_late_copy_of_an_insert_is_not_taken_for_a_duplicate() {
    let both = Both::start("refused_late", "compensating");
    let session = session();
    let numbered = |mut command: Document, number: i64| {
        command.extend(doc! { "lsid": session.clone(), "txnNumber": number });
        command
    };
    let insert = |id: i32, email: &str| doc! { "insert": "users", "documents": [user(id, email)] };
    let first = numbered(insert(3, "three"), 5);
    let delete = doc! { "delete": "users", "deletes": [{ "q": { "_id": 3 }, "limit": 1 }] };
    for command in [
        first.clone(),
        delete,
        insert(4, "three"),
        numbered(insert(5, "five"), 6),
    ] {
        for reply in both.run(&command) {
            assert_eq!(reply.get_i32("n").ok(), Some(1), "{command}: {reply}");
        }
    }
    let [native, reply] = both.run(&first);
    assert_eq!(native.get_i32("code").ok(), Some(225), "{native}");
    assert_eq!(effects(&reply), effects(&native));
    assert!(!reply.contains_key("errorLabels"), "{reply}");
}
