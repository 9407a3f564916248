//! The manual's page on unique indexes and schema validation, typed into `mongosh` step by step: on sharded collections
//! it prints what the page prints, and the same as on unsharded ones with the page's own indexes.
//!
//! The page drops its collection between the steps; here each of its indexes has a collection of its own.

use std::io::Write;
use std::process::Stdio;

use bson::{Document, doc};
use testbed::{Cluster, NodeProject, ReplicaSet};

use testkit::Keyward;
use testkit::scripts::node;

const PAGES_DATA: &str = r#"
const user1 = { _id: 1, name: { first: "john", last: "smith" } };
const user2 = { _id: 2, name: { first: "john", last: "appleseed" } };
const account1 = { balance: 500, bank: "abc", number: "123" };
"#;

/// Its first index, and what it lets by.
const INDEXED: &str = "
db.users.insertOne(user1);
db.users.insertOne(user2);
";

/// Its second index: users without accounts, then one account for two users, then for one user twice.
const INDEXED_IN_PART: &str = "
db.users.insertOne(user1);
db.users.insertOne(user2);
db.users.deleteMany({});
db.users.insertMany([user1, user2]);
db.users.updateOne({ _id: user1._id }, { $push: { accounts: account1 } });
db.users.updateOne({ _id: user2._id }, { $push: { accounts: account1 } });
db.users.deleteMany({});
db.users.insertMany([user1, user2]);
db.users.updateOne({ _id: user1._id }, { $push: { accounts: account1 } });
db.users.updateOne({ _id: user1._id }, { $push: { accounts: account1 } });
db.users.find().sort({ _id: 1 });
";

/// Its second index and its validator.
const VALIDATED: &str = "
db.users.insertMany([user1, user2]);
db.users.updateOne({ _id: user1._id }, { $push: { accounts: account1 } });
db.users.updateOne({ _id: user1._id }, { $push: { accounts: account1 } });
db.users.updateOne({ _id: user2._id }, { $push: { accounts: account1 } });
db.users.find().sort({ _id: 1 });
";

/// One of the page's collections.
struct Step {
    database: &'static str,
    index: Document,
    validator: Document,
    typed: &'static str,
    /// What the page shows, in its order; its database is `test`.
    shown: &'static [&'static str],
}

fn steps() -> [Step; 3] {
    let index = doc! { "key": { "accounts.bank": 1, "accounts.number": 1 }, "name": "Unique Account" };
    let in_part = doc! {
        "key": { "accounts.bank": 1, "accounts.number": 1 },
        "name": "Unique Account V2",
        "partialFilterExpression": { "accounts.bank": { "$exists": true }, "accounts.number": { "$exists": true } },
    };
    let account = doc! { "bank": "$$this.bank", "number": "$$this.number" };
    let set = doc! { "$setIntersection": { "$map": { "input": "$accounts", "in": account } } };
    let unique = doc! { "$eq": [{ "$size": "$accounts" }, { "$size": set }] };
    let validator = doc! {
        "$expr": { "$cond": { "if": { "$isArray": "$accounts" }, "then": unique, "else": true } },
    };
    [
        Step {
            database: "page_indexed",
            index,
            validator: doc! {},
            typed: INDEXED,
            shown: &[
                "{ acknowledged: true, insertedId: 1 }",
                "MongoServerError: E11000 duplicate key error collection: test.users index: Unique Account dup key: { accounts.bank: null, accounts.number: null }",
            ],
        },
        Step {
            database: "page_in_part",
            index: in_part.clone(),
            validator: doc! {},
            typed: INDEXED_IN_PART,
            shown: &[
                "{ acknowledged: true, insertedId: 1 }",
                "{ acknowledged: true, insertedId: 2 }",
                "{ acknowledged: true, insertedId: null, matchedCount: 1, modifiedCount: 1, upsertedCount: 0 }",
                "MongoServerError: E11000 duplicate key error collection: test.users index: Unique Account V2 dup key: { accounts.bank: \"abc\", accounts.number: \"123\" }",
                "{ acknowledged: true, insertedId: null, matchedCount: 1, modifiedCount: 1, upsertedCount: 0 }",
                "{ acknowledged: true, insertedId: null, matchedCount: 1, modifiedCount: 1, upsertedCount: 0 }",
            ],
        },
        Step {
            database: "page_validated",
            index: in_part,
            validator,
            typed: VALIDATED,
            shown: &[
                "{ acknowledged: true, insertedIds: { '0': 1, '1': 2 } }",
                "{ acknowledged: true, insertedId: null, matchedCount: 1, modifiedCount: 1, upsertedCount: 0 }",
                "MongoServerError: Document failed validation",
                "MongoServerError: E11000 duplicate key error collection: test.users index: Unique Account V2",
            ],
        },
    ]
}

#[test]
fn the_manuals_page_prints_on_shards_what_it_prints() {
    let node = node();
    let (cluster, native) = (Cluster::shared(), ReplicaSet::shared());
    let mut constraints = String::new();
    for Step {
        database,
        index,
        validator,
        ..
    } in steps()
    {
        let create = doc! { "create": "users", "validator": validator };
        cluster.run(database, create.clone()).unwrap();
        cluster
            .shard_by_ranges(&format!("{database}.users"), "_id", &[2])
            .unwrap();
        let mut constraint = doc! { "collection": format!("{database}.users") };
        constraint.extend(index.clone());
        // A document's text is JSON, and so YAML.
        constraints += &format!("  - {constraint}\n");
        native.run(database, create).unwrap();
        let mut index = index;
        index.insert("unique", true);
        native
            .run(database, doc! { "createIndexes": "users", "indexes": [index] })
            .unwrap();
    }
    let keyward = Keyward::start(&cluster.uri(), &constraints);
    for Step {
        database, typed, shown, ..
    } in steps()
    {
        let expected = mongosh(&node, &native.uri(), database, typed);
        let got = mongosh(&node, &keyward.uri(), database, typed);
        assert_eq!(got, expected);
        let in_one_line = got.replace(&format!("{database}.users"), "test.users");
        let in_one_line = in_one_line.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut rest = in_one_line.as_str();
        for line in shown {
            let at = rest.find(line);
            let at = at.unwrap_or_else(|| panic!("the page shows {line}\n{got}"));
            rest = &rest[at + line.len()..];
        }
    }
}

/// What `mongosh` prints when this is typed, without its prompts.
fn mongosh(node: &NodeProject, uri: &str, database: &str, typed: &str) -> String {
    let (host, options) = uri.rsplit_once('/').unwrap();
    let mut shell = node.program("mongosh");
    shell.args(["--quiet", "--norc", &format!("{host}/{database}{options}")]);
    let mut shell = shell
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = shell.stdin.take().unwrap();
    stdin.write_all(PAGES_DATA.as_bytes()).unwrap();
    stdin.write_all(typed.as_bytes()).unwrap();
    drop(stdin);
    let output = shell.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let prompt = format!("{database}>");
    let lines = text
        .lines()
        .map(|line| line.rsplit_once(&prompt).map_or(line, |(_, after)| after));
    lines.collect::<Vec<_>>().join("\n")
}
