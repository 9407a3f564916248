//! `collMod` that makes existing indexes unique.

use testkit::wire::Connection;

use super::*;

/// A `collMod` of an index on `users`.
fn convert(index: Document) -> Document {
    doc! { "collMod": "users", "index": index }
}

/// The replies of the shards, without their names.
fn of_shards(reply: &Document) -> Vec<Document> {
    let raw = reply.get_document("raw").unwrap().values();
    raw.map(|shard| shard.as_document().unwrap().clone()).collect()
}

/// Makes the index on `email` that isn't unique.
fn make_plain(keyward: &Keyward, database: &str) {
    let plain = doc! { "key": { "email": 1 }, "name": "email_1" };
    must(&reply(keyward, database, &create([plain])));
}

#[test]
fn an_index_of_two_shards_becomes_unique() {
    const DATABASE: &str = "converted";
    shard_users(DATABASE);
    let keyward = start();
    write_first(&keyward, DATABASE);
    make_plain(&keyward, DATABASE);
    let dry = {
        let mut command = convert(doc! { "keyPattern": { "email": 1 }, "unique": true });
        command.insert("dryRun", true);
        command
    };
    must(&reply(&keyward, DATABASE, &dry));
    assert_eq!(unique_indexes(&keyward, DATABASE), Vec::<String>::new());
    let converted = reply(
        &keyward,
        DATABASE,
        &convert(doc! { "keyPattern": { "email": 1 }, "unique": true }),
    );
    must(&converted);
    for shard in of_shards(&converted) {
        assert_eq!(shard, doc! { "unique_new": true, "ok": 1.0 });
    }
    assert_eq!(unique_indexes(&keyward, DATABASE), ["email_1"]);
    assert_first_is_held(&keyward, DATABASE);
    let again = reply(&keyward, DATABASE, &convert(doc! { "name": "email_1", "unique": true }));
    must(&again);
    assert!(
        of_shards(&again).iter().all(|shard| *shard == doc! { "ok": 1.0 }),
        "{again}"
    );
    must(&reply(
        &keyward,
        DATABASE,
        &doc! { "dropIndexes": "users", "index": "email_1" },
    ));
    until_no_constraint(&keyward, DATABASE);
}

#[test]
fn duplicates_are_listed_and_nothing_is_made() {
    const DATABASE: &str = "converted_in_vain";
    shard_users(DATABASE);
    let keyward = start();
    assert_eq!(insert_pair(&keyward, DATABASE, 1, "x"), [Ok(()), Ok(())]);
    assert_eq!(insert_pair(&keyward, DATABASE, 3, "y"), [Ok(()), Ok(())]);
    make_plain(&keyward, DATABASE);
    let prepare = convert(doc! { "name": "email_1", "prepareUnique": true });
    let mut dry = convert(doc! { "name": "email_1", "unique": true });
    dry.insert("dryRun", true);
    for command in [&dry, &prepare] {
        let refused = reply(&keyward, DATABASE, command);
        assert_eq!(refused.get_i32("code").ok(), Some(359), "{refused}");
        assert_eq!(refused.get_str("codeName").unwrap(), "CannotConvertIndexToUnique");
        let violations = refused.get_array("violations").unwrap().iter();
        let mut listed: Vec<Vec<i32>> = violations
            .map(|one| {
                let ids = one.as_document().unwrap().get_array("ids").unwrap().iter();
                let mut ids: Vec<i32> = ids.map(|id| id.as_i32().unwrap()).collect();
                ids.sort_unstable();
                ids
            })
            .collect();
        listed.sort();
        assert_eq!(listed, [[1, 2], [3, 4]], "{refused}");
    }
    assert_eq!(unique_indexes(&keyward, DATABASE), Vec::<String>::new());
    assert_eq!(
        insert_pair(&keyward, DATABASE, 5, "z"),
        [Ok(()), Ok(())],
        "nothing is refused"
    );
    for id in [2, 4, 6] {
        let delete = doc! { "delete": "users", "deletes": [{ "q": { "_id": id, "region": "z" }, "limit": 1 }] };
        keyward.run(DATABASE, delete).unwrap();
    }
    let prepared = reply(&keyward, DATABASE, &prepare);
    must(&prepared);
    let expected = doc! { "prepareUnique_old": false, "prepareUnique_new": true, "ok": 1.0 };
    assert!(
        of_shards(&prepared).iter().all(|shard| *shard == expected),
        "{prepared}"
    );
    must(&reply(
        &keyward,
        DATABASE,
        &convert(doc! { "name": "email_1", "unique": true }),
    ));
    assert_eq!(
        keyward.insert(DATABASE, doc! { "_id": 7, "region": "z", "email": "x" }),
        Err(11_000)
    );
}

#[test]
fn the_server_answers_for_what_only_it_can_convert() {
    const DATABASE: &str = "converted_by_server";
    shard_users(DATABASE);
    let keyward = start();
    write_first(&keyward, DATABASE);
    let prefixed = doc! { "key": { "region": 1, "email": 1 }, "name": "prefixed" };
    must(&reply(&keyward, DATABASE, &create([prefixed])));
    let both = |index: Document| {
        let command = convert(index);
        let through = reply(&keyward, DATABASE, &command);
        let native = Connection::open(&CLUSTER.router_address()).run(DATABASE, &command);
        [through, native].map(|reply| {
            (
                reply.get_i32("code").ok(),
                reply.get_str("codeName").ok().map(str::to_owned),
            )
        })
    };
    for index in [
        doc! { "name": "prefixed", "unique": true },
        doc! { "name": "absent", "unique": true },
        doc! { "name": "prefixed", "unique": false },
        doc! { "name": "prefixed", "unique": "yes" },
        doc! { "keyPattern": { "absent": 1 }, "prepareUnique": true },
    ] {
        let [through, native] = both(index.clone());
        assert!(native.0.is_some(), "{index}");
        assert_eq!(through, native, "{index}");
    }
    // Each shard's index on `_id` is unique, whatever the command says.
    let [through, native] = both(doc! { "name": "_id_", "unique": true });
    assert_eq!((through, native), ((None, None), (None, None)));
    let list = CLUSTER.run("keyward", doc! { "find": "clientConstraints" }).unwrap();
    assert!(!list.to_string().contains(DATABASE), "{list}");
    let prepare = convert(doc! { "name": "prefixed", "prepareUnique": true });
    must(&reply(&keyward, DATABASE, &prepare));
    must(&reply(
        &keyward,
        DATABASE,
        &convert(doc! { "name": "prefixed", "unique": true }),
    ));
    assert_eq!(unique_indexes(&keyward, DATABASE), ["prefixed"], "by the server");
}
