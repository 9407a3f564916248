//! What the end-to-end tests share: a Keyward of its own process in front of a testbed deployment.

#![allow(dead_code, missing_docs, reason = "every test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use bson::{Bson, Document, doc};
use mongodb::Client;
use mongodb::options::ClientOptions;

/// A running Keyward; killed when dropped.
pub struct Keyward {
    child: Child,
    pub address: String,
    pub admin: String,
    errors: Option<std::thread::JoinHandle<String>>,
    _config: tempfile::NamedTempFile,
}

/// A Keyward that refused to start.
pub struct Refused {
    pub exit: Option<i32>,
    pub errors: String,
}

impl Keyward {
    /// Starts a Keyward in front of `upstream` that enforces `constraints` (YAML, a list).
    pub fn start(upstream: &str, constraints: &str) -> Keyward {
        Self::try_start(upstream, "10s", constraints).unwrap_or_else(|refused| panic!("{}", refused.errors))
    }

    pub fn start_with_lease(upstream: &str, lease: &str, constraints: &str) -> Keyward {
        Self::try_start(upstream, lease, constraints).unwrap_or_else(|refused| panic!("{}", refused.errors))
    }

    /// With the shortest lease, and sweeping as often as possible.
    pub fn start_sweeping(upstream: &str, constraints: &str) -> Keyward {
        let lease = "1s\nsweep: 1s";
        Self::try_start(upstream, lease, constraints).unwrap_or_else(|refused| panic!("{}", refused.errors))
    }

    pub fn try_start(upstream: &str, lease: &str, constraints: &str) -> Result<Keyward, Refused> {
        Self::try_start_with(upstream, lease, constraints, &[])
    }

    /// The same, with these variables in its environment.
    pub fn try_start_with(
        upstream: &str,
        lease: &str,
        constraints: &str,
        environment: &[(&str, &str)],
    ) -> Result<Keyward, Refused> {
        let mut config = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        let text = format!(
            "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nupstream: {upstream}\nlease: {lease}\nlog: {{ level: \
             'info,keyward=info' }}\nconstraints:\n{constraints}"
        );
        config.write_all(text.as_bytes()).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_keyward"))
            .args(["run", "--config"])
            .arg(config.path())
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let errors = child.stderr.take().unwrap();
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                // Shown by a failing test only; what goes as it should would hide what failed.
                if !line.contains("  INFO ") {
                    println!("keyward: {line}");
                }
                text.push_str(&line);
                text.push('\n');
            }
            text
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        if line.is_empty() {
            let exit = child.wait().unwrap().code();
            return Err(Refused {
                exit,
                errors: errors.join().unwrap(),
            });
        }
        let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
        Ok(Keyward {
            child,
            address: ready["listen"].as_str().unwrap().to_owned(),
            admin: ready["admin"].as_str().unwrap().to_owned(),
            errors: Some(errors),
            _config: config,
        })
    }

    pub fn uri(&self) -> String {
        format!("mongodb://{}/", self.address)
    }

    pub async fn client(&self) -> Client {
        Client::with_uri_str(self.uri()).await.unwrap()
    }

    /// A client that never sends a write twice.
    pub async fn client_without_retries(&self) -> Client {
        let mut options = ClientOptions::parse(self.uri()).await.unwrap();
        options.retry_writes = Some(false);
        Client::with_options(options).unwrap()
    }

    /// Its metrics, as Prometheus reads them.
    pub fn metrics(&self) -> String {
        metrics_at(&self.admin).unwrap()
    }

    /// Kills it as `kill -9` does.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops it where it stands (`SIGSTOP`), until [`Keyward::wake`].
    pub fn freeze(&self) {
        self.signal(nix::sys::signal::Signal::SIGSTOP);
    }

    /// Lets it go on.
    pub fn wake(&self) {
        self.signal(nix::sys::signal::Signal::SIGCONT);
    }

    fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().try_into().unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    /// Tells it to stop, and waits until it has; gives its exit code.
    pub fn terminate(&mut self) -> Option<i32> {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        self.child.wait().unwrap().code()
    }

    /// All that it has logged; it must have ended.
    pub fn log(&mut self) -> String {
        self.errors.take().unwrap().join().unwrap()
    }
}

impl Drop for Keyward {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The metrics of the Keyward with this admin address; an error if it doesn't answer.
pub fn metrics_at(admin: &str) -> std::io::Result<String> {
    let mut socket = std::net::TcpStream::connect(admin)?;
    socket.set_read_timeout(Some(std::time::Duration::from_secs(10)))?;
    write!(
        socket,
        "GET /metrics HTTP/1.1\r\nhost: keyward\r\nconnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut socket, &mut answer)?;
    Ok(answer)
}

/// Runs a command and gives its reply, also where the server says `ok: 0`.
pub async fn run(client: &Client, database: &str, command: Document) -> Document {
    match client.database(database).run_command(command).await {
        Ok(reply) => reply,
        Err(error) => match error.server_response() {
            Some(reply) => reply.try_into().unwrap(),
            None => panic!("{error}"),
        },
    }
}

/// The reply without what differs between any two: times and election ids.
pub fn comparable(mut reply: Document) -> Document {
    for field in ["$clusterTime", "operationTime", "electionId", "opTime"] {
        reply.remove(field);
    }
    reply
}

/// Has both carry `command` out, and compares what they say.
pub async fn assert_same_answer([native, keyward]: [&Client; 2], database: &str, command: Document) {
    let expected = run(native, database, command.clone()).await;
    let got = run(keyward, database, command.clone()).await;
    assert_eq!(
        in_one_order(got.clone()),
        in_one_order(expected.clone()),
        "{command}\n{got}\n{expected}"
    );
}

/// The shared replica set's server, on which the collection `users` of `database` is new and has a native unique index.
pub async fn natively_unique(database: &str) -> String {
    let native = testbed::ReplicaSet::shared();
    let client = native.client();
    client.database(database).drop().await.unwrap();
    let index = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true };
    run(&client, database, doc! { "createIndexes": "users", "indexes": [index] }).await;
    native.addresses().remove(0)
}

/// The reply's bytes, its own fields in one order: a router and a server don't agree on that.
pub fn in_one_order(reply: Document) -> Vec<u8> {
    let mut fields: Vec<(String, Bson)> = comparable(reply).into_iter().collect();
    fields.sort_by(|(one, _), (other, _)| one.cmp(other));
    fields.into_iter().collect::<Document>().to_vec().unwrap()
}

/// Shards `db.collection` on `key`, with one chunk on each of two shards, split at `at`.
pub fn shard_on_two(cluster: &testbed::Cluster, namespace: &str, key: Document, at: Document) {
    let database = namespace.split('.').next().unwrap();
    cluster.run("admin", doc! { "enableSharding": database }).unwrap();
    cluster
        .run("admin", doc! { "shardCollection": namespace, "key": key })
        .unwrap();
    spread_on_two(cluster, namespace, at);
}

/// Splits a sharded collection at `at` and moves the upper half to another shard.
pub fn spread_on_two(cluster: &testbed::Cluster, namespace: &str, at: Document) {
    let database = namespace.split('.').next().unwrap();
    cluster
        .run("admin", doc! { "split": namespace, "middle": at.clone() })
        .unwrap();
    let owner = primary_shard(cluster, database);
    let other = cluster
        .shards()
        .iter()
        .map(|shard| shard.name())
        .find(|name| *name != owner)
        .unwrap();
    // One shard takes part in one move at a time; Keywards that start in other tests move chunks, too.
    let busy = |error: &testbed::Error| error.to_string().contains("Unable to start new balancer operation");
    let move_chunk = doc! { "moveChunk": namespace, "find": at, "to": other };
    while let Err(error) = cluster.run("admin", move_chunk.clone()) {
        assert!(busy(&error), "{error}");
    }
}

fn primary_shard(cluster: &testbed::Cluster, database: &str) -> String {
    let find = doc! { "find": "databases", "filter": { "_id": database } };
    let reply = cluster.run("config", find).unwrap();
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch[0].as_document().unwrap().get_str("primary").unwrap().to_owned()
}

/// What each shard holds of a collection, asked directly.
pub async fn on_each_shard(shards: &[testbed::ReplicaSet], database: &str, collection: &str) -> Vec<Vec<Document>> {
    use futures_util::TryStreamExt;
    let mut all = Vec::new();
    for shard in shards {
        let collection = shard.client().database(database).collection::<Document>(collection);
        all.push(collection.find(doc! {}).await.unwrap().try_collect().await.unwrap());
    }
    all
}

/// The values that a document holds in `field`, each once, as an index has them; none if the field isn't there.
pub fn index_values(document: &Document, field: &str) -> BTreeSet<String> {
    match document.get(field) {
        Some(Bson::Array(elements)) if elements.is_empty() => [format!("{:?}", Bson::Undefined)].into(),
        Some(Bson::Array(elements)) => elements.iter().map(|element| format!("{element:?}")).collect(),
        Some(value) => [format!("{value:?}")].into(),
        None => BTreeSet::new(),
    }
}

/// Every document holds its keys, and nothing else is reserved: compares `key_of` of all documents with the reserved
/// keys, both read from the shards directly.
pub async fn assert_documents_and_reservations_agree(
    cluster: &testbed::Cluster,
    database: &str,
    collection: &str,
    constraint: &str,
    key_of: impl Fn(&Document) -> Vec<Document>,
) {
    let documents = on_each_shard(cluster.shards(), database, collection).await.concat();
    let proxy = format!("keyward.{collection}.{constraint}");
    let reservations = on_each_shard(cluster.shards(), database, &proxy).await.concat();
    let reserved = |document: &Document| {
        let key = document.get_document("_id").unwrap().get_document("k").unwrap().clone();
        format!("{key} of {}", document.get("owner").unwrap())
    };
    let held = |document: &Document| {
        let id = document.get("_id").unwrap_or(&Bson::Null).clone();
        key_of(document)
            .into_iter()
            .map(move |key| format!("{key} of {id}"))
            .collect::<Vec<_>>()
    };
    let mut held: Vec<String> = documents.iter().flat_map(held).collect();
    let mut reserved: Vec<String> = reservations.iter().map(reserved).collect();
    held.sort();
    reserved.sort();
    assert_eq!(
        held, reserved,
        "documents and reservations of {database}.{collection} differ"
    );
}
