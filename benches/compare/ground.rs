//! What the scenarios run on: a cluster of two shards, a replica set, Keywards in front of both, and HAProxy if there is one.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use bson::{Document, doc};
use testbed::{Cluster, ReplicaSet};

use testkit::Keyward;
use testkit::wire::Connection;

pub const DATABASE: &str = "bench";

pub struct Ground {
    pub router: String,
    pub keyward: String,
    /// In front of the router, too.
    pub haproxy: Option<String>,
    pub replica_set: String,
    /// In front of the replica set, where strict mode is the default.
    pub keyward_on_replica_set: String,
    _keywards: [Keyward; 2],
    _haproxy: Option<Running>,
}

struct Running {
    child: Child,
    _config: tempfile::NamedTempFile,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ground {
    pub fn prepare() -> Ground {
        let cluster = Cluster::shared();
        let replica_set = ReplicaSet::shared();
        let router = cluster.router_address();
        cluster.run("admin", doc! { "enableSharding": DATABASE }).unwrap();
        for collection in ["plain", "byhand", "protected", "strict"] {
            shard_on(cluster, collection, doc! { "_id": "hashed" });
        }
        // The manual's proxy collection: its _id is the value that is to be unique.
        shard_on(cluster, "byhand_email", doc! { "_id": "hashed" });
        let on_shards = format!(
            "  - {{ collection: {DATABASE}.protected, key: {{ email: 1 }} }}\n  - {{ collection: {DATABASE}.strict, key: {{ \
             email: 1 }}, strategy: transaction }}\n"
        );
        let alone = format!("  - {{ collection: {DATABASE}.protected, key: {{ email: 1 }} }}\n");
        let native = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true };
        let indexes = doc! { "createIndexes": "native", "indexes": [native], "$db": DATABASE };
        Connection::greeted(&replica_set.addresses()[0]).must_raw(&indexes);
        let keywards = [
            Keyward::quiet(&cluster.uri(), &on_shards),
            Keyward::quiet(&replica_set.uri(), &alone),
        ];
        let (haproxy, running) = haproxy(&router).unzip();
        Ground {
            router,
            keyward: keywards[0].address.clone(),
            haproxy,
            replica_set: replica_set.addresses()[0].clone(),
            keyward_on_replica_set: keywards[1].address.clone(),
            _keywards: keywards,
            _haproxy: running,
        }
    }
}

pub fn shard_on(cluster: &Cluster, collection: &str, key: Document) {
    let namespace = format!("{DATABASE}.{collection}");
    cluster
        .run("admin", doc! { "shardCollection": namespace, "key": key })
        .unwrap();
}

/// HAProxy in TCP mode on a port that was free a moment ago; none if it isn't installed.
fn haproxy(target: &str) -> Option<(String, Running)> {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let mut config = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\nlisten mongo\n  bind \
         {address}\n  server router {target}\n"
    );
    config.write_all(text.as_bytes()).unwrap();
    let child = Command::new("haproxy")
        .args(["-db", "-q", "-f"])
        .arg(config.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(child) = child else {
        eprintln!("haproxy isn't installed: it is left out");
        return None;
    };
    while std::net::TcpStream::connect(&address).is_err() {
        std::thread::yield_now();
    }
    Some((address, Running { child, _config: config }))
}
