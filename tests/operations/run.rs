//! `keyward run` as an operator meets it: the process, its log, its admin pages, its signals and its exit codes.

#![expect(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Child, ChildStderr, Command, Stdio};

use bson::doc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use testbed::process::Process;
use testbed::{Cluster, ReplicaSet};

/// For how long a log may say nothing while a test waits for a line of it; milliseconds.
const PATIENCE: u16 = 60_000;

/// A running `keyward`, which logs JSON; killed when it is dropped.
struct LoggingKeyward {
    process: Child,
    /// Until somebody else reads it.
    log: Option<BufReader<ChildStderr>>,
    _folder: TempDir,
}

impl LoggingKeyward {
    /// Starts `keyward run` with `settings`, on free ports unless they say otherwise.
    fn run(settings: &str) -> LoggingKeyward {
        Self::run_logging(settings, "info")
    }

    fn run_logging(settings: &str, level: &str) -> LoggingKeyward {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keyward.yaml");
        let or_free = |setting: &str| match settings.contains(&format!("{setting}:")) {
            true => String::new(),
            false => format!("{setting}: 127.0.0.1:0\n"),
        };
        let text = format!(
            "{}{}log: {{ format: json, level: {level} }}\n{settings}",
            or_free("listen"),
            or_free("admin")
        );
        std::fs::write(&file, text).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_keyward"))
            .args(["run", "--config"])
            .arg(file)
            .env_remove("KEYWARD_UPSTREAM")
            .env_remove("KEYWARD_LOG")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Some(BufReader::new(process.stderr.take().unwrap()));
        LoggingKeyward {
            process,
            log,
            _folder: folder,
        }
    }

    /// Reads the log up to the event `message`.
    fn logged(&mut self, message: &str) -> Value {
        let mut seen = String::new();
        loop {
            let log = self.log.as_mut().unwrap();
            let mut waiting = [PollFd::new(log.get_ref().as_fd(), PollFlags::POLLIN)];
            let is_there = !log.buffer().is_empty() || poll(&mut waiting, PollTimeout::from(PATIENCE)).unwrap() > 0;
            assert!(is_there, "no {message:?}, and nothing for a minute, after {seen}");
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "no {message:?} in {seen}");
            let event: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            if event["message"] == message {
                return event;
            }
            seen.push_str(&line);
        }
    }

    fn send(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.process.id()).unwrap()), signal).unwrap();
    }

    /// Waits for the end; the exit code and the rest of the log.
    fn ended(mut self) -> (i32, String) {
        let mut rest = String::new();
        self.log.as_mut().unwrap().read_to_string(&mut rest).unwrap();
        (self.process.wait().unwrap().code().unwrap(), rest)
    }
}

impl Drop for LoggingKeyward {
    fn drop(&mut self) {
        // It may have ended already, as most tests want it to.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The whole answer to `GET page`.
fn get(address: &Value, page: &str) -> String {
    let mut socket = TcpStream::connect(address.as_str().unwrap()).unwrap();
    write!(
        socket,
        "GET {page} HTTP/1.1\r\nhost: keyward\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn serves_until_it_is_told_to_stop() {
    let uri = ReplicaSet::shared().uri();
    let mut keyward = LoggingKeyward::run(&format!(
        "upstream: {uri}\nconstraints:\n  - {{ collection: run.users, key: {{ email: 1 }} }}\n"
    ));
    let admin = keyward.logged("starting")["admin"].clone();
    let address = keyward.logged("ready")["listen"].clone();
    assert!(get(&admin, "/readyz").ends_with("\r\n\r\nready\n"));
    assert!(
        get(&admin, "/metrics").contains("keyward_constraint_duplicates_total{constraint=\"run.users.email_1\"} 0\n")
    );
    assert!(get(&admin, "/metrics").contains("keyward_constraint_ready{constraint=\"run.users.email_1\"} 1\n"));
    let ping = testbed::command::run(address.as_str().unwrap(), "admin", doc! { "ping": 1 }).unwrap();
    assert!(ping.contains_key("ok"), "{ping}");
    keyward.send(Signal::SIGTERM);
    assert_eq!(keyward.ended().0, 0);
}

#[test]
fn waits_for_a_deployment_that_does_not_answer() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut keyward = LoggingKeyward::run(&format!(
        "upstream: mongodb://u:s3cret@{nobody}/?serverSelectionTimeoutMS=200\nconstraints: []\n"
    ));
    let admin = keyward.logged("starting")["admin"].clone();
    keyward.logged("the deployment does not answer");
    let answer = get(&admin, "/readyz");
    assert!(
        answer.starts_with("HTTP/1.1 503 ") && answer.contains("\nupstream: "),
        "{answer}"
    );
    assert!(!answer.contains("s3cret"), "{answer}");
    assert!(get(&admin, "/livez").starts_with("HTTP/1.1 200 "));
    keyward.send(Signal::SIGINT);
    let (code, log) = keyward.ended();
    assert_eq!(code, 0);
    assert!(!log.contains("s3cret"), "{log}");
}

/// It has neither transactions nor retryable writes: every write would be refused, or every duplicate in doubt.
#[test]
fn a_server_by_itself_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let mongod = testbed::fetch::mongod().unwrap();
    let arguments = vec![
        "--bind_ip".into(),
        "127.0.0.1".into(),
        "--dbpath".into(),
        folder.path().into(),
    ];
    let server = Process::start("standalone", &mongod, arguments, folder.path(), None).unwrap();
    let keyward = LoggingKeyward::run(&format!(
        "upstream: mongodb://{}\nconstraints:\n  - {{ collection: run.alone, key: {{ email: 1 }} }}\n",
        server.address()
    ));
    let (code, log) = keyward.ended();
    assert_eq!(code, 69, "{log}");
    assert!(log.contains("upstream is a single server"), "{log}");
}

#[test]
fn documents_that_violate_a_constraint_stop_the_start_and_are_named() {
    let replica_set = ReplicaSet::shared();
    let documents = [doc! { "_id": "one", "email": "x" }, doc! { "_id": "two", "email": "x" }];
    let insert = doc! { "insert": "twice", "documents": documents.to_vec() };
    replica_set.run("run", insert).unwrap();
    let keyward = LoggingKeyward::run(&format!(
        "upstream: {}\nconstraints:\n  - {{ collection: run.twice, key: {{ email: 1 }} }}\n",
        replica_set.uri()
    ));
    let (code, log) = keyward.ended();
    assert_eq!(code, 65, "{log}");
    for part in ["2 documents have {\"email\":\"x\"}", "one", "two", "email_1"] {
        assert!(log.contains(part), "{part} in {log}");
    }
}

#[test]
fn a_definition_that_contradicts_the_clusters_stops_the_start() {
    let constraint = |sparse| {
        let uri = ReplicaSet::shared().uri();
        format!("upstream: {uri}\nconstraints:\n  - {{ collection: run.changed, key: {{ a: 1 }}, sparse: {sparse} }}\n")
    };
    let mut first = LoggingKeyward::run(&constraint(false));
    first.logged("ready");
    first.send(Signal::SIGTERM);
    assert_eq!(first.ended().0, 0);
    let (code, log) = LoggingKeyward::run(&constraint(true)).ended();
    assert_eq!(code, 78, "{log}");
}

/// Constraints would hold on it alone.
#[test]
fn a_shard_is_not_taken_for_a_replica_set() {
    let shard = Cluster::shared().shards()[0].uri();
    let keyward = LoggingKeyward::run(&format!(
        "upstream: {shard}\nconstraints:\n  - {{ collection: one_shard.users, key: {{ email: 1 }} }}\n"
    ));
    let (code, log) = keyward.ended();
    assert_eq!(code, 69, "{log}");
    assert!(log.contains("upstream is a shard of a cluster"), "{log}");
}

#[test]
fn a_port_that_is_taken_is_named_with_its_setting() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for setting in ["listen", "admin"] {
        let keyward = LoggingKeyward::run(&format!(
            "{setting}: {address}\nupstream: mongodb://127.0.0.1:1\nconstraints: []\n"
        ));
        let (code, log) = keyward.ended();
        assert_eq!(code, 71, "{log}");
        assert!(
            log.contains(&format!("{setting} ({address}) cannot be listened on")),
            "{log}"
        );
    }
}

#[test]
fn a_wrong_configuration_is_told_and_nothing_is_started() {
    let keyward = LoggingKeyward::run("lease: 1h\nupstream: mongodb://127.0.0.1:1\nconstraints: []\n");
    let (code, log) = keyward.ended();
    assert_eq!(code, 78);
    assert!(log.ends_with("keyward.yaml:4:1: lease: must be 1s to 10m\n"), "{log}");
}

#[test]
fn what_happens_is_counted() {
    let constraints =
        "  - { collection: run.counted, key: { a: 1 } }\n  - { collection: run.counted, key: { b: 1 } }\n";
    let uri = ReplicaSet::shared().uri();
    let mut keyward = LoggingKeyward::run(&format!("upstream: {uri}\nconstraints:\n{constraints}"));
    let admin = keyward.logged("starting")["admin"].clone();
    let address = keyward.logged("ready")["listen"].as_str().unwrap().to_owned();
    let insert = |document| {
        let command = doc! { "insert": "counted", "documents": [document] };
        testbed::command::run(&address, "run", command)
    };
    assert!(insert(doc! { "a": 1, "b": 1 }).is_ok());
    // `a` is free and reserved; `b` is taken, so `a` is given back.
    assert!(insert(doc! { "a": 2, "b": 1 }).is_err());
    // Refused by a statement, by one that takes a transaction, and in a client's own.
    assert!(insert(doc! { "a": 3, "b": 3 }).is_ok());
    let lsid = doc! { "id": bson::Binary { subtype: bson::spec::BinarySubtype::Uuid, bytes: vec![3; 16] } };
    let own = doc! { "lsid": lsid, "txnNumber": 1_i64, "startTransaction": true, "autocommit": false };
    let set = doc! { "update": "counted", "updates": [{ "q": { "a": 3 }, "u": { "$set": { "b": 1 } } }] };
    let increment = doc! { "findAndModify": "counted", "query": { "a": 3 }, "update": { "$inc": { "b": -2 } } };
    let mut within = doc! { "insert": "counted", "documents": [{ "a": 4, "b": 1 }] };
    within.extend(own);
    for command in [set, increment, within] {
        let reply = testbed::command::run(&address, "run", command.clone());
        let is_refused = reply.as_ref().map_or(true, |reply| reply.contains_key("writeErrors"));
        assert!(is_refused, "{command} {reply:?}");
    }
    let refused = doc! { "aggregate": "counted", "pipeline": [{ "$out": "counted" }], "cursor": {} };
    assert!(testbed::command::run(&address, "run", refused).is_err());
    testbed::command::run(&address, "run", doc! { "count": "counted" }).unwrap();
    let metrics = get(&admin, "/metrics");
    for series in [
        "keyward_constraint_reservations_total{constraint=\"run.counted.a_1\"} 3",
        "keyward_constraint_reservations_total{constraint=\"run.counted.b_1\"} 2",
        "keyward_constraint_duplicates_total{constraint=\"run.counted.b_1\"} 4",
        "keyward_constraint_released_total{constraint=\"run.counted.a_1\"} 1",
        "keyward_constraint_in_doubt_total{constraint=\"run.counted.a_1\"} 0",
    ] {
        assert!(metrics.contains(&format!("\n{series}\n")), "{series} in {metrics}");
    }
    let value = |name: &str| {
        let line = metrics
            .lines()
            .find(|line| line.starts_with(&format!("{name} ")))
            .unwrap();
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let opened = value("keyward_client_connections_opened_total");
    assert!(opened >= 1 && value("keyward_client_connections_closed_total") <= opened);
    assert!(value("keyward_client_commands_refused_total") >= 1);
    assert!(value("keyward_client_protected_writes_seconds_count") >= 2);
    assert!(value("keyward_client_commands_forwarded_total") >= 1);
}

#[test]
fn a_privilege_that_keywards_user_lacks_is_named_until_it_is_there() {
    let set = ReplicaSet::builder("lacking")
        .root_user("root", "root")
        .start()
        .unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let root = runtime.block_on(async { set.client() });
    let admin = |command| runtime.block_on(async { root.database("admin").run_command(command).await.unwrap() });
    let resource = doc! { "db": "lacking", "collection": "" };
    let few = [
        "find",
        "insert",
        "update",
        "remove",
        "bypassDocumentValidation",
        "listCollections",
    ];
    let privileges = vec![doc! { "resource": resource.clone(), "actions": few.to_vec() }];
    admin(doc! { "createRole": "keyward", "privileges": privileges, "roles": [] });
    admin(doc! { "createUser": "keyward", "pwd": "s3cret", "roles": ["keyward"] });
    let upstream = set.uri().replacen("root:root@", "keyward:s3cret@", 1);
    let mut keyward = LoggingKeyward::run(&format!(
        "upstream: {upstream}\nconstraints:\n  - {{ collection: lacking.users, key: {{ email: 1 }} }}\n"
    ));
    let pages = keyward.logged("starting")["admin"].clone();
    let lacking = keyward.logged("Keyward's user lacks privileges")["missing"].to_string();
    for part in [
        "createCollection, createIndex",
        "lacking",
        "keywards",
        "killAnySession",
        "inprog",
        "shardingState",
    ] {
        assert!(lacking.contains(part), "{part} in {lacking}");
    }
    let answer = get(&pages, "/readyz");
    assert!(
        answer.starts_with("HTTP/1.1 503 ") && answer.contains("createIndex"),
        "{answer}"
    );
    let granted = vec![
        doc! { "resource": resource, "actions": ["createCollection", "createIndex"] },
        doc! { "resource": { "db": "keyward", "collection": "keywards" }, "actions": ["find", "insert", "update", "remove"] },
        doc! { "resource": { "db": "", "collection": "keyward.constraints" }, "actions": ["find", "update"] },
        doc! { "resource": { "cluster": true }, "actions": ["shardingState", "killAnySession", "inprog"] },
    ];
    admin(doc! { "grantPrivilegesToRole": "keyward", "privileges": granted });
    keyward.logged("ready");
    assert!(get(&pages, "/readyz").ends_with("\r\n\r\nready\n"));
}

#[test]
fn nothing_secret_is_ever_logged() {
    let set = ReplicaSet::builder("secret")
        .root_user("root", "pa55w0rdR")
        .start()
        .unwrap();
    let mut keyward = LoggingKeyward::run_logging(
        &format!(
            "upstream: {}\nconstraints:\n  - {{ collection: secret.users, key: {{ email: 1 }} }}\n",
            set.uri()
        ),
        "trace",
    );
    let address = keyward.logged("ready")["listen"].as_str().unwrap().to_owned();
    // All of the log from here on, while it is written: a full pipe would stop who writes it.
    let mut log = keyward.log.take().unwrap();
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        text
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let uri = format!("mongodb://root:pa55w0rdR@{address}/?authSource=admin");
        let client = mongodb::Client::with_uri_str(&uri).await.unwrap();
        let users = client.database("secret").collection::<bson::Document>("users");
        let user = |id: i32| doc! { "_id": id, "email": "marker@value", "other": "marker-other" };
        users.insert_one(user(1)).await.unwrap();
        users.insert_one(user(2)).await.unwrap_err();
        users.update_one(doc! { "_id": 1 }, doc! { "$set": { "email": "marker@second" } }).await.unwrap();
        users.update_one(doc! { "_id": 1 }, vec![doc! { "$set": { "email": "marker@third" } }]).await.unwrap();
        users.find_one_and_delete(doc! { "email": "marker@third" }).await.unwrap();
        let wrong = format!("mongodb://root:wrongPa55@{address}/?authSource=admin");
        let wrong = mongodb::Client::with_uri_str(&wrong).await.unwrap();
        wrong.database("secret").run_command(doc! { "ping": 1 }).await.unwrap_err();
        // A payload that can be told from any other, and a message that can't be read.
        let sasl = doc! { "saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": "n,,n=root,r=markernonce" };
        testbed::command::run(&address, "admin", sasl).unwrap_err();
        let odd = doc! { "insert": "users", "documents": [{ "_id": 5, "email": "marker@odd", "$bad": 1 }], "marker-field": 1 };
        testbed::command::run(&address, "secret", odd).unwrap_err();
    });
    keyward.send(Signal::SIGTERM);
    keyward.process.wait().unwrap();
    let log = reading.join().unwrap();
    assert!(
        log.contains("\"TRACE\"") && log.contains("connection accepted"),
        "{log}"
    );
    for secret in ["pa55w0rdR", "wrongPa55", "marker", "n,,n=", "biws"] {
        assert!(!log.contains(secret), "{secret} in {log}");
    }
}
