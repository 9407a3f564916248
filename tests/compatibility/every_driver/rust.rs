//! The Rust driver's everyday writes on a protected collection. Every driver's script does the same.

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::error::{Error, ErrorKind, WriteFailure};
use mongodb::{Client, Collection};

/// What the driver says, in lines.
pub async fn everyday(uri: &str, database: &str) -> String {
    let client = Client::with_uri_str(uri).await.unwrap();
    let said = said_of(client.database(database).collection("users")).await;
    client.shutdown().await;
    said
}

async fn said_of(users: Collection<Document>) -> String {
    let user = |id: i32, email: &str| doc! { "_id": id, "email": email };
    let email = |email: &str| doc! { "$set": { "email": email } };
    let third = doc! { "_id": 3 };
    let mut lines = Vec::new();
    users.insert_one(user(1, "a@x")).await.unwrap();
    lines.push(refused(users.insert_one(user(2, "a@x")).await));
    let many = [user(3, "b@x"), user(4, "a@x"), user(5, "c@x")];
    let said = refused(users.insert_many(many).ordered(false).await);
    // The driver keeps to itself how many it has inserted beside the one that was refused.
    let inserted = users
        .count_documents(doc! { "_id": { "$in": [3, 4, 5] } })
        .await
        .unwrap();
    lines.push(format!("{said} inserted {inserted}"));
    lines.push(refused(users.update_one(third.clone(), email("c@x")).await));
    let updated = users.update_one(third.clone(), email("d@x")).await.unwrap();
    lines.push(format!("updated {}", updated.modified_count));
    let before = users.find_one_and_update(third, email("e@x")).await.unwrap().unwrap();
    lines.push(format!("before {}", before.get_str("email").unwrap()));
    let replacement = users.replace_one(doc! { "_id": 6 }, doc! { "email": "f@x" });
    replacement.upsert(true).await.unwrap();
    let deleted = users.delete_one(doc! { "email": "a@x" }).await.unwrap();
    lines.push(format!("deleted {}", deleted.deleted_count));
    users.insert_one(user(7, "a@x")).await.unwrap();
    let left: Vec<Document> = users
        .find(doc! {})
        .sort(doc! { "_id": 1 })
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    let left: Vec<&str> = left.iter().map(|user| user.get_str("email").unwrap()).collect();
    lines.push(left.join(" "));
    lines.join("\n") + "\n"
}

fn refused<T>(written: Result<T, Error>) -> String {
    let Err(error) = written else {
        return "not refused".to_owned();
    };
    match &*error.kind {
        ErrorKind::Write(WriteFailure::WriteError(error)) => {
            let names_it = if error.message.contains("email_1 dup key") {
                "True"
            } else {
                "False"
            };
            format!("refused {} {names_it}", error.code)
        }
        ErrorKind::InsertMany(failed) => {
            let errors = failed.write_errors.as_deref().unwrap();
            let positions: Vec<String> = errors.iter().map(|error| error.index.to_string()).collect();
            format!("refused {} at {}", errors[0].code, positions.join(","))
        }
        other => format!("failed: {other:?}"),
    }
}
