//! The router's own fail point: what it makes fail, how often, and that shards don't hear of it. Where no reason is stated, a real
//! `mongod` answers the same.

use std::time::{Duration, Instant};

use bson::{Document, doc};
use testbed::command::{CommandError, Connection};
use testbed::fail_point::FailPoint;
use testbed::{Alone, Cluster};

/// A cluster whose router no other test uses: the fail point holds for all of its clients.
fn alone() -> (Alone<Cluster>, Connection) {
    let cluster = Cluster::alone().unwrap();
    let connection = Connection::open(&cluster.router_address()).unwrap();
    (cluster, connection)
}

fn fail(cluster: &Cluster, mode: impl Into<bson::Bson>, data: Document) -> FailPoint {
    FailPoint::turn_on(&cluster.router_address(), "failCommand", mode.into(), data).unwrap()
}

fn code(outcome: Result<Document, CommandError>) -> Option<i32> {
    outcome.unwrap_err().code()
}

fn insert(id: i32) -> Document {
    doc! { "insert": "c", "documents": [{ "_id": id }] }
}

#[test]
fn an_error_comes_as_often_as_asked_and_nothing_is_written() {
    let (cluster, mut connection) = alone();
    let data = doc! { "failCommands": ["insert"], "errorCode": 91 };
    let on = fail(&cluster, doc! { "times": 2 }, data.clone());
    connection.run("failing", doc! { "ping": 1 }).unwrap();
    assert_eq!(code(connection.run("failing", insert(1))), Some(91));
    assert_eq!(code(connection.run("failing", insert(1))), Some(91));
    connection.run("failing", insert(1)).unwrap();
    drop(on);
    let on = fail(&cluster, doc! { "skip": 1 }, data.clone());
    connection.run("failing", insert(2)).unwrap();
    assert_eq!(code(connection.run("failing", insert(3))), Some(91));
    drop(on);
    let on = fail(&cluster, "alwaysOn", data);
    for _ in 0..3 {
        assert_eq!(code(connection.run("failing", insert(3))), Some(91));
    }
    drop(on);
    let count = connection.run("failing", doc! { "count": "c" }).unwrap();
    assert_eq!(count.get_i32("n").unwrap(), 2);
}

#[test]
fn labels_are_those_asked_for_or_those_of_the_error() {
    let (cluster, mut connection) = alone();
    let lsid = doc! { "id": bson::Uuid::new() };
    let retryable = |number: i64| {
        let mut command = insert(i32::try_from(number).unwrap());
        command.extend(doc! { "lsid": lsid.clone(), "txnNumber": number });
        command
    };
    let mut labels = |number: i64, asked: Option<Vec<&str>>| {
        let mut data = doc! { "failCommands": ["insert"], "errorCode": 91 };
        if let Some(asked) = asked {
            data.insert("errorLabels", asked);
        }
        let _on = fail(&cluster, doc! { "times": 1 }, data);
        let reply = connection.exchange("labelled", retryable(number)).unwrap();
        let labels = reply.get_array("errorLabels").cloned().unwrap_or_default();
        labels
            .iter()
            .map(|label| label.as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(labels(1, None), ["RetryableWriteError"]);
    assert_eq!(labels(2, Some(vec!["Mine", "Yours"])), ["Mine", "Yours"]);
    assert_eq!(labels(3, Some(vec![])), [""; 0]);
}

#[test]
fn a_write_concern_error_comes_with_a_write_that_is_done() {
    let (cluster, mut connection) = alone();
    let data = doc! { "failCommands": ["insert", "find"], "writeConcernError": { "code": 64, "errmsg": "too slow" } };
    let _on = fail(&cluster, "alwaysOn", data);
    let reply = connection.exchange("concerned", insert(1)).unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 1);
    assert_eq!(
        reply
            .get_document("writeConcernError")
            .unwrap()
            .get_i32("code")
            .unwrap(),
        64
    );
    let reply = connection.run("concerned", doc! { "find": "c" }).unwrap();
    assert!(!reply.contains_key("writeConcernError"), "{reply}");
}

#[test]
fn a_connection_is_closed_or_held_up() {
    let (cluster, mut connection) = alone();
    let data = doc! { "failCommands": ["ping"], "blockConnection": true, "blockTimeMS": 300 };
    let on = fail(&cluster, "alwaysOn", data);
    let started = Instant::now();
    connection.run("held", doc! { "ping": 1 }).unwrap();
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert_eq!(
        code(connection.run("held", doc! { "ping": 1, "maxTimeMS": 20 })),
        Some(50)
    );
    drop(on);
    let data = doc! { "failCommands": ["ping"], "closeConnection": true };
    let on = fail(&cluster, doc! { "times": 1 }, data);
    assert_eq!(code(connection.run("held", doc! { "ping": 1 })), None);
    let mut connection = Connection::open(&cluster.router_address()).unwrap();
    connection.run("held", doc! { "ping": 1 }).unwrap();
    drop(on);
}

#[test]
fn only_the_application_that_is_meant_fails() {
    let (cluster, mut connection) = alone();
    let data = doc! { "failCommands": ["ping", "configureFailPoint"], "errorCode": 8, "appName": "meant" };
    let _on = fail(&cluster, "alwaysOn", data);
    connection.run("named", doc! { "ping": 1 }).unwrap();
    let metadata = doc! {
        "application": { "name": "meant" }, "driver": { "name": "x", "version": "1" }, "os": { "type": "x" },
    };
    connection
        .run("admin", doc! { "hello": 1, "client": metadata })
        .unwrap();
    assert_eq!(code(connection.run("named", doc! { "ping": 1 })), Some(8));
}

#[test]
fn what_it_does_not_know_is_refused_as_by_a_server() {
    let (cluster, mut connection) = alone();
    let mut configure = |database: &str, name: &str, mode: bson::Bson| {
        code(connection.run(database, doc! { "configureFailPoint": name, "mode": mode }))
    };
    assert_eq!(configure("admin", "unheardOf", "off".into()), Some(266));
    assert_eq!(configure("test", "failCommand", "off".into()), Some(13));
    assert_eq!(configure("admin", "failCommand", "on".into()), Some(2));
    assert_eq!(configure("admin", "failCommand", doc! { "times": -1 }.into()), Some(2));
    assert_eq!(configure("admin", "failCommand", doc! { "x": 1 }.into()), Some(2));
    assert_eq!(configure("admin", "failCommand", 1.into()), Some(14));
    drop(cluster);
}
