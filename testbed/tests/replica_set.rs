//! What a plain replica set lets a test do: fail over, be the reference for a unique index, ask for authentication.

use bson::{Document, doc};
use testbed::ReplicaSet;

#[test]
fn members_outlive_the_thread_that_started_them() {
    let set = std::thread::spawn(|| ReplicaSet::start(1).unwrap()).join().unwrap();
    set.run("admin", doc! { "ping": 1 }).unwrap();
    assert!(set.members()[0].id().is_some());
}

#[test]
fn another_member_takes_over() {
    let set = ReplicaSet::start(3).unwrap();
    let first = set.wait_for_primary().unwrap().address();
    let second = set.step_down().unwrap().address();
    assert_ne!(first, second);
    set.wait_until_whole().unwrap();
    set.primary().unwrap().kill().unwrap();
    let third = set.wait_for_primary().unwrap().address();
    assert_ne!(second, third);
}

#[test]
fn an_emptied_member_copies_the_others() {
    let set = ReplicaSet::start(3).unwrap();
    let insert = |id: i32| doc! { "insert": "users", "documents": [{ "_id": id }], "writeConcern": { "w": 3 } };
    set.run("emptied", insert(1)).unwrap();
    let primary = set.wait_for_primary().unwrap().address();
    let member = set.members().iter().find(|member| member.address() != primary).unwrap();
    member.restart_empty().unwrap();
    set.wait_until_whole().unwrap();
    // Acknowledged by all, the emptied one among them.
    set.run("emptied", insert(2)).unwrap();
    let count = doc! { "count": "users", "$readPreference": { "mode": "secondary" } };
    let count = testbed::command::run(&member.address(), "emptied", count).unwrap();
    assert_eq!(count.get_i32("n").unwrap(), 2);
    member.kill().unwrap();
    member.kill().unwrap();
}

#[tokio::test]
async fn a_unique_index_is_enforced() {
    let users = ReplicaSet::shared()
        .client()
        .database("unique")
        .collection::<Document>("users");
    let index = mongodb::IndexModel::builder()
        .keys(doc! { "email": 1 })
        .options(mongodb::options::IndexOptions::builder().unique(true).build());
    users.create_index(index.build()).await.unwrap();
    users.insert_one(doc! { "email": "a@x" }).await.unwrap();
    let refused = users.insert_one(doc! { "email": "a@x" }).await.unwrap_err();
    assert!(refused.to_string().contains("E11000"), "{refused}");
}

#[tokio::test]
async fn access_control_asks_for_the_user() {
    let set = ReplicaSet::builder("guarded")
        .root_user("root", "secret")
        .start()
        .unwrap();
    let insert = doc! { "insert": "users", "documents": [{ "_id": 1 }] };
    assert!(set.run("guarded", insert.clone()).is_err());
    set.client().database("guarded").run_command(insert).await.unwrap();
    let with_uri = mongodb::Client::with_uri_str(set.uri()).await.unwrap();
    assert_eq!(
        with_uri
            .database("guarded")
            .collection::<Document>("users")
            .count_documents(doc! {})
            .await
            .unwrap(),
        1
    );
}
