//! A commit whose reply is lost: the driver's retry finds in the record what has taken effect.

use std::time::{Duration, Instant};

use bson::{Binary, Document, doc, spec::BinarySubtype};

use crate::both::retries::{behind, lose_this_and_retry, retryable};
use crate::strategy::Strategy;
use crate::strict::group_commit::behind_with_a_short_lease;
use crate::strict::{EMAIL, assert_agreement, insert, keyward, users, write_errors};
use testkit::relay::Relay;
use testkit::relay::wait_until;
use testkit::wire::send;

/// Far below a transaction's life, which is 20 s at least here.
const SOON: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread")]
async fn it_takes_effect_once_through_the_same_keyward_or_another() {
    for (database, is_other) in [("lost_commit", false), ("lost_commit_other", true)] {
        let cluster = users(database);
        let forwarder = Relay::start(cluster.router_address());
        let first = behind(Strategy::Strict, &forwarder, database);
        let other = keyward(cluster, database, "60s", &[EMAIL]);
        let retry = if is_other { &other } else { &first };
        let addresses = [first.address.as_str(), &retry.address];
        let commit = b"\x10commitTransaction\0".to_vec();
        lose_this_and_retry(Strategy::Strict, cluster, database, addresses, &forwarder, commit).await;
    }
}

/// The record is read in the session of the command's first try: while that one is still at work, the server may call the
/// read's number too old. It is read again, and the client never hears of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_cannot_be_read_at_once_is_read_again() {
    const TRANSACTION_TOO_OLD: i32 = 225;
    let database = "record_again";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let user = |id: i32| doc! { "_id": id, "region": "a", "email": "a@x" };
    send(&keyward.address, database, insert(vec![user(1)], true)).unwrap();
    let refused = doc! {
        "errorCode": TRANSACTION_TOO_OLD, "failCommands": ["find"], "namespace": format!("{database}.keyward.results"),
    };
    let once = || doc! { "times": 1 };
    let _points: Vec<_> = cluster
        .shards()
        .iter()
        .map(|shard| shard.fail_point("failCommand", once(), refused.clone()).unwrap())
        .collect();
    let mut duplicate = insert(vec![user(2)], true);
    let bytes = rand::random::<[u8; 16]>().to_vec();
    let subtype = BinarySubtype::Uuid;
    duplicate.extend(doc! { "lsid": { "id": Binary { subtype, bytes } }, "txnNumber": 1_i64 });
    let reply = send(&keyward.address, database, duplicate).unwrap();
    assert_eq!(write_errors(&reply), [(0, 11000)], "{reply}");
}

/// The transaction whose commit never came stays open on the shards, until Keyward has its session ended: whether or not the
/// driver comes again, nobody else waits for the document or its keys.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_never_came_holds_nobody_up() {
    let database = "commit_cut";
    let cluster = users(database);
    let forwarder = Relay::start(cluster.router_address());
    let keyward = behind(Strategy::Strict, &forwarder, database);
    let run = |command: &Document| send(&keyward.address, database, command.clone());
    let user = |id: i32, email: &str| doc! { "_id": id, "region": "a", "email": email };
    run(&insert(vec![user(1, "1@x")], true)).unwrap();
    let change = |email: &str| {
        let set = doc! { "$set": { "email": email }, "$inc": { "times": 1 } };
        doc! { "update": "users", "updates": [{ "q": { "_id": 1, "region": "a" }, "u": set }] }
    };
    let modify = |email: &str| {
        let set = doc! { "$set": { "email": email }, "$inc": { "times": 1 } };
        doc! { "findAndModify": "users", "query": { "_id": 1, "region": "a" }, "update": set }
    };
    let remove = doc! { "delete": "users", "deletes": [{ "q": { "_id": 1, "region": "a" }, "limit": 1 }] };
    let cut_off = [
        (retryable(change("2@x"), 1), 2),
        (change("2@x"), 1),
        (retryable(modify("2@x"), 1), 2),
        (retryable(remove, 1), 2),
    ];
    for (number, (command, tries)) in (1..).zip(cut_off) {
        for _ in 0..tries {
            let is_cut = forwarder.tear_request_with(b"\x10commitTransaction\0".to_vec());
            let cut = run(&command);
            assert!(cut.is_err(), "{cut:?}");
            wait_until(&is_cut);
        }
        let begun = Instant::now();
        let next = change(if number % 2 == 0 { "2@x" } else { "3@x" });
        let reply = run(&next).unwrap();
        assert!(begun.elapsed() < SOON, "{command} {:?} {reply}", begun.elapsed());
        assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{command} {reply}");
        // What the driver says at last is carried out once.
        if tries > 1 && number < 4 {
            let begun = Instant::now();
            let reply = run(&command).unwrap();
            assert!(begun.elapsed() < SOON, "{command} {:?} {reply}", begun.elapsed());
            assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{command} {reply}");
        }
    }
    let found = run(&doc! { "find": "users", "filter": { "_id": 1 } }).unwrap();
    let found = &found.get_document("cursor").unwrap().get_array("firstBatch").unwrap()[0];
    assert_eq!(found.as_document().unwrap().get_i32("times").unwrap(), 6, "{found}");
}

/// Nor does anybody wait for an insert's transaction: the driver's second retry inserts at once, and where none comes, the key
/// is another document's once the lease is over.
#[tokio::test(flavor = "multi_thread")]
async fn an_insert_whose_commit_never_came_holds_nobody_up() {
    let database = "insert_cut";
    let cluster = users(database);
    let forwarder = Relay::start(cluster.router_address());
    let keyward = behind_with_a_short_lease(&forwarder, database);
    let run = |command: &Document| send(&keyward.address, database, command.clone());
    let soon = |command: &Document| {
        let begun = Instant::now();
        let reply = run(command).unwrap();
        assert!(begun.elapsed() < SOON, "{command} {:?} {reply}", begun.elapsed());
        reply
    };
    for (id, is_retried) in [(1, true), (2, false)] {
        let user = |id: i32, email: i32| doc! { "_id": id, "region": "a", "email": format!("{email}@x") };
        let command = insert(vec![user(id, id)], true);
        let (command, tries) = match is_retried {
            true => (retryable(command, 1), 2),
            false => (command, 1),
        };
        for _ in 0..tries {
            let is_cut = forwarder.tear_request_with(b"\x10commitTransaction\0".to_vec());
            let cut = run(&command);
            assert!(cut.is_err(), "{cut:?}");
            wait_until(&is_cut);
        }
        if is_retried {
            let reply = soon(&command);
            assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
        }
        let expected = if is_retried { vec![(0, 11000)] } else { vec![] };
        let same_key = soon(&insert(vec![user(10 + id, id)], true));
        assert_eq!(write_errors(&same_key), expected, "{same_key}");
        let same_id = soon(&insert(vec![user(id, 20 + id)], true));
        assert_eq!(write_errors(&same_id), expected, "{same_id}");
    }
    assert_agreement(cluster, database, "email").await;
}
