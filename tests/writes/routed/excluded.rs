//! What is routed, and what goes on unchanged.

use bson::{Bson, Document, Regex, Timestamp, doc};
use testbed::Cluster;
use testkit::wire::Connection;

use super::{REGIONS, direct, find, first_batch, insert, outcomes, start};

const DATABASE: &str = "routed_or_not";
const CONSTRAINT: &str = "routed_or_not.users.email_1";

fn with(mut command: Document, field: &str, value: impl Into<Bson>) -> Document {
    command.insert(field, value);
    command
}

fn by_email() -> Document {
    find(doc! { "email": "b" })
}

fn aggregate(stages: Vec<Document>) -> Document {
    doc! { "aggregate": "users", "pipeline": stages, "cursor": {} }
}

/// Commands that one shard answers.
fn routed() -> Vec<Document> {
    let email = || doc! { "$match": { "email": "b" } };
    vec![
        by_email(),
        find(doc! { "email": { "$eq": "b" }, "name": "B" }),
        find(doc! { "$and": [{ "name": "B" }, { "email": "b" }] }),
        find(doc! { "email": "in-array" }),
        find(doc! { "email": "b", "$expr": { "$eq": ["$name", "B"] } }),
        with(
            with(by_email(), "projection", doc! { "_id": 0, "name": 1 }),
            "sort",
            doc! { "name": -1 },
        ),
        with(with(by_email(), "limit", 1), "singleBatch", true),
        with(
            with(
                find(doc! { "$expr": { "$eq": ["$name", "$$n"] }, "email": "b" }),
                "let",
                doc! { "n": "B" },
            ),
            "batchSize",
            2,
        ),
        with(by_email(), "readConcern", doc! { "level": "majority" }),
        with(by_email(), "collation", doc! { "locale": "simple" }),
        with(by_email(), "$readPreference", doc! { "mode": "primary" }),
        doc! { "count": "users", "query": { "email": "b" } },
        doc! { "distinct": "users", "key": "name", "query": { "email": "b" } },
        aggregate(vec![email()]),
        aggregate(vec![
            email(),
            doc! { "$group": { "_id": Bson::Null, "n": { "$sum": 1 } } },
        ]),
        aggregate(vec![email(), doc! { "$count": "n" }]),
    ]
}

/// Commands by the key that a single shard might answer otherwise than all.
fn unrouted() -> Vec<Document> {
    let email = || doc! { "$match": { "email": "b" } };
    let regex = Regex {
        pattern: "^b".try_into().unwrap(),
        options: "".try_into().unwrap(),
    };
    vec![
        find(doc! {}),
        find(doc! { "name": "B" }),
        find(doc! { "email": Bson::Null }),
        find(doc! { "email": f64::NAN }),
        find(doc! { "email": regex }),
        find(doc! { "email": ["in-array", "too"] }),
        find(doc! { "email": { "$eq": ["in-array", "too"] } }),
        find(doc! { "email": { "a": 1 } }),
        find(doc! { "email": { "$in": ["b"] } }),
        find(doc! { "$or": [{ "email": "b" }] }),
        find(doc! { "email": "b", "region": "z" }),
        with(by_email(), "collation", doc! { "locale": "en", "strength": 2 }),
        with(by_email(), "hint", doc! { "_id": 1 }),
        with(by_email(), "skip", 1),
        with(by_email(), "batchSize", 0),
        with(by_email(), "returnKey", true),
        with(by_email(), "projection", doc! { "s": { "$meta": "recordId" } }),
        with(by_email(), "readConcern", doc! { "level": "available" }),
        with(by_email(), "readConcern", doc! { "level": "snapshot" }),
        with(by_email(), "$readPreference", doc! { "mode": "secondaryPreferred" }),
        doc! { "count": "users", "query": { "email": "b" }, "skip": 1 },
        aggregate(vec![doc! { "$match": { "name": "B" } }, email()]),
        aggregate(vec![email(), doc! { "$facet": { "n": [{ "$count": "n" }] } }]),
        aggregate(vec![email(), doc! { "$unionWith": "users" }]),
        aggregate(vec![doc! { "$sort": { "name": 1 } }, email()]),
        with(aggregate(vec![email()]), "hint", doc! { "_id": 1 }),
    ]
}

/// Replies without times; a cursor's number and the order of several documents may differ.
fn plain(reply: Document) -> Vec<u8> {
    let mut reply = testkit::comparable(reply);
    if let Ok(cursor) = reply.get_document_mut("cursor") {
        cursor.insert("id", 0);
        cursor.remove("atClusterTime");
        if let Ok(batch) = cursor.get_array_mut("firstBatch") {
            batch.sort_by_key(ToString::to_string);
        }
    }
    reply.remove("errmsg");
    // As bytes, in which NaN equals itself.
    testkit::in_one_order(reply)
}

#[test]
fn only_what_one_shard_answers_alike_is_routed() {
    let keyward = start(DATABASE, &["key: { email: 1 }"]);
    let (mut client, mut direct) = (Connection::greeted(&keyward.address), direct());
    let user = |n: i32, email: Bson, name: &str| doc! { "_id": n, "region": REGIONS[n as usize % 2], "email": email, "name": name };
    let users = vec![
        user(1, "b".into(), "B"),
        user(2, "c".into(), "C"),
        user(3, vec!["in-array", "too"].into(), "D"),
        user(4, Bson::Null, "E"),
        user(5, doc! { "a": 1 }.into(), "F"),
        user(6, f64::NAN.into(), "G"),
    ];
    insert(&mut client, DATABASE, users);
    for (commands, is_routed) in [(routed(), true), (unrouted(), false)] {
        for command in commands {
            let [before, ..] = outcomes(&keyward, CONSTRAINT);
            let reply = client.run(DATABASE, &command);
            let [after, ..] = outcomes(&keyward, CONSTRAINT);
            assert_eq!(
                plain(reply.clone()),
                plain(direct.run(DATABASE, &command)),
                "{command}: {reply}"
            );
            assert_eq!(after - before, u64::from(is_routed), "{command}: {reply}");
        }
    }
}

#[test]
fn a_transaction_and_a_moment_in_the_past_are_not_routed() {
    let database = "routed_moments";
    let keyward = start(database, &["key: { email: 1 }"]);
    let mut client = Connection::greeted(&keyward.address);
    insert(
        &mut client,
        database,
        vec![doc! { "_id": 1, "region": "z", "email": "b" }],
    );
    let before = outcomes(&keyward, "routed_moments.users.email_1");
    let id = bson::Binary {
        subtype: bson::spec::BinarySubtype::Uuid,
        bytes: vec![3; 16],
    };
    let session = doc! { "id": id };
    let mut within = with(with(by_email(), "lsid", session.clone()), "txnNumber", 1_i64);
    within.extend(doc! { "autocommit": false, "startTransaction": true });
    assert_eq!(first_batch(&client.must(database, &within)).len(), 1);
    let mut abort = doc! { "abortTransaction": 1, "lsid": session, "txnNumber": 1_i64 };
    abort.insert("autocommit", false);
    client.must("admin", &abort);
    let at = client
        .must(database, &doc! { "ping": 1 })
        .get_timestamp("operationTime")
        .unwrap_or(Timestamp { time: 1, increment: 1 });
    let past = with(
        by_email(),
        "readConcern",
        doc! { "level": "snapshot", "atClusterTime": at },
    );
    client.run(database, &past);
    assert_eq!(outcomes(&keyward, "routed_moments.users.email_1"), before);
}

/// A document that the filter leaves out may have the key of another one.
#[test]
fn a_partial_constraint_routes_only_what_its_filter_covers() {
    let database = "routed_partial";
    let constraint = "routed_partial.users.email_1";
    let keyward = start(
        database,
        &["key: { email: 1 }, partialFilterExpression: { active: true }"],
    );
    let mut client = Connection::greeted(&keyward.address);
    let user =
        |n: i32, active: bool| doc! { "_id": n, "region": REGIONS[n as usize % 2], "email": "b", "active": active };
    insert(
        &mut client,
        database,
        vec![user(1, true), user(2, false), user(3, false)],
    );
    for (condition, count, is_routed) in [
        (doc! {}, 3, false),
        (doc! { "active": { "$ne": true } }, 2, false),
        (doc! { "active": true }, 1, true),
    ] {
        let [before, ..] = outcomes(&keyward, constraint);
        let mut filter = doc! { "email": "b" };
        filter.extend(condition);
        let found = first_batch(&client.must(database, &find(filter.clone())));
        assert_eq!(found.len(), count, "{filter}");
        assert_eq!(
            outcomes(&keyward, constraint)[0] - before,
            u64::from(is_routed),
            "{filter}"
        );
    }
}

/// Under it, a query for one value also finds others.
#[test]
fn a_default_collation_keeps_reads_unrouted() {
    let database = "routed_collated";
    let namespace = format!("{database}.users");
    let cluster = Cluster::shared();
    cluster.run("admin", doc! { "enableSharding": database }).unwrap();
    let collation = doc! { "locale": "en", "strength": 2 };
    cluster
        .run(database, doc! { "create": "users", "collation": collation })
        .unwrap();
    let simple = doc! { "locale": "simple" };
    let shard = doc! { "shardCollection": &namespace, "key": { "region": 1 }, "collation": simple.clone() };
    cluster.run("admin", shard).unwrap();
    testkit::spread_on_two(cluster, &namespace, doc! { "region": "m" });
    let constraint = format!(
        "  - {{ collection: {namespace}, key: {{ email: 1 }}, collation: {{ locale: simple }}, route: true }}\n"
    );
    let keyward = testkit::Keyward::start(&cluster.uri(), &constraint);
    let mut client = Connection::greeted(&keyward.address);
    let user = |n: i32, email: &str| doc! { "_id": n, "region": REGIONS[n as usize % 2], "email": email };
    insert(&mut client, database, vec![user(1, "b"), user(2, "B")]);
    assert_eq!(first_batch(&client.must(database, &by_email())).len(), 2);
    let simple = with(by_email(), "collation", simple);
    assert_eq!(first_batch(&client.must(database, &simple)).len(), 1);
    assert_eq!(outcomes(&keyward, "routed_collated.users.email_1"), [0; 3]);
}

/// Its pipeline may show a document otherwise, or not at all.
#[test]
fn a_read_of_a_view_is_not_routed() {
    let database = "routed_view";
    let keyward = start(database, &["key: { email: 1 }"]);
    let (mut client, mut direct) = (Connection::greeted(&keyward.address), direct());
    let user = |n: i32, email: &str| doc! { "_id": n, "region": REGIONS[n as usize % 2], "email": email, "other": "b" };
    insert(&mut client, database, vec![user(1, "b"), user(2, "c")]);
    let pipeline = vec![doc! { "$project": { "email": "$other" } }];
    direct.must(
        database,
        &doc! { "create": "people", "viewOn": "users", "pipeline": pipeline },
    );
    let people = doc! { "find": "people", "filter": { "email": "b" } };
    assert_eq!(first_batch(&client.must(database, &people)).len(), 2);
    assert_eq!(outcomes(&keyward, "routed_view.users.email_1"), [0; 3]);
}

#[test]
fn an_explanation_shows_the_one_shard() {
    let database = "routed_explained";
    let keyward = start(database, &["key: { email: 1 }"]);
    let mut client = Connection::greeted(&keyward.address);
    insert(
        &mut client,
        database,
        vec![doc! { "_id": 1, "region": "z", "email": "b" }],
    );
    let mut explain = |filter: Document| {
        let reply = client.must(database, &doc! { "explain": find(filter), "verbosity": "queryPlanner" });
        let plan = reply
            .get_document("queryPlanner")
            .unwrap()
            .get_document("winningPlan")
            .unwrap();
        plan.get_str("stage").unwrap().to_owned()
    };
    assert_eq!(explain(doc! { "email": "b" }), "SINGLE_SHARD");
    assert_ne!(explain(doc! { "name": "b" }), "SINGLE_SHARD");
}

#[test]
fn a_cursor_that_a_routed_read_leaves_open_can_be_read_to_its_end() {
    let database = "routed_cursors";
    let keyward = start(database, &["key: { email: 1 }"]);
    let mut client = Connection::greeted(&keyward.address);
    insert(
        &mut client,
        database,
        vec![doc! { "_id": 1, "region": "z", "email": "b" }],
    );
    let reply = client.must(database, &with(by_email(), "batchSize", 1));
    assert_eq!(first_batch(&reply).len(), 1);
    let id = reply.get_document("cursor").unwrap().get_i64("id").unwrap();
    if id != 0 {
        let more = client.must(database, &doc! { "getMore": id, "collection": "users" });
        let cursor = more.get_document("cursor").unwrap();
        assert_eq!(cursor.get_array("nextBatch").unwrap().len(), 0);
        assert_eq!(cursor.get_i64("id").unwrap(), 0);
    }
    assert_eq!(outcomes(&keyward, "routed_cursors.users.email_1")[0], 1);
}

/// A reservation whose owner is gone, moved to another shard, or holds another key hides no document.
#[test]
fn a_stale_reservation_hides_nothing() {
    let database = "routed_stale";
    let keyward = start(database, &["key: { email: 1 }"]);
    let (mut client, mut direct) = (Connection::greeted(&keyward.address), direct());
    let user = |n: i32, region: &str, email: &str| doc! { "_id": n, "region": region, "email": email };
    insert(
        &mut client,
        database,
        vec![user(1, "a", "gone"), user(2, "a", "other"), user(3, "a", "moved")],
    );
    // Behind Keyward's back, so that the reservations stay as they are.
    for (id, q) in [
        (1, doc! { "_id": 1, "region": "a" }),
        (3, doc! { "_id": 3, "region": "a" }),
    ] {
        let reply = direct.must(
            database,
            &doc! { "delete": "users", "deletes": [{ "q": q, "limit": 1 }] },
        );
        assert_eq!(reply.get_i32("n").unwrap(), 1, "{id}");
    }
    let change = doc! { "q": { "_id": 2, "region": "a" }, "u": { "$set": { "email": "new" } } };
    direct.must(database, &doc! { "update": "users", "updates": [change] });
    insert(
        &mut direct,
        database,
        vec![user(11, "z", "gone"), user(12, "z", "other"), user(3, "z", "moved")],
    );
    for (email, id) in [("gone", 11), ("other", 12), ("moved", 3), ("new", 2)] {
        for command in [
            find(doc! { "email": email }),
            doc! { "aggregate": "users", "pipeline": [{ "$match": { "email": email } }], "cursor": {} },
        ] {
            let found = first_batch(&client.must(database, &command));
            assert_eq!(found.len(), 1, "{email}");
            assert_eq!(found[0].get_i32("_id").unwrap(), id, "{email}");
        }
        let count = client.must(database, &doc! { "count": "users", "query": { "email": email } });
        assert_eq!(count.get_i32("n").unwrap(), 1, "{email}");
        let distinct = client.must(
            database,
            &doc! { "distinct": "users", "key": "_id", "query": { "email": email } },
        );
        assert_eq!(distinct.get_array("values").unwrap(), &vec![Bson::Int32(id)], "{email}");
    }
    let [hits, misses, fell_back] = outcomes(&keyward, "routed_stale.users.email_1");
    assert_eq!((hits, misses, fell_back), (0, 4, 12));
}

/// A protected collection that isn't sharded has nothing to route.
#[test]
fn without_shards_there_is_nothing_to_choose() {
    let database = "routed_unsharded";
    let constraint = "  - { collection: routed_unsharded.users, key: { email: 1 }, route: true }\n";
    let keyward = testkit::Keyward::start(&Cluster::shared().uri(), constraint);
    let mut client = Connection::greeted(&keyward.address);
    insert(&mut client, database, vec![doc! { "_id": 1, "email": "b" }]);
    assert_eq!(first_batch(&client.must(database, &by_email())).len(), 1);
    assert_eq!(outcomes(&keyward, "routed_unsharded.users.email_1"), [0; 3]);
}
