//! A failover undoes what no majority has. If a backfill took a deletion for final that is undone later, the document would come back
//! without its reservation.

use std::sync::Arc;
use std::time::Duration;

use bson::{Document, doc};
use keyward::constraint::{Constraint, IndexSpec};
use keyward::metrics::Metrics;
use keyward::namespace::Namespace;
use keyward::proxy_collection::{AllDocuments, ProxyCollection};
use mongodb::options::{Acknowledgment, WriteConcern};
use testbed::fail_point::FailPoint;
use testbed::{Cluster, ReplicaSet};

use crate::own_reads::recorder::Recorder;
use testkit::{Keyward, shard_on_two};

const DATABASE: &str = "undone";

fn store(client: &mongodb::Client) -> ProxyCollection {
    let spec = IndexSpec {
        key: doc! { "email": 1 },
        ..Default::default()
    };
    let constraint = Arc::new(Constraint::new(Namespace::new(DATABASE, "users"), spec).unwrap());
    let metrics = Metrics::new(std::slice::from_ref(&constraint)).constraint(&constraint);
    ProxyCollection::new(client, constraint, metrics, Duration::from_secs(60))
}

async fn count(mut all: AllDocuments<'_>) -> usize {
    let mut count = 0;
    while let Some((documents, _)) = all.next().await.unwrap() {
        count += documents.len();
    }
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn a_walk_by_majority_shows_a_document_until_a_majority_has_its_deletion() {
    let set = ReplicaSet::start(2).unwrap();
    set.wait_until_whole().unwrap();
    let client = set.client();
    let users = client.database(DATABASE).collection::<Document>("users");
    users.insert_many([doc! { "_id": 1 }, doc! { "_id": 2 }]).await.unwrap();
    let proxy = store(&client);
    let moment = proxy.confirmed_moment(Duration::from_secs(30)).await.unwrap();
    let primary = set.primary().unwrap().address();
    let secondary = set.addresses().into_iter().find(|address| *address != primary).unwrap();
    let _behind = FailPoint::turn_on(&secondary, "stopReplProducer", "alwaysOn".into(), doc! {}).unwrap();
    let alone = WriteConcern::builder().w(Acknowledgment::Nodes(1)).build();
    users.delete_one(doc! { "_id": 1 }).write_concern(alone).await.unwrap();
    let all = || proxy.all_documents(None, 100, &[]);
    assert_eq!(count(all()).await, 1);
    assert_eq!(count(all().by_majority(moment)).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_reads_by_majority() {
    let cluster = Cluster::shared();
    let database = "undone_on_shards";
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let users = cluster.client().database(database).collection::<Document>("users");
    users
        .insert_many([("a", 1), ("z", 2)].map(|(region, id)| doc! { "_id": id, "region": region, "email": id }))
        .await
        .unwrap();
    let recorder = Recorder::start(cluster.router_address());
    let constraints = format!("  - {{ collection: {namespace}, key: {{ email: 1 }} }}\n");
    Keyward::start(&recorder.uri(), &constraints).stop();
    let commands = recorder.commands();
    let of_users = |command: &&Document| command.get_str("find").ok() == Some("users");
    let is_confirming = |command: &Document| {
        let concern = command.get_document("readConcern").unwrap();
        concern.get_str("level").ok() == Some("linearizable") && !command.contains_key("filter")
    };
    let finds: Vec<&Document> = commands.iter().filter(of_users).collect();
    let confirmed = finds.iter().position(|find| is_confirming(find)).unwrap();
    let walks: Vec<usize> = (0..finds.len()).filter(|at| finds[*at].contains_key("sort")).collect();
    assert!(!walks.is_empty(), "{finds:?}");
    for walk in walks {
        let concern = finds[walk].get_document("readConcern").unwrap();
        assert_eq!(concern.get_str("level").ok(), Some("majority"), "{concern}");
        assert!(concern.get_timestamp("afterClusterTime").is_ok(), "{concern}");
        assert!(confirmed < walk, "{finds:?}");
    }
}
