//! Commands by a driver's client, and replies that can be compared.

use bson::{Bson, Document, doc};
use mongodb::Client;

/// Runs a command and gives its reply, also where the server says `ok: 0`.
pub async fn run(client: &Client, database: &str, command: Document) -> Document {
    match client.database(database).run_command(command).await {
        Ok(reply) => reply,
        Err(error) => match error.server_response() {
            Some(reply) => reply.try_into().unwrap(),
            None => panic!("{error}"),
        },
    }
}

/// The reply without what differs between any two: times and election ids.
pub fn comparable(mut reply: Document) -> Document {
    for field in ["$clusterTime", "operationTime", "electionId", "opTime"] {
        reply.remove(field);
    }
    reply
}

/// Has both carry `command` out, and compares what they say.
pub async fn assert_same_answer([native, keyward]: [&Client; 2], database: &str, command: Document) {
    let expected = run(native, database, command.clone()).await;
    let got = run(keyward, database, command.clone()).await;
    assert_eq!(
        in_one_order(got.clone()),
        in_one_order(expected.clone()),
        "{command}\n{got}\n{expected}"
    );
}

/// The shared replica set's server, on which the collection `users` of `database` is new and has a native unique index.
pub async fn natively_unique(database: &str) -> String {
    let native = testbed::ReplicaSet::shared();
    let client = native.client();
    client.database(database).drop().await.unwrap();
    let index = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true };
    run(&client, database, doc! { "createIndexes": "users", "indexes": [index] }).await;
    native.addresses().remove(0)
}

/// The reply's bytes, its own fields in one order: a router and a server don't agree on that.
pub fn in_one_order(reply: Document) -> Vec<u8> {
    let mut fields: Vec<(String, Bson)> = comparable(reply).into_iter().collect();
    fields.sort_by(|(one, _), (other, _)| one.cmp(other));
    fields.into_iter().collect::<Document>().to_vec().unwrap()
}
