//! The stand-in router against real shards: what a client sees must be what `mongos` would show it, and what the shards
//! hold must be what the client was told.
//!
//! Where a real `mongos` is installed the same tests run against that one.

mod administration;
mod change_streams;
mod default_concerns;
mod drivers;
mod fail_command;
mod failures;
mod key_in_id;
mod moving_chunks;
mod reads;
mod targeting;
mod transactions;
mod wire;
mod writes;

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::Collection;
use testbed::Cluster;

/// A collection of the shared cluster, sharded by `k`: below 50 on shard0, the rest on shard1.
fn by_k(database: &str) -> Collection<Document> {
    let cluster = Cluster::shared();
    cluster.shard_by_ranges(&format!("{database}.c"), "k", &[50]).unwrap();
    cluster.client().database(database).collection("c")
}

/// What each shard holds of a collection, read past the router.
async fn on_shards(cluster: &Cluster, database: &str, collection: &str) -> Vec<Vec<Document>> {
    let mut shards = Vec::new();
    for shard in cluster.shards() {
        let client = shard.direct_client().unwrap();
        let found = client
            .database(database)
            .collection::<Document>(collection)
            .find(doc! {})
            .await
            .unwrap();
        shards.push(found.try_collect().await.unwrap());
    }
    shards
}

/// The numbers in a field, in the order of the documents.
fn numbers(documents: &[Document], field: &str) -> Vec<i32> {
    documents
        .iter()
        .map(|document| document.get_i32(field).unwrap())
        .collect()
}
