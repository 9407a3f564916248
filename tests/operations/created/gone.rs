//! The list of clients' constraints is deleted while Keywards run.

use super::*;

/// The documents that a `find` shows.
fn found(cluster: &Cluster, database: &str, find: Document) -> Vec<Bson> {
    let reply = cluster.run(database, find).unwrap();
    let cursor = reply.get_document("cursor").unwrap();
    cursor.get_array("firstBatch").unwrap().clone()
}

/// The list's version; 0 if it is gone.
fn version(cluster: &Cluster) -> i64 {
    let lists = found(cluster, "keyward", doc! { "find": "clientConstraints" });
    let version = |list: &Bson| list.as_document().unwrap().get_i64("version").unwrap();
    lists.first().map_or(0, version)
}

/// Every Keyward goes on without them, also one that has yet to write there. A list that is made anew isn't taken for the former one.
#[test]
fn clients_constraints_end_with_their_list() {
    const DATABASE: &str = "created_and_list_deleted";
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    let [quick, slow] = [start_at(&cluster), start_at(&cluster)];
    must(&reply(&quick, DATABASE, &create([unique_email()])));
    for (keyward, id) in [(&quick, 10), (&slow, 12)] {
        let pair = insert_pair(keyward, DATABASE, id, &id.to_string());
        assert_eq!(pair, [Ok(()), Err(11_000)]);
    }
    let unwritten = start_at(&cluster);
    // As a list of an earlier version of Keyward. One that is made anew begins with the time, and this one may have begun just now.
    let set = doc! { "q": {}, "u": { "$set": { "version": 7_i64 } } };
    must(
        &cluster
            .run("keyward", doc! { "update": "clientConstraints", "updates": [set] })
            .unwrap(),
    );
    let former = version(&cluster);
    let behind = doc! { "find": "keywards", "filter": { "clientsVersion": { "$ne": former } } };
    slow.until("every entry has the version", || {
        found(&cluster, "keyward", behind.clone()).is_empty()
    });
    slow.freeze();
    let delete = doc! { "delete": "clientConstraints", "deletes": [{ "q": {}, "limit": 0 }] };
    must(&cluster.run("keyward", delete).unwrap());

    assert_eq!(insert_pair(&unwritten, DATABASE, 20, "x"), [Ok(()), Ok(())]);
    let is_known = |keyward: &Keyward| keyward.log().contains("has lost the list of clients' constraints");
    for keyward in [&unwritten, &quick] {
        keyward.until("the end of the list", || is_known(keyward));
    }
    // The list may be restored: the definition still belongs to its entry.
    let of_entry = doc! { "find": "keyward.constraints", "filter": { "ofClient": { "$type": "objectId" } } };
    assert!(!found(&cluster, DATABASE, of_entry).is_empty());
    let deletes = doc! { "delete": "users", "deletes": [{ "q": { "_id": 21, "region": "z" }, "limit": 1 }] };
    must(&reply(&quick, DATABASE, &deletes));

    // The slow one still reserves for the former constraint of this name: that is waited for.
    let sparse = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true, "sparse": true };
    let drop = doc! { "dropIndexes": "users", "index": "email_1" };
    must(&reply(&quick, DATABASE, &drop));
    let mut in_vain = create([sparse.clone()]);
    in_vain.insert("maxTimeMS", 1_000);
    let waited = reply(&quick, DATABASE, &in_vain);
    assert_eq!(waited.get_i32("code").ok(), Some(50), "{waited}");
    slow.wake();
    must(&reply(&quick, DATABASE, &create([sparse])));
    assert!(version(&cluster) > former, "{} after {former}", version(&cluster));
    for (keyward, id) in [(&quick, 30), (&slow, 32), (&unwritten, 34)] {
        let pair = insert_pair(keyward, DATABASE, id, &id.to_string());
        assert_eq!(pair, [Ok(()), Err(11_000)]);
    }
    // It has never read that there is no list.
    assert!(is_known(&slow), "{}", slow.log());
}

/// One has yet to note which list it applies, and goes on with the former list as long as there is none, as earlier versions do.
#[test]
fn a_constraint_made_anew_waits_for_a_keyward_that_goes_on_with_the_lost_list() {
    const DATABASE: &str = "created_after_list_deleted";
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    let relay = with_old_list(&cluster, |found| found.is_empty());
    let quick = start_at(&cluster);
    must(&reply(&quick, DATABASE, &create([unique_email()])));
    let settings = format!("upstream: {}\nlease: 10s\nconstraints: []\n", relay.uri());
    let slow = Keyward::of(&settings).leaving();
    assert_eq!(insert_pair(&slow, DATABASE, 10, "10"), [Ok(()), Err(11_000)]);
    let of_slow = doc! { "pid": i64::from(slow.pid().as_raw()) };
    let listing = doc! { "$and": [of_slow.clone(), { "constraints": { "$ne": [] } }] };
    slow.until("that it counts on the constraint", || {
        !found(
            &cluster,
            "keyward",
            doc! { "find": "keywards", "filter": listing.clone() },
        )
        .is_empty()
    });
    slow.freeze();
    let set = doc! { "q": of_slow, "u": { "$set": { "clientsVersion": 0_i64 } } };
    must(
        &cluster
            .run("keyward", doc! { "update": "keywards", "updates": [set] })
            .unwrap(),
    );
    let delete = doc! { "delete": "clientConstraints", "deletes": [{ "q": {}, "limit": 0 }] };
    must(&cluster.run("keyward", delete).unwrap());
    quick.until("the end of the list", || {
        quick.log().contains("has lost the list of clients' constraints")
    });

    let drop = doc! { "dropIndexes": "users", "index": "email_1" };
    must(&reply(&quick, DATABASE, &drop));
    let sparse = |limit_ms: i32| {
        let index = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true, "sparse": true };
        let mut command = create([index]);
        command.insert("maxTimeMS", limit_ms);
        reply(&quick, DATABASE, &command)
    };
    let waited = sparse(1_000);
    assert_eq!(waited.get_i32("code").ok(), Some(50), "{waited}");
    slow.wake();
    must(&sparse(60_000));
    assert_eq!(insert_pair(&slow, DATABASE, 20, "20"), [Ok(()), Err(11_000)]);
}

/// The file's constraint holds already, so there is nothing to note for other Keywards.
#[test]
fn an_index_of_the_files_constraint_needs_no_list() {
    const DATABASE: &str = "created_without_a_list";
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    let delete = doc! { "delete": "clientConstraints", "deletes": [{ "q": {}, "limit": 0 }] };
    must(&cluster.run("keyward", delete).unwrap());
    let constraint = format!("{{ collection: {DATABASE}.users, key: {{ email: 1 }} }}");
    let settings = format!("upstream: {}\nlease: 10s\nconstraints: [{constraint}]\n", cluster.uri());
    let keyward = Keyward::of(&settings).leaving();
    must(&reply(&keyward, DATABASE, &create([unique_email()])));
    assert_eq!(found(&cluster, "keyward", doc! { "find": "clientConstraints" }), []);
}
