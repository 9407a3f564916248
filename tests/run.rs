//! `keyward run` as an operator meets it: the process, its log, its admin pages, its signals and its exit codes.

#![expect(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command, Stdio};

use bson::doc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use testbed::ReplicaSet;

/// A running `keyward`, which logs JSON; killed when it is dropped.
struct Keyward {
    process: Child,
    log: BufReader<ChildStderr>,
    _folder: TempDir,
}

impl Keyward {
    /// Starts `keyward run` with `settings`, on free ports unless they say otherwise.
    fn run(settings: &str) -> Keyward {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keyward.yaml");
        let or_free = |setting: &str| match settings.contains(&format!("{setting}:")) {
            true => String::new(),
            false => format!("{setting}: 127.0.0.1:0\n"),
        };
        let text = format!(
            "{}{}log: {{ format: json }}\n{settings}",
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
        let log = BufReader::new(process.stderr.take().unwrap());
        Keyward {
            process,
            log,
            _folder: folder,
        }
    }

    /// Reads the log up to the event `message`.
    fn logged(&mut self, message: &str) -> Value {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            assert!(self.log.read_line(&mut line).unwrap() > 0, "no {message:?} in {seen}");
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
        self.log.read_to_string(&mut rest).unwrap();
        (self.process.wait().unwrap().code().unwrap(), rest)
    }
}

impl Drop for Keyward {
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
    let mut keyward = Keyward::run(&format!(
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
    let mut keyward = Keyward::run(&format!(
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

#[test]
fn documents_that_violate_a_constraint_stop_the_start_and_are_named() {
    let replica_set = ReplicaSet::shared();
    let documents = [doc! { "_id": "one", "email": "x" }, doc! { "_id": "two", "email": "x" }];
    let insert = doc! { "insert": "twice", "documents": documents.to_vec() };
    replica_set.run("run", insert).unwrap();
    let keyward = Keyward::run(&format!(
        "upstream: {}\nconstraints:\n  - {{ collection: run.twice, key: {{ email: 1 }} }}\n",
        replica_set.uri()
    ));
    let (code, log) = keyward.ended();
    assert_eq!(code, 65, "{log}");
    for part in ["E11000", "one", "two", "email_1"] {
        assert!(log.contains(part), "{part} in {log}");
    }
}

#[test]
fn a_definition_that_contradicts_the_clusters_stops_the_start() {
    let constraint = |sparse| {
        let uri = ReplicaSet::shared().uri();
        format!("upstream: {uri}\nconstraints:\n  - {{ collection: run.changed, key: {{ a: 1 }}, sparse: {sparse} }}\n")
    };
    let mut first = Keyward::run(&constraint(false));
    first.logged("ready");
    first.send(Signal::SIGTERM);
    assert_eq!(first.ended().0, 0);
    let (code, log) = Keyward::run(&constraint(true)).ended();
    assert_eq!(code, 78, "{log}");
}

#[test]
fn a_port_that_is_taken_is_named_with_its_setting() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for setting in ["listen", "admin"] {
        let keyward = Keyward::run(&format!(
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
    let keyward = Keyward::run("lease: 1h\nupstream: mongodb://127.0.0.1:1\nconstraints: []\n");
    let (code, log) = keyward.ended();
    assert_eq!(code, 78);
    assert!(log.ends_with("keyward.yaml:4:1: lease: must be 1s to 10m\n"), "{log}");
}

#[test]
fn what_happens_is_counted() {
    let constraints =
        "  - { collection: run.counted, key: { a: 1 } }\n  - { collection: run.counted, key: { b: 1 } }\n";
    let uri = ReplicaSet::shared().uri();
    let mut keyward = Keyward::run(&format!("upstream: {uri}\nconstraints:\n{constraints}"));
    let admin = keyward.logged("starting")["admin"].clone();
    let address = keyward.logged("ready")["listen"].as_str().unwrap().to_owned();
    let insert = |document| {
        let command = doc! { "insert": "counted", "documents": [document] };
        testbed::command::run(&address, "run", command)
    };
    assert!(insert(doc! { "a": 1, "b": 1 }).is_ok());
    // `a` is free and reserved; `b` is taken, so `a` is given back.
    assert!(insert(doc! { "a": 2, "b": 1 }).is_err());
    let refused = doc! { "aggregate": "counted", "pipeline": [{ "$out": "counted" }], "cursor": {} };
    assert!(testbed::command::run(&address, "run", refused).is_err());
    testbed::command::run(&address, "run", doc! { "count": "counted" }).unwrap();
    let metrics = get(&admin, "/metrics");
    for series in [
        "keyward_constraint_reservations_total{constraint=\"run.counted.a_1\"} 2",
        "keyward_constraint_reservations_total{constraint=\"run.counted.b_1\"} 1",
        "keyward_constraint_duplicates_total{constraint=\"run.counted.b_1\"} 1",
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
