//! A key that was refused is refused again without much ado, and only as long as it is held.

use bson::{Document, doc};
use mongodb::Client;

use crate::compensating::{EMAIL, PHONE, assert_agreement, insert, keyward, users, write_errors};
use testkit::run;

fn user(id: i32) -> Document {
    doc! { "_id": id, "region": "a", "email": "a@x" }
}

async fn try_to_insert(client: &Client, database: &str, id: i32) -> Document {
    run(client, database, insert(vec![user(id)], true)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_refused_again_as_long_as_it_is_held() {
    let database = "refused_again";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let client = keyward.client().await;
    assert_eq!(try_to_insert(&client, database, 1).await.get_i32("n").unwrap(), 1);
    let first = try_to_insert(&client, database, 2).await;
    assert_eq!(write_errors(&first), [(0, 11_000)], "{first}");
    for _ in 0..10 {
        let again = try_to_insert(&client, database, 2).await;
        assert_eq!(again.get("writeErrors"), first.get("writeErrors"));
    }
    let gives_it_up = doc! { "q": { "_id": 1, "region": "a" }, "u": { "$set": { "email": "b@x" } } };
    run(&client, database, doc! { "update": "users", "updates": [gives_it_up] }).await;
    assert_eq!(try_to_insert(&client, database, 2).await.get_i32("n").unwrap(), 1);
    let refused = try_to_insert(&client, database, 3).await;
    assert_eq!(write_errors(&refused), [(0, 11_000)], "{refused}");
    let deleted = doc! { "q": { "_id": 2, "region": "a" }, "limit": 1 };
    run(&client, database, doc! { "delete": "users", "deletes": [deleted] }).await;
    // Of an id whose own document was in the way before.
    assert_eq!(try_to_insert(&client, database, 2).await.get_i32("n").unwrap(), 1);
    assert_agreement(cluster, database, "email").await;
}

/// Natively one after the other is inserted, so that the first one of a key gets it.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_documents_of_a_command_the_first_one_gets_a_key_that_was_refused_before() {
    let database = "refused_then_free";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let client = keyward.client().await;
    assert_eq!(try_to_insert(&client, database, 1).await.get_i32("n").unwrap(), 1);
    let refused = try_to_insert(&client, database, 2).await;
    assert_eq!(write_errors(&refused), [(0, 11_000)], "{refused}");
    let deleted = doc! { "q": { "_id": 1, "region": "a" }, "limit": 1 };
    run(&client, database, doc! { "delete": "users", "deletes": [deleted] }).await;
    let both = run(&client, database, insert(vec![user(2), user(3)], false)).await;
    assert_eq!(write_errors(&both), [(1, 11_000)], "{both}");
    assert_agreement(cluster, database, "email").await;
}

/// As above, where what was refused lately is another key of the first one.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_documents_of_a_command_the_first_one_gets_a_key_whatever_else_was_refused_before() {
    let database = "refused_otherwise";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL, PHONE]);
    let client = keyward.client().await;
    let with_phone =
        |id: i32, phone: i32| doc! { "_id": id, "region": "a", "email": format!("{id}@x"), "phone": phone };
    run(&client, database, insert(vec![with_phone(1, 1)], true)).await;
    for id in 2..22 {
        let refused = run(&client, database, insert(vec![with_phone(id, 1)], true)).await;
        assert_eq!(write_errors(&refused), [(0, 11_000)], "{refused}");
    }
    let without = doc! { "_id": 23, "region": "a", "email": "22@x" };
    let both = run(&client, database, insert(vec![with_phone(22, 22), without], false)).await;
    assert_eq!(write_errors(&both), [(1, 11_000)], "{both}");
    assert_agreement(cluster, database, "email").await;
}
