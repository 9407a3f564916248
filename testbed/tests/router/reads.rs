//! find, aggregate, count and distinct over several shards.

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::options::{Collation, CollationStrength};
use testbed::Cluster;

use super::{by_k, numbers};

async fn all(cursor: mongodb::error::Result<mongodb::Cursor<Document>>) -> Vec<Document> {
    cursor.unwrap().try_collect().await.unwrap()
}

#[tokio::test]
async fn shards_are_merged_in_sort_order() {
    let collection = by_k("merged");
    let documents = (0..100).map(|k| doc! { "_id": k, "k": k, "turn": (k * 37) % 100, "group": k % 3 });
    collection.insert_many(documents).await.unwrap();

    let up = all(collection.find(doc! {}).sort(doc! { "turn": 1 }).batch_size(7).await).await;
    assert_eq!(numbers(&up, "turn"), (0..100).collect::<Vec<_>>());
    assert!(up.iter().all(|document| !document.contains_key("$sortKey")));

    let page = collection.find(doc! {}).sort(doc! { "turn": -1 }).skip(30).limit(20);
    let page = all(page.projection(doc! { "_id": 0, "turn": 1 }).batch_size(6).await).await;
    assert_eq!(numbers(&page, "turn"), (50..70).rev().collect::<Vec<_>>());
    assert_eq!(page[0], doc! { "turn": 69 });

    let by_two = all(collection.find(doc! {}).sort(doc! { "group": -1, "turn": 1 }).await).await;
    let mut expected: Vec<_> = (0..100).map(|k| (-(k % 3), (k * 37) % 100)).collect();
    expected.sort_unstable();
    let got: Vec<_> = by_two
        .iter()
        .map(|d| (-d.get_i32("group").unwrap(), d.get_i32("turn").unwrap()))
        .collect();
    assert_eq!(got, expected);
}

#[tokio::test]
async fn a_limit_counts_over_all_shards() {
    let collection = by_k("limited");
    collection
        .insert_many((0..100).map(|k| doc! { "_id": k, "k": k }))
        .await
        .unwrap();
    assert_eq!(
        all(collection.find(doc! {}).limit(60).batch_size(9).await).await.len(),
        60
    );
    assert_eq!(all(collection.find(doc! {}).limit(-7).await).await.len(), 7);
    assert_eq!(all(collection.find(doc! {}).skip(95).await).await.len(), 5);
    assert_eq!(
        collection
            .count_documents(doc! { "k": { "$gte": 20 } })
            .skip(10)
            .limit(50)
            .await
            .unwrap(),
        50
    );
    let database = collection.client().database("limited");
    let reply = database.run_command(doc! { "count": "c", "skip": 10, "limit": 200 });
    assert_eq!(reply.await.unwrap().get_i32("n").unwrap(), 90);
}

#[tokio::test]
async fn a_sort_under_a_collation_is_merged_by_it() {
    let collection = by_k("collated");
    let words = ["b", "A", "C", "a", "B", "c"];
    let documents = words
        .iter()
        .enumerate()
        .map(|(at, word)| doc! { "_id": at as i32, "k": at as i32 * 20, "word": *word });
    collection.insert_many(documents).await.unwrap();
    let collation = Collation::builder()
        .locale("en")
        .strength(CollationStrength::Tertiary)
        .build();
    let sorted = all(collection
        .find(doc! {})
        .sort(doc! { "word": 1 })
        .collation(collation)
        .await)
    .await;
    let got: Vec<_> = sorted
        .iter()
        .map(|document| document.get_str("word").unwrap())
        .collect();
    assert_eq!(got, ["a", "A", "b", "B", "c", "C"]);
}

#[tokio::test]
async fn distinct_unites_what_the_server_calls_equal() {
    let collection = by_k("united");
    let values = [
        Bson::Int32(1),
        Bson::Double(1.0),
        Bson::Int64(2),
        Bson::String("x".into()),
        Bson::Null,
    ];
    let documents = values
        .iter()
        .enumerate()
        .flat_map(|(at, value)| [10, 60].map(|k| doc! { "_id": at as i32 + k, "k": k, "v": value.clone() }));
    collection.insert_many(documents).await.unwrap();
    let distinct = collection.distinct("v", doc! {}).await.unwrap();
    assert_eq!(distinct.len(), 4, "{distinct:?}");
}

#[tokio::test]
async fn pipelines_run_over_all_shards() {
    let collection = by_k("piped");
    collection
        .insert_many((0..100).map(|k| doc! { "_id": k, "k": k, "group": k % 4 }))
        .await
        .unwrap();
    let groups = collection.aggregate([
        doc! { "$group": { "_id": "$group", "sum": { "$sum": "$k" } } },
        doc! { "$sort": { "_id": 1 } },
    ]);
    let groups = all(groups.await).await;
    assert_eq!(numbers(&groups, "sum"), [1200, 1225, 1250, 1275]);
    let joined = collection.aggregate([
        doc! { "$lookup": { "from": "c", "localField": "k", "foreignField": "k", "as": "same" } },
        doc! { "$match": { "same": { "$size": 1 } } },
    ]);
    assert_eq!(all(joined.batch_size(10).await).await.len(), 100);
    let written = collection.aggregate([doc! { "$match": { "k": { "$lt": 10 } } }, doc! { "$out": "copied" }]);
    all(written.await).await;
    let copied = collection.client().database("piped").collection::<Document>("copied");
    assert_eq!(copied.count_documents(doc! {}).await.unwrap(), 10);
}

#[tokio::test]
async fn a_view_over_a_sharded_collection_reads_all_of_it() {
    let collection = by_k("viewed");
    collection
        .insert_many((0..100).map(|k| doc! { "_id": k, "k": k }))
        .await
        .unwrap();
    let database = collection.client().database("viewed");
    let create = doc! { "create": "odd", "viewOn": "c", "pipeline": [{ "$match": { "k": { "$mod": [2, 1] } } }] };
    database.run_command(create).await.unwrap();
    let view = database.collection::<Document>("odd");
    assert_eq!(view.count_documents(doc! {}).await.unwrap(), 50);
    let last = all(view
        .find(doc! { "k": { "$gt": 50 } })
        .sort(doc! { "k": -1 })
        .limit(2)
        .await)
    .await;
    assert_eq!(numbers(&last, "k"), [99, 97]);
}

#[tokio::test]
async fn a_snapshot_shows_one_moment_of_all_shards() {
    let collection = by_k("moment");
    collection
        .insert_many((0..100).map(|k| doc! { "_id": k, "k": k }))
        .await
        .unwrap();
    let mut session = collection.client().start_session().snapshot(true).await.unwrap();
    let mut cursor = collection
        .find(doc! {})
        .batch_size(10)
        .session(&mut session)
        .await
        .unwrap();
    assert!(cursor.advance(&mut session).await.unwrap());
    collection.delete_many(doc! { "k": { "$gte": 40 } }).await.unwrap();
    let mut seen = 1;
    while cursor.advance(&mut session).await.unwrap() {
        seen += 1;
    }
    assert_eq!(seen, 100);
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 40);
}

#[tokio::test]
async fn a_linearizable_read_is_answered() {
    let collection = by_k("linear");
    collection.insert_one(doc! { "_id": 1, "k": 70 }).await.unwrap();
    let concern = mongodb::options::ReadConcern::linearizable();
    let found = collection
        .find_one(doc! { "_id": 1 })
        .read_concern(concern)
        .await
        .unwrap();
    assert_eq!(found, Some(doc! { "_id": 1, "k": 70 }));
}

#[tokio::test]
async fn what_is_not_there_is_empty() {
    let database = Cluster::shared().client().database("nowhere");
    let collection = database.collection::<Document>("c");
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 0);
    assert!(all(collection.find(doc! {}).await).await.is_empty());
    assert!(collection.distinct("a", doc! {}).await.unwrap().is_empty());
    assert!(database.list_collection_names().await.unwrap().is_empty());
    assert_eq!(collection.delete_many(doc! {}).await.unwrap().deleted_count, 0);
}
