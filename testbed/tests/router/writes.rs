//! insert, update, delete and findAndModify: which shard, which index, which error.

use bson::{Bson, Document, doc};
use mongodb::error::{Error, ErrorKind};
use mongodb::options::ReturnDocument;
use testbed::Cluster;
use testbed::command::Connection;

use super::{by_k, on_shards};

/// Values of every kind, none equal to another, whose place is easily got wrong.
fn values() -> Vec<Bson> {
    let decimal = |text: &str| Bson::Decimal128(text.parse().unwrap());
    let binary = |subtype, bytes: &[u8]| {
        Bson::Binary(bson::Binary {
            subtype,
            bytes: bytes.to_vec(),
        })
    };
    vec![
        Bson::Null,
        Bson::MinKey,
        Bson::Boolean(true),
        Bson::Boolean(false),
        Bson::Int32(-7),
        Bson::Int64(1 << 40),
        Bson::Double(0.0),
        Bson::Double(3.75),
        Bson::Double(-0.5),
        Bson::Double(1e300),
        Bson::Double(-1e300),
        Bson::Double(f64::NAN),
        Bson::Double(f64::INFINITY),
        Bson::Double(f64::NEG_INFINITY),
        decimal("4.5"),
        decimal("5.5"),
        decimal("-2.5"),
        decimal("1E+40"),
        decimal("1E-40"),
        decimal("9223372036854775807"),
        Bson::String(String::new()),
        Bson::String("a".into()),
        Bson::String("é\0b".into()),
        Bson::Symbol("sym".into()),
        Bson::ObjectId(bson::oid::ObjectId::from_bytes([7; 12])),
        Bson::DateTime(bson::DateTime::from_millis(-5)),
        Bson::Timestamp(bson::Timestamp { time: 5, increment: 6 }),
        binary(bson::spec::BinarySubtype::Generic, b"xyz"),
        binary(bson::spec::BinarySubtype::Uuid, &[9; 16]),
        doc! {}.into(),
        doc! { "a": 1 }.into(),
        doc! { "a": { "b": [1, { "c": 2.5 }] } }.into(),
        doc! { "b": [] }.into(),
        Bson::JavaScriptCode("f()".into()),
        Bson::JavaScriptCodeWithScope(bson::JavaScriptCodeWithScope {
            code: "f()".into(),
            scope: doc! { "x": 1 },
        }),
    ]
}

/// A shard shows only what it owns: a document on the wrong one can't be found.
async fn each_is_found_where_it_was_put(database: &str, key: Document, splits: &[Bson]) {
    let cluster = Cluster::shared();
    let namespace = format!("{database}.c");
    cluster.shard_collection(&namespace, key, false).unwrap();
    for (at, split) in splits.iter().enumerate() {
        cluster.split(&namespace, doc! { "k": split.clone() }).unwrap();
        let shard = cluster.shards()[at % 2].name();
        cluster
            .move_chunk(&namespace, doc! { "k": split.clone() }, shard)
            .unwrap();
    }
    let collection = cluster.client().database(database).collection::<Document>("c");
    let documents = values()
        .into_iter()
        .enumerate()
        .map(|(id, value)| doc! { "_id": id as i32, "k": value });
    collection.insert_many(documents).await.unwrap();
    for (id, value) in values().into_iter().enumerate() {
        // By a range: a query for the key's exact value isn't checked against what the shard owns.
        let found = collection
            .find_one(doc! { "k": { "$gte": value.clone(), "$lte": value.clone() }, "_id": id as i32 })
            .await
            .unwrap();
        assert!(found.is_some(), "{id} {value:?}");
    }
    assert_eq!(
        collection.count_documents(doc! {}).await.unwrap(),
        values().len() as u64
    );
    let shards = on_shards(cluster, database, "c").await;
    assert!(shards.iter().all(|shard| !shard.is_empty()));
}

#[tokio::test]
async fn hashes_are_the_servers() {
    each_is_found_where_it_was_put("hashes", doc! { "k": "hashed" }, &[]).await;
}

#[tokio::test]
async fn the_order_is_the_servers() {
    let splits = [
        Bson::Null,
        Bson::Int32(-1),
        Bson::Double(3.75),
        Bson::Decimal128("5".parse().unwrap()),
        Bson::Double(1e20),
        Bson::String("a".into()),
        doc! { "a": 1 }.into(),
        doc! { "b": 1 }.into(),
        Bson::Boolean(true),
        Bson::DateTime(bson::DateTime::from_millis(0)),
        Bson::MaxKey,
    ];
    each_is_found_where_it_was_put("order", doc! { "k": 1 }, &splits[..10]).await;
}

fn write_errors(error: Error) -> Vec<(usize, i32)> {
    match *error.kind {
        ErrorKind::InsertMany(failed) => failed
            .write_errors
            .unwrap_or_default()
            .iter()
            .map(|error| (error.index, error.code))
            .collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn errors_keep_the_clients_indexes() {
    let collection = by_k("indexes");
    collection
        .insert_many([doc! { "_id": 1, "k": 1 }, doc! { "_id": 2, "k": 60 }])
        .await
        .unwrap();
    let batch = || {
        [10, 60, 1, 61, 2, 11].map(|k| match k {
            1 => doc! { "_id": 1, "k": 1 },
            2 => doc! { "_id": 2, "k": 60 },
            k => doc! { "_id": k, "k": k },
        })
    };
    let unordered = collection.insert_many(batch()).ordered(false).await.unwrap_err();
    assert_eq!(write_errors(unordered), [(2, 11000), (4, 11000)]);
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 6);
    collection.delete_many(doc! { "_id": { "$gt": 2 } }).await.unwrap();
    let ordered = collection.insert_many(batch()).await.unwrap_err();
    assert_eq!(write_errors(ordered), [(2, 11000)]);
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 4);
}

fn refusal(database: &str, command: Document) -> (i32, String) {
    let reply = Connection::open(&Cluster::shared().router_address())
        .unwrap()
        .run(database, command);
    match reply.unwrap_err() {
        testbed::command::CommandError::Refused { code, message, .. } => (code, message),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn what_cannot_be_targeted_is_refused_as_mongos_does() {
    by_k("refused");
    let update = doc! { "update": "c", "updates": [{ "q": { "a": 1 }, "u": { "$set": { "b": 1 } } }] };
    let (code, message) = refusal("refused", update);
    assert_eq!(code, 72);
    let request = "{ q: { a: 1 }, u: { $set: { b: 1 } }, multi: false, upsert: false }";
    let end = format!("Update request: {request}, shard key pattern: {{ k: 1 }}");
    assert!(message.ends_with(&end), "{message}");
    let delete = doc! { "delete": "c", "deletes": [{ "q": { "a": 1 }, "limit": 1 }] };
    assert_eq!(refusal("refused", delete).0, 61);
    let upsert =
        doc! { "update": "c", "updates": [{ "q": { "_id": 1 }, "u": { "$set": { "b": 1 } }, "upsert": true }] };
    assert_eq!(refusal("refused", upsert).0, 61);
    let modify = doc! { "findAndModify": "c", "query": { "_id": 1 }, "remove": true };
    let expected = "Query for sharded findAndModify must contain the shard key";
    assert_eq!(refusal("refused", modify), (61, expected.to_owned()));
    let array = doc! { "insert": "c", "documents": [{ "_id": 1, "k": [1] }] };
    assert_eq!(refusal("refused", array).0, 61);
    assert_eq!(
        refusal("refused", doc! { "noSuchThing": 1 }),
        (59, "no such command: 'noSuchThing'".to_owned())
    );
}

#[tokio::test]
async fn updates_and_deletes_reach_their_shards() {
    let collection = by_k("reached");
    collection
        .insert_many((0..100).map(|k| doc! { "_id": k, "k": k }))
        .await
        .unwrap();
    let everywhere = collection
        .update_many(doc! {}, doc! { "$set": { "a": 1 } })
        .await
        .unwrap();
    assert_eq!((everywhere.matched_count, everywhere.modified_count), (100, 100));
    for id in [3, 70] {
        let by_id = collection
            .update_one(doc! { "_id": id }, doc! { "$inc": { "a": 1 } })
            .await
            .unwrap();
        assert_eq!((by_id.matched_count, by_id.modified_count), (1, 1));
        let found = collection.find_one(doc! { "_id": id }).await.unwrap().unwrap();
        assert_eq!(found.get_i32("a").unwrap(), 2);
    }
    let upserted = collection
        .update_one(doc! { "k": 200, "_id": 200 }, doc! { "$set": { "a": 5 } })
        .upsert(true);
    assert_eq!(upserted.await.unwrap().upserted_id, Some(Bson::Int32(200)));
    let replaced = collection
        .replace_one(doc! { "_id": 70 }, doc! { "k": 70, "new": true })
        .await
        .unwrap();
    assert_eq!(replaced.modified_count, 1);
    assert_eq!(
        collection.delete_one(doc! { "_id": 200 }).await.unwrap().deleted_count,
        1
    );
    assert_eq!(
        collection
            .delete_many(doc! { "k": { "$gte": 25, "$lt": 75 } })
            .await
            .unwrap()
            .deleted_count,
        50
    );
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 50);
}

#[tokio::test]
async fn an_insert_without_an_id_gets_one() {
    let cluster = Cluster::shared();
    cluster
        .shard_collection("unnamed.c", doc! { "_id": "hashed" }, false)
        .unwrap();
    let documents: Vec<_> = (0..50).map(|n| doc! { "n": n }).collect();
    cluster
        .run("unnamed", doc! { "insert": "c", "documents": documents })
        .unwrap();
    let collection = cluster.client().database("unnamed").collection::<Document>("c");
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 50);
}

/// The statement numbers decide: each shard must remember the number that a statement had in the client's command.
#[tokio::test]
async fn a_retried_batch_takes_effect_once() {
    let collection = by_k("retried");
    let lsid = doc! { "id": bson::Uuid::new() };
    let documents: Vec<_> = [1, 60, 2, 61, 3].iter().map(|k| doc! { "_id": *k, "k": *k }).collect();
    let mut connection = Connection::open(&Cluster::shared().router_address()).unwrap();
    let insert = doc! { "insert": "c", "documents": documents, "lsid": lsid.clone(), "txnNumber": 1_i64 };
    assert_eq!(
        connection.run("retried", insert.clone()).unwrap().get_i32("n").unwrap(),
        5
    );
    let again = connection.run("retried", insert).unwrap();
    assert_eq!(again.get_i32("n").unwrap(), 5);
    let ids: Vec<i32> = again
        .get_array("retriedStmtIds")
        .unwrap()
        .iter()
        .map(|id| id.as_i32().unwrap())
        .collect();
    assert_eq!(ids, [0, 1, 2, 3, 4]);
    let increment = |k: i32| doc! { "q": { "_id": k, "k": k }, "u": { "$inc": { "n": 1 } } };
    let updates: Vec<_> = [60, 1, 61, 2].map(increment).to_vec();
    let update = doc! { "update": "c", "updates": updates, "lsid": lsid, "txnNumber": 2_i64, "ordered": false };
    for _ in 0..3 {
        assert_eq!(
            connection
                .run("retried", update.clone())
                .unwrap()
                .get_i32("nModified")
                .unwrap(),
            4
        );
    }
    assert_eq!(collection.count_documents(doc! { "n": 1 }).await.unwrap(), 4);
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 5);
}

/// What no document can meet, whatever it holds, loses its shard key: no shard is asked, so none answers from its memory.
#[tokio::test]
async fn a_query_that_is_false_by_itself_asks_no_shard() {
    let database = "false_by_itself";
    let collection = by_k(database);
    collection.insert_one(doc! { "_id": 1, "k": 1 }).await.unwrap();
    let mut connection = Connection::open(&Cluster::shared().router_address()).unwrap();
    let lsid = doc! { "id": bson::Uuid::new() };
    let falsehoods = [
        (doc! { "$nor": [{}] }, false),
        (doc! { "$expr": { "$and": [false] } }, false),
        (doc! { "n": { "$in": [] } }, false),
        (doc! { "$expr": { "$eq": [{ "$type": "$_id" }, "missing"] } }, true),
    ];
    let increment = doc! { "$inc": { "n": 1 } };
    let update = |query: Document| doc! { "update": "c", "updates": [{ "q": query, "u": increment.clone() }] };
    let modify = |query: Document| doc! { "findAndModify": "c", "query": query, "update": increment.clone() };
    let mut run = |mut command: Document, number: i64| {
        command.extend(doc! { "lsid": lsid.clone(), "txnNumber": number });
        connection.run(database, command).unwrap()
    };
    let place = doc! { "_id": 1, "k": 1 };
    assert_eq!(run(update(place.clone()), 1).get_i32("n").unwrap(), 1);
    for (falsehood, is_asked) in &falsehoods {
        let mut query = place.clone();
        query.extend(falsehood.clone());
        let reply = run(update(query), 1);
        assert_eq!(
            reply.get_i32("n").unwrap(),
            i32::from(*is_asked),
            "{falsehood}: {reply}"
        );
        assert_eq!(reply.contains_key("retriedStmtIds"), *is_asked, "{falsehood}: {reply}");
    }
    assert!(run(modify(place.clone()), 2).get_document("value").is_ok());
    for (falsehood, is_asked) in &falsehoods {
        let mut query = place.clone();
        query.extend(falsehood.clone());
        let reply = run(modify(query), 2);
        assert_eq!(reply.get_document("value").is_ok(), *is_asked, "{falsehood}: {reply}");
    }
    assert_eq!(collection.count_documents(doc! { "n": 2 }).await.unwrap(), 1);
}

/// The shard that a document has moved to remembers, too, what was done to it.
#[tokio::test]
async fn a_retry_after_a_move_counts_once() {
    let cluster = Cluster::shared();
    let collection = by_k("retried_after_a_move");
    collection.insert_one(doc! { "_id": 1, "k": 1 }).await.unwrap();
    let mut connection = Connection::open(&cluster.router_address()).unwrap();
    let increment = doc! { "q": { "_id": 1 }, "u": { "$inc": { "n": 1 } } };
    let lsid = doc! { "id": bson::Uuid::new() };
    let update = doc! { "update": "c", "updates": [increment], "lsid": lsid, "txnNumber": 1_i64 };
    for shard in cluster.shards().iter().chain(cluster.shards()) {
        let reply = connection.run("retried_after_a_move", update.clone()).unwrap();
        assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
        assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{reply}");
        cluster
            .move_chunk("retried_after_a_move.c", doc! { "k": 1 }, shard.name())
            .unwrap();
    }
    assert_eq!(collection.count_documents(doc! { "n": 1 }).await.unwrap(), 1);
}

#[tokio::test]
async fn a_new_shard_key_moves_the_document() {
    let cluster = Cluster::shared();
    let collection = by_k("moved");
    collection
        .insert_one(doc! { "_id": 1, "k": 1, "v": "x" })
        .await
        .unwrap();
    let moved = collection
        .update_one(doc! { "_id": 1, "k": 1 }, doc! { "$set": { "k": 70 } })
        .await
        .unwrap();
    assert_eq!((moved.matched_count, moved.modified_count), (1, 1));
    let shards = on_shards(cluster, "moved", "c").await;
    assert_eq!(shards, [vec![], vec![doc! { "_id": 1, "k": 70, "v": "x" }]]);

    let back = collection.find_one_and_update(doc! { "_id": 1, "k": 70 }, doc! { "$set": { "k": 2 } });
    let back = back.return_document(ReturnDocument::After).await.unwrap();
    assert_eq!(back, Some(doc! { "_id": 1, "k": 2, "v": "x" }));
    assert_eq!(on_shards(cluster, "moved", "c").await[1], Vec::<Document>::new());

    let mut session = collection.client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let change = collection.update_one(doc! { "_id": 1, "k": 2 }, doc! { "$set": { "k": 80 } });
    assert_eq!(change.session(&mut session).await.unwrap().modified_count, 1);
    session.commit_transaction().await.unwrap();
    assert_eq!(on_shards(cluster, "moved", "c").await[0], Vec::<Document>::new());

    let upsert = collection
        .replace_one(doc! { "_id": 5, "k": 5 }, doc! { "k": 90 })
        .upsert(true)
        .await
        .unwrap();
    assert_eq!(upsert.upserted_id, Some(Bson::Int32(5)));
    assert_eq!(
        collection.find_one(doc! { "_id": 5 }).await.unwrap(),
        Some(doc! { "_id": 5, "k": 90 })
    );
}

#[tokio::test]
async fn a_large_batch_goes_through() {
    let cluster = Cluster::shared();
    cluster
        .shard_collection("large.c", doc! { "_id": "hashed" }, false)
        .unwrap();
    let collection = cluster.client().database("large").collection::<Document>("c");
    let documents: Vec<_> = (0..40_000)
        .map(|id| doc! { "_id": id, "filler": "x".repeat(1000) })
        .collect();
    collection.insert_many(&documents).ordered(false).await.unwrap();
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 40_000);
}
