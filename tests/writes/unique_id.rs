//! `_id` as a constraint: unique across the shards of a collection that isn't sharded on it, with the answers that the
//! index which every unsharded collection has gives.

#![expect(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

use bson::{Binary, Bson, Document, Timestamp, doc, rawdoc, spec::BinarySubtype};
use keyward::constraint::{Constraint, IndexSpec};
use keyward::namespace::Namespace;
use keyward::raw::Doc;
use keyward::reservation::{Token, WriteId};
use testbed::{Cluster, ReplicaSet};
use testkit::wire::send;
use testkit::{Keyward, assert_documents_and_reservations_agree, assert_same_answer, comparable, run, shard_on_two};

const ID: &str = "  - { collection: DB.things, key: { _id: 1 } }\n";

fn things(database: &str) -> &'static Cluster {
    let cluster = Cluster::shared();
    let namespace = format!("{database}.things");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    cluster
}

fn insert(documents: Vec<Document>, ordered: bool) -> Document {
    doc! { "insert": "things", "documents": documents, "ordered": ordered }
}

fn update(statements: Vec<Document>, ordered: bool) -> Document {
    doc! { "update": "things", "updates": statements, "ordered": ordered }
}

fn upsert(q: Document, u: Document) -> Document {
    update(vec![doc! { "q": q, "u": u, "upsert": true }], true)
}

fn find_and_modify(query: Document, options: Document) -> Document {
    let mut command = doc! { "findAndModify": "things", "query": query };
    command.extend(options);
    command
}

fn delete(q: Document, limit: i32) -> Document {
    doc! { "delete": "things", "deletes": [{ "q": q, "limit": limit }] }
}

fn thing(id: impl Into<Bson>, region: &str) -> Document {
    doc! { "_id": id, "region": region, "n": 1 }
}

async fn assert_agreement(database: &str) {
    let key = |document: &Document| vec![doc! { "_id": document.get("_id").unwrap() }];
    assert_documents_and_reservations_agree(Cluster::shared(), database, "things", "_id_", key).await;
}

#[tokio::test]
async fn every_write_gets_the_answer_of_the_index_on_id() {
    let database = "id_writes";
    let cluster = things(database);
    let keyward = Keyward::start(&cluster.uri(), &ID.replace("DB", database));
    let (client, native) = (keyward.client_without_retries().await, ReplicaSet::shared().client());
    let one = || thing(1, "a");
    let commands = vec![
        insert(vec![one()], true),
        insert(vec![thing(1, "z")], true),
        insert(vec![one()], true),
        insert(vec![thing(1.0, "z")], true),
        insert(vec![thing(2, "z"), thing(2, "a"), thing(3, "a")], true),
        insert(vec![thing(2, "a"), thing(3, "a"), thing(3, "z"), thing(4, "z")], false),
        insert(vec![thing(doc! { "a": 1 }, "a"), thing(doc! { "a": 1.0 }, "z")], true),
        upsert(doc! { "_id": 1, "region": "z" }, doc! { "$set": { "n": 2 } }),
        upsert(doc! { "_id": 1, "region": "a" }, doc! { "$set": { "n": 2 } }),
        upsert(doc! { "_id": 5, "region": "z" }, doc! { "$set": { "n": 2 } }),
        upsert(doc! { "_id": 5, "region": "a" }, doc! { "region": "a", "n": 3 }),
        upsert(doc! { "region": "z", "n": 77 }, doc! { "$setOnInsert": { "_id": 6 } }),
        upsert(doc! { "region": "a", "n": 77 }, doc! { "$setOnInsert": { "_id": 6 } }),
        upsert(doc! { "region": "a", "n": 78 }, doc! { "_id": 6, "region": "a" }),
        update(
            vec![
                doc! { "q": { "_id": 6, "region": "a" }, "u": { "$set": { "n": 1 } }, "upsert": true },
                doc! { "q": { "_id": 7, "region": "a" }, "u": { "$set": { "n": 1 } }, "upsert": true },
                doc! { "q": { "_id": 7, "region": "z" }, "u": { "$set": { "n": 1 } }, "upsert": true },
            ],
            false,
        ),
        // An `_id` never changes.
        update(
            vec![doc! { "q": { "_id": 1, "region": "a" }, "u": { "$set": { "_id": 9 } } }],
            true,
        ),
        update(
            vec![doc! { "q": { "_id": 1, "region": "a" }, "u": { "_id": 2, "region": "a" } }],
            true,
        ),
        update(
            vec![doc! { "q": { "_id": 1, "region": "a" }, "u": { "region": "a", "n": 9 } }],
            true,
        ),
        update(
            vec![doc! { "q": { "n": 1 }, "u": { "$inc": { "n": 1 } }, "multi": true }],
            true,
        ),
        find_and_modify(
            doc! { "_id": 2, "region": "a" },
            doc! { "update": { "$set": { "n": 5 } }, "upsert": true, "new": true },
        ),
        find_and_modify(
            doc! { "_id": 2, "region": "z" },
            doc! { "update": { "region": "z", "n": 5 }, "new": true },
        ),
        find_and_modify(
            doc! { "_id": 2, "region": "z" },
            doc! { "update": { "$set": { "_id": 3 } } },
        ),
        find_and_modify(doc! { "_id": 2, "region": "z" }, doc! { "remove": true }),
        insert(vec![thing(2, "a")], true),
        delete(doc! { "_id": 2, "region": "a" }, 1),
        insert(vec![thing(2, "z")], true),
        delete(doc! {}, 0),
        insert(vec![thing(1, "z"), thing(5, "a")], true),
    ];
    for command in commands {
        assert_same_answer([&native, &client], database, command).await;
    }
    // Without an `_id` the server's own is unique by itself.
    let reply = run(
        &client,
        database,
        insert(vec![doc! { "region": "a" }, doc! { "region": "z" }], true),
    )
    .await;
    assert_eq!(reply.get_i32("n").unwrap(), 2, "{reply}");
    assert_agreement(database).await;
}

#[tokio::test]
async fn of_several_violations_the_id_is_told_wherever_it_is_configured() {
    let database = "id_first";
    let cluster = things(database);
    let constraints = format!("  - {{ collection: DB.things, key: {{ n: 1 }} }}\n{ID}");
    let keyward = Keyward::start(&cluster.uri(), &constraints.replace("DB", database));
    let (client, native) = (keyward.client_without_retries().await, ReplicaSet::shared().client());
    let index = doc! { "key": { "n": 1 }, "name": "n_1", "unique": true };
    run(
        &native,
        database,
        doc! { "createIndexes": "things", "indexes": [index] },
    )
    .await;
    for command in [
        insert(vec![thing(1, "a")], true),
        insert(vec![thing(1, "z")], true),
        insert(vec![thing(2, "z")], true),
        upsert(doc! { "_id": 1, "region": "z" }, doc! { "$set": { "n": 1 } }),
        upsert(doc! { "_id": 2, "region": "z" }, doc! { "$set": { "n": 1 } }),
    ] {
        let expected = comparable(run(&native, database, command.clone()).await);
        let got = comparable(run(&client, database, command.clone()).await);
        assert_eq!(got, expected, "{command}");
    }
    assert_agreement(database).await;
}

#[tokio::test]
async fn a_retry_takes_effect_once() {
    let database = "id_retries";
    let cluster = things(database);
    let keyward = Keyward::start(&cluster.uri(), &ID.replace("DB", database));
    let again = Keyward::start(&cluster.uri(), &ID.replace("DB", database));
    let native = &ReplicaSet::shared().addresses()[0];
    let in_session = |command: Document| {
        let bytes = rand::random::<[u8; 16]>().to_vec();
        let id = Binary {
            subtype: BinarySubtype::Uuid,
            bytes,
        };
        let mut command = command;
        command.extend(doc! { "lsid": { "id": id }, "txnNumber": 1_i64 });
        command
    };
    for command in [
        insert(vec![thing(1, "a"), thing(2, "z")], true),
        insert(vec![thing(3, "a"), thing(3, "z"), thing(4, "z")], false),
        upsert(doc! { "_id": 5, "region": "z" }, doc! { "$inc": { "n": 1 } }),
        upsert(doc! { "_id": 5, "region": "a" }, doc! { "$inc": { "n": 1 } }),
        find_and_modify(
            doc! { "_id": 6, "region": "a" },
            doc! { "update": { "$inc": { "n": 1 } }, "upsert": true },
        ),
        delete(doc! { "_id": 1, "region": "a" }, 1),
        insert(vec![thing(1, "z")], true),
    ] {
        let command = in_session(command);
        for address in [&keyward.address, &again.address] {
            let mut expected = comparable(send(native, database, command.clone()).unwrap());
            let mut got = comparable(send(address, database, command.clone()).unwrap());
            // They only tell that it was repeated.
            for reply in [&mut expected, &mut got] {
                reply.remove("retriedStmtIds");
                reply.remove("retriedStmtId");
            }
            assert_eq!(got, expected, "{command}");
        }
    }
    assert_agreement(database).await;
}

#[tokio::test]
async fn of_many_who_insert_one_id_on_all_shards_one_succeeds() {
    let database = "id_race";
    let cluster = things(database);
    let keywards = [
        Keyward::start(&cluster.uri(), &ID.replace("DB", database)),
        Keyward::start(&cluster.uri(), &ID.replace("DB", database)),
    ];
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..16 {
        let client = keywards[writer % 2].client().await;
        let region = if writer / 2 % 2 == 0 { "a" } else { "z" };
        tasks.spawn(async move {
            let mut done = 0;
            for id in 0..20 {
                let command = match writer % 3 {
                    0 => upsert(
                        doc! { "_id": id, "region": region },
                        doc! { "$setOnInsert": { "writer": 1 } },
                    ),
                    _ => insert(vec![doc! { "_id": id, "region": region, "writer": 1 }], true),
                };
                let reply = run(&client, database, command).await;
                let is_inserted = reply.contains_key("upserted") || !is_refused(&reply) && writer % 3 != 0;
                done += i32::from(is_inserted);
            }
            done
        });
    }
    let done: i32 = tasks.join_all().await.into_iter().sum();
    assert_eq!(done, 20);
    assert_agreement(database).await;
}

/// Whether it is an error; any but a duplicate fails the test.
fn is_refused(reply: &Document) -> bool {
    let Ok(errors) = reply.get_array("writeErrors") else {
        assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
        return false;
    };
    let error = errors[0].as_document().unwrap();
    assert_eq!(error.get_i32("code").unwrap(), 11000, "{reply}");
    true
}

#[tokio::test]
async fn a_document_that_changes_shards_keeps_its_id() {
    let database = "id_moves";
    let cluster = things(database);
    let keyward = Keyward::start(&cluster.uri(), &ID.replace("DB", database));
    let client = keyward.client().await;
    run(&client, database, insert(vec![thing(1, "a")], true)).await;
    let filter = doc! { "_id": 1, "region": "a" };
    let collection = client.database(database).collection::<Document>("things");
    let moved = collection
        .update_one(filter.clone(), doc! { "$set": { "region": "z" } })
        .await;
    assert_eq!(moved.unwrap().modified_count, 1);
    assert!(is_refused(
        &run(&client, database, insert(vec![thing(1, "a")], true)).await
    ));
    assert!(is_refused(
        &run(&client, database, insert(vec![thing(1, "z")], true)).await
    ));
    let reservations = testkit::on_each_shard(cluster.shards(), database, "keyward.things._id_")
        .await
        .concat();
    assert_eq!(reservations[0].get_document("route").unwrap(), &doc! { "region": "z" });
    assert_agreement(database).await;
}

/// Leaves the reservation of a document `{_id: id, region: "a"}` that never came, its lease over.
async fn abandon(cluster: &Cluster, database: &str, id: i32) {
    let spec = IndexSpec {
        key: doc! { "_id": 1 },
        ..Default::default()
    };
    let constraint = Constraint::new(Namespace::new(database, "things"), spec).unwrap();
    let document = thing(id, "a").to_vec().unwrap();
    let key = constraint.keys(Doc::new(&document).unwrap()).unwrap().remove(0);
    let token = Token {
        write: WriteId(rand::random()),
        position: 0,
        retry_id: None,
    };
    let reservation = doc! {
        "_id": Document::try_from(key.reservation_id()).unwrap(),
        "owner": id,
        "route": { "region": "a" },
        "token": Binary { subtype: BinarySubtype::Generic, bytes: token.to_bytes() },
        "lease": 1_000_i64,
        "at": Timestamp { time: 1, increment: 1 },
    };
    let proxy = cluster
        .client()
        .database(database)
        .collection::<Document>("keyward.things._id_");
    proxy.insert_one(reservation).await.unwrap();
}

#[tokio::test]
async fn a_reservation_without_its_document_is_taken_over_by_another_with_the_same_id() {
    let database = "id_abandoned";
    let cluster = things(database);
    let keyward = Keyward::start_with_lease(&cluster.uri(), "5s", &ID.replace("DB", database));
    let client = keyward.client().await;
    abandon(cluster, database, 1).await;
    // On the other shard, in the very place of the one that never came.
    let reply = run(&client, database, insert(vec![thing(1, "z")], true)).await;
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    assert!(is_refused(
        &run(&client, database, insert(vec![thing(1, "a")], true)).await
    ));
    assert_agreement(database).await;
}

#[tokio::test]
async fn documents_with_one_id_that_are_there_already_are_reported() {
    let database = "id_there";
    let cluster = things(database);
    let there = cluster.client().database(database).collection::<Document>("things");
    let both = ["a", "z"].map(|region| thing(1, region));
    there
        .insert_many(both.into_iter().chain([thing(2, "a"), thing(3, "z")]))
        .await
        .unwrap();
    let constraints = ID.replace("DB", database);
    let Err(refused) = Keyward::try_start(&cluster.uri(), "10s", &constraints) else {
        panic!("it started");
    };
    assert_ne!(refused.exit, Some(0));
    let text = "2 documents have {\"_id\":1}: _id 1, 1";
    assert!(refused.errors.contains(text), "{}", refused.errors);
    assert!(
        refused.errors.contains("1 document of id_there.things violates"),
        "{}",
        refused.errors
    );
    there.delete_one(doc! { "_id": 1, "region": "a" }).await.unwrap();
    let keyward = Keyward::start(&cluster.uri(), &constraints);
    let client = keyward.client().await;
    assert!(is_refused(
        &run(&client, database, insert(vec![thing(3, "a")], true)).await
    ));
    assert_agreement(database).await;
}

#[tokio::test]
async fn it_is_the_servers_own_index_wherever_the_server_says_so() {
    let native = ReplicaSet::shared().client();
    for key in [
        doc! { "_id": 1 },
        doc! { "_id": 1.0 },
        doc! { "_id": 1.9 },
        doc! { "_id": -1_i64 },
        doc! { "_id": 2 },
        doc! { "_id": 1, "a": 1 },
        doc! { "a": 1 },
    ] {
        let index = doc! { "key": key.clone(), "name": "_id_" };
        let reply = run(
            &native,
            "id_names",
            doc! { "createIndexes": "things", "indexes": [index] },
        )
        .await;
        let is_its_own = reply.get_f64("ok").unwrap() == 1.0;
        let spec = IndexSpec {
            key: key.clone(),
            ..Default::default()
        };
        let constraint = Constraint::new(Namespace::new("id_names", "things"), spec).unwrap();
        assert_eq!(constraint.is_on_id(), is_its_own, "{key}: {reply}");
        if is_its_own {
            assert_eq!(constraint.name(), "_id_");
            assert_eq!(constraint.key_pattern().as_bytes(), rawdoc! { "_id": 1 }.as_bytes());
        }
    }
}
