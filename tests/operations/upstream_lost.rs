//! A deployment that can't be reached, or that hangs: `/readyz`, the log and the metrics say so, and again when it is back.

use std::cell::OnceCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use bson::doc;
use keyward::wire::Draft;
use testbed::{Cluster, ReplicaSet};
use testkit::Keyward;
use testkit::keyward::PATIENCE;

/// Keyward takes two seconds at most, which a test of `upstream/probe.rs` holds; the rest is for a loaded machine. The driver alone takes
/// longer than this for a router that hangs.
const SOON: Duration = Duration::from_secs(8);

fn is_ready(keyward: &Keyward) -> bool {
    keyward.get("/readyz").ends_with("\r\n\r\nready\n")
}

fn is_lost(keyward: &Keyward) -> bool {
    let answer = keyward.get("/readyz");
    answer.starts_with("HTTP/1.1 503 ") && answer.contains("\nupstream: ")
}

/// Whether a new client gets an answer within a second.
fn is_served(address: &str) -> bool {
    served_client(address).is_some()
}

/// A new client, if it gets an answer within a second.
fn served_client(address: &str) -> Option<TcpStream> {
    let ping = doc! { "ping": 1, "$db": "admin" }.to_vec().unwrap();
    let ping = Draft::of_body(&ping).frame(1, 0).unwrap().to_vec();
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    client.write_all(&ping).unwrap();
    let mut length = [0; 4];
    client.read_exact(&mut length).ok()?;
    let mut rest = vec![0; u32::from_le_bytes(length) as usize - length.len()];
    client.read_exact(&mut rest).ok()?;
    Some(client)
}

fn keyward(upstream: &str) -> Keyward {
    let keyward = Keyward::of(&format!("upstream: {upstream}\nconstraints: []\n"));
    keyward.until("an answer of the deployment", || is_ready(&keyward));
    keyward
}

#[test]
fn a_router_that_is_killed_is_reported_until_it_is_back() {
    let router = Cluster::shared().start_router().unwrap();
    let keyward = keyward(&format!("mongodb://{}/", router.address()));
    keyward.run("admin", doc! { "ping": 1 }).unwrap();
    assert_eq!(keyward.metric("keyward_upstream_reachable"), 1);
    let reached_at = keyward.metric("keyward_upstream_reachable_changed_timestamp_seconds");
    assert_eq!(keyward.metric("keyward_upstream_connections_opened_total"), 1);
    assert!(keyward.metric("keyward_upstream_round_trip_seconds_count") > 0);
    // A busy router may have been late with an answer before.
    let lost_before = keyward.metric("keyward_upstream_lost_total");
    router.kill().unwrap();
    keyward.until_within(SOON, "the loss", || is_lost(&keyward));
    keyward.until("the loss in the metrics", || {
        keyward.metric("keyward_upstream_reachable") == 0 && keyward.metric("keyward_upstream_lost_total") > lost_before
    });
    assert!(keyward.metric("keyward_upstream_reachable_changed_timestamp_seconds") > reached_at);
    keyward.until("a client in vain", || {
        !is_served(&keyward.address) && keyward.metric("keyward_upstream_connections_failed_total") > 0
    });
    let log = keyward.log();
    let line = log
        .lines()
        .find(|line| line.contains("the deployment does not answer"))
        .unwrap();
    assert!(line.contains(" WARN ") && line.contains(&router.address()), "{line}");
    router.restart().unwrap();
    keyward.until("the return", || is_ready(&keyward));
    assert_eq!(keyward.metric("keyward_upstream_reachable"), 1);
    assert!(
        keyward.log().contains("the deployment answers again"),
        "{}",
        keyward.log()
    );
    keyward.run("admin", doc! { "ping": 1 }).unwrap();
}

#[test]
fn a_router_that_hangs_is_reported_until_it_goes_on() {
    let router = Cluster::shared().start_router().unwrap();
    let keyward = keyward(&format!("mongodb://{}/", router.address()));
    router.stop().unwrap();
    keyward.until_within(SOON, "the loss", || is_lost(&keyward));
    keyward.until("the reason", || {
        keyward.get("/readyz").contains("no answer within 1s 500ms")
    });
    router.resume().unwrap();
    keyward.until("the return", || is_ready(&keyward));
}

/// All connections go to one router as long as it answers.
#[test]
fn of_two_routers_one_may_hang() {
    let routers = [(); 2].map(|()| Cluster::shared().start_router().unwrap());
    let [one, other] = routers.each_ref().map(|router| router.address());
    let keyward = keyward(&format!("mongodb://{one},{other}/"));
    let mut earlier = Vec::new();
    for router in &routers {
        let client = OnceCell::new();
        keyward.until("an earlier client", || {
            served_client(&keyward.address).is_some_and(|served| client.set(served).is_ok())
        });
        earlier.extend(client.into_inner());
        router.stop().unwrap();
        keyward.until("a client that is served", || is_served(&keyward.address));
        assert!(is_ready(&keyward), "{}", keyward.get("/readyz"));
        router.resume().unwrap();
        let hello = || testbed::command::run(&router.address(), "admin", doc! { "hello": 1 }).is_ok();
        keyward.until("the router's return", hello);
    }
    let moved = "a server does not answer; connections go to another one";
    assert!(keyward.log().contains(moved), "{}", keyward.log());
    // Otherwise a driver's connections would go to both.
    keyward.until("the end of an earlier connection", || {
        let mut clients = earlier.iter();
        clients.any(|mut client| matches!(client.read(&mut [0]), Ok(0)))
    });
}

/// The driver waits for thirty seconds before it reports an error.
#[test]
fn a_start_says_early_that_nothing_answers() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let settings = format!("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nupstream: mongodb://{nobody}\nconstraints: []\n");
    std::fs::write(&file, settings).unwrap();
    let mut keyward = Command::new(env!("CARGO_BIN_EXE_keyward"))
        .args(["run", "--config"])
        .arg(file.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = std::time::Instant::now();
    let mut log = BufReader::new(keyward.stderr.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let line = log
        .find(|line| line.contains("the deployment does not answer"))
        .unwrap();
    assert!(
        begun.elapsed() < SOON.min(PATIENCE),
        "{line} after {:?}",
        begun.elapsed()
    );
    assert!(line.contains(&format!("{nobody}: Connection refused")), "{line}");
    keyward.kill().unwrap();
    keyward.wait().unwrap();
}

#[test]
fn refusals_for_want_of_a_sure_answer_are_counted() {
    let set = ReplicaSet::alone().unwrap();
    let database = "without_sure_answer";
    let constraint = format!("{{ collection: {database}.users, key: {{ email: 1 }}, strategy: compensating }}");
    let keyward = Keyward::of(&format!("upstream: {}\nconstraints: [{constraint}]\n", set.uri()));
    let metric = format!("keyward_constraint_unsure_total{{constraint=\"{database}.users.email_1\"}}");
    assert_eq!(keyward.metric(&metric), 0);
    let reservations = format!("{database}.keyward.users.email_1");
    let refused = doc! { "failCommands": ["insert"], "namespace": reservations, "errorCode": 2 };
    let refusing = set.fail_point("failCommand", "alwaysOn", refused).unwrap();
    let insert = doc! { "insert": "users", "documents": [{ "_id": 1, "email": "x" }] };
    assert_eq!(keyward.run(database, insert.clone()), Err(6));
    assert_eq!(keyward.metric(&metric), 1);
    drop(refusing);
    keyward.run(database, insert).unwrap();
    assert_eq!(keyward.metric(&metric), 1);
}

#[test]
fn the_log_has_the_servers_words_for_a_refused_reservation() {
    let set = ReplicaSet::shared();
    let database = "refused_reservation";
    let constraint = format!("{{ collection: {database}.users, key: {{ email: 1 }}, strategy: compensating }}");
    let keyward = Keyward::of(&format!("upstream: {}\nconstraints: [{constraint}]\n", set.uri()));
    // The server reports it as it reports a shard that it can't reach: with the document, and not for the whole command.
    let validator = doc! { "collMod": "keyward.users.email_1", "validator": { "missing": { "$exists": true } } };
    set.run(database, validator).unwrap();
    let insert = doc! { "insert": "users", "documents": [{ "_id": 1, "email": "x" }] };
    assert_eq!(keyward.run(database, insert), Err(6));
    let log = keyward.log();
    let line = log
        .lines()
        .find(|line| line.contains("a reservation was refused"))
        .unwrap();
    assert!(line.contains("Document failed validation (code 121"), "{line}");
}
