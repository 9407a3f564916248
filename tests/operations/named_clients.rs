//! Lines of the log about a connection name its client: address, application, driver and user.

use std::io::Write;
use std::net::TcpStream;

use bson::{Document, doc};
use keyward::wire::Draft;
use testbed::ReplicaSet;
use testkit::Keyward;
use testkit::relay::read_message;

fn send(client: &mut TcpStream, command: &Document) {
    let body = command.to_vec().unwrap();
    let message = Draft::of_body(&body).frame(1, 0).unwrap().to_vec();
    client.write_all(&message).unwrap();
    read_message(client).unwrap();
}

/// The line about the end of the connection that begins with `commands` and then breaks the protocol.
fn ended(keyward: &Keyward, commands: &[Document]) -> String {
    let mut client = TcpStream::connect(&keyward.address).unwrap();
    for command in commands {
        send(&mut client, command);
    }
    // No server has an op code 77.
    let fields = [16_i32, 2, 0, 77].map(i32::to_le_bytes);
    client.write_all(&fields.concat()).unwrap();
    let peer = client.local_addr().unwrap();
    let line = || {
        let log = keyward.log();
        let mut lines = log.lines();
        let is_it = |line: &&str| line.contains("connection ended") && line.contains(&format!("peer={peer}"));
        lines.find(is_it).map(str::to_owned)
    };
    keyward.until("the line about the end", || line().is_some());
    line().unwrap()
}

fn hello(app: &str) -> Document {
    let driver = doc! { "name": "PyMongo", "version": "4.6" };
    let client = doc! { "application": { "name": app }, "driver": driver, "os": { "type": "Linux" } };
    doc! { "hello": 1, "client": client, "$db": "admin" }
}

#[test]
fn the_end_of_a_connection_names_its_client() {
    let keyward = Keyward::start(&ReplicaSet::shared().uri(), "  []");
    let login = doc! { "saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": "n,,n=ann,r=n0nce", "$db": "admin" };
    let line = ended(&keyward, &[hello("shop"), login.clone(), login]);
    assert_eq!(line.matches("user=").count(), 1, "{line}");
    for part in [
        " WARN ",
        r#"app="shop""#,
        r#"driver="PyMongo 4.6""#,
        r#"user="ann""#,
        "op code 77",
    ] {
        assert!(line.contains(part), "{part} in {line}");
    }
    assert!(!keyward.log().contains("n0nce"), "{}", keyward.log());
}

#[test]
fn a_client_that_states_nothing_is_named_by_its_address() {
    let keyward = Keyward::start(&ReplicaSet::shared().uri(), "  []");
    let line = ended(&keyward, &[]);
    assert!(!line.contains("app="), "{line}");
}

/// Else a client could write lines of its own into the log.
#[test]
fn the_name_of_an_application_stays_on_its_line() {
    let keyward = Keyward::start(&ReplicaSet::shared().uri(), "  []");
    let line = ended(&keyward, &[hello("shop\nforged")]);
    assert!(line.contains(r#"app="shop\nforged""#), "{line}");
}

/// It uses what can't be protected. The log says so once, not for each try.
#[test]
fn a_refused_command_leads_to_its_client() {
    let constraint = "  - { collection: named_refused.users, key: { email: 1 } }\n";
    let keyward = Keyward::start(&ReplicaSet::shared().uri(), constraint);
    let mut client = TcpStream::connect(&keyward.address).unwrap();
    send(&mut client, &hello("etl"));
    let out = doc! { "aggregate": "x", "pipeline": [{ "$out": "users" }], "cursor": {}, "$db": "named_refused" };
    for _ in 0..3 {
        send(&mut client, &out);
    }
    keyward.until("the line", || keyward.log().contains("command refused"));
    assert_eq!(keyward.metric("keyward_client_commands_refused_total"), 3);
    let log = keyward.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("command refused")).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let peer = format!("peer={}", client.local_addr().unwrap());
    for part in [&peer, r#"app="etl""#, "unlogged=0", "$out can't be used on"] {
        assert!(lines[0].contains(part), "{part} in {}", lines[0]);
    }
}

/// The lines about a write of its are written while Keyward serves it.
#[test]
fn a_line_about_a_write_names_its_client() {
    let set = ReplicaSet::alone().unwrap();
    let constraint = "  - { collection: named.users, key: { email: 1 }, strategy: compensating }\n";
    let keyward = Keyward::start(&set.uri(), constraint);
    let mut client = TcpStream::connect(&keyward.address).unwrap();
    send(&mut client, &hello("till"));
    let insert = |email| doc! { "insert": "users", "documents": [{ "_id": 1, "email": email }], "$db": "named" };
    send(&mut client, &insert("x"));
    let error = doc! { "failCommands": ["delete"], "errorCode": 2, "appName": "keyward" };
    let failing = set.fail_point("failCommand", "alwaysOn", error).unwrap();
    // Its _id is taken, so Keyward releases its key, which fails.
    send(&mut client, &insert("y"));
    keyward.until("the line about the key", || keyward.log().contains("could not release"));
    drop(failing);
    let log = keyward.log();
    let line = log.lines().find(|line| line.contains("could not release")).unwrap();
    let peer = format!("peer={}", client.local_addr().unwrap());
    assert!(line.contains(r#"app="till""#) && line.contains(&peer), "{line}");
    assert!(line.contains("(code 2, BadValue)"), "{line}");
}
