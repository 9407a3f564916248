//! Each line once where its assumption doesn't hold: a relay changes what the servers say, or a parameter what they do.

use std::collections::BTreeSet;
use std::sync::Mutex;

use bson::oid::ObjectId;
use bson::{Bson, DateTime, Document, Timestamp, doc};
use testbed::{Cluster, ReplicaSet};
use testkit::altering::Altering;

use super::{config, doctor, examined, lines};
use crate::documentation::markdown::Page;

/// Changes a request, which comes alone; or a reply, which comes with its request.
type Change = fn(&mut Document, Option<&Document>);

/// A line, how it is broken, and what it then says.
struct Broken {
    check: &'static str,
    /// `failed` or `warned`; `skipped` where the user lacks a privilege.
    result: &'static str,
    seen: &'static str,
    change: Change,
}

/// Whether it is a reply to this command.
fn of_reply(request: Option<&Document>, command: &str) -> bool {
    request.is_some_and(|request| request.keys().next().is_some_and(|name| name == command))
}

fn into<'a>(request: Option<&'a Document>, command: &str, collection: &str) -> Option<&'a Document> {
    request.filter(|request| request.get_str(command).ok() == Some(collection))
}

/// The `_id` of the first document that an insert has.
fn first_id(insert: &Document) -> String {
    let documents = insert.get_array("documents").unwrap();
    documents[0].as_document().unwrap().get("_id").unwrap().to_string()
}

fn is_about(request: Option<&Document>, ids: &str) -> bool {
    into(request, "insert", "documents").is_some_and(|insert| first_id(insert).contains(ids))
}

fn first_batch(reply: &mut Document) -> &mut Vec<Bson> {
    let cursor = reply.get_document_mut("cursor").unwrap();
    cursor.get_array_mut("firstBatch").unwrap()
}

fn is_no_such_transaction(reply: &Document) -> bool {
    reply.get_i32("code").ok() == Some(251)
}

fn is_empty_commit(request: Option<&Document>) -> bool {
    of_reply(request, "commitTransaction") && request.unwrap().contains_key("recoveryToken")
}

fn first_error(reply: &mut Document) -> Option<&mut Document> {
    reply.get_array_mut("writeErrors").ok()?.first_mut()?.as_document_mut()
}

/// All that a relay can break on a cluster.
const BY_RELAY: [Broken; 23] = [
    Broken {
        check: "wire version",
        result: "failed",
        seen: "a server speaks wire version 13; Keyward needs 17 (MongoDB 6.0) or newer",
        change: |reply, request| {
            if request.is_some() && reply.contains_key("maxWireVersion") {
                reply.insert("maxWireVersion", 13);
            }
        },
    },
    Broken {
        check: "feature version",
        result: "warned",
        seen: "feature version 5.0",
        change: |reply, request| {
            if of_reply(request, "getParameter") {
                reply.insert("featureCompatibilityVersion", doc! { "version": "5.0" });
            }
        },
    },
    Broken {
        check: "moved statement memory",
        result: "failed",
        seen: "after the move, the insert's repetition is answered: ok",
        change: |reply, request| {
            if into(request, "insert", "keys").is_some() {
                reply.remove("retriedStmtIds");
            }
        },
    },
    Broken {
        check: "moved statement memory",
        result: "skipped",
        seen: "no chunk can be moved: ",
        change: |reply, request| {
            if of_reply(request, "moveChunk") {
                *reply = doc! { "ok": 0.0, "code": 13, "codeName": "Unauthorized", "errmsg": "not authorized" };
            }
        },
    },
    Broken {
        check: "equal numbers",
        result: "failed",
        seen: "3.75 exists twice, as numbers of two types",
        change: |reply, request| {
            if into(request, "insert", "keys").is_some() && reply.remove("writeErrors").is_some() {
                reply.insert("n", 1);
            }
        },
    },
    Broken {
        check: "snapshot over shards",
        result: "failed",
        seen: "a transaction reads the second shard as of a later moment",
        // A snapshot of each shard's own.
        change: |body, request| {
            let is_first = request.is_none() && body.contains_key("startTransaction");
            let filter = body.get_document("filter").ok().filter(|_| is_first);
            if filter.is_some_and(|filter| filter.get_str("_id").unwrap().starts_with("snapshot ")) {
                body.insert("readConcern", doc! { "level": "local" });
            }
        },
    },
    Broken {
        check: "commit of an aborted transaction",
        result: "failed",
        seen: "the commit is answered: ok",
        change: |reply, request| {
            if of_reply(request, "commitTransaction") && !is_empty_commit(request) && is_no_such_transaction(reply) {
                *reply = doc! { "ok": 1.0 };
            }
        },
    },
    Broken {
        check: "commit of an unknown transaction",
        result: "failed",
        seen: "the commit is answered: ok",
        change: |reply, request| {
            if is_empty_commit(request) {
                *reply = doc! { "ok": 1.0 };
            }
        },
    },
    Broken {
        check: "placeholder and insert",
        result: "failed",
        seen: "both took effect where the takeover commits before the insert, and where the takeover comes after the insert, and \
               where the takeover comes after the commit, and where the insert meets the placeholder",
        // Documents with other `_id`s don't meet.
        change: |body, request| {
            let is_owner = request.is_none() && is_about(Some(body), "owner ");
            if is_owner {
                let documents = body.get_array_mut("documents").unwrap();
                documents[0].as_document_mut().unwrap().insert("_id", ObjectId::new());
            }
        },
    },
    Broken {
        check: "retried statements",
        result: "failed",
        seen: "the reply to a repeated insert has no retriedStmtIds",
        change: |reply, request| {
            if is_about(request, "retried ") {
                reply.remove("retriedStmtIds");
            }
        },
    },
    Broken {
        check: "retried findAndModify",
        result: "failed",
        seen: "the reply to a repeated findAndModify has no retriedStmtId",
        change: |reply, _| {
            reply.remove("retriedStmtId");
        },
    },
    Broken {
        check: "probe that matches nothing",
        result: "failed",
        seen: "a probe by _id and h that matches nothing doesn't reach the record of the statement",
        // Another shard has no record of the number.
        change: |body, request| {
            let updates = body.get_array("updates").ok();
            let query = updates.and_then(|updates| updates[0].as_document()?.get_document("q").ok());
            if request.is_none() && query.is_some_and(|query| query.contains_key("$expr")) {
                body.remove("txnNumber");
            }
        },
    },
    Broken {
        check: "linearizable read",
        result: "failed",
        seen: "1 of 2 acknowledged documents are found",
        change: |reply, request| {
            let concern = request.and_then(|request| request.get_document("readConcern").ok());
            if concern.is_some_and(|concern| concern.get_str("level").ok() == Some("linearizable")) {
                first_batch(reply).pop();
            }
        },
    },
    Broken {
        check: "default read concern",
        result: "warned",
        seen: "clients read with `available` unless they state another read concern",
        change: |reply, request| {
            if of_reply(request, "getDefaultRWConcern") {
                reply.insert("defaultReadConcern", doc! { "level": "available" });
            }
        },
    },
    Broken {
        check: "default write concern",
        result: "warned",
        seen: "w: 1; clients' own writes can be rolled back",
        change: |reply, request| {
            if of_reply(request, "getDefaultRWConcern") {
                reply.insert("defaultWriteConcern", doc! { "w": 1 });
            }
        },
    },
    Broken {
        check: "duplicate of a unique index",
        result: "failed",
        seen: "missing or different: keyPattern, keyValue",
        change: |reply, request| {
            if let (Some(_), Some(error)) = (into(request, "insert", "native"), first_error(reply)) {
                error.remove("keyPattern");
                error.insert("keyValue", doc! { "email": "b" });
            }
        },
    },
    Broken {
        check: "duplicate of an _id",
        result: "failed",
        seen: "missing or different: the index's name in errmsg",
        change: |reply, request| {
            if let (Some(_), Some(error)) = (into(request, "insert", "plain"), first_error(reply)) {
                error.insert("errmsg", "E11000");
            }
        },
    },
    Broken {
        check: "majority write",
        result: "failed",
        seen: "waiting for replication timed out",
        change: |reply, request| {
            if is_about(request, "majority ") {
                let error = doc! { "code": 64, "errmsg": "waiting for replication timed out" };
                reply.insert("writeConcernError", error);
            }
        },
    },
    Broken {
        check: "write concern timeout",
        result: "failed",
        seen: "the reply has no writeConcernError",
        change: |reply, request| {
            if is_about(request, "unacknowledged") {
                reply.remove("writeConcernError");
            }
        },
    },
    Broken {
        check: "events of all shards",
        result: "failed",
        seen: "no change streams here (code 40573",
        change: |reply, request| {
            let pipeline = request.and_then(|request| request.get_array("pipeline").ok());
            if pipeline.is_some_and(|stages| stages[0].as_document().unwrap().contains_key("$changeStream")) {
                *reply = doc! { "ok": 0.0, "code": 40573, "errmsg": "no change streams here" };
            }
        },
    },
    Broken {
        check: "cluster time",
        result: "failed",
        seen: "a reply without operationTime",
        change: |reply, request| {
            if of_reply(request, "hello") || of_reply(request, "ping") {
                reply.remove("operationTime");
            }
        },
    },
    Broken {
        check: "cluster time of all shards",
        result: "failed",
        seen: "$clusterTime is before the write's own operationTime",
        change: |reply, request| {
            if into(request, "update", "documents").is_some() {
                let time = reply.get_document_mut("$clusterTime").unwrap();
                time.insert("clusterTime", Timestamp { time: 1, increment: 1 });
            }
        },
    },
    Broken {
        check: "clock spread",
        result: "warned",
        seen: " differ by ",
        change: |reply, request| {
            let pipeline = request.and_then(|request| request.get_array("pipeline").ok());
            if pipeline.is_some_and(|stages| stages[0].as_document().unwrap().contains_key("$collStats")) {
                let there = first_batch(reply)[0].as_document_mut().unwrap();
                let ahead = there.get_datetime("localTime").unwrap().timestamp_millis() + 60_000;
                there.insert("localTime", DateTime::from_millis(ahead));
            }
        },
    },
];

/// The lines that other tests break, or that only inform.
const ELSEWHERE: [(&str, &str); 6] = [
    ("deployment answers", "below"),
    ("scratch database", "privileges.rs"),
    ("role", "privileges.rs"),
    ("transaction lifetime", "below"),
    ("release", "only informs"),
    ("balancer", "only informs"),
];

/// So many examinations run at a time: most of the time they wait.
const WORKERS: usize = 4;

/// What an examination says otherwise than that just this line is broken.
fn wrong(cluster: &Cluster, broken: Broken) -> Option<String> {
    let Broken {
        check,
        result,
        seen,
        change,
    } = broken;
    let of_request = move |request: &mut Document| change(request, None);
    let of_reply = move |request: &Document, reply: &mut Document| change(reply, Some(request));
    let relay = Altering::start(cluster.router_address(), of_request, of_reply);
    let (exit, lines) = examined(&relay.uri());
    let expected = match result {
        "failed" => 2,
        "warned" => 1,
        _ => 0,
    };
    let (_, found, what) = lines.iter().find(|(name, ..)| name == check).unwrap();
    let others = lines
        .iter()
        .filter(|(name, result, _)| name != check && matches!(&**result, "failed" | "warned"));
    let others: Vec<_> = others.collect();
    let is_wrong = exit != expected || found != result || !what.contains(seen) || !others.is_empty();
    is_wrong.then(|| format!("{check}: exit {exit}, {found}, {what}; {others:#?}"))
}

#[test]
fn each_line_says_so_where_its_assumption_does_not_hold() {
    let cluster = Cluster::alone().unwrap();
    let (next, all_wrong) = (Mutex::new(BY_RELAY.into_iter()), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let Some(broken) = next.lock().unwrap().next() else {
                break;
            };
            let wrong = wrong(&cluster, broken);
            all_wrong.lock().unwrap().extend(wrong);
        }
    };
    std::thread::scope(|scope| (0..WORKERS).for_each(|_| drop(scope.spawn(work))));
    let all_wrong = all_wrong.into_inner().unwrap();
    assert!(all_wrong.is_empty(), "{}", all_wrong.join("\n"));
}

#[test]
fn every_line_is_broken_somewhere() {
    let all = keyward::doctor::of_connection()
        .into_iter()
        .chain(keyward::doctor::checks());
    let all: BTreeSet<&str> = all.map(|check| check.name).collect();
    let broken = BY_RELAY.map(|broken| broken.check).into_iter();
    let broken: BTreeSet<&str> = broken.chain(ELSEWHERE.map(|(check, _)| check)).collect();
    assert_eq!(all, broken);
}

#[test]
fn every_line_is_documented() {
    let all = keyward::doctor::of_connection()
        .into_iter()
        .chain(keyward::doctor::checks());
    let all: Vec<String> = all.map(|check| check.name.to_owned()).collect();
    let rows = Page::read("docs/doctor.md")
        .rows()
        .into_iter()
        .map(|row| row[0].clone());
    let documented: Vec<String> = rows.filter(|name| all.contains(name)).collect();
    assert_eq!(documented, all);
}

/// Without an answer nothing else is tried.
#[test]
fn a_deployment_that_does_not_answer() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let uri = format!("mongodb://{nobody}/?serverSelectionTimeoutMS=500");
    let output = doctor(&config(&uri), &[]).output().unwrap();
    let lines = lines(&output);
    assert_eq!(output.status.code(), Some(2), "{lines:#?}");
    assert!(lines[2].starts_with("✗ deployment answers: "), "{lines:#?}");
    assert!(
        lines[2].ends_with("is upstream right? At risk: no client can be served"),
        "{lines:#?}"
    );
    let skipped = lines
        .iter()
        .filter(|line| line.ends_with("skipped, the deployment can't be used"));
    assert_eq!(skipped.count(), keyward::doctor::checks().len() + 1, "{lines:#?}");
}

#[test]
fn a_shard_in_the_place_of_the_cluster() {
    let cluster = Cluster::alone().unwrap();
    let shard = cluster.shards()[0].uri();
    let (exit, lines) = examined(&shard);
    assert_eq!(exit, 2, "{lines:#?}");
    let (name, result, seen) = &lines[0];
    assert_eq!((&**name, &**result), ("deployment answers", "failed"));
    assert!(seen.starts_with("upstream is a shard of a cluster"), "{seen}");
}

#[test]
fn transactions_that_live_for_long() {
    let set = ReplicaSet::alone().unwrap();
    let limit = |seconds: i32| {
        set.run(
            "admin",
            doc! { "setParameter": 1, "transactionLifetimeLimitSeconds": seconds },
        )
    };
    let before = limit(120).unwrap().get_i32("was").unwrap();
    let (exit, lines) = examined(&set.uri());
    limit(before).unwrap();
    assert_eq!(exit, 1, "{lines:#?}");
    let line = lines.iter().find(|(name, ..)| name == "transaction lifetime").unwrap();
    assert_eq!((&*line.1, &*line.2), ("warned", "120 s"));
}
