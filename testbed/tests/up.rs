//! `testbed up` as a person runs it: one line of JSON, and nothing left behind however it ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use testbed::command;

struct Running {
    testbed: Child,
    addresses: serde_json::Value,
    /// Where it puts its temporary folder.
    home: TempDir,
}

/// Starts `testbed up` and waits for its line.
fn up(arguments: &[&str]) -> Running {
    let home = tempfile::tempdir().unwrap();
    let mut up = Command::new(env!("CARGO_BIN_EXE_testbed"));
    up.arg("up")
        .args(arguments)
        .env("TMPDIR", home.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    let mut testbed = up.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(testbed.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    Running {
        testbed,
        addresses: serde_json::from_str(&line).unwrap(),
        home,
    }
}

/// The processes with `folder` on their command line.
fn processes_in(folder: &Path) -> Vec<Pid> {
    let folder = folder.to_str().unwrap();
    let id = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let runs_there = |id: &i32| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(folder)
    };
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(id)
        .filter(runs_there)
        .map(Pid::from_raw)
        .collect()
}

fn is_server(id: &Pid) -> bool {
    fs::read_to_string(format!("/proc/{id}/comm")).unwrap().trim() == "mongod"
}

fn wait_until(what: &str, happened: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !happened() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        thread::sleep(Duration::from_millis(10));
    }
}

fn expect_nothing_left(home: &Path) {
    wait_until("the end of its processes", || processes_in(home).is_empty());
    wait_until("the removal of its folder", || {
        fs::read_dir(home).unwrap().next().is_none()
    });
}

#[test]
fn the_line_says_where_everything_is() {
    let port = testbed::process::Port::lease().unwrap().number().to_string();
    let mut running = up(&["--shards", "2", "--port", &port]);
    let addresses = &running.addresses;
    assert_eq!(addresses["router"], format!("127.0.0.1:{port}"));
    assert!(["real", "stand-in"].contains(&addresses["mongos"].as_str().unwrap()));
    let shards = addresses["shards"].as_array().unwrap();
    assert_eq!(
        shards.iter().map(|shard| &shard["name"]).collect::<Vec<_>>(),
        ["shard0", "shard1"]
    );
    let members = shards.iter().map(|shard| &shard["members"][0]);
    for server in members.chain([&addresses["config"]]) {
        command::run(server.as_str().unwrap(), "admin", bson::doc! { "ping": 1 }).unwrap();
    }
    kill(Pid::from_raw(running.testbed.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert!(running.testbed.wait().unwrap().success());
    assert!(processes_in(running.home.path()).is_empty());
    assert!(fs::read_dir(running.home.path()).unwrap().next().is_none());
}

#[test]
fn a_deployment_with_users_lets_nobody_in_without_a_password() {
    let mut running = up(&["--auth"]);
    let member = running.addresses["members"][0].as_str().unwrap();
    let refused = command::run(member, "admin", bson::doc! { "listDatabases": 1 }).unwrap_err();
    assert_eq!(refused.code(), Some(13), "{refused}");
    let uri = running.addresses["uri"].as_str().unwrap().to_owned();
    let names = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let client = mongodb::Client::with_uri_str(&uri).await.unwrap();
        client.list_database_names().await
    });
    assert!(names.unwrap().contains(&"admin".to_owned()));
    kill(Pid::from_raw(running.testbed.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert!(running.testbed.wait().unwrap().success());
    expect_nothing_left(running.home.path());
}

#[test]
fn killed_with_9_it_leaves_nothing() {
    let mut running = up(&["--shards", "1"]);
    let (servers, removers): (Vec<Pid>, Vec<Pid>) = processes_in(running.home.path()).into_iter().partition(is_server);
    assert_eq!(servers.len(), 2, "a config server and a shard");
    assert_eq!(removers.len(), 1, "what removes their folder");
    // Frozen ones must go, too.
    servers
        .iter()
        .for_each(|server| kill(*server, Signal::SIGSTOP).unwrap());
    running.testbed.kill().unwrap();
    running.testbed.wait().unwrap();
    expect_nothing_left(running.home.path());
}

#[test]
fn interrupted_while_it_starts_it_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let mut up = Command::new(env!("CARGO_BIN_EXE_testbed"));
    up.arg("up").env("TMPDIR", home.path()).stdout(Stdio::null());
    let mut testbed = up.spawn().unwrap();
    wait_until("the start of a server", || !processes_in(home.path()).is_empty());
    kill(Pid::from_raw(testbed.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    assert!(!testbed.wait().unwrap().success());
    expect_nothing_left(home.path());
}

#[test]
fn a_given_folder_stays_and_must_be_empty() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("mine"), "x").unwrap();
    let mut up = Command::new(env!("CARGO_BIN_EXE_testbed"));
    let output = up.arg("up").arg("--dir").arg(home.path()).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not empty"));
    assert!(output.stdout.is_empty());
    assert!(home.path().join("mine").exists());
}
