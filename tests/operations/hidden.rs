//! Keyward's own collections don't show, unless a client asks for them by name.

#![expect(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

use bson::{Bson, Document, doc};
use futures_util::StreamExt;
use mongodb::Client;
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::{ChangeStreamEvent, OperationType};
use testbed::{Cluster, ReplicaSet};
use testkit::{Keyward, run, shard_on_two};

/// A Keyward in front of `upstream` with a constraint on `database.users`.
fn keyward(upstream: &str, database: &str) -> Keyward {
    Keyward::start(
        upstream,
        &format!("  - {{ collection: {database}.users, key: {{ email: 1 }} }}\n"),
    )
}

/// The shared cluster, with `database.users` on two shards.
fn sharded(database: &str) -> &'static Cluster {
    let (cluster, namespace) = (Cluster::shared(), format!("{database}.users"));
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    cluster
}

async fn collections(keyward: &Keyward, database: &str, filter: Document) -> Vec<String> {
    let client = keyward.client().await;
    let mut names = client
        .database(database)
        .list_collection_names()
        .filter(filter)
        .await
        .unwrap();
    names.sort();
    names
}

async fn is_listed(keyward: &Keyward, database: &str) -> bool {
    let listed = keyward.client().await.list_database_names().await.unwrap();
    listed.iter().any(|name| name == database)
}

async fn lists_hide_them(upstream: &str, database: &str) {
    let keyward = keyward(upstream, database);
    let client = keyward.client().await;
    let users = client.database(database).collection("users");
    users
        .insert_one(doc! { "_id": 1, "region": "a", "email": "x" })
        .await
        .unwrap();
    assert_eq!(collections(&keyward, database, doc! {}).await, ["users"]);
    assert_eq!(
        collections(&keyward, database, doc! { "type": "collection" }).await,
        ["users"]
    );
    let named = doc! { "name": { "$regex": "^keyward" } };
    let own = collections(&keyward, database, named).await;
    assert!(own.contains(&"keyward.users.email_1".to_owned()), "{own:?}");
    assert!(is_listed(&keyward, database).await);
    let named = client.list_database_names().filter(doc! { "name": database });
    assert_eq!(named.await.unwrap(), [database]);
    assert!(!is_listed(&keyward, "keyward").await);
    let register = client.list_database_names().filter(doc! { "name": "keyward" });
    assert_eq!(register.await.unwrap(), ["keyward"]);
    client.database(database).drop().await.unwrap();
    assert!(!is_listed(&keyward, database).await);
    let pattern = doc! { "name": { "$regex": format!("^{database}$") } };
    let with_register = doc! { "name": { "$in": [database, "keyward"] } };
    for (filter, shown) in [
        (doc! { "name": database }, vec![]),
        (pattern, vec![]),
        (with_register, vec!["keyward"]),
    ] {
        let named = client.list_database_names().filter(filter.clone()).await.unwrap();
        assert_eq!(named, shown, "{filter}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_hide_them_on_a_cluster() {
    const DATABASE: &str = "hidden_on_cluster";
    let cluster = sharded(DATABASE);
    lists_hide_them(&cluster.uri(), DATABASE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_hide_them_on_a_replica_set() {
    lists_hide_them(&ReplicaSet::shared().uri(), "hidden_on_set").await;
}

/// The names in the reply to a command that lists.
async fn listed(client: &Client, database: &str, command: Document) -> Vec<String> {
    let reply = run(client, database, command).await;
    let listed = match reply.get_document("cursor") {
        Ok(cursor) => cursor.get_array("firstBatch"),
        Err(_) => reply.get_array("databases"),
    };
    let listed = listed.unwrap_or_else(|_| panic!("{reply}"));
    let names = listed.iter().map(|one| one.as_document().unwrap().get_str("name"));
    names.map(|name| name.unwrap().to_owned()).collect()
}

async fn lists_without_a_filter_hide_them(upstream: &str, database: &str) {
    let keyward = keyward(upstream, database);
    let through = keyward.client().await;
    let past = Client::with_uri_str(upstream).await.unwrap();
    for nothing in [Bson::Null, Bson::Undefined] {
        for (database, list) in [(database, "listCollections"), ("admin", "listDatabases")] {
            let command = doc! { list: 1, "nameOnly": true, "filter": nothing.clone() };
            let is_own = |name: &String| name.starts_with("keyward");
            // The server takes it for no filter.
            assert!(listed(&past, database, command.clone()).await.iter().any(is_own));
            let shown = listed(&through, database, command.clone()).await;
            assert!(!shown.is_empty() && !shown.iter().any(is_own), "{command}: {shown:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_with_a_filter_of_null_hide_them_on_a_cluster() {
    const DATABASE: &str = "hidden_without_filter";
    lists_without_a_filter_hide_them(&sharded(DATABASE).uri(), DATABASE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_with_a_filter_of_null_hide_them_on_a_replica_set() {
    const DATABASE: &str = "hidden_without_filter";
    let set = ReplicaSet::shared();
    run(&set.client(), DATABASE, doc! { "create": "users" }).await;
    lists_without_a_filter_hide_them(&set.uri(), DATABASE).await;
}

async fn next(stream: &mut ChangeStream<ChangeStreamEvent<Document>>, database: &str) -> ChangeStreamEvent<Document> {
    loop {
        let event = stream.next().await.unwrap().unwrap();
        let namespace = event.ns.as_ref().unwrap();
        // Other tests write, too; none may see what is Keyward's.
        assert_ne!(namespace.db, "keyward");
        assert!(
            !namespace.coll.as_ref().is_some_and(|name| name.starts_with("keyward.")),
            "{namespace:?}"
        );
        if namespace.db == database {
            return event;
        }
    }
}

async fn streams_hide_them(upstream: &str, database: &str) {
    let keyward = keyward(upstream, database);
    let client = keyward.client().await;
    let users = client.database(database).collection("users");
    let mut on_cluster = client.watch().await.unwrap();
    let mut on_database = client.database(database).watch().await.unwrap();
    for id in [1, 2] {
        // Its reservation comes first.
        users
            .insert_one(doc! { "_id": id, "region": "a", "email": id })
            .await
            .unwrap();
    }
    for stream in [&mut on_cluster, &mut on_database] {
        for id in [1, 2] {
            let event = next(stream, database).await;
            assert_eq!(event.operation_type, OperationType::Insert);
            assert_eq!(event.full_document.unwrap().get_i32("_id").unwrap(), id);
        }
    }
    let token = on_database.resume_token().unwrap();
    users.delete_one(doc! { "_id": 1 }).await.unwrap();
    let mut resumed = client.database(database).watch().resume_after(token).await.unwrap();
    let event = next(&mut resumed, database).await;
    assert_eq!(event.document_key.unwrap().get_i32("_id").unwrap(), 1);
    assert_eq!(event.operation_type, OperationType::Delete);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_hide_them_on_a_cluster() {
    const DATABASE: &str = "hidden_from_watchers";
    let cluster = sharded(DATABASE);
    streams_hide_them(&cluster.uri(), DATABASE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_hide_them_on_a_replica_set() {
    streams_hide_them(&ReplicaSet::shared().uri(), "hidden_from_set_watchers").await;
}

/// A client that watched past Keyward goes on through it, behind an event of Keyward's own.
async fn a_stream_resumes_behind_a_hidden_event(upstream: &str, database: &str) {
    let keyward = keyward(upstream, database);
    let past = Client::with_uri_str(upstream).await.unwrap().database(database);
    let mut watched = past.watch().await.unwrap();
    let client = keyward.client().await;
    let users = client.database(database).collection("users");
    users
        .insert_one(doc! { "_id": 1, "region": "a", "email": "x" })
        .await
        .unwrap();
    let event = loop {
        let event = watched.next().await.unwrap().unwrap();
        let name = event.ns.as_ref().and_then(|namespace| namespace.coll.clone());
        if name.is_some_and(|name| name == "keyward.users.email_1") {
            break event;
        }
    };
    let shown = client.database(database);
    let watch = || shown.watch();
    let mut resumed = watch().resume_after(event.id.clone()).await.unwrap();
    // The server looks for the event as it reads the first one behind it, which may be long after.
    let mut started = watch().start_after(event.id).await.unwrap();
    for stream in [&mut resumed, &mut started] {
        let first = next(stream, database).await;
        assert_eq!(first.full_document.unwrap().get_i32("_id").unwrap(), 1);
    }
    users
        .insert_one(doc! { "_id": 2, "region": "z", "email": "y" })
        .await
        .unwrap();
    for stream in [&mut resumed, &mut started] {
        let second = next(stream, database).await;
        assert_eq!(second.full_document.unwrap().get_i32("_id").unwrap(), 2);
    }
    // Nothing visible lies behind the last event of Keyward's own.
    let event = loop {
        let event = watched.next().await.unwrap().unwrap();
        let document = event.full_document.as_ref();
        if document.is_some_and(|document| document.get_i32("owner").is_ok_and(|owner| owner == 2)) {
            break event;
        }
    };
    let mut waiting = watch().resume_after(event.id).await.unwrap();
    users
        .insert_one(doc! { "_id": 3, "region": "a", "email": "z" })
        .await
        .unwrap();
    loop {
        let event = next(&mut waiting, database).await;
        if event.full_document.unwrap().get_i32("_id").unwrap() == 3 {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_resumes_behind_a_hidden_event_on_a_cluster() {
    const DATABASE: &str = "hidden_since_on_cluster";
    let cluster = sharded(DATABASE);
    a_stream_resumes_behind_a_hidden_event(&cluster.uri(), DATABASE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_resumes_behind_a_hidden_event_on_a_replica_set() {
    a_stream_resumes_behind_a_hidden_event(&ReplicaSet::shared().uri(), "hidden_since").await;
}
