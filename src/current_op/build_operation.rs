//! Shows a build of clients' constraints as a server shows the operation of a native index build.
//!
//! It does no I/O.

use std::time::{Duration, SystemTime};

use bson::{Bson, DateTime, Document, doc};

use super::command::opid_of;
use crate::client_constraints::{BuildPhase, BuildUnderWay};
use crate::constraint::Constraint;
use crate::indexes::WaitingClient;

/// The operation of `build` as of `now`. Its Keyward runs on `host`, and `client` waits for it at this Keyward, as far as they are known.
pub fn operation(
    build: &BuildUnderWay,
    host: Option<String>,
    client: Option<&WaitingClient>,
    now: SystemTime,
) -> Document {
    let mut operation = doc! { "type": "op" };
    if let Some(host) = host {
        operation.insert("host", host);
    }
    match client {
        Some(client) => {
            let (connection, peer) = (client.address.connection, client.address.peer);
            operation.insert("desc", format!("conn{connection}"));
            operation.insert("connectionId", i64::try_from(connection).unwrap_or(i64::MAX));
            operation.insert("client", peer.to_string());
        }
        None => drop(operation.insert("desc", "Keyward")),
    }
    operation.insert("active", true);
    operation.insert("currentOpTime", time_text(now));
    if let Some(client) = client {
        if !client.users.is_empty() {
            operation.insert("effectiveUsers", client.users.clone());
        }
        if let Some(lsid) = client.body.get("lsid") {
            operation.insert("lsid", lsid.clone());
        }
    }
    operation.insert("opid", opid_of(build.command));
    let running = now.duration_since(build.command.timestamp().to_system_time());
    let running = running.unwrap_or_default();
    operation.insert("secs_running", stored(running.as_secs().into()));
    operation.insert("microsecs_running", stored(running.as_micros()));
    operation.insert("op", "command");
    operation.insert("ns", build.namespace().to_string());
    let command = client.map_or_else(|| command_of(build), |client| client.body.clone());
    operation.insert("command", command);
    operation.insert("msg", message(build));
    if let Some(documents) = build.documents {
        operation.insert("progress", doc! { "done": documents.done, "total": documents.of });
    }
    operation.extend(doc! {
        "numYields": 0, "locks": {}, "waitingForLock": false, "lockStats": {}, "waitingForFlowControl": false,
        "flowControlStats": {},
    });
    operation
}

fn stored(number: u128) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A time as a server writes it into operations.
fn time_text(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let text = DateTime::from_millis(stored(since.as_millis())).try_to_rfc3339_string();
    text.unwrap_or_default().replace('Z', "+00:00")
}

fn message(build: &BuildUnderWay) -> String {
    match (build.phase, build.documents) {
        (BuildPhase::Waiting, _) => "Index Build: waiting until all writers reserve".to_owned(),
        (BuildPhase::Backfilling, Some(documents)) => format!(
            "Index Build: scanning collection: {}/{} {}%",
            documents.done,
            documents.of,
            documents.percent()
        ),
        (BuildPhase::Backfilling, None) => "Index Build: scanning collection".to_owned(),
        (BuildPhase::Ending, _) => "Index Build: noting that the constraint holds".to_owned(),
    }
}

/// The `createIndexes` of a build whose client waits at another Keyward, or is gone: the indexes that are constraints.
fn command_of(build: &BuildUnderWay) -> Document {
    let namespace = build.namespace();
    let indexes: Vec<Bson> = build.constraints.iter().map(|one| index_of(one).into()).collect();
    doc! { "createIndexes": &namespace.collection, "indexes": indexes, "$db": &namespace.database }
}

fn index_of(constraint: &Constraint) -> Document {
    let spec = constraint.spec();
    let mut index = doc! { "key": spec.key.clone(), "name": constraint.name(), "unique": true };
    if spec.sparse {
        index.insert("sparse", true);
    }
    for (name, option) in [
        ("partialFilterExpression", &spec.partial_filter_expression),
        ("collation", &spec.collation),
    ] {
        if let Some(option) = option {
            index.insert(name, option.clone());
        }
    }
    index
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bson::oid::ObjectId;

    use super::*;
    use crate::client_constraints::DocumentProgress;
    use crate::constraint::IndexSpec;
    use crate::indexes::ClientAddress;
    use crate::namespace::Namespace;

    fn build() -> BuildUnderWay {
        let spec = IndexSpec {
            key: doc! { "email": 1 },
            name: Some("mail".to_owned()),
            sparse: true,
            ..IndexSpec::default()
        };
        BuildUnderWay {
            command: ObjectId::from_bytes([0x60, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]),
            builder: ObjectId::new(),
            constraints: vec![Arc::new(
                Constraint::new(Namespace::new("shop", "users"), spec).unwrap(),
            )],
            phase: BuildPhase::Backfilling,
            documents: Some(DocumentProgress { done: 30, of: 200 }),
        }
    }

    fn later(build: &BuildUnderWay) -> SystemTime {
        build.command.timestamp().to_system_time() + Duration::from_millis(2_500)
    }

    #[test]
    fn a_build_of_another_keyward_is_shown_from_the_list() {
        let build = build();
        let shown = operation(&build, Some("a:27017".to_owned()), None, later(&build));
        let names: Vec<&str> = shown.keys().map(String::as_str).take(8).collect();
        let expected = [
            "type",
            "host",
            "desc",
            "active",
            "currentOpTime",
            "opid",
            "secs_running",
            "microsecs_running",
        ];
        assert_eq!(names, expected);
        assert_eq!(shown.get_str("opid").unwrap(), "keyward:600000000101010101010101");
        assert_eq!(shown.get_i64("secs_running").unwrap(), 2);
        assert_eq!(shown.get_i64("microsecs_running").unwrap(), 2_500_000);
        assert!(shown.get_str("currentOpTime").unwrap().ends_with("+00:00"), "{shown}");
        assert_eq!(
            shown.get_str("msg").unwrap(),
            "Index Build: scanning collection: 30/200 15%"
        );
        assert_eq!(
            shown.get_document("progress").unwrap(),
            &doc! { "done": 30_i64, "total": 200_i64 }
        );
        let index = doc! { "key": { "email": 1 }, "name": "mail", "unique": true, "sparse": true };
        let command = doc! { "createIndexes": "users", "indexes": [index], "$db": "shop" };
        assert_eq!(shown.get_document("command").unwrap(), &command);
    }

    #[test]
    fn a_waiting_client_is_shown_with_its_command() {
        let build = build();
        let user = doc! { "user": "ann", "db": "admin" };
        let client = WaitingClient {
            address: ClientAddress {
                connection: 7,
                peer: "127.0.0.1:5".parse().unwrap(),
            },
            users: vec![user.clone()],
            body: doc! { "createIndexes": "users", "comment": "c", "lsid": { "id": 1 } },
        };
        let shown = operation(&build, None, Some(&client), later(&build));
        assert_eq!(shown.get_str("desc").unwrap(), "conn7");
        assert_eq!(shown.get_str("client").unwrap(), "127.0.0.1:5");
        assert_eq!(shown.get_array("effectiveUsers").unwrap(), &[user.into()]);
        assert_eq!(shown.get_document("lsid").unwrap(), &doc! { "id": 1 });
        assert_eq!(shown.get_document("command").unwrap(), &client.body);
    }
}
