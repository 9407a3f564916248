//! Waiting for whoever is at a key: how its end is learned of, and what a retry makes of what happened meanwhile.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bson::{Binary, Bson, Document, doc, spec::BinarySubtype};
use testbed::fail_point::FailPoint;
use testbed::{Cluster, ReplicaSet};

use crate::both::abandoned::{Abandoned, NOW};
use crate::compensating::{
    EMAIL, PHONE, assert_agreement, insert, keyward, reservations, users, users_on, write_errors,
};
use testkit::relay::Relay;
use testkit::relay::insert_into;
use testkit::relay::wait_until;
use testkit::wire::send;
use testkit::{Keyward, run};

fn user(id: i32, email: &str) -> Document {
    doc! { "_id": id, "region": "a", "email": email }
}

fn retryable(mut command: Document) -> Document {
    let bytes = rand::random::<[u8; 16]>().to_vec();
    command.insert("lsid", doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } });
    command.insert("txnNumber", 1_i64);
    command
}

/// A Keyward whose way to the cluster can be interfered with.
fn behind(forwarder: &Relay, database: &str) -> Keyward {
    let upstream = format!("mongodb://{}/", forwarder.address);
    Keyward::start_with_lease(&upstream, "60s", &EMAIL.replace("DB", database))
}

fn sending(keyward: &Keyward, database: &'static str, command: Document) -> JoinHandle<Document> {
    let address = keyward.address.clone();
    std::thread::spawn(move || send(&address, database, command).unwrap())
}

/// How often a Keyward has waited for somebody else's reservation.
fn waits(keyward: &Keyward) -> u64 {
    let metrics = keyward.metrics();
    let of_constraints = metrics
        .lines()
        .filter(|line| line.starts_with("keyward_constraint_conflicts_waited_total"));
    of_constraints
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

fn wait_until_it_has_waited(keyward: &Keyward, times: u64) {
    while waits(keyward) < times {
        std::thread::yield_now();
    }
}

/// Of two who wait for one insert, the one in its own Keyward is told at once, the other one looks now and then.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_in_the_same_keyward_is_told_first() {
    /// So many waits make the next one as long as waits become.
    const PATIENT_AFTER: u64 = 8;
    const ROUNDS: i32 = 12;
    let database = "told_first";
    let cluster = users(database);
    let forwarder = Relay::start(cluster.router_address());
    let same = behind(&forwarder, database);
    let other = keyward(cluster, database, "60s", &[EMAIL]);
    let mut first = 0;
    for round in 0..ROUNDS {
        let wanted = |id: i32| insert(vec![user(3 * round + id, &format!("{round}@x"))], true);
        let held = forwarder.hold(&insert_into("users"));
        let inserting = sending(&same, database, wanted(0));
        held.wait();
        let before = [&same, &other].map(waits);
        let timed = |keyward: &Keyward, command: Document| {
            let reply = sending(keyward, database, command);
            std::thread::spawn(move || (reply.join().unwrap(), Instant::now()))
        };
        let waiting = [timed(&same, wanted(1)), timed(&other, wanted(2))];
        for (keyward, before) in [&same, &other].into_iter().zip(before) {
            wait_until_it_has_waited(keyward, before + PATIENT_AFTER);
        }
        drop(held);
        assert_eq!(inserting.join().unwrap().get_i32("n").unwrap(), 1);
        let [same, other] = waiting.map(|reply| reply.join().unwrap());
        for (reply, _) in [&same, &other] {
            assert_eq!(write_errors(reply), [(0, 11000)], "{reply}");
        }
        first += i32::from(same.1 < other.1);
    }
    // By chance it would be a half of them: ten of twelve in one run of fifty.
    assert!(first >= 10, "told first in {first} of {ROUNDS}");
}

/// The key of a retried insert is another document's by now, since its own was renamed. That the first try took effect is
/// told only once a majority has it, for which the server is asked a second time.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_is_told_of_its_first_try_once_a_majority_has_it() {
    let database = "majority_first";
    let cluster = users(database);
    let forwarders = [(); 2].map(|()| Relay::start(cluster.router_address()));
    let [first, second] = [0, 1].map(|at: usize| behind(&forwarders[at], database));
    let command = retryable(insert(vec![user(1, "a@x")], true));
    let is_lost = forwarders[0].lose_reply_to_insert("users");
    assert!(send(&first.address, database, command.clone()).is_err());
    wait_until(&is_lost);
    let renamed = doc! { "q": { "_id": 1, "region": "a" }, "u": { "$set": { "email": "b@x" } } };
    let since = [
        doc! { "update": "users", "updates": [renamed] },
        insert(vec![user(3, "a@x")], true),
    ];
    for command in since {
        let reply = send(&first.address, database, command).unwrap();
        assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    }
    // The delete that matches nothing and waits for a majority.
    let question = forwarders[1].hold(&delete_with_majority());
    let retry = sending(&second, database, command);
    question.wait();
    assert!(!retry.is_finished());
    drop(question);
    let reply = retry.join().unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    assert_agreement(cluster, database, "email").await;
}

/// What only a delete holds whose write concern is a majority: from its last statement to the concern.
fn delete_with_majority() -> Vec<u8> {
    let end = doc! { "ordered": false, "writeConcern": { "w": "majority" } }
        .to_vec()
        .unwrap();
    let fields = &end[4..end.len() - 1];
    [b"\x10limit\0\x01\0\0\0\0\0", fields].concat()
}

/// An upsert that is sent again waits for somebody's insert of its key; when that is refused, the first try comes to its end,
/// and its document has the key. The retry says what the first try did, and doesn't take its document for another's.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_has_waited_is_no_duplicate_of_its_first_try() {
    let database = "waited_for_itself";
    let cluster = users(database);
    let forwarders = [(); 2].map(|()| Relay::start(cluster.router_address()));
    let [inserter, second] = [0, 1].map(|at: usize| behind(&forwarders[at], database));
    let first = keyward(cluster, database, "60s", &[EMAIL]);
    let reply = send(&first.address, database, insert(vec![user(9, "nine@x")], true)).unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    // It has reserved the key, and will be refused for its `_id`.
    let refused = forwarders[0].hold(&insert_into("users"));
    let inserting = sending(&inserter, database, insert(vec![user(9, "a@x")], true));
    refused.wait();
    let update = doc! { "q": { "region": "a", "name": "n" }, "u": { "$set": { "email": "a@x" } }, "upsert": true };
    let upsert = retryable(doc! { "update": "users", "updates": [update] });
    let retry = sending(&second, database, upsert.clone());
    wait_until_it_has_waited(&second, 1);
    // Its next look at the reservation.
    let look = forwarders[1].hold(b"\x02find\0");
    look.wait();
    drop(refused);
    assert_eq!(write_errors(&inserting.join().unwrap()), [(0, 11000)]);
    let told_first = send(&first.address, database, upsert).unwrap();
    assert_eq!(told_first.get_array("upserted").unwrap().len(), 1, "{told_first}");
    drop(look);
    let told_again = retry.join().unwrap();
    assert_eq!(told_again.get("upserted"), told_first.get("upserted"), "{told_again}");
    assert_agreement(Cluster::shared(), database, "email").await;
}

/// Another write has the key that a retried statement would need if it were new. The time limit ends the wait, but the first try took effect.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_waits_too_long_tells_of_its_first_try() {
    let database = "waited_in_vain";
    let cluster = users(database);
    let forwarder = Relay::start(cluster.router_address());
    let inserter = behind(&forwarder, database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let sent = |command: Document| send(&keyward.address, database, command).unwrap();
    let update = |q: Document, email: &str, upsert: bool| {
        let statement = doc! { "q": q, "u": { "$set": { "email": email } }, "upsert": upsert };
        doc! { "update": "users", "updates": [statement] }
    };
    let named = |id: i32| doc! { "_id": id, "region": "a" };
    let retried = [
        retryable(update(named(1), "changed@x", false)),
        retryable(insert(vec![user(2, "inserted@x")], true)),
        retryable(update(named(3), "upserted@x", true)),
    ];
    assert_eq!(sent(insert(vec![user(1, "a@x")], true)).get_i32("n").unwrap(), 1);
    let first_replies = retried.clone().map(sent);
    let deleted = doc! { "delete": "users", "deletes": [{ "q": named(3), "limit": 1 }] };
    for since in [update(named(1), "b@x", false), update(named(2), "c@x", false), deleted] {
        assert_eq!(sent(since).get_i32("n").unwrap(), 1);
    }
    let held = forwarder.hold(&insert_into("users"));
    let keys = ["changed@x", "inserted@x", "upserted@x"];
    let others = (10..).zip(keys).map(|(id, key)| user(id, key)).collect();
    let inserting = sending(&inserter, database, insert(others, true));
    held.wait();
    for (mut command, first) in retried.into_iter().zip(first_replies) {
        command.insert("maxTimeMS", 1_000);
        let again = sent(command);
        for field in ["n", "nModified", "upserted", "ok"] {
            assert_eq!(again.get(field), first.get(field), "{again}");
        }
        assert!(!again.contains_key("writeErrors"), "{again}");
    }
    drop(held);
    assert_eq!(inserting.join().unwrap().get_i32("n").unwrap(), 3);
    assert_agreement(cluster, database, "email").await;
}

/// It has reserved one key anew while it waits for the other one.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_waits_too_long_gives_back_what_it_has_reserved() {
    let database = "waited_with_a_key";
    let cluster = users(database);
    let forwarder = Relay::start(cluster.router_address());
    let constraints = [EMAIL, PHONE].concat().replace("DB", database);
    let upstream = format!("mongodb://{}/", forwarder.address);
    let inserter = Keyward::start_with_lease(&upstream, "60s", &constraints);
    let keyward = keyward(cluster, database, "60s", &[EMAIL, PHONE]);
    let sent = |command: Document| send(&keyward.address, database, command).unwrap();
    let with_phone = |id: i32, email: &str, phone: &str| {
        let mut user = user(id, email);
        user.insert("phone", phone);
        insert(vec![user], true)
    };
    let retried = retryable(with_phone(1, "first@x", "1"));
    assert_eq!(sent(retried.clone()).get_i32("n").unwrap(), 1);
    let changed = doc! { "$set": { "email": "second@x", "phone": "2" } };
    let update = doc! { "q": { "_id": 1, "region": "a" }, "u": changed };
    assert_eq!(
        sent(doc! { "update": "users", "updates": [update] })
            .get_i32("n")
            .unwrap(),
        1
    );
    let held = forwarder.hold(&insert_into("users"));
    let inserting = sending(&inserter, database, with_phone(2, "other@x", "1"));
    held.wait();
    let mut again = retried;
    again.insert("maxTimeMS", 3_000);
    let again = sent(again);
    assert_eq!(again.get_i32("n").ok(), Some(1), "{again}");
    let mut free = with_phone(3, "first@x", "3");
    free.insert("maxTimeMS", 10_000);
    let free = sent(free);
    assert_eq!(free.get_i32("n").ok(), Some(1), "{free}");
    drop(held);
    assert_eq!(inserting.join().unwrap().get_i32("n").unwrap(), 1);
    assert_agreement(cluster, database, "email").await;
}

/// What it held while it waited is older than its lease by the end of the wait: it gives that back and claims it anew. If
/// nobody says that it is given back, the document isn't inserted, and the client is told so.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_given_back_after_a_wait_is_told() {
    let database = "not_given_back";
    let alone = Cluster::alone().unwrap();
    let cluster = users_on(&alone, database);
    let keyward = keyward(cluster, database, "5s", &[EMAIL]);
    let client = keyward.client_without_retries().await;
    for ordered in [true, false] {
        let mut abandoned = Abandoned::of("a@x", NOW);
        abandoned.lease = Duration::from_secs(15);
        abandoned.write(cluster, database).await;
        let before = waits(&keyward);
        let command = insert(vec![doc! { "_id": 1, "region": "a", "email": ["0@x", "a@x"] }], ordered);
        let inserting = tokio::spawn({
            let (client, command) = (client.clone(), command.clone());
            async move { run(&client, database, command).await }
        });
        // The second time it waits it has the first address, and keeps it.
        while waits(&keyward) < before + 2 && !inserting.is_finished() {
            tokio::task::yield_now().await;
        }
        let refuse = |shard: &ReplicaSet| {
            let namespace = format!("{database}.keyward.users.email_1");
            let refused = doc! { "failCommands": ["delete"], "namespace": namespace, "errorCode": 13 };
            shard
                .fail_point("failCommand", Bson::from("alwaysOn"), refused)
                .unwrap()
        };
        let refusing: Vec<FailPoint> = cluster.shards().iter().map(refuse).collect();
        let reply = inserting.await.unwrap();
        let told = reply.get_str("errmsg").unwrap_or_default();
        assert!(told.contains("email_1"), "{reply}");
        drop(refusing);
        let reply = run(&client, database, command).await;
        assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
        assert_eq!(reservations(cluster, database, "email").await.len(), 2);
        run(
            &client,
            database,
            doc! { "delete": "users", "deletes": [{ "q": {}, "limit": 0 }] },
        )
        .await;
    }
}
