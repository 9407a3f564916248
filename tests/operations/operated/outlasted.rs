//! A write that waits here for longer than this Keyward's entry is renewed: what of it hasn't been sent by then isn't sent.

use std::sync::Arc;
use std::time::Duration;

use bson::{Binary, Document, RawBson, doc, spec::BinarySubtype};
use keyward::constraint::{Constraint, IndexSpec};
use keyward::metrics::Metrics;
use keyward::namespace::Namespace;
use keyward::proxy_collection::{Owner, ProxyCollection, Reserved};
use keyward::raw::Doc;
use keyward::reservation::{Token, WriteId};
use testbed::ReplicaSet;
use testbed::command::{self, CommandError};

use testkit::keyward::Keyward;
use testkit::wire::send;

/// Makes an entry's lease six seconds.
const HASTE: [(&str, &str); 1] = [("KEYWARD_REGISTER_HASTE", "5")];

fn settings(set: &ReplicaSet, database: &str, strategy: &str) -> String {
    let constraint = format!("{{ collection: {database}.users, key: {{ z: 1 }}, strategy: {strategy} }}");
    format!(
        "upstream: {}\nlease: 10s\nreload_interval: 0s\nconstraints: [{constraint}]\n",
        set.uri()
    )
}

/// Fails what needs no transaction, or does where `strategy` wants one, once it has waited for a key.
fn is_refused_after_a_wait(set: &ReplicaSet, strategy: &str) {
    let database = &format!("outlasted_{strategy}");
    let first = Keyward::of(&settings(set, database, strategy));
    let second = Keyward::of_in(&settings(set, database, strategy), &HASTE);
    for (id, z) in [(3, "c"), (4, "d")] {
        second.insert(database, doc! { "_id": id, "z": z }).unwrap();
    }
    let bytes = rand::random::<[u8; 16]>().to_vec();
    let lsid = doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } };
    let transaction = doc! { "lsid": lsid, "txnNumber": 1_i64, "autocommit": false };
    let mut holding = doc! { "insert": "users", "documents": [{ "_id": 1, "z": "x" }], "startTransaction": true };
    holding.extend(transaction.clone());
    first.run(database, holding).unwrap();
    let unrenewed = set
        .fail_point(
            "failCommand",
            "alwaysOn",
            doc! { "failCommands": ["update"], "namespace": "keyward.keywards", "errorCode": 2 },
        )
        .unwrap();
    let writes = [
        doc! { "insert": "users", "documents": [{ "_id": 2, "z": "x" }] },
        doc! { "update": "users", "updates": [{ "q": { "_id": 3 }, "u": { "$set": { "z": "x" } } }] },
        doc! { "update": "users", "updates": [{ "q": { "_id": { "$gte": 4 } }, "u": { "$set": { "z": "x" } }, "multi": true }] },
    ];
    std::thread::scope(|scope| {
        let run = |write: Document| command::run(&second.address, database, write);
        let waiting = writes.map(|write| scope.spawn(move || run(write)));
        second.until("no permit", || {
            second
                .get("/readyz")
                .contains("this Keyward's entry couldn't be renewed")
        });
        let mut abort = doc! { "abortTransaction": 1 };
        abort.extend(transaction);
        first.run("admin", abort).unwrap();
        for write in waiting {
            match write.join().unwrap() {
                Err(CommandError::Refused { code, message, .. }) => {
                    assert_eq!(code, 6, "{message}");
                    assert!(message.contains("while this write waited"), "{message}");
                }
                other => panic!("{other:?}"),
            }
        }
    });
    let find = doc! { "find": "users", "filter": { "z": "x" } };
    let found = set.run(database, find).unwrap();
    let found = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    assert!(found.is_empty(), "{found:?}");
    // The key is nobody's, at once.
    drop(unrenewed);
    second.until("ready", || second.get("/readyz").starts_with("HTTP/1.1 200 "));
    second.insert(database, doc! { "_id": 5, "z": "x" }).unwrap();
    let (code, findings) = second.verify();
    assert_eq!(code, Some(0), "{findings}");
}

/// Commands that the driver sends once, of which one part takes effect before another waits; with the number of documents that have
/// changed, and the positions of the others.
fn parts(strategy: &str) -> Vec<(Document, i32, Vec<i32>)> {
    let set = |id: i32, z: &str| doc! { "q": { "_id": id }, "u": { "$set": { "z": z } } };
    let of_no_key = doc! { "q": { "_id": 10 }, "u": { "$set": { "other": 1 } } };
    let unordered = vec![set(10, "10 new"), set(11, "x"), set(12, "12 new"), of_no_key];
    let by_server = doc! { "q": { "_id": 14 }, "u": [{ "$set": { "z": "x" } }] };
    let mut parts = vec![
        (
            doc! { "update": "users", "updates": unordered, "ordered": false },
            1,
            vec![1, 2, 3],
        ),
        (
            doc! { "update": "users", "updates": [set(13, "13 new"), by_server, set(13, "again")] },
            1,
            vec![1],
        ),
    ];
    if strategy == "compensating" {
        let users = [(20, "20 new"), (21, "x"), (22, "22 new")].map(|(id, z)| doc! { "_id": id, "z": z });
        parts.push((
            doc! { "insert": "users", "documents": users.to_vec(), "ordered": false },
            2,
            vec![1],
        ));
    }
    parts
}

/// The results of a command before this Keyward's permit ended reach the client, if no driver sends the command again.
fn results_before_it_are_reported(set: &ReplicaSet, strategy: &str) {
    let database = &format!("outlasted_in_part_{strategy}");
    let first = Keyward::of(&settings(set, database, strategy));
    let second = Keyward::of_in(&settings(set, database, strategy), &HASTE);
    for id in 10..15 {
        second
            .insert(database, doc! { "_id": id, "z": id.to_string() })
            .unwrap();
    }
    let bytes = rand::random::<[u8; 16]>().to_vec();
    let lsid = doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } };
    let transaction = doc! { "lsid": lsid, "txnNumber": 1_i64, "autocommit": false };
    let mut holding = doc! { "insert": "users", "documents": [{ "_id": 1, "z": "x" }], "startTransaction": true };
    holding.extend(transaction.clone());
    first.run(database, holding).unwrap();
    let count = |filter: Document| {
        let counted = set.run(database, doc! { "count": "users", "query": filter }).unwrap();
        counted.get_i32("n").unwrap()
    };
    std::thread::scope(|scope| {
        let waiting: Vec<_> = parts(strategy)
            .into_iter()
            .map(|(command, n, refused)| {
                let sent = command.clone();
                let reply = scope.spawn(|| send(&second.address, database, sent).unwrap());
                (command, reply, n, refused)
            })
            .collect();
        let done: i32 = waiting.iter().map(|(_, _, n, _)| n).sum();
        second.until("the first parts", || count(doc! { "z": { "$regex": "new$" } }) == done);
        let unrenewed = doc! { "failCommands": ["update"], "namespace": "keyward.keywards", "errorCode": 2 };
        let _unrenewed = set.fail_point("failCommand", "alwaysOn", unrenewed).unwrap();
        second.until("no permit", || {
            second
                .get("/readyz")
                .contains("this Keyward's entry couldn't be renewed")
        });
        let mut abort = doc! { "abortTransaction": 1 };
        abort.extend(transaction);
        first.run("admin", abort).unwrap();
        for (command, reply, n, refused) in waiting {
            let reply = reply.join().unwrap();
            assert_eq!(reply.get_i32("n").ok(), Some(n), "{command} {reply}");
            let errors = reply.get_array("writeErrors").unwrap();
            let errors: Vec<&Document> = errors.iter().map(|error| error.as_document().unwrap()).collect();
            let positions: Vec<i32> = errors.iter().map(|error| error.get_i32("index").unwrap()).collect();
            assert_eq!(positions, refused, "{command} {reply}");
            for error in errors {
                assert_eq!(error.get_i32("code").ok(), Some(6), "{reply}");
                let text = error.get_str("errmsg").unwrap();
                assert!(text.contains("while this write waited"), "{reply}");
            }
        }
    });
    assert_eq!(count(doc! { "z": "x" }), 0);
}

#[test]
fn the_results_before_it_are_reported() {
    results_before_it_are_reported(&ReplicaSet::alone().unwrap(), "compensating");
}

#[test]
fn they_are_in_strict_mode() {
    results_before_it_are_reported(&ReplicaSet::alone().unwrap(), "transaction");
}

#[test]
fn what_has_waited_for_longer_than_the_entry_is_renewed_is_not_sent() {
    is_refused_after_a_wait(&ReplicaSet::alone().unwrap(), "compensating");
}

#[test]
fn nor_is_it_in_strict_mode() {
    is_refused_after_a_wait(&ReplicaSet::alone().unwrap(), "transaction");
}

/// Has a write wait for a key whose owner never comes, until this Keyward may not write any more.
async fn takes_nothing_over(set: &ReplicaSet, strategy: &str) {
    const LEASE: Duration = Duration::from_secs(10);
    let database = &format!("outlasted_takeover_{strategy}");
    let keyward = Keyward::of_in(&settings(set, database, strategy), &HASTE);
    let spec = IndexSpec {
        key: doc! { "z": 1 },
        ..IndexSpec::default()
    };
    let constraint = Arc::new(Constraint::new(Namespace::new(&**database, "users"), spec).unwrap());
    let wanted = doc! { "_id": 1, "z": "x" };
    let key = constraint.keys(Doc::new(&wanted.to_vec().unwrap()).unwrap()).unwrap();
    let metrics = Metrics::new(std::slice::from_ref(&constraint)).constraint(&constraint);
    let store = ProxyCollection::new(&set.client(), constraint, metrics, LEASE);
    let never_comes = Owner {
        id: RawBson::Int32(2),
        route: None,
    };
    let unrenewed = set
        .fail_point(
            "failCommand",
            "alwaysOn",
            doc! { "failCommands": ["update"], "namespace": "keyward.keywards", "errorCode": 2 },
        )
        .unwrap();
    // The permit ends after 6 s, and the lease after 10.
    let token = Token::of(WriteId(rand::random()));
    let reserved = store.reserve(&[(&key[0], &never_comes, token.into())]).await.unwrap();
    assert_eq!(reserved, [Reserved::Written]);
    let insert = doc! { "insert": "users", "documents": [wanted.clone()] };
    match command::run(&keyward.address, database, insert) {
        Err(CommandError::Refused { code, message, .. }) => assert_eq!(code, 6, "{message}"),
        other => panic!("{other:?}"),
    }
    let log = keyward.log();
    assert!(log.contains("this Keyward may not write any more"), "{log}");
    let takeovers = format!("keyward_constraint_takeovers_total{{constraint=\"{database}.users.z_1\"}}");
    assert_eq!(keyward.metric(&takeovers), 0);
    let left = store.read(&[&key[0]]).await.unwrap().remove(0).unwrap();
    assert_eq!(left.token, token);
    drop(unrenewed);
    keyward.until("ready", || keyward.get("/readyz").starts_with("HTTP/1.1 200 "));
    keyward.insert(database, wanted).unwrap();
    assert_eq!(keyward.metric(&takeovers), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_not_taken_over_after_the_permit() {
    takes_nothing_over(&ReplicaSet::alone().unwrap(), "compensating").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_is_one_in_strict_mode() {
    takes_nothing_over(&ReplicaSet::alone().unwrap(), "transaction").await;
}
