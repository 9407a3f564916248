//! A throwaway cluster does what a cluster does, and leaves nothing behind.

use std::time::Instant;

use testbed::Cluster;

#[test]
fn a_cluster_starts() {
    let start = Instant::now();
    let cluster = Cluster::start().unwrap();
    eprintln!("{:?} {}", start.elapsed(), cluster.uri());
    let shards = cluster
        .config_server()
        .run("config", bson::doc! {"find": "shards"})
        .unwrap();
    eprintln!("{shards}");
}
