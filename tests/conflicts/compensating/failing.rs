//! Shards that refuse, break off or take too long, by the server's own fail points, which hit the protected collection
//! only. A server has one `failCommand`, whatever the namespace that it names: each of these tests has a cluster alone.

use std::time::{Duration, Instant};

use bson::{Binary, Bson, Document, doc, spec::BinarySubtype};
use testbed::fail_point::FailPoint;
use testbed::{Cluster, ReplicaSet};

use crate::compensating::{EMAIL, assert_agreement, insert, keyward, reservations, users, users_on, write_errors};
use testkit::relay::Relay;
use testkit::relay::insert_into;
use testkit::relay::wait_until;
use testkit::wire::send;
use testkit::{Keyward, on_each_shard, run};

fn user(id: i32) -> Document {
    doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": format!("{id}@x") }
}

/// Makes every shard fail `insert` into the protected collection.
fn failing(cluster: &Cluster, database: &str, mode: impl Into<Bson>, how: Document) -> Vec<FailPoint> {
    let mode = mode.into();
    let fail = |shard| failing_on(shard, database, mode.clone(), how.clone());
    cluster.shards().iter().map(fail).collect()
}

fn failing_on(shard: &ReplicaSet, database: &str, mode: Bson, how: Document) -> FailPoint {
    let mut data = doc! { "failCommands": ["insert"], "namespace": format!("{database}.users") };
    data.extend(how);
    shard.fail_point("failCommand", mode, data).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_the_privilege_leaves_nothing_reserved() {
    let database = "unauthorized";
    let alone = Cluster::alone().unwrap();
    let cluster = users_on(&alone, database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let client = keyward.client_without_retries().await;
    let refused = failing(cluster, database, "alwaysOn", doc! { "errorCode": 13 });
    for ordered in [true, false] {
        let reply = run(&client, database, insert((0..6).map(user).collect(), ordered)).await;
        let told = reply
            .get_i32("code")
            .ok()
            .or(write_errors(&reply).first().map(|error| error.1));
        assert_eq!(told, Some(13), "{reply}");
        assert_eq!(reservations(cluster, database, "email").await, Vec::<Document>::new());
    }
    drop(refused);
    let reply = run(&client, database, insert((0..6).map(user).collect(), true)).await;
    assert_eq!(reply.get_i32("n").unwrap(), 6, "{reply}");
    assert_agreement(cluster, database, "email").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_tries_again_what_was_not_answered() {
    let database = "start_unanswered";
    let cluster = users(database);
    let users = cluster.client().database(database).collection::<Document>("users");
    users.insert_many((0..4).map(user)).await.unwrap();
    // No fail point: which of a start's reads a shard gets depends on how the router asks it. Only the read of the documents to backfill has
    // batches of this size.
    let relay = Relay::start(cluster.router_address());
    let unanswered = relay.hold(&[b"\x10batchSize\0", &8_000_i32.to_le_bytes()[..]].concat());
    // For longer than an answer is waited for.
    let mut keyward = Keyward::start_with_lease(&relay.uri(), "5s", &EMAIL.replace("DB", database));
    unanswered.wait();
    assert_agreement(cluster, database, "email").await;
    keyward.terminate();
    let log = keyward.log();
    assert!(log.contains("no answer within 15 s"), "{log}");
}

/// A driver that retries an insert which a shard fails once; everything is there exactly once afterwards.
async fn retried(cluster: &Cluster, keyward: &Keyward, database: &str, shard: &ReplicaSet, first: i32, how: Document) {
    let users = keyward
        .client()
        .await
        .database(database)
        .collection::<Document>("users");
    let fail = failing_on(shard, database, doc! { "times": 1 }.into(), how.clone());
    let result = users.insert_many((first..first + 4).map(user)).await;
    assert!(result.is_ok(), "{how}: {result:?}");
    drop(fail);
    let documents = on_each_shard(cluster.shards(), database, "users").await.concat();
    let there = |id: i32| {
        documents
            .iter()
            .filter(|document| document.get_i32("_id").unwrap() == id)
            .count()
    };
    assert!((first..first + 4).all(|id| there(id) == 1), "{how}");
    assert_agreement(cluster, database, "email").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drivers_retry_succeeds_once_whatever_the_shard_said() {
    let database = "labels";
    let alone = Cluster::alone().unwrap();
    let cluster = users_on(&alone, database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let failures = [
        doc! { "closeConnection": true },
        doc! { "errorCode": 10107 },
        doc! { "errorCode": 91 },
        doc! { "errorCode": 11600 },
        // NetworkInterfaceExceededTimeLimit
        doc! { "errorCode": 202 },
    ];
    for (number, how) in (0..).zip(failures) {
        for (shard, first) in cluster.shards().iter().zip([10 * number, 10 * number + 5]) {
            retried(cluster, &keyward, database, shard, first, how.clone()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_proves_nothing_leaves_the_keys_reserved() {
    let database = "in_doubt";
    let alone = Cluster::alone().unwrap();
    let cluster = users_on(&alone, database);
    let keyward = keyward(cluster, database, "3s", &[EMAIL]);
    let client = keyward.client_without_retries().await;
    for (number, code) in (0..).zip([202, 6, 89, 91, 317, 9_999]) {
        let fail = failing(cluster, database, "alwaysOn", doc! { "errorCode": code });
        let ids = 10 * number..10 * number + 4;
        let reply = run(
            &client,
            database,
            insert(ids.clone().map(user).collect(), number % 2 == 0),
        )
        .await;
        assert_ne!(reply.get_i32("n").unwrap_or(0), 4, "{reply}");
        // Nothing is there, but nobody knows: until the leases are over.
        assert_eq!(
            reservations(cluster, database, "email").await.len(),
            4 * (number as usize + 1),
            "{code}: {reply}"
        );
        drop(fail);
        let reply = run(&client, database, insert(ids.map(user).collect(), false)).await;
        assert_eq!(reply.get_i32("n").unwrap(), 4, "{reply}");
    }
    assert_agreement(cluster, database, "email").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_concern_error_is_passed_on_with_what_was_written() {
    let database = "concern";
    let alone = Cluster::alone().unwrap();
    let cluster = users_on(&alone, database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let client = keyward.client_without_retries().await;
    let concern = doc! { "writeConcernError": { "code": 64, "codeName": "WriteConcernFailed", "errmsg": "waiting" } };
    let fail = failing(cluster, database, "alwaysOn", concern);
    let reply = run(&client, database, insert((0..3).map(user).collect(), true)).await;
    assert_eq!(reply.get_i32("n").unwrap(), 3, "{reply}");
    let error = reply.get_document("writeConcernError").unwrap();
    assert_eq!(error.get_i32("code").unwrap(), 64, "{reply}");
    drop(fail);
    assert_agreement(cluster, database, "email").await;
    let reply = run(
        &client,
        database,
        insert(vec![doc! { "_id": 9, "region": "z", "email": "0@x" }], true),
    )
    .await;
    assert_eq!(write_errors(&reply), [(0, 11000)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_limit_that_passes_midway_leaves_no_document_without_its_key() {
    let database = "midway";
    let alone = Cluster::alone().unwrap();
    let cluster = users_on(&alone, database);
    let [first, second] = ["2s", "10s"].map(|lease| keyward(cluster, database, lease, &[EMAIL]));
    let client = first.client_without_retries().await;
    // The shards begin late, so that the limit passes while they are at it.
    let late = failing(
        cluster,
        database,
        doc! { "times": 1 },
        doc! { "blockConnection": true, "blockTimeMS": 700 },
    );
    let mut command = insert((0..2_000).map(user).collect(), false);
    command.insert("maxTimeMS", 500);
    let began = Instant::now();
    let reply = run(&client, database, command).await;
    drop(late);
    let told = reply
        .get_i32("code")
        .ok()
        .or(write_errors(&reply).first().map(|error| error.1));
    assert_eq!(told, Some(50), "{reply}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let held: std::collections::HashSet<String> = reservations(cluster, database, "email")
        .await
        .iter()
        .map(|reservation| reservation.get("owner").unwrap().to_string())
        .collect();
    for document in on_each_shard(cluster.shards(), database, "users").await.concat() {
        assert!(held.contains(&document.get("_id").unwrap().to_string()), "{document}");
    }
    // Whatever was in doubt is free once its lease is over, or has its document. The short lease is that of the first: so many
    // documents may take longer than it.
    let client = second.client_without_retries().await;
    let rest = run(&client, database, insert((0..2_000).map(user).collect(), false)).await;
    assert!(write_errors(&rest).iter().all(|(_, code)| *code == 11000), "{rest}");
    assert_eq!(
        on_each_shard(cluster.shards(), database, "users").await.concat().len(),
        2_000
    );
    assert_agreement(cluster, database, "email").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordered_command_tells_its_first_error_only() {
    let database = "first_error";
    let cluster = users(database);
    let validator = doc! { "collMod": "users", "validator": { "age": { "$ne": 3 } } };
    cluster.run(database, validator).unwrap();
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let client = keyward.client_without_retries().await;
    run(&client, database, insert(vec![user(0)], true)).await;
    let mut refused = user(2);
    refused.insert("age", 3);
    let duplicate = doc! { "_id": 4, "region": "a", "email": "0@x" };
    let command = insert(vec![user(6), refused, duplicate, user(8)], true);
    let reply = run(&client, database, command).await;
    assert_eq!(write_errors(&reply), [(1, 121)], "{reply}");
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    assert_agreement(cluster, database, "email").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_whose_connection_breaks_in_the_middle_goes_on() {
    for step in ["createIndexes", "shardCollection"] {
        let database = format!("start_without_{step}");
        let forwarder = Relay::start(users(&database).router_address());
        let lost = forwarder.lose_reply_to(format!("{step}\0").into_bytes());
        let upstream = format!("mongodb://{}/", forwarder.address);
        let keyward = Keyward::start_with_lease(&upstream, "10s", &EMAIL.replace("DB", &database));
        wait_until(&lost);
        let reply = run(
            &keyward.client().await,
            &database,
            insert(vec![user(1), user(2), doc! { "region": "a", "email": "1@x" }], true),
        )
        .await;
        assert_eq!(write_errors(&reply), [(2, 11000)], "{reply}");
    }
}

/// A router that has stopped, say: the server would have ended the write by then, so its reply isn't waited for any longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_does_not_come_within_the_lease_is_not_waited_for() {
    let database = "no_reply";
    let cluster = users(database);
    let forwarder = Relay::start(cluster.router_address());
    let upstream = format!("mongodb://{}/", forwarder.address);
    let keyward = Keyward::start_with_lease(&upstream, "2s", &EMAIL.replace("DB", database));
    // It never arrives.
    let _held = forwarder.hold(&insert_into("users"));
    let (address, began) = (keyward.address.clone(), Instant::now());
    let reply = tokio::task::spawn_blocking(move || send(&address, database, insert(vec![user(1)], true)));
    assert!(reply.await.unwrap().is_err(), "the connection isn't closed");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    // Its own insert has to come within its lease.
    let other = crate::trial::keyward(cluster, database, "10s", &[EMAIL]);
    let reply = send(&other.address, database, insert(vec![user(1)], true)).unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    assert_agreement(cluster, database, "email").await;
}

/// A transaction holds the document's place, so the server tries the insert again and again: it must end before others may
/// take the key over.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_ends_a_write_within_the_lease_of_its_keys() {
    let database = "ended_in_lease";
    let cluster = users(database);
    // The server has nine tenths of it. The rest is for its answer, also on a busy machine.
    let keyward = crate::trial::keyward(cluster, database, "15s", &[EMAIL]);
    let id = Binary {
        subtype: BinarySubtype::Uuid,
        bytes: rand::random::<[u8; 16]>().to_vec(),
    };
    let transaction = doc! { "lsid": { "id": id }, "txnNumber": 1_i64, "autocommit": false };
    let mut in_the_way = insert(vec![doc! { "_id": 2, "region": "a" }], true);
    in_the_way.extend(transaction.clone());
    in_the_way.insert("startTransaction", true);
    let router = cluster.router_address();
    assert_eq!(send(&router, database, in_the_way).unwrap().get_i32("n").ok(), Some(1));
    // Without a limit the reply would not come within the lease, and Keyward would close the connection.
    let reply = send(&keyward.address, database, insert(vec![user(2)], true)).unwrap();
    assert_eq!(write_errors(&reply), [(0, 50)], "{reply}");
    let mut abort = doc! { "abortTransaction": 1 };
    abort.extend(transaction);
    send(&router, "admin", abort).unwrap();
    let reply = send(&keyward.address, database, insert(vec![user(2)], true)).unwrap();
    assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    assert_agreement(cluster, database, "email").await;
}

/// Reservations are no retryable writes: Keyward sends them again itself, for clients whose drivers don't.
#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_that_a_shard_turns_down_for_the_moment_is_written_again() {
    let database = "reserved_again_meanwhile";
    let alone = Cluster::alone().unwrap();
    let cluster = users_on(&alone, database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let client = keyward.client_without_retries().await;
    for (id, how) in [(1, doc! { "errorCode": 10107 }), (2, doc! { "closeConnection": true })] {
        let fail = |shard: &ReplicaSet| {
            let mut data =
                doc! { "failCommands": ["insert"], "namespace": format!("{database}.keyward.users.email_1") };
            data.extend(how.clone());
            shard.fail_point("failCommand", doc! { "times": 1 }, data).unwrap()
        };
        let _failing: Vec<FailPoint> = cluster.shards().iter().map(fail).collect();
        let reply = run(&client, database, insert(vec![user(id)], true)).await;
        assert_eq!(reply.get_i32("n").ok(), Some(1), "{how}: {reply}");
    }
    assert_agreement(cluster, database, "email").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_does_not_come_is_not_waited_for() {
    let database = "no_answer";
    let alone = Cluster::alone().unwrap();
    let cluster = users_on(&alone, database);
    let keyward = keyward(cluster, database, "10s", &[EMAIL]);
    let client = keyward.client_without_retries().await;
    run(&client, database, insert((0..2).map(user).collect(), true)).await;
    // The servers answer everything but whose reservation that is.
    let namespace = format!("{database}.keyward.users.email_1");
    let held_up = doc! {
        "failCommands": ["find"], "namespace": namespace, "blockConnection": true, "blockTimeMS": 45_000,
    };
    let hold_up = |shard: &ReplicaSet| {
        shard
            .fail_point("failCommand", Bson::from("alwaysOn"), held_up.clone())
            .unwrap()
    };
    let silent: Vec<FailPoint> = cluster.shards().iter().map(hold_up).collect();
    let again = || insert(vec![doc! { "_id": 9, "region": "z", "email": "0@x" }], true);
    let asked = Instant::now();
    let reply = run(&client, database, again()).await;
    let told = reply.get_str("errmsg").unwrap_or_default();
    assert!(told.contains("email_1"), "{reply}");
    assert!((15..45).contains(&asked.elapsed().as_secs()), "{:?}", asked.elapsed());
    // Each server says that it is off only once its last answer is no longer held up. So none is asked after another.
    std::thread::scope(|scope| {
        for on_one in silent {
            scope.spawn(move || drop(on_one));
        }
    });
    let reply = run(&client, database, again()).await;
    assert_eq!(
        write_errors(&reply).first().map(|error| error.1),
        Some(11_000),
        "{reply}"
    );
    assert_agreement(cluster, database, "email").await;
}

/// A document without keys is inserted at once. The keys of the other one are each time too old to write with when their answer comes.
#[tokio::test(flavor = "multi_thread")]
async fn documents_whose_keys_come_too_late_hide_no_others() {
    let database = "keys_too_late";
    let alone = Cluster::alone().unwrap();
    let cluster = users_on(&alone, database);
    let sparse = EMAIL.replace("key:", "sparse: true, key:");
    let keyward = keyward(cluster, database, "5s", &[&sparse]);
    let slow = |shard: &ReplicaSet| {
        let namespace = format!("{database}.keyward.users.email_1");
        let slow = doc! {
            "failCommands": ["insert"], "namespace": namespace, "blockConnection": true, "blockTimeMS": 3_300,
        };
        shard.fail_point("failCommand", Bson::from("alwaysOn"), slow).unwrap()
    };
    let slow: Vec<FailPoint> = cluster.shards().iter().map(slow).collect();
    std::thread::scope(|scope| {
        for (first, ordered) in [(0, true), (10, false)] {
            let address = &keyward.address;
            scope.spawn(move || {
                let without = doc! { "_id": first, "region": "a" };
                let command = insert(vec![without, user(first + 2)], ordered);
                let reply = send(address, database, command).unwrap();
                assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
                assert_eq!(write_errors(&reply), [(1, 6)], "{reply}");
            });
        }
    });
    drop(slow);
    assert_eq!(reservations(cluster, database, "email").await, Vec::<Document>::new());
}
