//! What Keyward refuses reaches the user in Keyward's words: drivers have texts of their own for some error codes.

#![expect(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

use std::path::Path;

use bson::{Bson, Document, doc};
use mongodb::Client;
use testbed::{Cluster, ReplicaSet, node_project};
use testkit::{Keyward, comparable, run};

#[test]
fn mongosh_shows_why_a_write_is_refused() {
    let constraints = "  - { collection: refusals.users, key: { email: 1 } }\n";
    let keyward = Keyward::start(&ReplicaSet::shared().uri(), constraints);
    let node = node_project(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drivers/node")).unwrap();
    let mut mongosh = node.program("mongosh");
    mongosh.args(["--quiet", "--norc", &format!("{}refusals", keyward.uri()), "--file"]);
    let output = mongosh.arg(node.folder().join("refused.js")).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{shown}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 4, "{shown}");
    assert!(
        lines
            .iter()
            .all(|line| line.contains("Keyward") && line.contains("refusals.")),
        "{shown}"
    );
}

/// A Keyward in front of a replica set, one protected user, and the same without Keyward.
async fn with_a_user(database: &str) -> (Keyward, Client, Client) {
    let set = ReplicaSet::shared();
    let direct = set.client();
    direct.database(database).drop().await.unwrap();
    let constraints = format!("  - {{ collection: {database}.users, key: {{ email: 1 }} }}\n");
    let keyward = Keyward::start(&set.uri(), &constraints);
    let client = keyward.client().await;
    let user = doc! { "insert": "users", "documents": [{ "_id": 1, "email": "1@x" }] };
    assert_eq!(run(&client, database, user).await.get_i32("n").unwrap(), 1);
    (keyward, client, direct)
}

async fn everything(direct: &Client, database: &str) -> Vec<Document> {
    use futures_util::TryStreamExt;
    let mut all = Vec::new();
    for name in ["users", "keyward.users.email_1", "keyward.constraints"] {
        let collection = direct.database(database).collection::<Document>(name);
        let found = collection.find(doc! {}).await.unwrap();
        all.extend(found.try_collect::<Vec<Document>>().await.unwrap());
    }
    all.iter_mut().for_each(|document| drop(document.remove("sweep")));
    all
}

#[tokio::test]
async fn what_would_write_past_the_constraints_is_refused_in_keywards_words_and_does_nothing() {
    let database = "refused_writes";
    let (_keyward, client, direct) = with_a_user(database).await;
    let before = everything(&direct, database).await;
    let users = format!("{database}.users");
    let out = |stage: Document| doc! { "aggregate": "others", "pipeline": [stage], "cursor": {} };
    let proxy = "keyward.users.email_1";
    let by_map_reduce =
        |out: bson::Bson| doc! { "mapReduce": "others", "map": "function(){}", "reduce": "function(){}", "out": out };
    let elsewhere = "refused_writes_elsewhere";
    for (database, command) in [
        (database, out(doc! { "$out": "users" })),
        (
            database,
            out(doc! { "$facet": { "a": [{ "$merge": { "into": "users" } }] } }),
        ),
        (elsewhere, out(doc! { "$out": { "db": database, "coll": "users" } })),
        (database, by_map_reduce("users".into())),
        (database, by_map_reduce(doc! { "merge": "users" }.into())),
        (
            "admin",
            doc! { "renameCollection": &users, "to": format!("{database}.others") },
        ),
        (
            "admin",
            doc! { "renameCollection": format!("{database}.others"), "to": &users, "dropTarget": true },
        ),
        (
            "admin",
            doc! { "applyOps": [{ "op": "d", "ns": &users, "o": { "_id": 1 } }] },
        ),
        (database, doc! { "convertToCapped": "users", "size": 4096 }),
        (
            database,
            doc! { "cloneCollectionAsCapped": "others", "toCollection": "users", "size": 4096 },
        ),
        (
            database,
            doc! { "cloneCollectionAsCapped": "users", "toCollection": "others", "size": 4096 },
        ),
        (database, doc! { "create": "users", "viewOn": "others", "pipeline": [] }),
        (
            database,
            doc! { "create": "users", "timeseries": { "timeField": "at" } },
        ),
        (
            "admin",
            doc! { "shardCollection": &users, "key": { "email": 1 }, "timeseries": { "timeField": "at" } },
        ),
        (database, doc! { "create": "users", "capped": true, "size": 4096 }),
        (database, doc! { "emptycapped": "users" }),
        (database, doc! { "insert": proxy, "documents": [{ "_id": 1 }] }),
        (
            database,
            doc! { "update": proxy, "updates": [{ "q": {}, "u": { "$set": { "owner": 2 } } }] },
        ),
        (database, doc! { "delete": proxy, "deletes": [{ "q": {}, "limit": 0 }] }),
        (database, doc! { "findAndModify": proxy, "remove": true }),
        (database, doc! { "drop": proxy }),
        (database, doc! { "drop": "keyward.constraints" }),
        (
            database,
            doc! { "delete": "keyward.constraints", "deletes": [{ "q": {}, "limit": 0 }] },
        ),
        (
            database,
            doc! { "delete": "keyward.results", "deletes": [{ "q": {}, "limit": 0 }] },
        ),
        (
            database,
            doc! { "createIndexes": proxy, "indexes": [{ "key": { "a": 1 }, "name": "a" }] },
        ),
        (database, doc! { "dropIndexes": proxy, "index": "*" }),
        (database, doc! { "collMod": proxy, "validationLevel": "off" }),
        (database, out(doc! { "$out": proxy })),
    ] {
        let reply = run(&client, database, command.clone()).await;
        let text = reply.get_str("errmsg").unwrap_or_default();
        assert_eq!(reply.get_i32("code").ok(), Some(115), "{command}: {reply}");
        assert!(text.contains("Keyward"), "{command}: {text}");
    }
    assert_eq!(everything(&direct, database).await, before);
}

/// Either option alone is accepted, whether the collection doesn't exist yet or is made anew.
#[tokio::test]
async fn a_protected_collection_is_created_clustered_or_collated_but_not_both() {
    let database = "refused_clustered";
    let set = ReplicaSet::shared();
    set.client().database(database).drop().await.unwrap();
    let collation = doc! { "locale": "en", "strength": 2 };
    let constraints = format!(
        "  - {{ collection: {database}.users, key: {{ email: 1 }}, collation: {{ locale: en, strength: 2 }} }}\n"
    );
    let keyward = Keyward::start(&set.uri(), &constraints);
    let client = keyward.client().await;
    let with = |options: Document| {
        let mut create = doc! { "create": "users" };
        create.extend(options);
        create
    };
    let clustered = doc! { "clusteredIndex": { "key": { "_id": 1 }, "unique": true } };
    let mut both = clustered.clone();
    both.insert("collation", collation.clone());
    let mut simple = clustered.clone();
    simple.insert("collation", doc! { "locale": "simple" });
    for alone in [clustered, simple, doc! { "collation": collation }] {
        let refused = run(&client, database, with(both.clone())).await;
        assert_eq!(refused.get_i32("code").ok(), Some(115), "{refused}");
        let errmsg = refused.get_str("errmsg").unwrap();
        let text =
            "create can't make refused_clustered.users clustered and give it a default collation through Keyward";
        assert!(errmsg.starts_with(text), "{errmsg}");
        let way_out = "or take unique constraint email_1 out of Keyward's configuration first";
        assert!(errmsg.ends_with(way_out), "{errmsg}");
        for command in [with(alone), doc! { "drop": "users" }] {
            let reply = run(&client, database, command).await;
            assert!(testkit::wire::is_ok(&reply), "{reply}");
        }
    }
}

/// The ways out of two refusals, as their texts name them.
#[tokio::test]
async fn a_merge_does_what_out_and_a_rename_are_refused_for() {
    let database = "refused_with_a_way_out";
    let (_keyward, client, direct) = with_a_user(database).await;
    let text = |reply: Document| reply.get_str("errmsg").unwrap_or_default().to_owned();
    let rename = doc! { "renameCollection": format!("{database}.others"), "to": format!("{database}.users") };
    let out = |stage: Document| doc! { "aggregate": "others", "pipeline": [stage], "cursor": {} };
    let others = vec![doc! { "_id": 1, "email": "new" }, doc! { "_id": 2, "email": "1@x" }];
    run(&client, database, doc! { "insert": "others", "documents": others }).await;
    let refused = text(run(&client, "admin", rename).await);
    let copy = "copy the documents with $merge into the collection with the new name and drop the other one";
    assert!(refused.contains(copy), "{refused}");
    let refused = text(run(&client, database, out(doc! { "$out": "users" })).await);
    let merge = "use $merge, after a delete of the documents that are to go";
    assert!(refused.contains(merge), "{refused}");
    assert!(
        refused.ends_with("or take unique constraint email_1 out of Keyward's configuration first"),
        "{refused}"
    );
    let delete = doc! { "delete": "users", "deletes": [{ "q": {}, "limit": 0 }] };
    for command in [
        delete,
        out(doc! { "$merge": { "into": "users" } }),
        doc! { "drop": "others" },
    ] {
        let reply = run(&client, database, command).await;
        assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
    }
    let users = everything(&direct, database).await;
    assert_eq!(
        users.iter().filter(|document| document.contains_key("email")).count(),
        2
    );
}

#[tokio::test]
async fn reads_and_explanations_are_never_in_the_way() {
    let database = "refused_no_reads";
    let (_keyward, client, direct) = with_a_user(database).await;
    let before = everything(&direct, database).await;
    let lookup = doc! { "$lookup": {
        "from": "keyward.users.email_1", "localField": "_id", "foreignField": "owner", "as": "reserved",
    } };
    let union =
        doc! { "$unionWith": { "coll": "users", "pipeline": [{ "$match": { "$expr": { "$eq": ["$_id", 1] } } }] } };
    let set = doc! { "$set": { "email": "2@x" } };
    let update = doc! { "update": "users", "updates": [{ "q": {}, "u": set.clone(), "upsert": true }] };
    let delete = doc! { "delete": "users", "deletes": [{ "q": {}, "limit": 0 }] };
    let modify = doc! { "findAndModify": "users", "query": {}, "update": set };
    let explain = |command: &Document, verbosity: &str| doc! { "explain": command.clone(), "verbosity": verbosity };
    let mut commands = vec![
        doc! { "aggregate": "users", "pipeline": [lookup, union], "cursor": {} },
        doc! { "aggregate": "users", "pipeline": [{ "$facet": { "a": [{ "$count": "n" }] } }], "cursor": {} },
        doc! { "aggregate": "users", "pipeline": [{ "$match": {} }, { "$out": "copies" }], "cursor": {} },
        doc! { "mapReduce": "users", "map": "function() { emit(1, 1) }", "reduce": "function(k, v) { return 1 }", "out": { "inline": 1 } },
        doc! { "find": "keyward.users.email_1", "projection": { "owner": 1 } },
        doc! { "count": "users" },
        doc! { "distinct": "users", "key": "email" },
    ];
    for explained in [&update, &delete, &modify] {
        commands.extend(["queryPlanner", "executionStats"].map(|verbosity| explain(explained, verbosity)));
    }
    for command in commands {
        let reply = comparable(run(&client, database, command.clone()).await);
        assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{command}: {reply}");
        let is_explained = command.contains_key("explain");
        assert_eq!(is_explained, reply.contains_key("queryPlanner"), "{command}: {reply}");
        if !is_explained {
            assert_eq!(
                reply,
                comparable(run(&direct, database, command.clone()).await),
                "{command}"
            );
        }
    }
    assert_eq!(everything(&direct, database).await, before);
}

/// Equal values of an encrypted field look different: the refusal names the constraint that reads it, and the field.
#[tokio::test]
async fn a_collection_is_made_without_encrypting_what_a_constraint_reads() {
    let database = "refused_encryption";
    let (_keyward, client, direct) = with_a_user(database).await;
    run(&client, database, doc! { "drop": "users" }).await;
    let encrypting = |path: &str| {
        let field = doc! { "keyId": bson::Uuid::new(), "path": path, "bsonType": "string" };
        doc! { "create": "users", "encryptedFields": { "fields": [field] } }
    };
    for field in ["email", "email.local"] {
        let reply = run(&client, database, encrypting(field)).await;
        assert_eq!(reply.get_i32("code").ok(), Some(115), "{reply}");
        let expected = format!(
            "create can't encrypt field {field} of {database}.users through Keyward, because unique constraint email_1"
        );
        assert!(reply.get_str("errmsg").unwrap().starts_with(&expected), "{reply}");
    }
    let names = direct.database(database).list_collection_names().await.unwrap();
    assert!(!names.contains(&"users".to_owned()), "{names:?}");
    let reply = run(&client, database, encrypting("phone")).await;
    assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
}

/// The server ignores it.
#[tokio::test]
async fn an_option_of_null_is_not_refused() {
    let database = "refused_null";
    let (_keyward, client, direct) = with_a_user(database).await;
    for nothing in [Bson::Null, Bson::Undefined] {
        for (command, option) in [
            ("create", "viewOn"),
            ("create", "timeseries"),
            ("create", "encryptedFields"),
            ("collMod", "encryptedFields"),
        ] {
            let mut codes = Vec::new();
            for (client, collection) in [(&direct, "native"), (&client, "users")] {
                if command == "create" {
                    run(client, database, doc! { "drop": collection }).await;
                }
                let reply = run(client, database, doc! { command: collection, option: nothing.clone() }).await;
                let is_accepted = reply.get_f64("ok").ok() == Some(1.0);
                // Not every server has the option in collMod.
                assert!(is_accepted || command == "collMod", "{command} {option}: {reply}");
                codes.push(reply.get_i32("code").ok());
            }
            assert_eq!(codes[0], codes[1], "{command} {option}");
        }
    }
    let users = vec![doc! { "_id": 1, "email": "1@x" }, doc! { "_id": 2, "email": "1@x" }];
    let reply = run(&client, database, doc! { "insert": "users", "documents": users }).await;
    assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
}

#[tokio::test]
async fn a_collection_is_sharded_with_a_time_series_of_null() {
    let database = "refused_null_shards";
    let cluster = Cluster::shared();
    cluster.run(database, doc! { "create": "users" }).unwrap();
    let constraints = format!("  - {{ collection: {database}.users, key: {{ email: 1 }} }}\n");
    let keyward = Keyward::start(&cluster.uri(), &constraints);
    for nothing in [Bson::Null, Bson::Undefined] {
        let shard = |collection: &str| {
            let namespace = format!("{database}.{collection}");
            doc! { "shardCollection": namespace, "key": { "region": 1 }, "timeseries": nothing.clone() }
        };
        cluster.run("admin", shard("native")).unwrap();
        assert!(keyward.run("admin", shard("users")).is_ok());
    }
}

/// The constraint has its keys under the collation that the collection had.
#[tokio::test]
async fn a_collection_is_made_anew_only_with_the_default_collation_that_it_had() {
    let database = "refused_collations";
    let set = ReplicaSet::shared();
    let direct = set.client();
    direct.database(database).drop().await.unwrap();
    let en = |strength: i32| doc! { "locale": "en", "strength": strength };
    let create = |collection: &str, collation: Option<Document>| {
        let mut command = doc! { "create": collection };
        command.extend(
            collation
                .map(|collation| doc! { "collation": collation })
                .unwrap_or_default(),
        );
        command
    };
    run(&direct, database, create("users", Some(en(2)))).await;
    run(&direct, database, create("plain", None)).await;
    let constraints = format!(
        "  - {{ collection: {database}.users, key: {{ email: 1 }} }}\n  - {{ collection: {database}.plain, key: {{ email: 1 }} }}\n  \
         - {{ collection: {database}.later, key: {{ email: 1 }}, collation: {{ locale: en, strength: 2 }} }}\n"
    );
    let keyward = Keyward::start(&set.uri(), &constraints);
    let client = keyward.client().await;
    let simple = || Some(doc! { "locale": "simple" });
    for (collection, refused, taken) in [
        (
            "users",
            vec![
                None,
                simple(),
                Some(en(3)),
                Some(doc! { "locale": "de", "strength": 2 }),
            ],
            Some(en(2)),
        ),
        ("plain", vec![Some(en(2)), Some(doc! { "locale": "da" })], simple()),
        ("later", vec![Some(en(1))], Some(en(2))),
    ] {
        run(&client, database, doc! { "drop": collection }).await;
        for collation in refused {
            let reply = run(&client, database, create(collection, collation)).await;
            assert_eq!(reply.get_i32("code").ok(), Some(115), "{reply}");
            let text = reply.get_str("errmsg").unwrap();
            assert!(
                text.contains("email_1") && text.contains(&format!("{database}.{collection}")),
                "{text}"
            );
        }
        let names = direct.database(database).list_collection_names().await.unwrap();
        assert!(!names.contains(&collection.to_owned()), "{names:?}");
        let reply = run(&client, database, create(collection, taken)).await;
        assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
        let documents = vec![doc! { "_id": 1, "email": "a" }, doc! { "_id": 2, "email": "A" }];
        let reply = run(&client, database, doc! { "insert": collection, "documents": documents }).await;
        let expected = if collection == "plain" { 2 } else { 1 };
        assert_eq!(reply.get_i32("n").ok(), Some(expected), "{reply}");
    }
    // The next start has nothing against what is there.
    drop(keyward);
    drop(Keyward::start(&set.uri(), &constraints));
}
