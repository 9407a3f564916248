//! What the scenarios run on: a cluster of two shards, a replica set, Keywards in front of both, and HAProxy if there is one.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use bson::{Document, doc};
use testbed::{Cluster, ReplicaSet};

use crate::connection::Connection;

pub const DATABASE: &str = "bench";

pub struct Ground {
    pub router: String,
    pub keyward: String,
    /// In front of the router, too.
    pub haproxy: Option<String>,
    pub replica_set: String,
    /// In front of the replica set, where strict mode is the default.
    pub keyward_on_replica_set: String,
    _children: Vec<Running>,
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
            shard(cluster, collection, doc! { "_id": "hashed" });
        }
        // The manual's proxy collection: its _id is the value that is to be unique.
        shard(cluster, "byhand_email", doc! { "_id": "hashed" });
        let on_shards = format!(
            "  - {{ collection: {DATABASE}.protected, key: {{ email: 1 }} }}\n  - {{ collection: {DATABASE}.strict, key: {{ \
             email: 1 }}, strategy: transaction }}\n"
        );
        let alone = format!("  - {{ collection: {DATABASE}.protected, key: {{ email: 1 }} }}\n");
        let native = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true };
        let indexes = doc! { "createIndexes": "native", "indexes": [native], "$db": DATABASE };
        Connection::open(&replica_set.addresses()[0]).must(&indexes);
        let mut children = Vec::new();
        let (on_shards, running) = keyward(&cluster.uri(), &on_shards);
        children.push(running);
        let (on_replica_set, running) = keyward(&replica_set.uri(), &alone);
        children.push(running);
        let haproxy = haproxy(&router).map(|(address, running)| {
            children.push(running);
            address
        });
        Ground {
            router,
            keyward: on_shards,
            haproxy,
            replica_set: replica_set.addresses()[0].clone(),
            keyward_on_replica_set: on_replica_set,
            _children: children,
        }
    }
}

fn shard(cluster: &Cluster, collection: &str, key: Document) {
    let namespace = format!("{DATABASE}.{collection}");
    cluster
        .run("admin", doc! { "shardCollection": namespace, "key": key })
        .unwrap();
}

/// A Keyward of its own process; its address.
fn keyward(upstream: &str, constraints: &str) -> (String, Running) {
    let mut config = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let text = format!("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nupstream: {upstream}\nconstraints:\n{constraints}");
    config.write_all(text.as_bytes()).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_keyward"))
        .args(["run", "--config"])
        .arg(config.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let ready: serde_json::Value = serde_json::from_str(&line).expect("a Keyward that starts");
    let address = ready["listen"].as_str().unwrap().to_owned();
    (address, Running { child, _config: config })
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
