//! Transactions over one shard and several: all or nothing, and one moment for all reads of a snapshot.

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::error::{ErrorKind, TRANSIENT_TRANSACTION_ERROR, WriteFailure};
use mongodb::options::ReadConcern;
use testbed::command::{CommandError, Connection};
use testbed::{Cluster, Prepared};

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

/// What a session has open is aborted on all shards; what is prepared already is left to its coordinator, so that all of it
/// takes effect or nothing.
#[test]
fn a_session_that_is_ended_leaves_nothing_open_and_nothing_half_done() {
    // Of its own: nothing else commits meanwhile.
    let cluster = Cluster::start().unwrap();
    cluster.shard_by_ranges("ended.c", "k", &[50]).unwrap();
    let address = cluster.router_address();
    let run = |database: &str, command: Document| Connection::open(&address).unwrap().run(database, command);
    // Of no user's: the digest of nothing.
    let mut nobody = bson::Binary::from_base64("47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=", None).unwrap();
    nobody.subtype = bson::spec::BinarySubtype::Generic;
    let begin = |k: i32, other: i32| {
        let session = bson::Uuid::new();
        let fields = doc! { "lsid": { "id": session }, "txnNumber": 1_i64, "autocommit": false };
        let mut insert = doc! { "insert": "c", "documents": [{ "_id": k, "k": k }, { "_id": other, "k": other }] };
        insert.extend(fields.clone());
        insert.insert("startTransaction", true);
        run("ended", insert).unwrap();
        let mut commit = doc! { "commitTransaction": 1 };
        commit.extend(fields);
        let end = doc! { "killAllSessionsByPattern": [{ "lsid": { "id": session, "uid": nobody.clone() } }] };
        (commit, end)
    };
    let prepared = || {
        let is_prepared = doc! { "$match": { "transaction.timePreparedMicros": { "$gt": 0 } } };
        let operations = doc! {
            "aggregate": 1, "cursor": {}, "pipeline": [{ "$currentOp": { "idleSessions": true } }, is_prepared],
        };
        let on_shard = |shard: &testbed::ReplicaSet| {
            let reply = shard.run("admin", operations.clone()).unwrap();
            let found = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
            !found.is_empty()
        };
        cluster.shards().iter().filter(|shard| on_shard(shard)).count()
    };
    let count = || run("ended", doc! { "count": "c" }).unwrap().get_i32("n").unwrap();

    let (commit, end) = begin(1, 60);
    run("admin", end).unwrap();
    let insert = doc! { "insert": "c", "documents": [{ "_id": 1, "k": 1 }, { "_id": 60, "k": 60 }], "maxTimeMS": 5000 };
    assert_eq!(run("ended", insert).unwrap().get_i32("n").unwrap(), 2);
    assert_eq!(refused(run("admin", commit)), 251);

    let (commit, end) = begin(2, 61);
    let hanging: Vec<_> = cluster
        .shards()
        .iter()
        .map(|shard| {
            shard
                .fail_point("hangBeforeWritingDecision", "alwaysOn", doc! {})
                .unwrap()
        })
        .collect();
    let committing = std::thread::spawn({
        let (address, commit) = (address.clone(), commit);
        move || Connection::open(&address).unwrap().run("admin", commit)
    });
    while prepared() < 2 {
        assert!(!committing.is_finished());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    run("admin", end).unwrap();
    assert_eq!(prepared(), 2);
    drop(hanging);
    // Whoever waited for it may have been interrupted.
    let _ = committing.join().unwrap();
    while prepared() > 0 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(count(), 4);
}

/// Which reads wait until a prepared transaction is decided: those after a cluster time, however early, linearizable ones and
/// snapshots, and those only in their first reply. Keyward's reads before a backfill rest on it.
#[tokio::test]
async fn a_read_after_a_cluster_time_waits_for_what_is_prepared_in_its_first_reply() {
    const MAX_TIME_EXPIRED: i32 = 50;
    let database = "prepared";
    let collection = by_k(database);
    let documents = (1..7).filter(|id| *id != 2).map(|id| doc! { "_id": id, "k": 1 });
    collection.insert_many(documents).await.unwrap();
    let shard = &Cluster::shared().shards()[0];
    let undecided = Prepared::insert(shard, database, "c", doc! { "_id": 2, "k": 1 }).unwrap();
    let read = |concern: &Document, size: i32| -> Result<Vec<i32>, testbed::Error> {
        let find = doc! {
            "find": "c", "sort": { "_id": -1 }, "hint": { "_id": 1 }, "batchSize": size, "maxTimeMS": 500,
            "readConcern": concern.clone(),
        };
        let (mut ids, mut reply) = (Vec::new(), shard.run(database, find)?);
        loop {
            let cursor = reply.get_document("cursor").unwrap();
            let batch = cursor
                .get_array("firstBatch")
                .or(cursor.get_array("nextBatch"))
                .unwrap();
            ids.extend(
                batch
                    .iter()
                    .map(|found| found.as_document().unwrap().get_i32("_id").unwrap()),
            );
            match cursor.get_i64("id").unwrap() {
                0 => return Ok(ids),
                id => reply = shard.run(database, doc! { "getMore": id, "collection": "c" })?,
            }
        }
    };
    let count = |address: &str, concern: &Document| {
        let count = doc! {
            "count": "c", "query": { "k": { "$exists": true } }, "hint": { "_id": 1 }, "maxTimeMS": 500,
            "readConcern": concern.clone(),
        };
        testbed::command::run(address, database, count).map_err(|error| error.code())
    };
    let router = Cluster::shared().router_address();
    for level in ["local", "majority"] {
        let concern = doc! { "level": level };
        assert_eq!(read(&concern, 10).unwrap(), [6, 5, 4, 3, 1], "{level}");
    }
    let after = doc! { "level": "local", "afterClusterTime": bson::Timestamp { time: 1, increment: 0 } };
    for concern in [&after, &doc! { "level": "linearizable" }, &doc! { "level": "snapshot" }] {
        assert_eq!(read(concern, 2).unwrap(), [6, 5, 4, 3, 1], "{concern}");
        match read(concern, 10) {
            Err(testbed::Error::Command(refused)) => assert_eq!(refused.code(), Some(MAX_TIME_EXPIRED), "{concern}"),
            other => panic!("{concern} {other:?}"),
        }
    }
    for address in [&router, &shard.addresses()[0]] {
        assert_eq!(count(address, &after).unwrap_err(), Some(MAX_TIME_EXPIRED));
    }
    undecided.commit().unwrap();
    assert_eq!(read(&after, 10).unwrap(), [6, 5, 4, 3, 2, 1]);
    assert_eq!(count(&router, &after).unwrap().get_i32("n").unwrap(), 6);
}
