//! Constraints with a collation: what is a duplicate, and what the error says, held against a native unique index with the
//! same one.

use std::time::Duration;

use bson::{Bson, Document, RawBson, RawDocumentBuf, doc, rawdoc};
use futures_util::TryStreamExt;
use keyward::constraint::Key;
use keyward::namespace::Namespace;
use keyward::proxy_collection::{Owner, ProxyCollection, Reservation, TakenOver};
use keyward::raw::{Builder, Doc};
use keyward::reservation::{Scope, Token, WriteId};
use testbed::{Cluster, ReplicaSet};

use crate::compensating::{insert, keyward, users, write_errors};
use crate::native_index::server::Server;
use crate::trial::store_through;
use testkit::{Keyward, comparable, run, spread_on_two};

const EN_2: &str = "  - { collection: DB.users, key: { email: 1 }, collation: { locale: en, strength: 2 } }\n";

fn en_2() -> Document {
    doc! { "locale": "en", "strength": 2 }
}

fn user(id: i32, email: impl Into<Bson>) -> Document {
    doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": email.into() }
}

/// A native unique index with the collation.
async fn native(database: &str) -> mongodb::Client {
    let native = ReplicaSet::shared().client();
    native.database(database).drop().await.unwrap();
    let index = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true, "collation": en_2() };
    run(&native, database, doc! { "createIndexes": "users", "indexes": [index] }).await;
    native
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answers_are_those_of_a_native_index_byte_for_byte() {
    let database = "collated_bytes";
    let cluster = users(database);
    native(database).await;
    let keyward = keyward(cluster, database, "60s", &[EN_2]);
    let namespace = Namespace::new(database, "users");
    let (mut through_keyward, mut native) = (Server::at(&keyward.address), Server::connect());
    let long = "Straße ".repeat(60);
    let emails: Vec<Bson> = vec![
        "A@x".into(),
        "a@X".into(),
        "á@x".into(),
        "É".into(),
        "e\u{301}".into(),
        "".into(),
        "\0".into(),
        long.as_str().into(),
        long.to_lowercase().into(),
        "🤣".into(),
        "🤣".into(),
        doc! { "s": "B", "n": ["Ä", 1] }.into(),
        doc! { "s": "b", "n": ["ä", 1.0] }.into(),
        vec!["q", "a@x"].into(),
        5.into(),
        5.0.into(),
    ];
    for (id, email) in emails.into_iter().enumerate() {
        let document = [user(id as i32, email).to_vec().unwrap()];
        let expected = native.insert(&namespace, &document);
        assert_eq!(through_keyward.insert(&namespace, &document), expected, "{id}");
    }
    // A findAndModify has its fields elsewhere.
    let mut command = Builder::new();
    command.string("findAndModify", b"users");
    let rest = doc! { "query": { "_id": 3, "region": "z" }, "update": { "$set": { "email": "A@X" } }, "$db": database };
    let rest = rest.to_vec().unwrap();
    Doc::new(&rest).unwrap().elements().for_each(|element| {
        command.element(&element.unwrap());
    });
    let command = command.finish();
    let error = |reply: Vec<u8>| comparable(bson::deserialize_from_slice(&reply).unwrap());
    let expected = error(native.run_raw(&command, &[]));
    assert_eq!(expected.get_i32("code").unwrap(), 11000, "{expected}");
    assert_eq!(error(through_keyward.run_raw(&command, &[])), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_the_collation_does_not_see_keeps_the_reservation() {
    let database = "collated_update";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EN_2]);
    let client = keyward.client_without_retries().await;
    run(&client, database, insert(vec![user(1, "A"), user(2, "b")], true)).await;
    let before = crate::trial::reservations(cluster, database, "email").await;
    assert_eq!(before.len(), 2);
    let set = |id: i32, email: &str| {
        let update = doc! { "q": { "_id": id }, "u": { "$set": { "email": email } } };
        doc! { "update": "users", "updates": [update] }
    };
    let reply = run(&client, database, set(1, "a")).await;
    assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{reply}");
    assert_eq!(crate::trial::reservations(cluster, database, "email").await, before);
    let reply = run(&client, database, set(2, "A")).await;
    assert_eq!(write_errors(&reply), [(0, 11000)], "{reply}");
    let reply = run(&client, database, set(1, "á")).await;
    assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{reply}");
    let reply = run(&client, database, set(2, "A")).await;
    assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{reply}");
    assert_eq!(crate::trial::reservations(cluster, database, "email").await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_might_be_compared_otherwise_is_refused() {
    let database = "collated_refused";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EN_2]);
    let client = keyward.client_without_retries().await;
    let emails: [Bson; 4] = [
        "e\u{302}\u{323}".into(),
        "\u{a784}".into(),
        Bson::Symbol("x".to_owned()),
        "x".into(),
    ];
    let documents: Vec<Document> = (0..).zip(emails).map(|(id, email)| user(id, email)).collect();
    let reply = run(&client, database, insert(documents, false)).await;
    assert_eq!(write_errors(&reply), [(0, 115), (1, 115), (2, 115)], "{reply}");
    let text = reply.to_string();
    assert!(text.contains("email_1") && text.contains("U+A784"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_constraint_has_its_collections_collation_unless_it_states_one() {
    let database = "collated_default";
    let replica_set = ReplicaSet::shared();
    let direct = replica_set.client();
    direct.database(database).drop().await.unwrap();
    run(&direct, database, doc! { "create": "users", "collation": en_2() }).await;
    let document = |id: &str, email: &str, name: &str| doc! { "_id": id, "email": email, "name": name };
    run(
        &direct,
        database,
        insert(vec![document("one", "A", "n"), document("two", "b", "N")], true),
    )
    .await;
    let email = "  - { collection: DB.users, key: { email: 1 } }\n";
    let name = "  - { collection: DB.users, key: { name: 1 }, collation: { locale: simple } }\n";
    let constraints = [email, name].concat().replace("DB", database);
    let keyward = Keyward::start(&replica_set.uri(), &constraints);
    let client = keyward.client_without_retries().await;
    // `_id`s, too, are compared under the collection's collation; owners are told apart all the same.
    let documents = vec![
        document("three", "a", "x"),
        document("ONE", "c", "y"),
        document("four", "d", "m"),
    ];
    let reply = run(&client, database, insert(documents, false)).await;
    assert_eq!(write_errors(&reply), [(0, 11000), (1, 11000)], "{reply}");
    let reply = run(
        &client,
        database,
        doc! { "delete": "users", "deletes": [{ "q": { "_id": "ONE" }, "limit": 1 }] },
    )
    .await;
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    let reply = run(
        &client,
        database,
        insert(vec![document("One", "á", "n"), document("five", "a", "o")], false),
    )
    .await;
    assert_eq!(write_errors(&reply), [], "{reply}");
    let reply = run(&client, database, insert(vec![document("six", "Á", "p")], false)).await;
    assert_eq!(write_errors(&reply), [(0, 11000)], "{reply}");
    drop(keyward);
    // Reservations of another ICU4X may not be mixed with this one's.
    let query = doc! { "_id": { "collection": "users", "name": "email_1" } };
    let other = doc! { "$set": { "definition.sortKeys": "icu_collator 1.0.0" } };
    let update = doc! { "update": "keyward.constraints", "updates": [{ "q": query, "u": other }] };
    let reply = run(&direct, database, update).await;
    assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{reply}");
    let refused = Keyward::try_start(&replica_set.uri(), "60s", &constraints)
        .err()
        .unwrap();
    let text = refused.errors;
    assert!(
        text.contains("sort keys of another version") && text.contains("another name"),
        "{text}"
    );
}

/// The index on `_id` has the collection's collation, and serves no other one.
#[tokio::test(flavor = "multi_thread")]
async fn owners_are_looked_up_by_the_index_on_their_ids_and_told_apart_by_case() {
    let database = "collated_look_up";
    let direct = ReplicaSet::shared().client();
    direct.database(database).drop().await.unwrap();
    run(&direct, database, doc! { "create": "users", "collation": en_2() }).await;
    let others = (0..200).map(|id| doc! { "_id": format!("other {id}"), "email": id });
    let one = doc! { "_id": "one", "email": "a@x" };
    run(&direct, database, insert(others.chain([one]).collect(), true)).await;
    let (proxy, key) = store_through(&direct, database, Duration::from_secs(60));
    run(&direct, database, doc! { "profile": 2 }).await;
    let owner = |id: &str| Owner {
        id: RawBson::String(id.to_owned()),
        route: None,
    };
    let owners = [owner("one"), owner("ONE"), owner("two")];
    let pairs: Vec<_> = owners.iter().map(|owner| (&key, owner)).collect();
    for scope in [Scope::Route, Scope::Everywhere, Scope::Linearizable] {
        assert_eq!(proxy.look_up(&pairs, scope).await.unwrap(), [true, false, false]);
    }
    let owner_of = |document: Doc<'_>| {
        let id = document.get("_id").ok()??.as_str()?;
        Some(owner(id))
    };
    let moments = proxy.at_one_moment(&pairs, &[], owner_of).await.unwrap();
    assert!(
        moments.iter().all(|moment| moment.owners == [owner("one")]),
        "{moments:?}"
    );
    run(&direct, database, doc! { "profile": 0 }).await;
    let profile = direct.database(database).collection::<Document>("system.profile");
    let reads = doc! { "ns": format!("{database}.users"), "op": "query" };
    let reads: Vec<Document> = profile.find(reads).await.unwrap().try_collect().await.unwrap();
    assert_eq!(reads.len().min(4), 4, "{reads:?}");
    for read in reads {
        assert!(read.get_i32("docsExamined").unwrap() <= 2, "{read}");
    }
}

/// So does the placeholder of an owner that must not come later: a scan would take longer than its transaction may.
#[tokio::test(flavor = "multi_thread")]
async fn an_absent_owners_placeholder_is_deleted_by_the_index_on_ids() {
    let database = "collated_placeholder";
    let direct = ReplicaSet::shared().client();
    direct.database(database).drop().await.unwrap();
    run(&direct, database, doc! { "create": "users", "collation": en_2() }).await;
    let others = (0..200).map(|id| doc! { "_id": format!("other {id}"), "email": id });
    run(&direct, database, insert(others.collect(), true)).await;
    let (proxy, key) = store_through(&direct, database, Duration::from_secs(60));
    let seen = reserved_for_gone(&proxy, &key, None).await;
    run(&direct, database, doc! { "profile": 2 }).await;
    assert_eq!(proxy.settle_absent(&key, &seen, None).await.unwrap(), TakenOver::Done);
    run(&direct, database, doc! { "profile": 0 }).await;
    let profile = direct.database(database).collection::<Document>("system.profile");
    let deletes = doc! { "ns": format!("{database}.users"), "op": "remove" };
    let deletes: Vec<Document> = profile.find(deletes).await.unwrap().try_collect().await.unwrap();
    assert_eq!(deletes.len(), 1, "{deletes:?}");
    assert!(deletes[0].get_i32("docsExamined").unwrap() <= 2, "{deletes:?}");
}

/// The key's reservation, for an owner with the `_id` "gone" that isn't there.
async fn reserved_for_gone(proxy: &ProxyCollection, key: &Key, route: Option<RawDocumentBuf>) -> Reservation {
    let owner = Owner {
        id: RawBson::String("gone".to_owned()),
        route,
    };
    let token = Token {
        write: WriteId([1; 16]),
        position: 0,
        retry_id: None,
    };
    proxy.reserve(&[(key, &owner, token.into())]).await.unwrap();
    proxy.read(&[key]).await.unwrap().remove(0).unwrap()
}

/// With the default collation, a router finds no shard by text, and would delete the document of another shard, too.
#[tokio::test(flavor = "multi_thread")]
async fn an_absent_owners_placeholder_is_deleted_on_its_own_shard() {
    let database = "collated_placeholder_on_shards";
    let cluster = Cluster::shared();
    let direct = cluster.client();
    run(&direct, "admin", doc! { "enableSharding": database }).await;
    run(&direct, database, doc! { "create": "users", "collation": en_2() }).await;
    let namespace = format!("{database}.users");
    let simple = doc! { "locale": "simple" };
    let shard = doc! { "shardCollection": &namespace, "key": { "region": 1 }, "collation": simple };
    run(&direct, "admin", shard).await;
    spread_on_two(cluster, &namespace, doc! { "region": "m" });
    // By bytes, it is on the other shard.
    let other = doc! { "_id": "gone", "region": "z", "email": "other@x" };
    run(&direct, database, insert(vec![other.clone()], true)).await;
    let (proxy, key) = store_through(&direct, database, Duration::from_secs(60));
    let seen = reserved_for_gone(&proxy, &key, Some(rawdoc! { "region": "Z" })).await;
    assert_eq!(proxy.settle_absent(&key, &seen, None).await.unwrap(), TakenOver::Done);
    let users = direct.database(database).collection::<Document>("users");
    let left: Vec<Document> = users.find(doc! {}).await.unwrap().try_collect().await.unwrap();
    assert_eq!(left, [other]);
}
