//! Change streams over all shards: every event once, in one order, resumable.

use bson::{Document, doc};
use futures_util::StreamExt;
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::{ChangeStreamEvent, OperationType};

use super::by_k;

type Events = ChangeStream<ChangeStreamEvent<Document>>;

async fn next_ids(events: &mut Events, count: usize) -> Vec<i32> {
    let mut ids = Vec::new();
    for _ in 0..count {
        let event = events.next().await.unwrap().unwrap();
        ids.push(event.document_key.unwrap().get_i32("_id").unwrap());
    }
    ids
}

#[tokio::test]
async fn events_of_all_shards_come_in_order_and_resume() {
    let collection = by_k("watched");
    let mut events = collection.watch().await.unwrap();
    for id in 0..20 {
        collection.insert_one(doc! { "_id": id, "k": id * 5 }).await.unwrap();
    }
    assert_eq!(next_ids(&mut events, 8).await, (0..8).collect::<Vec<_>>());
    let token = events.resume_token().unwrap();
    assert_eq!(next_ids(&mut events, 12).await, (8..20).collect::<Vec<_>>());

    let mut resumed = collection.watch().resume_after(token).await.unwrap();
    assert_eq!(next_ids(&mut resumed, 12).await, (8..20).collect::<Vec<_>>());

    let mut whole_database = collection.client().database("watched").watch().await.unwrap();
    collection.delete_one(doc! { "_id": 3, "k": 15 }).await.unwrap();
    let event = whole_database.next().await.unwrap().unwrap();
    assert_eq!(event.operation_type, OperationType::Delete);
}

#[tokio::test]
async fn moving_chunks_is_no_event_and_dropping_the_collection_ends_it() {
    let collection = by_k("moves");
    collection
        .insert_many((0..20).map(|id| doc! { "_id": id, "k": id * 5 }))
        .await
        .unwrap();
    let mut events = collection.watch().await.unwrap();
    testbed::Cluster::shared()
        .move_chunk("moves.c", doc! { "k": 60 }, "shard0")
        .unwrap();
    collection.insert_one(doc! { "_id": 100, "k": 60 }).await.unwrap();
    assert_eq!(next_ids(&mut events, 1).await, [100]);
    collection.drop().await.unwrap();
    let mut last = None;
    while let Some(event) = events.next().await {
        last = Some(event.unwrap().operation_type);
    }
    assert_eq!(last, Some(OperationType::Invalidate));
}
