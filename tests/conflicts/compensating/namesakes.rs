//! Documents with the same `_id` on different shards, as a sharded collection may have them.

use bson::{Document, doc};

use crate::compensating::{EMAIL, assert_agreement, insert, keyward, users};
use testkit::run;

fn user(region: &str, email: &str) -> Document {
    doc! { "_id": 1, "region": region, "email": email }
}

/// An upsert beside a namesake looked at both after it, and took the other's key for one that is to be reserved.
#[tokio::test]
async fn an_upsert_leaves_the_namesake_of_its_document_alone() {
    let database = "namesakes";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let client = keyward.client_without_retries().await;
    run(&client, database, insert(vec![user("a", "a@x")], true)).await;
    let upsert = |q: &Document, email: &str| {
        let set = doc! { "$set": { "email": email } };
        doc! { "update": "users", "updates": [{ "q": q.clone(), "u": set, "upsert": true }] }
    };
    let own = doc! { "_id": 1, "region": "z" };
    let refused = run(&client, database, upsert(&own, "a@x")).await;
    assert!(refused.contains_key("writeErrors"), "{refused}");
    let as_conjunction = doc! { "$and": [{ "_id": 2 }, { "$and": [{ "region": { "$eq": "z" } }] }] };
    let mut second = user("a", "second@x");
    second.insert("_id", 2);
    run(&client, database, insert(vec![second], true)).await;
    for (q, email, applied) in [
        (&own, "z@x", "upserted"),
        (&own, "y@x", "nModified"),
        (&as_conjunction, "another@x", "upserted"),
    ] {
        let reply = run(&client, database, upsert(q, email)).await;
        assert!(
            reply.contains_key(applied) && !reply.contains_key("writeErrors"),
            "{reply}"
        );
    }
    let deleted = doc! { "delete": "users", "deletes": [{ "q": { "_id": 1, "region": "a" }, "limit": 1 }] };
    assert_eq!(run(&client, database, deleted).await.get_i32("n").unwrap(), 1);
    assert_agreement(cluster, database, "email").await;
    let reply = run(&client, database, insert(vec![user("b", "a@x")], true)).await;
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    assert_agreement(cluster, database, "email").await;
}
