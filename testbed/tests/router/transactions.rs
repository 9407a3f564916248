//! Transactions over one shard and several: all or nothing, and one moment for all reads of a snapshot.

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::error::{ErrorKind, TRANSIENT_TRANSACTION_ERROR, WriteFailure};
use mongodb::options::ReadConcern;
use testbed::Cluster;
use testbed::command::{CommandError, Connection};

use super::{by_k, on_shards};

#[tokio::test]
async fn several_shards_commit_together() {
    let collection = by_k("together");
    let mut session = collection.client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    for k in [1, 60] {
        collection
            .insert_one(doc! { "_id": k, "k": k })
            .session(&mut session)
            .await
            .unwrap();
    }
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 0);
    assert_eq!(
        collection.count_documents(doc! {}).session(&mut session).await.unwrap(),
        2
    );
    session.commit_transaction().await.unwrap();
    // A commit that is sent again has the same outcome.
    session.commit_transaction().await.unwrap();
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 2);
}

#[tokio::test]
async fn several_shards_abort_together() {
    let collection = by_k("aborted");
    let mut session = collection.client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let documents = [1, 60].map(|k| doc! { "_id": k, "k": k });
    collection.insert_many(documents).session(&mut session).await.unwrap();
    session.abort_transaction().await.unwrap();
    assert!(
        on_shards(Cluster::shared(), "aborted", "c")
            .await
            .iter()
            .all(Vec::is_empty)
    );
}

#[tokio::test]
async fn a_failed_statement_ends_the_transaction_everywhere() {
    let collection = by_k("failed");
    collection.insert_one(doc! { "_id": 1, "k": 1 }).await.unwrap();
    let mut session = collection.client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    collection
        .insert_one(doc! { "_id": 60, "k": 60 })
        .session(&mut session)
        .await
        .unwrap();
    let duplicate = collection
        .insert_one(doc! { "_id": 1, "k": 1 })
        .session(&mut session)
        .await
        .unwrap_err();
    assert!(matches!(*duplicate.kind, ErrorKind::Write(WriteFailure::WriteError(ref error)) if error.code == 11000));
    assert!(!duplicate.contains_label(TRANSIENT_TRANSACTION_ERROR));
    let commit = session.commit_transaction().await.unwrap_err();
    assert!(commit.contains_label(TRANSIENT_TRANSACTION_ERROR), "{commit:?}");
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 1);
}

#[tokio::test]
async fn a_conflict_is_transient() {
    let collection = by_k("conflict");
    collection.insert_one(doc! { "_id": 1, "k": 1, "n": 0 }).await.unwrap();
    let increment = || collection.update_one(doc! { "_id": 1, "k": 1 }, doc! { "$inc": { "n": 1 } });
    let mut first = collection.client().start_session().await.unwrap();
    let mut second = collection.client().start_session().await.unwrap();
    first.start_transaction().await.unwrap();
    second.start_transaction().await.unwrap();
    increment().session(&mut first).await.unwrap();
    let refused = increment().session(&mut second).await.unwrap_err();
    assert!(refused.contains_label(TRANSIENT_TRANSACTION_ERROR), "{refused:?}");
    first.commit_transaction().await.unwrap();
    second.abort_transaction().await.unwrap();
}

#[tokio::test]
async fn a_snapshot_transaction_reads_one_moment_of_all_shards() {
    let collection = by_k("snapshot");
    collection
        .insert_many([1, 60].map(|k| doc! { "_id": k, "k": k, "n": 0 }))
        .await
        .unwrap();
    let mut session = collection.client().start_session().await.unwrap();
    session
        .start_transaction()
        .read_concern(ReadConcern::snapshot())
        .await
        .unwrap();
    let read = |k: i32| collection.find_one(doc! { "_id": k, "k": k });
    assert_eq!(
        read(1)
            .session(&mut session)
            .await
            .unwrap()
            .unwrap()
            .get_i32("n")
            .unwrap(),
        0
    );
    // Only the first shard takes part yet; the second must still be read as of then.
    collection
        .update_many(doc! {}, doc! { "$set": { "n": 1 } })
        .await
        .unwrap();
    assert_eq!(
        read(60)
            .session(&mut session)
            .await
            .unwrap()
            .unwrap()
            .get_i32("n")
            .unwrap(),
        0
    );
    session.commit_transaction().await.unwrap();
}

#[tokio::test]
async fn pipelines_over_several_shards_run_inside() {
    let collection = by_k("inside");
    collection
        .insert_many((0..100).map(|k| doc! { "_id": k, "k": k, "g": k % 2 }))
        .await
        .unwrap();
    let mut session = collection.client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    collection
        .insert_one(doc! { "_id": 100, "k": 100, "g": 0 })
        .session(&mut session)
        .await
        .unwrap();
    let pipeline = [
        doc! { "$match": { "k": { "$gte": 10 } } },
        doc! { "$group": { "_id": "$g", "n": { "$sum": 1 } } },
        doc! { "$sort": { "_id": 1 } },
    ];
    let mut cursor = collection.aggregate(pipeline).session(&mut session).await.unwrap();
    let groups: Vec<Document> = cursor.stream(&mut session).try_collect().await.unwrap();
    assert_eq!(groups, [doc! { "_id": 0, "n": 46 }, doc! { "_id": 1, "n": 45 }]);
    let mut cursor = collection
        .find(doc! {})
        .sort(doc! { "k": -1 })
        .batch_size(8)
        .session(&mut session)
        .await
        .unwrap();
    let found: Vec<Document> = cursor.stream(&mut session).try_collect().await.unwrap();
    assert_eq!(super::numbers(&found, "k"), (0..=100).rev().collect::<Vec<_>>());
    session.abort_transaction().await.unwrap();
}

fn refused(result: Result<Document, CommandError>) -> i32 {
    result.unwrap_err().code().unwrap()
}

/// What comes in the wrong order is refused with the server's codes.
#[test]
fn statements_out_of_order_are_refused() {
    Cluster::shared().shard_by_ranges("misused.c", "k", &[50]).unwrap();
    let mut connection = Connection::open(&Cluster::shared().router_address()).unwrap();
    let lsid = doc! { "id": bson::Uuid::new() };
    let part_of = |mut command: Document, number: i64| {
        command.extend(doc! { "lsid": lsid.clone(), "txnNumber": number, "autocommit": false });
        command
    };
    let find = || doc! { "find": "c" };
    assert_eq!(refused(connection.run("misused", part_of(find(), 3))), 251);
    let mut start = part_of(find(), 3);
    start.insert("startTransaction", true);
    connection.run("misused", start.clone()).unwrap();
    assert_eq!(refused(connection.run("misused", start)), 117);
    assert_eq!(refused(connection.run("misused", part_of(find(), 2))), 225);
    // So are the ends of one that a later one has replaced: what asked for them may try it anew.
    for end in ["commitTransaction", "abortTransaction"] {
        assert_eq!(
            refused(connection.run("admin", part_of(doc! { end: 1 }, 2))),
            225,
            "{end}"
        );
    }
    let mut with_concern = part_of(doc! { "insert": "c", "documents": [{ "k": 1 }] }, 3);
    with_concern.insert("writeConcern", doc! { "w": 1 });
    assert_eq!(refused(connection.run("misused", with_concern)), 72);
    assert_eq!(
        refused(connection.run("admin", part_of(doc! { "commitTransaction": 1 }, 3))),
        251
    );
}
