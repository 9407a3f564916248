//! What many clients insert at the same time goes in by few transactions; each of them gets what it would have got alone.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bson::{Bson, Document, Timestamp, doc};
use futures_util::TryStreamExt;
use mongodb::Client;
use rand::{Rng, SeedableRng, rngs::StdRng};
use testbed::fail_point::FailPoint;
use testbed::{Cluster, ReplicaSet};

use crate::strict::one_replica_set::{assert_agreement, plain, retryable, user};
use crate::strict::{EMAIL, insert, keyward, users, write_errors};
use testkit::relay::Relay;
use testkit::relay::wait_until;
use testkit::wire::send;
use testkit::{Keyward, shard_on_two};

pub const CLIENTS: i32 = 40;
/// Documents of one command are so far apart.
const APART: i32 = 1_000;
/// The first transactions, as many as may be under way at once, take so long that the rest of the clients come meanwhile.
const FIRST: i32 = 4;
const BLOCKED_MS: i32 = 300;
/// The server ends what nobody goes on with after twice as long.
pub const LEFT_OPEN_FOR: Duration = Duration::from_secs(15);
/// On shards the server ends it after 20 s at the earliest.
const SOON: Duration = Duration::from_secs(12);

/// Every other one is retryable, and needs no order; some are of three documents.
fn commands() -> Vec<Document> {
    let command = |id: i32| {
        let count = if id % 8 < 6 { 1 } else { 3 };
        let users = (0..count).map(|number| id + number * APART);
        let users = users.map(|id| user(id, &format!("{id}@x"))).collect();
        let command = insert(users, id % 2 == 0);
        match id % 2 {
            0 => command,
            _ => retryable(command),
        }
    };
    (0..CLIENTS).map(command).collect()
}

/// A Keyward whose inserts wait long for others' transactions: on a busy machine it takes a while until all of them wait.
pub fn patient(upstream: &str, lease: &str, constraints: &str) -> Keyward {
    let patience = [("KEYWARD_GROUPS_PATIENCE", "30")];
    Keyward::try_start_with(upstream, lease, constraints, &patience).unwrap()
}

/// The same, strict and behind a relay.
pub fn patient_behind(forwarder: &Relay, lease: &str, database: &str) -> Keyward {
    patient(&forwarder.uri(), lease, &EMAIL.replace("DB", database))
}

/// Each by a client of its own, at the same time.
pub fn send_all(keyward: &Keyward, database: &str, commands: &[Document]) -> Vec<io::Result<Document>> {
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

/// How many transactions there were on a server; `which`: `totalStarted`, say.
async fn transactions(client: &Client, which: &str) -> i64 {
    let admin = client.database("admin");
    let status = admin.run_command(doc! { "serverStatus": 1 }).await.unwrap();
    status.get_document("transactions").unwrap().get_i64(which).unwrap()
}

fn counted(keyward: &Keyward, name: &str) -> usize {
    let metrics = keyward.metrics();
    let count = metrics
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    count.unwrap().parse().unwrap()
}

fn assert_inserted(command: &Document, reply: &io::Result<Document>) {
    let reply = reply.as_ref().unwrap();
    let count = command.get_array("documents").unwrap().len() as i32;
    assert_eq!(reply.get_i32("n").ok(), Some(count), "{reply}");
    assert_eq!(write_errors(reply), [], "{reply}");
}

pub fn assert_all_inserted(commands: &[Document], replies: &[io::Result<Document>]) {
    for (command, reply) in commands.iter().zip(replies) {
        assert_inserted(command, reply);
    }
}

/// How many documents each transaction inserted that inserted any.
async fn documents_of_each_transaction(servers: &[Client], database: &str) -> Vec<usize> {
    let mut transactions: HashMap<String, usize> = HashMap::new();
    let users = format!("{database}.users");
    for server in servers {
        let oplog = server.database("local").collection::<Document>("oplog.rs");
        let filter = doc! { "op": "c", "o.applyOps.ns": &users };
        let mut entries = oplog.find(filter).await.unwrap();
        while let Some(entry) = entries.try_next().await.unwrap() {
            let operations = entry.get_document("o").unwrap().get_array("applyOps").unwrap();
            let is_insert = |operation: &&Bson| {
                let operation = operation.as_document().unwrap();
                operation.get_str("ns").unwrap() == users && operation.get_str("op").unwrap() == "i"
            };
            let transaction = format!("{:?} {:?}", entry.get("lsid"), entry.get("txnNumber"));
            *transactions.entry(transaction).or_default() += operations.iter().filter(is_insert).count();
        }
    }
    transactions.into_values().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn few_transactions_insert_what_many_send() {
    let database = "group_commit";
    let set = ReplicaSet::alone().unwrap();
    let keyward = patient(&set.uri(), "10s", &plain(database));
    let client = set.client();
    let before = transactions(&client, "totalCommitted").await;
    let held_up = hold_up_the_first(&set);
    let mut commands = commands();
    // Each knows of a time that is still to come; who leads, of an earlier one than others.
    let now = set.run("admin", doc! { "hello": 1 }).unwrap();
    let now = now.get_document("$clusterTime").unwrap();
    let known = |id: u32| Timestamp {
        time: now.get_timestamp("clusterTime").unwrap().time + 10 + id,
        increment: 1,
    };
    for (id, command) in (0..).zip(&mut commands) {
        let mut time = now.clone();
        time.insert("clusterTime", known(id));
        command.insert("$clusterTime", time);
    }
    let replies = send_all(&keyward, database, &commands);
    drop(held_up);
    assert_all_inserted(&commands, &replies);
    for (id, reply) in (0..).zip(&replies) {
        let time = reply.as_ref().unwrap().get_timestamp("operationTime").unwrap();
        assert!(time > known(id), "{time} {}", known(id));
    }
    let counted = |name: &str| counted(&keyward, name);
    let groups: Vec<usize> = documents_of_each_transaction(std::slice::from_ref(&client), database).await;
    assert!(counted("keyward_group_commit_transactions_total") <= groups.len());
    let together = counted("keyward_group_commit_inserts_total");
    assert!(together > 1, "{together} {groups:?}");
    assert_eq!(counted("keyward_group_commit_failed_total"), 0);
    let committed = transactions(&client, "totalCommitted").await - before;
    assert!(committed < i64::from(CLIENTS) / 2, "{committed}");
    assert_agreement(&client, database).await;
    // Each retry is known again by what was noted of it.
    let retries: Vec<Document> = commands
        .into_iter()
        .filter(|command| command.contains_key("txnNumber"))
        .collect();
    assert_eq!(retries.len() as i32, CLIENTS / 2);
    assert_all_inserted(&retries, &send_all(&keyward, database, &retries));
    assert_agreement(&client, database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_cannot_be_inserted_stops_nobody_else() {
    let database = "group_commit_errors";
    let set = ReplicaSet::alone().unwrap();
    let keyward = patient(&set.uri(), "10s", &plain(database));
    let client = set.client();
    let one = |id: i32, email: &str| insert(vec![user(id, email)], true);
    send(&keyward.address, database, one(-1, "there@x")).unwrap();
    let mut commands = commands();
    let last = commands.len();
    commands.extend([
        one(1_000, "there@x"),
        one(-1, "new@x"),
        one(-2, "two@x"),
        one(-3, "two@x"),
    ]);
    for is_ordered in [true, false] {
        let id = if is_ordered { -10 } else { -20 };
        let user = |number: i32| user(id - number, &format!("{}@x", id - number));
        commands.push(insert(
            vec![
                user(0),
                crate::strict::one_replica_set::user(id - 1, "there@x"),
                user(2),
            ],
            is_ordered,
        ));
    }
    let held_up = hold_up_the_first(&set);
    let replies = send_all(&keyward, database, &commands);
    drop(held_up);
    assert_all_inserted(&commands[..last], &replies[..last]);
    let errors: Vec<_> = replies[last..]
        .iter()
        .map(|reply| write_errors(reply.as_ref().unwrap()))
        .collect();
    assert_eq!(errors[..2], [[(0, 11000)], [(0, 11000)]]);
    assert_eq!(errors[2..4].concat(), [(0, 11000)]);
    assert_eq!(errors[4..], [[(1, 11000)], [(1, 11000)]]);
    let counts = replies[last + 4..]
        .iter()
        .map(|reply| reply.as_ref().unwrap().get_i32("n").unwrap());
    assert_eq!(counts.collect::<Vec<_>>(), [1, 2]);
    assert_agreement(&client, database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_became_of_a_group_nobody_knows_each_retry_finds_out() {
    let database = "group_commit_unknown";
    let set = ReplicaSet::alone().unwrap();
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
        // Five times, and others come meanwhile.
        data.extend(
            doc! { "failCommands": ["commitTransaction"], "blockConnection": true, "blockTimeMS": BLOCKED_MS / 10 },
        );
        let always = set.fail_point("failCommand", Bson::from("alwaysOn"), data).unwrap();
        let all: Vec<Document> = all.iter().cloned().map(retryable).collect();
        // One that hasn't seen groups come to nothing.
        let keyward = patient(&set.uri(), "10s", &plain(database));
        let before = transactions(&client, "totalStarted").await;
        for reply in send_all(&keyward, database, &all) {
            let reply = reply.unwrap();
            assert_eq!(reply.get_i32("code").ok(), Some(11602), "{reply}");
            let labels = reply.get_array("errorLabels").unwrap();
            assert_eq!(labels, &["RetryableWriteError".into()], "{reply}");
        }
        // Each has its own, and is in doubt for what it was taken along by.
        let started = transactions(&client, "totalStarted").await - before;
        assert!(started < i64::from(CLIENTS), "{started}");
        drop(always);
        assert_all_inserted(&all, &send_all(&keyward, database, &all));
        let count = client
            .database(database)
            .collection::<Document>("users")
            .count_documents(doc! {})
            .await
            .unwrap();
        let documents = all.iter().map(|command| command.get_array("documents").unwrap().len());
        assert_eq!(count, documents.sum::<usize>() as u64);
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

/// Each by a client of its own; the transactions of the first, as many as may be under way at once, are held up until the
/// others wait for them.
pub fn send_behind_the_first(
    cluster: &Cluster,
    forwarder: &Relay,
    keyward: &Keyward,
    database: &str,
    commands: &[Document],
) -> Vec<io::Result<Document>> {
    let reserved = || {
        let count = |shard: &ReplicaSet| {
            let count = shard.run(database, doc! { "count": "keyward.users.email_1" });
            count.unwrap().get_i32("n").unwrap()
        };
        cluster.shards().iter().map(count).sum::<i32>()
    };
    thread::scope(|scope| {
        let send = |command: &Document| {
            let (address, command) = (keyward.address.clone(), command.clone());
            scope.spawn(move || send(&address, database, command))
        };
        let (first, others) = commands.split_at(FIRST as usize);
        let held = (0..).zip(first).map(|(number, command)| {
            let held = forwarder.hold(format!("sign {number}\0").as_bytes());
            let sent = send(command);
            held.wait();
            (sent, held)
        });
        let (mut sent, held): (Vec<_>, Vec<_>) = held.unzip();
        sent.extend(others.iter().map(send));
        while reserved() < CLIENTS {
            thread::sleep(Duration::from_millis(5));
        }
        wait_until_at_rest(keyward);
        drop(held);
        sent.into_iter().map(|sent| sent.join().unwrap()).collect()
    })
}

/// Waits until Keyward has been at rest for a while: most likely every insert whose keys are reserved waits for others' transactions.
fn wait_until_at_rest(keyward: &Keyward) {
    let until = Instant::now() + Duration::from_secs(5);
    let (mut before, mut quiet) = (keyward.cpu_time(), 0);
    while quiet < 4 && Instant::now() < until {
        thread::sleep(Duration::from_millis(100));
        let now = keyward.cpu_time();
        // The clock ticks every 10 ms, and Keyward polls the register.
        let is_quiet = now.saturating_sub(before) <= Duration::from_millis(10);
        (before, quiet) = (now, if is_quiet { quiet + 1 } else { 0 });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_of_several_shards_go_in_together() {
    let database = "group_commit_shards";
    let cluster = users(database);
    let forwarder = Relay::start(cluster.router_address());
    let keyward = patient_behind(&forwarder, "60s", database);
    let all = on_shards();
    assert_all_inserted(
        &all,
        &send_behind_the_first(cluster, &forwarder, &keyward, database, &all),
    );
    assert_all_inserted(&all, &send_all(&keyward, database, &all));
    let shards: Vec<Client> = cluster.shards().iter().map(testbed::ReplicaSet::client).collect();
    let documents = documents_of_each_transaction(&shards, database).await;
    assert_eq!(documents.iter().sum::<usize>(), CLIENTS as usize);
    assert!(documents.len() < CLIENTS as usize, "{documents:?}");
    crate::trial::assert_agreement(cluster, database, "email").await;
}

/// The same on shards, one of which commits for all.
#[tokio::test(flavor = "multi_thread")]
async fn what_became_of_a_group_on_shards_each_retry_finds_out() {
    let database = "group_commit_unknown_shards";
    let cluster = Cluster::alone().unwrap();
    let users = format!("{database}.users");
    shard_on_two(&cluster, &users, doc! { "region": 1 }, doc! { "region": "m" });
    let shards: Vec<Client> = cluster.shards().iter().map(ReplicaSet::client).collect();
    let coordinate = "coordinateCommitTransaction";
    let error = doc! { "code": 11602, "codeName": "InterruptedDueToReplStateChange", "errmsg": "so it is" };
    let said = [
        doc! { "errorCode": 11602, "failCommands": [coordinate, "commitTransaction"] },
        // To a shard's own commit the coordinator wouldn't take this for an answer, ever.
        doc! { "writeConcernError": error, "failCommands": [coordinate] },
    ];
    for (round, said) in said.into_iter().enumerate() {
        let mut data = doc! { "failInternalCommands": true, "blockConnection": true, "blockTimeMS": BLOCKED_MS / 10 };
        data.extend(said);
        let fail = |shard: &ReplicaSet| shard.fail_point("failCommand", "alwaysOn", data.clone()).unwrap();
        let mut all = on_shards();
        for (id, command) in (round as i32 * CLIENTS..).zip(&mut all) {
            let users = command.get_array_mut("documents").unwrap();
            let user = users[0].as_document_mut().unwrap();
            user.extend(doc! { "_id": id, "email": format!("{id}@x") });
        }
        let keyward = patient(&cluster.uri(), "60s", &EMAIL.replace("DB", database));
        let always: Vec<FailPoint> = cluster.shards().iter().map(fail).collect();
        let mut in_doubt = 0;
        for (command, reply) in all.iter().zip(send_all(&keyward, database, &all)) {
            match reply.as_ref().unwrap().get_i32("code") {
                Ok(code) => {
                    assert_eq!(code, 11602, "{reply:?}");
                    let labels = reply.as_ref().unwrap().get_array("errorLabels").unwrap();
                    assert_eq!(labels, &["RetryableWriteError".into()], "{reply:?}");
                    in_doubt += 1;
                }
                Err(_) => assert_inserted(command, &reply),
            }
        }
        // What is all on one shard needs no coordinator.
        let all_of_them = if round == 0 { CLIENTS } else { 1 };
        assert!(in_doubt >= all_of_them, "{in_doubt}");
        drop(always);
        assert_all_inserted(&all, &send_all(&keyward, database, &all));
        crate::trial::assert_agreement(&cluster, database, "email").await;
    }
    let documents = documents_of_each_transaction(&shards, database).await;
    assert_eq!(documents.iter().sum::<usize>(), 2 * CLIENTS as usize);
    assert!(documents.len() < 2 * CLIENTS as usize, "{documents:?}");
}

/// Who leads loses its connection, with the transaction open: those whom it took along are told as if it had been theirs.
#[tokio::test(flavor = "multi_thread")]
async fn with_the_leaders_connection_all_are_lost_and_come_again() {
    let database = "group_commit_lost";
    let cluster = users(database);
    let forwarder = Relay::start(cluster.router_address());
    let keyward = patient_behind(&forwarder, "60s", database);
    let all = on_shards();
    let lost = forwarder.lose_reply_to(format!("sign {}\0", CLIENTS - 1).into_bytes());
    let replies = send_behind_the_first(cluster, &forwarder, &keyward, database, &all);
    wait_until(&lost);
    assert!(replies.iter().filter(|reply| reply.is_err()).count() > 1);
    // The next ones go alone.
    assert_eq!(counted(&keyward, "keyward_group_commit_lost_total"), 1);
    assert_eq!(counted(&keyward, "keyward_group_commit_failed_total"), 0);
    let again = Instant::now();
    assert_all_inserted(&all, &send_all(&keyward, database, &all));
    // The retry of who led ends it, on all shards.
    assert!(again.elapsed() < LEFT_OPEN_FOR, "{:?}", again.elapsed());
    crate::trial::assert_agreement(cluster, database, "email").await;
}

/// A Keyward whose reservations are nobody's three seconds after what they were for was lost.
pub fn behind_with_a_short_lease(forwarder: &Relay, database: &str) -> Keyward {
    patient_behind(forwarder, "3s", database)
}

/// The leader's transaction, left open, has all of its documents and keys. No driver comes again: others have the keys once the
/// lease is over, and don't wait until the server ends it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_leader_has_left_open_holds_nobody_up() {
    let database = "group_commit_left";
    let cluster = users(database);
    let forwarder = Relay::start(cluster.router_address());
    let keyward = behind_with_a_short_lease(&forwarder, database);
    let all = on_shards();
    let lost = forwarder.lose_reply_to(format!("sign {}\0", CLIENTS - 1).into_bytes());
    let replies = send_behind_the_first(cluster, &forwarder, &keyward, database, &all);
    wait_until(&lost);
    assert_eq!(counted(&keyward, "keyward_group_commit_lost_total"), 1);
    let is_lost = |(command, reply): (&Document, &io::Result<Document>)| reply.is_err().then(|| command.clone());
    let mut others: Vec<Document> = all.iter().zip(&replies).filter_map(is_lost).collect();
    assert!(others.len() > 1, "{}", others.len());
    for command in &mut others {
        let user = command.get_array_mut("documents").unwrap()[0]
            .as_document_mut()
            .unwrap();
        let id = user.get_i32("_id").unwrap();
        user.insert("_id", id + CLIENTS);
    }
    let others: Vec<Document> = others.into_iter().map(retryable).collect();
    let begun = Instant::now();
    assert_all_inserted(&others, &send_all(&keyward, database, &others));
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    crate::trial::assert_agreement(cluster, database, "email").await;
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
                    let reply = reply.or_else(|_| send(&second.address, database, command.clone()));
                    assert_inserted(&command, &reply);
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
