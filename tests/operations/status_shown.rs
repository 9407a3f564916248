//! What `keyward status` says beside the counters: true counts, the configuration, the work of a start, the fleet.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use bson::doc;
use serde_json::Value;
use testbed::ReplicaSet;
use testkit::keyward::{Keyward, page_at};
use testkit::relay::{Relay, insert_into};

fn settings(constraint: &str, more: &str) -> String {
    let uri = ReplicaSet::shared().uri();
    format!("upstream: {uri}\nlease: 2s\nreload_interval: 0s\n{more}\nconstraints: [{constraint}]\n")
}

fn on_users(database: &str) -> String {
    format!("{{ collection: {database}.users, key: {{ email: 1 }} }}")
}

/// What the command says of the Keyward at this admin port. The file that it names doesn't exist.
fn status(admin: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyward"));
    command.args(["status", "--config", "nowhere.yaml", "--admin", admin]);
    let output = command.args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

fn json(keyward: &Keyward) -> Value {
    // By a name, as an operator types it.
    let admin = keyward.admin.replace("127.0.0.1", "localhost");
    let (code, text) = status(&admin, &["--json"]);
    assert_eq!(code, Some(0), "{text}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn reservations_are_counted_though_the_counters_begin_anew() {
    let database = "status_counted";
    let first = Keyward::of(&settings(&on_users(database), ""));
    for id in 0..3 {
        first
            .insert(database, doc! { "_id": id, "email": format!("{id}@x") })
            .unwrap();
    }
    first.stop();
    let second = Keyward::of(&settings(&on_users(database), ""));
    let shown = json(&second);
    let [constraint] = <[Value; 1]>::try_from(shown["constraints"].as_array().unwrap().clone()).unwrap();
    assert_eq!(constraint["constraint"], "status_counted.users.email_1");
    assert_eq!(
        (
            &constraint["reservations"]["count"],
            &constraint["sinceStart"]["reserved"]
        ),
        (&3.into(), &0.into()),
        "{shown}"
    );
    assert!(
        constraint["reservations"]["secondsAgo"].as_u64().unwrap() < 60,
        "{shown}"
    );
    assert_eq!(
        (&shown["ready"], &shown["version"]),
        (&true.into(), &env!("CARGO_PKG_VERSION").into())
    );
    let (code, lines) = status(&second.admin, &[]);
    assert_eq!(code, Some(0), "{lines}");
    let row = lines
        .lines()
        .find(|line| line.starts_with("status_counted.users.email_1"))
        .unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[1..4], ["yes", "3", "0"], "{lines}");
    assert!(
        lines.contains("s ago; in the columns after them, since the start"),
        "{lines}"
    );
    // Another look within the same seconds doesn't have them counted again.
    second.insert(database, doc! { "_id": 7, "email": "7@x" }).unwrap();
    let again = json(&second);
    if again["constraints"][0]["reservations"]["secondsAgo"] != 0 {
        assert_eq!(again["constraints"][0]["reservations"]["count"], 3, "{again}");
    }
}

#[test]
fn the_fleet_and_the_configuration_are_shown() {
    let database = "status_configured";
    let keyward = Keyward::of(&settings(&on_users(database), ""));
    let is_seen = |shown: &Value| {
        let keywards = shown["fleet"]["keywards"].as_array().cloned().unwrap_or_default();
        let mut own = keywards.iter().filter(|one| one["isThis"] == true);
        own.any(|one| one["process"] == keyward.pid().as_raw())
    };
    keyward.until("the fleet", || is_seen(&json(&keyward)));
    let shown = json(&keyward);
    assert!(
        shown["configuration"]["loadedAt"].as_str().unwrap().ends_with('Z'),
        "{shown}"
    );
    assert_eq!(shown["configuration"]["refused"], Value::Null, "{shown}");

    assert_eq!(keyward.reload(&settings("7", ""))["outcome"], "refused");
    let shown = json(&keyward);
    let why = shown["configuration"]["refused"]["error"].as_str().unwrap();
    assert!(why.contains("constraints[0]"), "{shown}");
    let (_, lines) = status(&keyward.admin, &[]);
    assert!(
        lines.contains("\nrefused file   at ") && lines.contains("constraints[0]"),
        "{lines}"
    );

    let restart = settings(&on_users(database), "log: { format: json }");
    assert_eq!(keyward.reload(&restart)["outcome"], "applied");
    let shown = json(&keyward);
    assert_eq!(shown["configuration"]["refused"], Value::Null, "{shown}");
    assert_eq!(
        shown["configuration"]["needsRestart"],
        serde_json::json!(["log.format"]),
        "{shown}"
    );
    assert_eq!(shown["configuration"]["lastReload"]["outcome"], "applied", "{shown}");
    let (_, lines) = status(&keyward.admin, &[]);
    assert!(lines.contains("\nneeds restart  log.format\n"), "{lines}");
    assert!(
        lines.contains(&format!("process {} (listen 127.0.0.1:0, version", keyward.pid())),
        "{lines}"
    );
}

#[test]
fn a_start_shows_how_far_it_has_come() {
    let database = "status_starting";
    // A member of a replica set would tell its own address.
    let cluster = testbed::Cluster::shared();
    cluster
        .run(
            database,
            doc! { "insert": "users", "documents": [{ "_id": 1, "email": "a@x" }] },
        )
        .unwrap();
    let relay = Relay::start(cluster.router_address());
    let reserving = relay.hold(&insert_into("keyward.users.email_1"));
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let ports = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlog: { level: 'info,keyward=info' }\n";
    let text = format!(
        "{ports}upstream: {}\nconstraints: [{}]\n",
        relay.uri(),
        on_users(database)
    );
    std::fs::write(file.path(), text).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_keyward"))
        .args(["run", "--config"])
        .arg(file.path())
        .env_remove("KEYWARD_UPSTREAM")
        .env_remove("KEYWARD_LOG")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let starting = log
        .by_ref()
        .map(Result::unwrap)
        .find(|line| line.contains("starting admin="));
    let admin = starting.unwrap();
    let (_, admin) = admin.split_once("admin=").unwrap();
    let admin = admin.split(' ').next().unwrap().to_owned();
    std::thread::spawn(move || log.for_each(drop));
    reserving.wait();
    let page = page_at(&admin, "/status.json").unwrap();
    let (code, lines) = status(&admin, &[]);
    drop(reserving);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(page.starts_with("HTTP/1.1 503 "), "{page}");
    let shown: Value = serde_json::from_str(page.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(shown["obstacles"][0]["what"], "startup", "{shown}");
    let work = &shown["work"][0];
    assert_eq!(
        (&work["doing"], &work["what"], &work["done"]),
        (
            &"backfilling".into(),
            &"status_starting.users email_1".into(),
            &0.into()
        ),
        "{shown}"
    );
    assert_eq!(code, Some(1), "{lines}");
    assert!(
        lines.contains("\nbackfilling    status_starting.users email_1: 0 of about 1 document\n"),
        "{lines}"
    );
}
