//! Constraints that clients made on a collection that is resharded, which gives it another identity.

use super::*;

/// The entries of a database in the list, each with its number and its collection's identity.
fn entries(cluster: &Cluster, database: &str) -> Vec<(bson::Bson, bson::Bson)> {
    let list = first_of(cluster, "keyward", doc! { "find": "clientConstraints" });
    let entries = list.get_array("constraints").unwrap().iter();
    let entries = entries.map(|entry| entry.as_document().unwrap());
    let here = entries.filter(|entry| entry.get_str("collection").unwrap() == format!("{database}.users"));
    here.map(|entry| (entry.get("id").unwrap().clone(), entry.get("uuid").unwrap().clone()))
        .collect()
}

#[test]
fn a_constraint_stays_where_its_collection_is_resharded() {
    const DATABASE: &str = "created_and_resharded";
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    let keyward = start_at(&cluster);
    let unique_name = doc! { "key": { "name": 1 }, "name": "name_1", "unique": true };
    must(&reply(&keyward, DATABASE, &create([unique_email(), unique_name])));
    let user = doc! { "_id": 1, "region": "a", "town": 1, "email": "x", "name": "x" };
    keyward.insert(DATABASE, user).unwrap();
    let before = entries(&cluster, DATABASE);
    let reshard =
        doc! { "reshardCollection": format!("{DATABASE}.users"), "key": { "town": 1 }, "numInitialChunks": 1 };
    must(&reply(&keyward, "admin", &reshard));
    // As an application does when it starts: only one of the indexes, the other one is another application's.
    must(&reply(&keyward, DATABASE, &create([unique_email()])));
    let after = entries(&cluster, DATABASE);
    assert_eq!(before.len(), 2);
    assert_eq!(after.len(), 2);
    assert!(before.iter().zip(&after).all(|((_, former), (_, uuid))| former != uuid));
    // The one that was asked for isn't built again either: a failed build would end it.
    assert!(before.iter().zip(&after).all(|((id, _), (same, _))| id == same));
    assert_eq!(unique_indexes(&keyward, DATABASE), ["email_1", "name_1"]);
    for (id, email, name) in [(2, "x", "new"), (3, "new", "x")] {
        let other = doc! { "_id": id, "region": "z", "town": 100, "email": email, "name": name };
        assert_eq!(keyward.insert(DATABASE, other), Err(11_000), "{email} {name}");
    }
    // Nothing is left to do for the next one.
    must(&reply(&keyward, DATABASE, &create([unique_email()])));
    assert_eq!(entries(&cluster, DATABASE), after);
}

/// The server could keep an index that begins with the new shard key unique. But it has the one that Keyward made, which isn't.
#[test]
fn a_constraint_stays_keywards_where_its_field_becomes_the_shard_key() {
    const DATABASE: &str = "created_and_resharded_by_it";
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    let keyward = start_at(&cluster);
    must(&reply(&keyward, DATABASE, &create([unique_email()])));
    keyward
        .insert(DATABASE, doc! { "_id": 1, "region": "a", "email": "x" })
        .unwrap();
    let reshard =
        doc! { "reshardCollection": format!("{DATABASE}.users"), "key": { "email": 1 }, "numInitialChunks": 1 };
    must(&reply(&keyward, "admin", &reshard));
    let second = doc! { "_id": 2, "region": "z", "email": "x" };
    for _ in 0..2 {
        must(&reply(&keyward, DATABASE, &create([unique_email()])));
        assert_eq!(keyward.insert(DATABASE, second.clone()), Err(11_000));
    }
    // The server keeps the index that the shard key needs, so the constraint stays with it.
    must(&reply(
        &keyward,
        DATABASE,
        &doc! { "dropIndexes": "users", "index": "*" },
    ));
    assert_eq!(unique_indexes(&keyward, DATABASE), ["email_1"]);
    assert_eq!(keyward.insert(DATABASE, second), Err(11_000));
}

/// It held before, so a client may rely on it. The document that was written past Keyward is reported.
#[test]
fn a_constraint_that_held_outlives_a_violation_after_its_collection_is_resharded() {
    const DATABASE: &str = "created_resharded_and_violated";
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, DATABASE);
    let keyward = start_at(&cluster);
    must(&reply(&keyward, DATABASE, &create([unique_email()])));
    write_first(&keyward, DATABASE);
    let before = entries(&cluster, DATABASE);
    let reshard =
        doc! { "reshardCollection": format!("{DATABASE}.users"), "key": { "town": 1 }, "numInitialChunks": 1 };
    must(&reply(&keyward, "admin", &reshard));
    let past = doc! { "_id": 2, "region": "z", "town": 9, "email": "x" };
    must(
        &cluster
            .run(DATABASE, doc! { "insert": "users", "documents": [past] })
            .unwrap(),
    );
    let unique_name = doc! { "key": { "name": 1 }, "name": "name_1", "unique": true, "sparse": true };
    let refused = reply(&keyward, DATABASE, &create([unique_email(), unique_name]));
    assert_eq!(refused.get_i32("code").ok(), Some(11_000), "{refused}");
    assert_eq!(unique_indexes(&keyward, DATABASE), ["email_1"]);
    let after = entries(&cluster, DATABASE);
    assert_eq!((after.len(), &after[0].0), (1, &before[0].0));
    let third = doc! { "_id": 3, "region": "z", "town": 5, "email": "x" };
    assert_eq!(keyward.insert(DATABASE, third), Err(11_000));
    // The next command doesn't take it for one that holds.
    let refused = reply(&keyward, DATABASE, &create([unique_email()]));
    assert_eq!(refused.get_i32("code").ok(), Some(11_000), "{refused}");
}
