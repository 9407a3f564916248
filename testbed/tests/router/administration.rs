//! Collections, indexes, databases, shards: what administrators and shells ask of a `mongos`.

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::IndexModel;
use mongodb::options::IndexOptions;
use testbed::Cluster;
use testbed::command::Connection;

use super::{by_k, on_shards};

#[tokio::test]
async fn a_unique_index_needs_the_shard_key_first() {
    let collection = by_k("indexed");
    let unique = |keys: Document| {
        IndexModel::builder()
            .keys(keys)
            .options(IndexOptions::builder().unique(true).build())
            .build()
    };
    let refused = collection.create_index(unique(doc! { "email": 1 })).await.unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("(CannotCreateIndex)"), "{text}");
    assert!(
        text.contains("over { email: 1 } with shard key pattern { k: 1 }"),
        "{text}"
    );
    collection
        .create_index(unique(doc! { "k": 1, "email": 1 }))
        .await
        .unwrap();
    collection
        .create_index(IndexModel::builder().keys(doc! { "a": 1 }).build())
        .await
        .unwrap();
    let names = collection.list_index_names().await.unwrap();
    assert_eq!(names, ["_id_", "k_1", "k_1_email_1", "a_1"]);
    collection.drop_index("a_1").await.unwrap();
    assert_eq!(collection.list_index_names().await.unwrap().len(), 3);
    for shard in Cluster::shared().shards() {
        let direct = shard
            .direct_client()
            .unwrap()
            .database("indexed")
            .collection::<Document>("c");
        assert_eq!(direct.list_index_names().await.unwrap().len(), 3);
    }
}

#[tokio::test]
async fn databases_and_collections_come_and_go() {
    let collection = by_k("listed");
    let database = collection.client().database("listed");
    collection
        .insert_many([1, 60].map(|k| doc! { "_id": k, "k": k }))
        .await
        .unwrap();
    database.create_collection("plain").await.unwrap();
    let mut names = database.list_collection_names().await.unwrap();
    names.sort_unstable();
    assert_eq!(names, ["c", "plain"]);
    let databases = collection.client().list_database_names().await.unwrap();
    assert!(
        ["admin", "config", "listed"]
            .iter()
            .all(|name| databases.contains(&(*name).to_owned())),
        "{databases:?}"
    );
    let stats = database.run_command(doc! { "collStats": "c" }).await.unwrap();
    assert_eq!(
        (stats.get_i64("count").unwrap(), stats.get_bool("sharded").unwrap()),
        (2, true)
    );
    collection.drop().await.unwrap();
    assert!(
        on_shards(Cluster::shared(), "listed", "c")
            .await
            .iter()
            .all(Vec::is_empty)
    );
    // Dropped and made anew it is another collection, not sharded: a stale route would be refused by the shards.
    collection.insert_one(doc! { "_id": 1 }).await.unwrap();
    database.drop().await.unwrap();
    assert!(
        !collection
            .client()
            .list_database_names()
            .await
            .unwrap()
            .contains(&"listed".to_owned())
    );
}

#[tokio::test]
async fn a_collection_with_documents_can_be_sharded() {
    let cluster = Cluster::shared();
    let collection = cluster.client().database("grown").collection::<Document>("c");
    collection
        .insert_many((0..100).map(|k| doc! { "_id": k, "k": k }))
        .await
        .unwrap();
    let shard = || cluster.shard_collection("grown.c", doc! { "k": 1 }, true);
    assert!(shard().is_err(), "there is no index yet");
    let unique = IndexOptions::builder().unique(true).build();
    collection
        .create_index(IndexModel::builder().keys(doc! { "k": 1 }).options(unique).build())
        .await
        .unwrap();
    shard().unwrap();
    cluster
        .run("admin", doc! { "split": "grown.c", "find": { "k": 10 } })
        .unwrap();
    cluster.move_chunk("grown.c", doc! { "k": 99 }, "shard1").unwrap();
    cluster.move_chunk("grown.c", doc! { "k": 0 }, "shard0").unwrap();
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 100);
    assert!(
        collection.insert_one(doc! { "_id": 1000, "k": 5 }).await.is_err(),
        "the shard key is unique"
    );
    let changed = doc! { "collMod": "c", "validator": { "v": { "$exists": true } } };
    cluster.run("grown", changed).unwrap();
    for k in [-1, 1000] {
        let refused = collection.insert_one(doc! { "_id": k, "k": k }).await.unwrap_err();
        assert!(refused.to_string().contains("121"), "{refused}");
    }
}

#[test]
fn shards_and_balancer_answer() {
    let mut connection = Connection::open(&Cluster::shared().router_address()).unwrap();
    let shards = connection.run("admin", doc! { "listShards": 1 }).unwrap();
    assert_eq!(shards.get_array("shards").unwrap().len(), 2);
    assert_eq!(
        connection
            .run("admin", doc! { "getShardMap": 1 })
            .unwrap()
            .get_document("map")
            .unwrap()
            .len(),
        3
    );
    let mode = |connection: &mut Connection| {
        connection
            .run("admin", doc! { "balancerStatus": 1 })
            .unwrap()
            .get_str("mode")
            .unwrap()
            .to_owned()
    };
    assert_eq!(mode(&mut connection), "off");
    connection.run("admin", doc! { "balancerStart": 1 }).unwrap();
    assert_eq!(mode(&mut connection), "full");
    connection.run("admin", doc! { "balancerStop": 1 }).unwrap();
    connection.run("admin", doc! { "flushRouterConfig": 1 }).unwrap();
}

#[test]
fn what_drivers_and_shells_ask_is_answered() {
    let mut connection = Connection::open(&Cluster::shared().router_address()).unwrap();
    for command in [
        "ping",
        "buildInfo",
        "serverStatus",
        "connectionStatus",
        "getCmdLineOpts",
        "hostInfo",
        "whatsmyuri",
        "startSession",
        "refreshSessions",
        "getFreeMonitoringStatus",
        "getDefaultRWConcern",
        "listDatabases",
    ] {
        let argument = if command == "refreshSessions" {
            Bson::Array(vec![])
        } else {
            Bson::Int32(1)
        };
        connection.run("admin", doc! { command: argument }).unwrap();
    }
    connection
        .run("admin", doc! { "getParameter": 1, "featureCompatibilityVersion": 1 })
        .unwrap();
    connection.run("admin", doc! { "getLog": "startupWarnings" }).unwrap();
    for unknown in ["atlasVersion", "nonsense"] {
        assert_eq!(
            connection.run("admin", doc! { unknown: 1 }).unwrap_err().code(),
            Some(59)
        );
    }
}

#[tokio::test]
async fn explain_names_the_shards() {
    let collection = by_k("explained");
    collection
        .insert_many([1, 60].map(|k| doc! { "_id": k, "k": k }))
        .await
        .unwrap();
    let database = collection.client().database("explained");
    let stage = async |filter: Document| {
        let explain = doc! { "explain": { "find": "c", "filter": filter }, "verbosity": "executionStats" };
        let explained = database.run_command(explain).await.unwrap();
        let plan = explained
            .get_document("queryPlanner")
            .unwrap()
            .get_document("winningPlan")
            .unwrap();
        plan.get_str("stage").unwrap().to_owned()
    };
    assert_eq!(stage(doc! { "k": 1 }).await, "SINGLE_SHARD");
    assert_eq!(stage(doc! {}).await, "SHARD_MERGE");
}

#[tokio::test]
async fn chunks_can_be_read_from_the_config_database() {
    let collection = by_k("chunked");
    let config = collection.client().database("config");
    let entry = config
        .collection::<Document>("collections")
        .find_one(doc! { "_id": "chunked.c" })
        .await
        .unwrap();
    let uuid = entry.unwrap().get("uuid").unwrap().clone();
    let chunks = config
        .collection::<Document>("chunks")
        .find(doc! { "uuid": uuid })
        .await
        .unwrap();
    assert_eq!(chunks.try_collect::<Vec<_>>().await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_collection_is_resharded_and_its_shard_key_refined() {
    let collection = by_k("resharded");
    let documents = (0..100).map(|k| doc! { "_id": k, "k": k, "n": 100 - k, "more": k % 3 });
    collection.insert_many(documents).await.unwrap();
    let admin = collection.client().database("admin");
    let reshard = doc! { "reshardCollection": "resharded.c", "key": { "n": 1 }, "numInitialChunks": 1 };
    admin.run_command(reshard).await.unwrap();
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 100);
    assert_eq!(collection.count_documents(doc! { "n": 7 }).await.unwrap(), 1);
    let index = IndexModel::builder().keys(doc! { "n": 1, "more": 1 }).build();
    collection.create_index(index).await.unwrap();
    let refine = doc! { "refineCollectionShardKey": "resharded.c", "key": { "n": 1, "more": 1 } };
    admin.run_command(refine).await.unwrap();
    let collections = collection
        .client()
        .database("config")
        .collection::<Document>("collections");
    let entry = collections
        .find_one(doc! { "_id": "resharded.c" })
        .await
        .unwrap()
        .unwrap();
    assert_eq!(entry.get_document("key").unwrap(), &doc! { "n": 1, "more": 1 });
    collection
        .insert_one(doc! { "_id": 100, "n": 7, "more": 9 })
        .await
        .unwrap();
    assert_eq!(collection.count_documents(doc! { "n": 7 }).await.unwrap(), 2);
}
