//! A `createIndexes` that can't be a constraint leaves nothing behind, and says why as a native index would.

use bson::doc;
use bson::oid::ObjectId;

use super::*;

/// Asserts that `users` has no index but those of `_id` and the shard key, and takes two equal e-mails.
fn assert_nothing_is_left(cluster: &Cluster, keyward: &Keyward, database: &str) {
    assert_eq!(indexes(keyward, database).len(), 2);
    let list = cluster.run("keyward", doc! { "find": "clientConstraints" }).unwrap();
    assert!(
        !list.to_string().contains(&format!("{database}.users\", \"name")),
        "{list}"
    );
    assert_eq!(insert_pair(keyward, database, 100, "left"), [Ok(()), Ok(())]);
}

#[test]
fn duplicates_are_reported_as_by_a_native_build() {
    const DATABASE: &str = "created_on_duplicates";
    // On the cluster of other tests, it would wait for their Keywards, too.
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    let keywards = [start_at(&cluster), start_at(&cluster)];
    for keyward in &keywards {
        let id = i32::from(std::ptr::eq(keyward, &raw const keywards[0]));
        keyward
            .insert(
                DATABASE,
                doc! { "_id": id, "region": (["a", "z"][usize::try_from(id).unwrap()]), "email": "same" },
            )
            .unwrap();
    }
    let other = doc! { "key": { "name": 1 }, "name": "name_1", "unique": true, "sparse": true };
    let refused = reply(&keywards[0], DATABASE, &create([other, unique_email()]));
    assert_eq!(refused.get_i32("code").ok(), Some(11_000), "{refused}");
    assert_eq!(refused.get_str("codeName").ok(), Some("DuplicateKey"));
    let errmsg = refused.get_str("errmsg").unwrap();
    let native = "E11000 duplicate key error collection: created_on_duplicates.users index: email_1 dup key: { email: \"same\" }";
    assert!(
        errmsg.starts_with("Index build failed: ") && errmsg.ends_with(native),
        "{errmsg}"
    );
    assert_eq!(refused.get_document("keyPattern").ok(), Some(&doc! { "email": 1 }));
    assert_eq!(refused.get_document("keyValue").ok(), Some(&doc! { "email": "same" }));
    for keyward in &keywards {
        keyward.until("no constraint", || unique_indexes(keyward, DATABASE).is_empty());
    }
    assert_nothing_is_left(&cluster, &keywards[1], DATABASE);
    // Mended, it works.
    for delete in [doc! { "_id": 1 }, doc! { "_id": 100 }] {
        let delete = doc! { "delete": "users", "deletes": [{ "q": delete, "limit": 1 }] };
        keywards[1].run(DATABASE, delete).unwrap();
    }
    // At once: the claim of the build that failed would last for 30 seconds.
    let mut again = create([unique_email()]);
    again.insert("maxTimeMS", 15_000);
    must(&reply(&keywards[1], DATABASE, &again));
}

#[test]
fn other_definitions_conflict_as_native_ones_do() {
    const DATABASE: &str = "created_in_conflict";
    shard_users(DATABASE);
    let keyward = Keyward::start(
        &CLUSTER.uri(),
        &format!("  - {{ collection: {DATABASE}.users, key: {{ phone: 1 }} }}\n"),
    )
    .leaving();
    must(&reply(&keyward, DATABASE, &create([unique_email()])));
    let code = |index: Document| {
        let reply = reply(&keyward, DATABASE, &create([index]));
        reply.get_i32("code").unwrap_or(0)
    };
    let with = |key: Document, name: &str| doc! { "key": key, "name": name, "unique": true };
    assert_eq!(code(with(doc! { "other": 1 }, "email_1")), 86);
    assert_eq!(code(with(doc! { "email": 1 }, "other")), 85);
    // The file's own constraint is there already; its index is made for queries.
    assert_eq!(code(with(doc! { "phone": 1 }, "phone_1")), 0);
    assert_eq!(unique_indexes(&keyward, DATABASE), ["email_1", "phone_1"]);
    assert_eq!(code(with(doc! { "x": "2dsphere" }, "geo")), 67);
    // What the server refuses is refused in its words.
    assert_eq!(code(with(doc! { "x": 0 }, "zero")), 67);
    let mut unknown = unique_email();
    unknown.extend(doc! { "name": "unknown", "key": { "y": 1 }, "unknownOption": true });
    assert_eq!(code(unknown), 197);

    let drop = |index: bson::Bson| {
        let dropped = reply(&keyward, DATABASE, &doc! { "dropIndexes": "users", "index": index });
        dropped.get_i32("code").unwrap_or(0)
    };
    assert_eq!(drop("phone_1".into()), 72);
    assert_eq!(drop(doc! { "email": 1 }.into()), 0);
    assert_eq!(
        insert_pair(&keyward, DATABASE, 1, "x"),
        [Ok(()), Err(11_000)],
        "phone is missing in both"
    );
    assert_eq!(drop("email_1".into()), 27);
}

#[test]
fn a_keyward_that_would_not_follow_is_named() {
    const DATABASE: &str = "created_beside_old";
    // Keywards of other tests would meet the entry, and follow the constraint.
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    let keyward = start_at(&cluster);
    let made = doc! { "key": { "made": 1 }, "name": "made_1", "unique": true, "sparse": true };
    must(&reply(&keyward, DATABASE, &create([made.clone()])));
    // The entry of a version before clients' constraints.
    let id = bson::oid::ObjectId::new();
    let old = doc! {
        "_id": id, "host": "old-host", "pid": 7_i64, "address": "h:1", "version": "0.0.9", "started": bson::DateTime::now(),
        "beat": 0_i64, "leaseMillis": 30_000_i64, "aftermathMillis": 95_000_i64, "collections": [], "everywhere": false,
        "constraints": [], "left": false, "pinned": false,
    };
    cluster
        .run("keyward", doc! { "insert": "keywards", "documents": [old] })
        .unwrap();
    let refused = reply(&keyward, DATABASE, &create([unique_email()]));
    let again = reply(&keyward, DATABASE, &create([made]));
    cluster
        .run(
            "keyward",
            doc! { "delete": "keywards", "deletes": [{ "q": { "_id": id }, "limit": 1 }] },
        )
        .unwrap();
    assert_eq!(refused.get_i32("code").ok(), Some(67), "{refused}");
    assert!(refused.get_str("errmsg").unwrap().contains("old-host"), "{refused}");
    // What is made already is answered whoever runs: applications send it at every start.
    must(&again);
    must(&reply(
        &keyward,
        DATABASE,
        &doc! { "dropIndexes": "users", "index": "made_1" },
    ));
    assert_nothing_is_left(&cluster, &keyward, DATABASE);
}

/// The way out of a refusal is the one for a client's constraint, and it is one.
#[test]
fn a_refused_command_succeeds_once_its_way_out_is_taken() {
    const DATABASE: &str = "created_in_the_way";
    shard_users(DATABASE);
    let keyward = start();
    must(&reply(&keyward, DATABASE, &create([unique_email()])));
    let rename = doc! { "renameCollection": format!("{DATABASE}.users"), "to": format!("{DATABASE}.former"), "dropTarget": true };
    let refused = reply(&keyward, "admin", &rename);
    assert_eq!(refused.get_i32("code").ok(), Some(115), "{refused}");
    let errmsg = refused.get_str("errmsg").unwrap();
    assert!(
        errmsg.ends_with("or end unique constraint email_1 with dropIndexes first"),
        "{errmsg}"
    );
    must(&reply(
        &keyward,
        DATABASE,
        &doc! { "dropIndexes": "users", "index": "email_1" },
    ));
    must(&reply(&keyward, "admin", &rename));
}

/// Adds a build to the list that can't go on, because its proxy collection isn't as Keyward makes one, and whose Keyward is gone.
fn begin_in_vain(cluster: &Cluster, database: &str) {
    let entry = doc! {
        "id": ObjectId::new(), "command": ObjectId::new(), "builder": ObjectId::new(),
        "collection": format!("{database}.log"), "name": "email_1", "key": { "email": 1 },
    };
    let add = doc! { "$push": { "constraints": entry }, "$inc": { "version": 1_i64 } };
    let update = doc! { "update": "clientConstraints", "updates": [{ "q": {}, "u": add }] };
    must(&cluster.run("keyward", update).unwrap());
}

/// Otherwise no later list could be applied, and no Keyward could start.
#[test]
fn a_build_in_vain_whose_keyward_is_gone_ends() {
    const DATABASE: &str = "created_in_vain_by_gone";
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    must(
        &cluster
            .run(
                DATABASE,
                doc! { "create": "keyward.log.email_1", "collation": { "locale": "en" } },
            )
            .unwrap(),
    );
    let keyward = start_at(&cluster);
    must(&reply(&keyward, DATABASE, &create([unique_email()])));
    write_first(&keyward, DATABASE);
    // Earlier tests on this cluster leave theirs in the list.
    let is_ended = || {
        let list = first_of(&cluster, "keyward", doc! { "find": "clientConstraints" });
        let in_vain = format!("{DATABASE}.log");
        let of = |entry: &Bson| entry.as_document().unwrap().get_str("collection").unwrap().to_owned();
        !list
            .get_array("constraints")
            .unwrap()
            .iter()
            .any(|entry| of(entry) == in_vain)
    };
    begin_in_vain(&cluster, DATABASE);
    keyward.until("the end of the build", is_ended);
    let name = doc! { "key": { "name": 1 }, "name": "name_1", "unique": true, "sparse": true };
    must(&reply(&keyward, DATABASE, &create([name])));
    must(&reply(
        &keyward,
        DATABASE,
        &doc! { "dropIndexes": "users", "index": "name_1" },
    ));
    drop(keyward);

    begin_in_vain(&cluster, DATABASE);
    let Err(refused) = Keyward::try_start(&cluster.uri(), "10s", "  []\n") else {
        panic!("it started with such a proxy collection");
    };
    assert!(
        refused
            .errors
            .contains("created_in_vain_by_gone.keyward.log.email_1 isn't as Keyward makes one"),
        "{}",
        refused.errors
    );
    assert!(is_ended(), "{}", refused.errors);
    assert_first_is_held(&start_at(&cluster), DATABASE);
}
