//! A commit of which the server doesn't say whether it has taken effect, or not that a majority has it: it is asked for again,
//! and if it stays so, neither the reservations are given back nor is the write done once more. Servers don't label such a
//! reply; only drivers do.

use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use testbed::ReplicaSet;
use testbed::fail_point::FailPoint;

use crate::strict::one_replica_set::{assert_agreement, plain, retryable, user};
use crate::strict::{insert, write_errors};
use testkit::Keyward;
use testkit::wire::send;

const INTERRUPTED: i32 = 11602;
const MAX_TIME_MS_EXPIRED: i32 = 50;
const TRANSACTION_EXCEEDED_LIFETIME_LIMIT_SECONDS: i32 = 290;

/// The server says this to commits: instead of committing, or though it has.
fn said() -> [Document; 2] {
    let error = doc! { "code": INTERRUPTED, "codeName": "InterruptedDueToReplStateChange", "errmsg": "so it is" };
    [doc! { "errorCode": INTERRUPTED }, doc! { "writeConcernError": error }]
}

/// One by an insert and one by a transaction of Keyward's own.
fn writes(id: i32) -> [Document; 2] {
    let email = |email: &str| {
        vec![
            doc! { "$set": { "email": { "$concat": [email, "$email"] }, "times": { "$add": [{ "$ifNull": ["$times", 0] }, 1] } } },
        ]
    };
    let change = doc! { "q": { "_id": 0 }, "u": email(&format!("{id}")) };
    [
        insert(vec![user(id, &format!("{id}@x"))], true),
        doc! { "update": "users", "updates": [change] },
    ]
}

/// All documents of `users`, and how often each was changed.
fn times(keyward: &Keyward, database: &str) -> Vec<(i32, i32)> {
    let found = send(
        &keyward.address,
        database,
        doc! { "find": "users", "sort": { "_id": 1 } },
    )
    .unwrap();
    let found = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    let number = |user: &Bson, field: &str| user.as_document().unwrap().get_i32(field).unwrap_or(0);
    found
        .iter()
        .map(|user| (number(user, "_id"), number(user, "times")))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_became_of_it_is_found_out_or_stays_open() {
    let database = "unknown_commit";
    let set = ReplicaSet::alone().unwrap();
    let keyward = Keyward::start(&set.uri(), &plain(database));
    let client = keyward.client().await;
    let run = |command: &Document| send(&keyward.address, database, command.clone()).unwrap();
    run(&insert(vec![user(0, "@x")], true));
    let mut expected = vec![(0, 0)];
    for (round, said) in said().into_iter().enumerate() {
        let fail = |mode: Bson| {
            let mut data = said.clone();
            data.insert("failCommands", vec!["commitTransaction"]);
            set.fail_point("failCommand", mode, data).unwrap()
        };
        for (kind, is_retryable) in [(0, false), (1, false), (0, true), (1, true)] {
            let id = 10 * (round as i32 + 1) + kind + if is_retryable { 2 } else { 0 };
            // Said once, it is none of the client's business.
            let command = match is_retryable {
                true => retryable(writes(id)[kind as usize].clone()),
                false => writes(id)[kind as usize].clone(),
            };
            let once = fail(doc! { "times": 1 }.into());
            let reply = run(&command);
            assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{command} {reply}");
            assert_eq!(reply.get_i32("n").unwrap(), 1, "{command} {reply}");
            assert!(!reply.contains_key("writeConcernError"), "{command} {reply}");
            drop(once);
            match kind {
                0 => expected.push((id, 0)),
                _ => expected[0].1 += 1,
            }
            assert_eq!(times(&keyward, database), expected, "{command}");
        }
        for kind in [0, 1] {
            let id = 10 * (round as i32 + 1) + 5 + kind;
            let command = retryable(writes(id)[kind as usize].clone());
            let always = fail("alwaysOn".into());
            let reply = run(&command);
            assert_eq!(reply.get_i32("code").ok(), Some(INTERRUPTED), "{command} {reply}");
            let labels = reply.get_array("errorLabels").unwrap();
            assert_eq!(labels, &["RetryableWriteError".into()], "{command} {reply}");
            drop(always);
            let reply = run(&command);
            assert_eq!(reply.get_i32("n").ok(), Some(1), "{command} {reply}");
            assert_eq!(write_errors(&reply), [], "{command} {reply}");
            match kind {
                0 => expected.push((id, 0)),
                _ => expected[0].1 += 1,
            }
            assert_eq!(times(&keyward, database), expected, "{command}");
        }
    }
    assert_agreement(&client, database).await;
}

/// What a statement inside a transaction says of a write concern is of no importance: the commit's counts, and that one was met.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_statement_says_of_its_write_concern_never_reaches_a_driver() {
    let database = "concern_within";
    let set = ReplicaSet::alone().unwrap();
    let keyward = Keyward::start(&set.uri(), &plain(database));
    let client = keyward.client().await;
    let users = client.database(database).collection::<Document>("users");
    let fail = |command: &str| {
        let error = doc! { "code": 91, "errmsg": "shutting down" };
        let data = doc! { "failCommands": [command], "writeConcernError": error };
        set.fail_point("failCommand", doc! { "times": 1 }, data).unwrap()
    };
    users
        .insert_many((1..6).map(|id| user(id, &format!("{id}@x"))))
        .await
        .unwrap();
    let failing = fail("delete");
    assert_eq!(users.delete_one(doc! { "_id": 1 }).await.unwrap().deleted_count, 1);
    drop(failing);
    let failing = fail("findAndModify");
    let deleted = users.find_one_and_delete(doc! { "_id": 2 }).await.unwrap();
    assert_eq!(deleted, Some(user(2, "2@x")));
    drop(failing);
    let failing = fail("findAndModify");
    let replacing = users.find_one_and_replace(doc! { "_id": 3 }, doc! { "email": "three@x" });
    assert_eq!(replacing.await.unwrap(), Some(user(3, "3@x")));
    drop(failing);
    let failing = fail("update");
    let replaced = users.replace_one(doc! { "_id": 4 }, doc! { "email": "four@x" });
    assert_eq!(replaced.await.unwrap().modified_count, 1);
    drop(failing);
    assert_agreement(&client, database).await;
}

/// The server doesn't label the end of a transaction that has lived too long.
#[test]
fn a_transaction_of_keywards_that_has_lived_too_long_is_run_again() {
    let database = "lived_too_long";
    let set = ReplicaSet::alone().unwrap();
    let keyward = Keyward::start(&set.uri(), &plain(database));
    let run = |command: &Document| send(&keyward.address, database, command.clone()).unwrap();
    run(&insert(vec![user(0, "@x")], true));
    let failing = |mode: Bson, commands: &[&str]| {
        let data = doc! {
            "failCommands": commands, "namespace": format!("{database}.users"), "errorCode": TRANSACTION_EXCEEDED_LIFETIME_LIMIT_SECONDS,
        };
        set.fail_point("failCommand", mode, data).unwrap()
    };
    let steps: [(usize, &[&str]); 3] = [(0, &["insert"]), (1, &["find", "aggregate"]), (1, &["update"])];
    for (id, (kind, commands)) in (1..).zip(steps) {
        let [mut write, again] = [id, 10 * id].map(|id| writes(id)[kind].clone());
        let once = failing(doc! { "times": 1 }.into(), commands);
        let reply = run(&again);
        assert_eq!(reply.get_i32("n").ok(), Some(1), "{again} {reply}");
        assert_eq!(write_errors(&reply), [], "{again} {reply}");
        drop(once);
        write.insert("maxTimeMS", 1_000);
        let _always = failing("alwaysOn".into(), commands);
        let reply = run(&write);
        assert_eq!(reply.get_i32("code").ok(), Some(MAX_TIME_MS_EXPIRED), "{write} {reply}");
    }
}

/// The connection stays with a server that takes no writes any more: every other try there would fail, too.
#[test]
fn a_deposed_primary_is_not_asked_again_for_a_statement_in_a_transaction() {
    let database = "deposed_statement";
    let set = ReplicaSet::alone().unwrap();
    let keyward = Keyward::start(&set.uri(), &plain(database));
    let run = |command: &Document| send(&keyward.address, database, command.clone()).unwrap();
    run(&insert(vec![user(0, "@x")], true));
    let [_, mut update] = writes(1);
    // Without the answer of the deposed primary, the client would get the error of this limit.
    update.insert("maxTimeMS", 5_000);
    for (command, label) in [(retryable(update.clone()), Some("RetryableWriteError")), (update, None)] {
        let data = doc! {
            "failCommands": ["find"], "namespace": format!("{database}.users"), "errorCode": INTERRUPTED,
            "errorLabels": ["TransientTransactionError"],
        };
        let deposed = set.fail_point("failCommand", "alwaysOn", data).unwrap();
        let reply = run(&command);
        drop(deposed);
        assert_eq!(reply.get_i32("code").ok(), Some(INTERRUPTED), "{reply}");
        let labels = reply.get_array("errorLabels").ok();
        let first = labels.and_then(|labels| labels.first()).and_then(Bson::as_str);
        assert_eq!(first, label, "{reply}");
    }
}

/// The server has aborted the transaction before the commit comes, and can't confirm so with a majority in time. The client sees
/// that its time is over, and not that a transaction is gone of which it knows nothing.
#[test]
fn at_the_limit_the_client_hears_of_the_limit() {
    let database = "commit_at_the_limit";
    let set = ReplicaSet::start(2).unwrap();
    set.wait_until_whole().unwrap();
    let keyward = Keyward::start(&set.uri(), &plain(database)).leaving();
    let run = |command: &Document| send(&keyward.address, database, command.clone()).unwrap();
    run(&insert(vec![user(0, "@x")], true));
    let primary = set.primary().unwrap().address();
    let secondary = set.addresses().into_iter().find(|address| *address != primary).unwrap();
    let [_, mut update] = writes(1);
    update.insert("maxTimeMS", 10_000);
    let _behind = FailPoint::turn_on(&secondary, "stopReplProducer", "alwaysOn".into(), doc! {}).unwrap();
    let blocked = doc! { "failCommands": ["commitTransaction"], "blockConnection": true, "blockTimeMS": 5_000 };
    let _blocked = set.fail_point("failCommand", doc! { "times": 1 }, blocked).unwrap();
    let reply = std::thread::scope(|scope| {
        let updated = scope.spawn(|| run(&update));
        abort_the_transaction_that_commits(&set);
        updated.join().unwrap()
    });
    assert_eq!(reply.get_i32("code").ok(), Some(MAX_TIME_MS_EXPIRED), "{reply}");
    assert_eq!(reply.get_str("codeName").ok(), Some("MaxTimeMSExpired"), "{reply}");
    assert_eq!(times(&keyward, database), [(0, 0)]);
}

/// Waits for a commit to come.
fn abort_the_transaction_that_commits(set: &ReplicaSet) {
    let commits = doc! { "aggregate": 1, "cursor": {}, "pipeline": [
        { "$currentOp": { "allUsers": true } }, { "$match": { "command.commitTransaction": 1 } },
    ] };
    let until = Instant::now() + Duration::from_secs(30);
    let commit = loop {
        let found = set.run("admin", commits.clone()).unwrap();
        let found = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        if let Some(commit) = found.first() {
            break commit.as_document().unwrap().get_document("command").unwrap().clone();
        }
        assert!(Instant::now() < until, "no commit has come");
    };
    let abort = doc! {
        "abortTransaction": 1, "lsid": commit.get_document("lsid").unwrap(), "txnNumber": commit.get_i64("txnNumber").unwrap(),
        "autocommit": false, "writeConcern": { "w": 1 },
    };
    set.run("admin", abort).unwrap();
}

/// A deposed primary may lack the record of an earlier try. So a duplicate is reported only after a majority has seen that there is none.
#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_is_reported_to_a_retry_only_if_a_majority_has_no_record_of_it() {
    let database = "unknown_record";
    let set = ReplicaSet::alone().unwrap();
    let keyward = Keyward::start(&set.uri(), &plain(database));
    let run = |command: &Document| send(&keyward.address, database, command.clone()).unwrap();
    run(&insert(vec![user(0, "@x"), user(1, "1@x"), user(2, "2@x")], true));
    let late = doc! { "code": 64, "errmsg": "waiting for replication timed out", "errInfo": { "wtimeout": true } };
    for error in [doc! { "errorCode": INTERRUPTED }, doc! { "writeConcernError": late }] {
        for mut command in writes(1) {
            if let Ok(documents) = command.get_array_mut("documents") {
                *documents = vec![user(3, "1@x").into()];
            }
            command.insert("maxTimeMS", 3_000);
            let command = retryable(command);
            let mut data = error.clone();
            data.insert("failCommands", vec!["commitTransaction"]);
            let failing = set.fail_point("failCommand", "alwaysOn", data).unwrap();
            let reply = run(&command);
            assert_eq!(write_errors(&reply), [], "{command} {reply}");
            assert_eq!(reply.get_f64("ok").unwrap(), 0.0, "{command} {reply}");
            drop(failing);
            let reply = run(&command);
            assert_eq!(write_errors(&reply), [(0, 11_000)], "{command} {reply}");
        }
    }
}

/// What the client asks for beyond a majority says nothing of the record.
#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_is_reported_to_a_retry_whatever_its_write_concern() {
    let database = "concern_and_record";
    let keyward = Keyward::start(&ReplicaSet::shared().uri(), &plain(database));
    let run = |command: Document| send(&keyward.address, database, command).unwrap();
    run(insert(vec![user(0, "@x"), user(1, "1@x")], true));
    for mut command in writes(1) {
        if let Ok(documents) = command.get_array_mut("documents") {
            *documents = vec![user(3, "1@x").into()];
        }
        command.extend(doc! { "writeConcern": { "w": 2, "wtimeout": 500 }, "maxTimeMS": 20_000 });
        let reply = run(retryable(command));
        assert_eq!(write_errors(&reply), [(0, 11_000)], "{reply}");
    }
}
