//! What many clients insert at the same time goes in by few transactions; each of them gets what it would have got alone.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use mongodb::Client;
use rand::{Rng, SeedableRng, rngs::StdRng};
use testbed::ReplicaSet;
use testbed::fail_point::FailPoint;

use crate::forwarder::{Forwarder, send, wait_until};
use crate::one_replica_set::{assert_agreement, plain, retryable, user};
use crate::retries::behind;
use crate::support::Keyward;
use crate::{EMAIL, insert, keyward, users, write_errors};

const CLIENTS: i32 = 40;
/// The first transactions, as many as may be under way at once, take so long that the rest of the clients come meanwhile.
const FIRST: i32 = 4;
const BLOCKED_MS: i32 = 300;
/// The server ends what nobody goes on with after twice as long.
const LEFT_OPEN_FOR: Duration = Duration::from_secs(15);

fn commands() -> Vec<Document> {
    let command = |id: i32| match id % 2 {
        0 => insert(vec![user(id, &format!("{id}@x"))], true),
        _ => retryable(insert(vec![user(id, &format!("{id}@x"))], true)),
    };
    (0..CLIENTS).map(command).collect()
}

/// Each by a client of its own, at the same time.
fn send_all(keyward: &Keyward, database: &str, commands: &[Document]) -> Vec<io::Result<Document>> {
    thread::scope(|scope| {
        let sent = commands
            .iter()
            .map(|command| scope.spawn(|| send(&keyward.address, database, command.clone())));
        let sent: Vec<_> = sent.collect();
        sent.into_iter().map(|sent| sent.join().unwrap()).collect()
    })
}

fn hold_up_the_first(set: &ReplicaSet) -> FailPoint {
    let blocked = doc! { "failCommands": ["commitTransaction"], "blockConnection": true, "blockTimeMS": BLOCKED_MS };
    set.fail_point("failCommand", doc! { "times": FIRST }, blocked).unwrap()
}

async fn committed(client: &Client) -> i64 {
    let status = client
        .database("admin")
        .run_command(doc! { "serverStatus": 1 })
        .await
        .unwrap();
    status
        .get_document("transactions")
        .unwrap()
        .get_i64("totalCommitted")
        .unwrap()
}

fn assert_inserted(reply: &io::Result<Document>) {
    let reply = reply.as_ref().unwrap();
    assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    assert_eq!(write_errors(reply), [], "{reply}");
}

#[tokio::test(flavor = "multi_thread")]
async fn few_transactions_insert_what_many_send() {
    let database = "group_commit";
    let set = ReplicaSet::start(1).unwrap();
    let keyward = Keyward::start(&set.uri(), &plain(database));
    let client = set.client();
    let before = committed(&client).await;
    let held_up = hold_up_the_first(&set);
    let commands = commands();
    let replies = send_all(&keyward, database, &commands);
    drop(held_up);
    replies.iter().for_each(assert_inserted);
    let transactions = committed(&client).await - before;
    assert!(transactions < i64::from(CLIENTS) / 2, "{transactions}");
    assert_agreement(&client, database).await;
    // Each retry is known again by what was noted of it.
    let retries: Vec<Document> = commands
        .into_iter()
        .filter(|command| command.contains_key("txnNumber"))
        .collect();
    assert_eq!(retries.len() as i32, CLIENTS / 2);
    send_all(&keyward, database, &retries).iter().for_each(assert_inserted);
    assert_agreement(&client, database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_cannot_be_inserted_stops_nobody_else() {
    let database = "group_commit_errors";
    let set = ReplicaSet::start(1).unwrap();
    let keyward = Keyward::start(&set.uri(), &plain(database));
    let client = set.client();
    let one = |id: i32, email: &str| insert(vec![user(id, email)], true);
    send(&keyward.address, database, one(-1, "there@x")).unwrap();
    let mut commands = commands();
    let last = commands.len();
    commands.extend([
        one(1_000, "there@x"),
        one(-1, "new@x"),
        one(2_000, "two@x"),
        one(2_001, "two@x"),
    ]);
    let held_up = hold_up_the_first(&set);
    let replies = send_all(&keyward, database, &commands);
    drop(held_up);
    replies[..last].iter().for_each(assert_inserted);
    let errors: Vec<_> = replies[last..]
        .iter()
        .map(|reply| write_errors(reply.as_ref().unwrap()))
        .collect();
    assert_eq!(errors[..2], [[(0, 11000)], [(0, 11000)]]);
    assert_eq!(errors[2..].concat(), [(0, 11000)]);
    assert_agreement(&client, database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_became_of_a_group_nobody_knows_each_retry_finds_out() {
    let database = "group_commit_unknown";
    let set = ReplicaSet::start(1).unwrap();
    let keyward = Keyward::start(&set.uri(), &plain(database));
    let client = set.client();
    let all: Vec<Document> = commands().into_iter().map(retryable).collect();
    let error = doc! { "code": 11602, "codeName": "InterruptedDueToReplStateChange", "errmsg": "so it is" };
    for said in [doc! { "errorCode": 11602 }, doc! { "writeConcernError": error }] {
        // Both at once, past Keyward.
        client
            .database(database)
            .collection::<Document>("users")
            .delete_many(doc! {})
            .await
            .unwrap();
        client
            .database(database)
            .collection::<Document>("keyward.users.email_1")
            .delete_many(doc! {})
            .await
            .unwrap();
        let mut data = said.clone();
        data.insert("failCommands", vec!["commitTransaction"]);
        let always = set.fail_point("failCommand", Bson::from("alwaysOn"), data).unwrap();
        let all: Vec<Document> = all.iter().cloned().map(retryable).collect();
        for reply in send_all(&keyward, database, &all) {
            let reply = reply.unwrap();
            assert_eq!(reply.get_i32("code").ok(), Some(11602), "{reply}");
            let labels = reply.get_array("errorLabels").unwrap();
            assert_eq!(labels, &["RetryableWriteError".into()], "{reply}");
        }
        drop(always);
        send_all(&keyward, database, &all).iter().for_each(assert_inserted);
        let count = client
            .database(database)
            .collection::<Document>("users")
            .count_documents(doc! {})
            .await
            .unwrap();
        assert_eq!(count, CLIENTS as u64);
        assert_agreement(&client, database).await;
    }
}

/// As [`commands`], for shards.
fn on_shards() -> Vec<Document> {
    let user = |id: i32| {
        let region = if id % 3 == 0 { "a" } else { "z" };
        doc! { "_id": id, "region": region, "email": format!("{id}@x"), "sign": format!("sign {id}") }
    };
    (0..CLIENTS).map(|id| retryable(insert(vec![user(id)], true))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_of_several_shards_go_in_together() {
    let database = "group_commit_shards";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let all = on_shards();
    send_all(&keyward, database, &all).iter().for_each(assert_inserted);
    send_all(&keyward, database, &all).iter().for_each(assert_inserted);
    crate::assert_agreement(cluster, database, "email").await;
}

/// Who leads loses its connection, with the transaction open: those whom it took along are told as if it had been theirs.
#[tokio::test(flavor = "multi_thread")]
async fn with_the_leaders_connection_all_are_lost_and_come_again() {
    let database = "group_commit_lost";
    let cluster = users(database);
    let forwarder = Forwarder::start(cluster.router_address());
    let keyward = behind(&forwarder, database);
    let all = on_shards();
    let lost = forwarder.lose_reply_to(format!("sign {}\0", CLIENTS - 1).into_bytes());
    let replies = send_all(&keyward, database, &all);
    wait_until(&lost);
    assert!(replies.iter().any(Result::is_err));
    let again = Instant::now();
    send_all(&keyward, database, &all).iter().for_each(assert_inserted);
    // The retry of who led ends it, on all shards.
    assert!(again.elapsed() < LEFT_OPEN_FOR, "{:?}", again.elapsed());
    crate::assert_agreement(cluster, database, "email").await;
}

/// Killed with many clients' inserts in its hands: each is there once when its client has sent it again to another Keyward.
async fn killed(mut first: Keyward, second: &Keyward, database: &str, inserts_before: usize, round: i32) {
    const EACH: i32 = 5;
    let address = first.address.clone();
    let (inserted, is_inserted) = mpsc::channel();
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (inserted, address) = (inserted.clone(), address.clone());
            scope.spawn(move || {
                for number in 0..EACH {
                    let id = (round * CLIENTS + client) * EACH + number;
                    let region = if id % 2 == 0 { "a" } else { "z" };
                    let user = doc! { "_id": id, "region": region, "email": format!("{id}@x") };
                    let command = retryable(insert(vec![user], true));
                    let reply = send(&address, database, command.clone());
                    let again = Instant::now();
                    let reply = reply.or_else(|_| send(&second.address, database, command));
                    assert_inserted(&reply);
                    assert!(again.elapsed() < LEFT_OPEN_FOR, "{:?}", again.elapsed());
                    let _ = inserted.send(());
                }
            });
        }
        for _ in 0..inserts_before {
            is_inserted.recv().unwrap();
        }
        first.kill();
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_with_many_in_its_hands_it_loses_and_doubles_none() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let database = "group_commit_killed";
    let set = ReplicaSet::shared();
    set.client().database(database).drop().await.unwrap();
    let cluster = users(database);
    let [on_set, on_shards] = [0, 1].map(|_| random.random_range(1..CLIENTS as usize * 3));
    for (round, before) in (0..).zip([on_set, on_set / 2 + 1]) {
        let start = || Keyward::start(&set.uri(), &plain(database));
        killed(start(), &start(), database, before, round).await;
        assert_agreement(&set.client(), database).await;
    }
    for (round, before) in (0..).zip([on_shards, on_shards / 2 + 1]) {
        let start = || keyward(cluster, database, "2s", &[EMAIL]);
        killed(start(), &start(), database, before, round).await;
        let users = cluster.client().database(database).collection::<Document>("users");
        let count = users.count_documents(doc! {}).await.unwrap();
        assert_eq!(count, (round as u64 + 1) * CLIENTS as u64 * 5);
    }
}
