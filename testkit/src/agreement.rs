//! Reads documents and reservations from the shards directly, and checks that they agree.

use std::collections::BTreeSet;

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;

/// What each shard holds of a collection, asked directly.
pub async fn on_each_shard(shards: &[testbed::ReplicaSet], database: &str, collection: &str) -> Vec<Vec<Document>> {
    let mut all = Vec::new();
    for shard in shards {
        let collection = shard.client().database(database).collection::<Document>(collection);
        all.push(collection.find(doc! {}).await.unwrap().try_collect().await.unwrap());
    }
    all
}

/// The values that a document holds in `field`, each once, as an index has them; none if the field isn't there.
pub fn index_values(document: &Document, field: &str) -> BTreeSet<String> {
    match document.get(field) {
        Some(Bson::Array(elements)) if elements.is_empty() => [format!("{:?}", Bson::Undefined)].into(),
        Some(Bson::Array(elements)) => elements.iter().map(|element| format!("{element:?}")).collect(),
        Some(value) => [format!("{value:?}")].into(),
        None => BTreeSet::new(),
    }
}

/// Every document holds its keys, and nothing else is reserved: compares `key_of` of all documents with the reserved
/// keys, both read from the shards directly.
pub async fn assert_documents_and_reservations_agree(
    cluster: &testbed::Cluster,
    database: &str,
    collection: &str,
    constraint: &str,
    key_of: impl Fn(&Document) -> Vec<Document>,
) {
    let (held, reserved) = keys_held_and_reserved(cluster, database, collection, constraint, key_of).await;
    assert_eq!(
        held, reserved,
        "documents and reservations of {database}.{collection} differ"
    );
}

/// The keys that documents hold, by `key_of`, and those that are reserved, each with the `_id` of the document. Both are sorted.
pub async fn keys_held_and_reserved(
    cluster: &testbed::Cluster,
    database: &str,
    collection: &str,
    constraint: &str,
    key_of: impl Fn(&Document) -> Vec<Document>,
) -> (Vec<String>, Vec<String>) {
    let documents = on_each_shard(cluster.shards(), database, collection).await.concat();
    let proxy = format!("keyward.{collection}.{constraint}");
    let reservations = on_each_shard(cluster.shards(), database, &proxy).await.concat();
    let reserved = |document: &Document| {
        let key = document.get_document("_id").unwrap().get_document("k").unwrap().clone();
        let owner = document.get("owner").unwrap();
        // The server would fill that time in if it weren't in a document.
        let zero_time = owner.as_document().and_then(|owner| owner.get("$zeroTime"));
        format!("{key} of {}", zero_time.unwrap_or(owner))
    };
    let held = |document: &Document| {
        let id = document.get("_id").unwrap_or(&Bson::Null).clone();
        key_of(document)
            .into_iter()
            .map(move |key| format!("{key} of {id}"))
            .collect::<Vec<_>>()
    };
    let mut held: Vec<String> = documents.iter().flat_map(held).collect();
    let mut reserved: Vec<String> = reservations.iter().map(reserved).collect();
    held.sort();
    reserved.sort();
    (held, reserved)
}

/// The keys that the documents of `users` hold in `field`, and those that are reserved for it, each with its owner.
pub async fn held_and_reserved(shards: &[testbed::ReplicaSet], database: &str, field: &str) -> [BTreeSet<String>; 2] {
    let documents = on_each_shard(shards, database, "users").await.concat();
    let proxy = format!("keyward.users.{field}_1");
    let reservations = on_each_shard(shards, database, &proxy).await.concat();
    let held = documents.iter().flat_map(|document| {
        let of = move |value| format!("{value} of {:?}", document.get("_id").unwrap());
        index_values(document, field).into_iter().map(of)
    });
    let reserved = reservations.iter().map(|document| {
        let key = document.get_document("_id").unwrap().get_document("k").unwrap();
        format!("{:?} of {:?}", key.get(field).unwrap(), document.get("owner").unwrap())
    });
    [held.collect(), reserved.collect()]
}
