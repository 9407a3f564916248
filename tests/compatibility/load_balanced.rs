//! A load balancer in front of several Keywards, or between Keyward and several routers. A driver in the mode for that keeps each transaction and
//! each cursor on its connection.

#![expect(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

use std::collections::HashSet;
use std::future::IntoFuture;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::thread;

use bson::{Document, doc};
use futures_util::TryStreamExt;
use futures_util::future::try_join_all;
use mongodb::error::{ErrorKind, WriteFailure};
use mongodb::options::IndexOptions;
use mongodb::{Client, Collection, IndexModel};
use testbed::{Cluster, StandIn};
use testkit::wire::Connection;
use testkit::{Keyward, shard_on_two};

/// Passes each new connection to the next of `targets`, for as long as the test runs. Returns its address.
fn balancer(targets: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for (client, target) in listener.incoming().zip(targets.iter().cycle()) {
            let Ok(server) = TcpStream::connect(target) else {
                continue;
            };
            let client = client.unwrap();
            let (client_in, server_in) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || pass(client_in, server));
            thread::spawn(move || pass(server_in, client));
        }
    });
    address
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    // A connection that breaks ends the other one, as at a real balancer.
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}

/// Two Keywards with a unique e-mail in `database.users`.
fn keywards(database: &str) -> [Keyward; 2] {
    let cluster = Cluster::shared();
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let constraints = format!("  - {{ collection: {namespace}, key: {{ email: 1 }} }}\n");
    [(); 2].map(|()| Keyward::start(&cluster.uri(), &constraints))
}

fn user(id: i32, email: &str) -> Document {
    doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": email }
}

fn is_duplicate(error: &mongodb::error::Error) -> bool {
    match &*error.kind {
        ErrorKind::Write(WriteFailure::WriteError(error)) => error.code == 11000,
        ErrorKind::Command(error) => error.code == 11000,
        _ => false,
    }
}

/// Commits a transaction of two inserts and one read.
async fn in_a_transaction(client: &Client, users: &Collection<Document>, id: i32) -> mongodb::error::Result<()> {
    let mut session = client.start_session().await?;
    session
        .start_transaction()
        .and_run2(async move |session| {
            for id in [id, id + 1] {
                let inserted = users.insert_one(user(id, &format!("in {id}"))).session(&mut *session);
                inserted.await?;
            }
            let found = users.find_one(doc! { "_id": id }).session(&mut *session).await?;
            assert!(found.is_some(), "a transaction reads its own writes");
            Ok(())
        })
        .await
}

/// Inserts a hundred users. All at once, so that the driver opens several connections.
async fn insert_a_hundred(users: &Collection<Document>) {
    let insert = |id| users.insert_one(user(id, &format!("{id}"))).into_future();
    try_join_all((0..100).map(insert)).await.unwrap();
}

/// Reads all users by several cursors side by side: each one stays on its connection.
async fn assert_read_by_cursors(users: &Collection<Document>, count: usize) {
    let read = async || {
        let cursor = users.find(doc! {}).batch_size(7).await?;
        cursor.try_collect::<Vec<_>>().await
    };
    for found in try_join_all((0..6).map(|_| read())).await.unwrap() {
        assert_eq!(found.len(), count);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_reaches_two_keywards_through_a_balancer() {
    const DATABASE: &str = "load_balanced";
    let keywards = tokio::task::spawn_blocking(|| keywards(DATABASE)).await.unwrap();
    let address = balancer(keywards.iter().map(|keyward| keyward.address.clone()).collect());
    let client = Client::with_uri_str(format!("mongodb://{address}/?loadBalanced=true"))
        .await
        .unwrap();
    let users = client.database(DATABASE).collection::<Document>("users");
    insert_a_hundred(&users).await;
    for id in 100..110 {
        let refused = users.insert_one(user(id, "7")).await.unwrap_err();
        assert!(is_duplicate(&refused), "{refused}");
    }
    try_join_all((0..8).map(|n| in_a_transaction(&client, &users, 1000 + 2 * n)))
        .await
        .unwrap();
    let refused = in_a_transaction(&client, &users, 1000).await.unwrap_err();
    assert!(is_duplicate(&refused), "{refused}");
    assert_read_by_cursors(&users, 116).await;
    for keyward in &keywards {
        // The driver doesn't monitor: these are its own connections.
        let opened = keyward.metric("keyward_client_connections_opened_total");
        assert!(opened > 0, "the balancer never reached one of them");
    }
}

#[test]
fn a_keyward_has_one_name_for_all_its_connections() {
    let keywards = keywards("load_balanced_names");
    let service_id = |keyward: &Keyward| {
        let mut client = Connection::open(&keyward.address);
        let hello = client.run("admin", &doc! { "hello": 1, "loadBalanced": true });
        hello.get_object_id("serviceId").unwrap()
    };
    let [one, other] = &keywards;
    assert_eq!(service_id(one), service_id(one));
    assert_ne!(service_id(one), service_id(other));
    let mut direct = Connection::open(&one.address);
    assert!(!direct.run("admin", &doc! { "hello": 1 }).contains_key("serviceId"));
}

/// A Keyward whose deployment is two routers behind a balancer, with a unique e-mail in `DATABASE.users`. The routers live as long as the first
/// part of the result.
fn behind_a_balancer(cluster: &Cluster, database: &str) -> ([StandIn; 2], Keyward) {
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let routers = cluster.two_routers().unwrap();
    for router in &routers {
        router.serve_load_balancer(true);
    }
    let upstream = balancer(routers.iter().map(StandIn::address).collect());
    let constraints = format!("  - {{ collection: {namespace}, key: {{ email: 1 }} }}\n");
    let keyward = Keyward::start(&format!("mongodb://{upstream}/?loadBalanced=true"), &constraints);
    (routers, keyward)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keyward_reaches_its_deployment_through_a_balancer() {
    const DATABASE: &str = "deployment_balanced";
    let (_cluster, _routers, keyward) = tokio::task::spawn_blocking(|| {
        let cluster = Cluster::alone().unwrap();
        let (routers, keyward) = behind_a_balancer(&cluster, DATABASE);
        (cluster, routers, keyward)
    })
    .await
    .unwrap();
    let client = Client::with_uri_str(format!("mongodb://{}/?loadBalanced=true", keyward.address))
        .await
        .unwrap();
    let users = client.database(DATABASE).collection::<Document>("users");
    insert_a_hundred(&users).await;
    let refused = users.insert_one(user(100, "7")).await.unwrap_err();
    assert!(is_duplicate(&refused), "{refused}");
    // In place, and in a transaction of Keyward's.
    for update in [
        doc! { "$set": { "email": "8" } },
        doc! { "$rename": { "old": "email" } },
    ] {
        let set = doc! { "$set": { "old": "8" } };
        users.update_one(doc! { "_id": 7, "region": "z" }, set).await.unwrap();
        let refused = users.update_one(doc! { "_id": 7, "region": "z" }, update).await;
        let refused = refused.unwrap_err();
        assert!(is_duplicate(&refused), "{refused}");
    }
    let deleted = users.delete_one(doc! { "_id": 8, "region": "a" }).await.unwrap();
    assert_eq!(deleted.deleted_count, 1);
    users.insert_one(user(100, "8")).await.unwrap();
    // Before any transaction, which it would wait for.
    let unique = IndexOptions::builder().unique(true).sparse(true).build();
    let by_name = IndexModel::builder().keys(doc! { "name": 1 }).options(unique).build();
    users.create_index(by_name).await.unwrap();
    let named = |id| {
        let mut named = user(id, &format!("{id}"));
        named.insert("name", "same");
        users.insert_one(named).into_future()
    };
    named(200).await.unwrap();
    let refused = named(201).await.unwrap_err();
    assert!(is_duplicate(&refused), "{refused}");
    try_join_all((0..8).map(|n| in_a_transaction(&client, &users, 1000 + 2 * n)))
        .await
        .unwrap();
    assert_read_by_cursors(&users, 117).await;
    let (status, report) = tokio::task::spawn_blocking(move || keyward.verify()).await.unwrap();
    assert_eq!(status, Some(0), "{report}");
}

#[test]
fn clients_of_a_balanced_deployment_know_it() {
    let cluster = Cluster::shared();
    let (_routers, keyward) = behind_a_balancer(cluster, "balanced_hello");
    let greet = |hello: &Document| {
        let mut client = Connection::open(&keyward.address);
        let reply = client.run("admin", hello);
        (client, reply)
    };
    let names = [(); 20].map(|()| {
        let (_, reply) = greet(&doc! { "hello": 1, "loadBalanced": true });
        reply.get_object_id("serviceId").unwrap()
    });
    let names: HashSet<_> = names.into_iter().collect();
    assert_eq!(names.len(), 2, "each connection leads to one of two routers");
    let (mut client, refused) = greet(&doc! { "hello": 1 });
    assert_eq!(refused.get_i32("code").unwrap(), 354, "{refused}");
    let left = client.try_run("admin", &doc! { "ping": 1 });
    assert!(left.is_err(), "a router leaves such a client");
}

#[test]
fn the_doctor_examines_a_balanced_deployment() {
    let cluster = Cluster::shared();
    let (_routers, keyward) = behind_a_balancer(cluster, "balanced_doctor");
    let mut doctor = Command::new(testkit::keyward::program());
    doctor.args(["doctor", "--config"]).arg(keyward.file());
    let examined = doctor.env_remove("KEYWARD_UPSTREAM").output().unwrap();
    let report = String::from_utf8_lossy(&examined.stdout);
    assert_eq!(examined.status.code(), Some(0), "{report}");
    assert!(!report.contains('✗'), "{report}");
}
