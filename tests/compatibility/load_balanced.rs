//! A load balancer in front of several Keywards: a driver in the mode for that keeps each transaction and each cursor on its connection.

#![expect(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

use std::future::IntoFuture;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use bson::{Document, doc};
use futures_util::TryStreamExt;
use futures_util::future::try_join_all;
use mongodb::error::{ErrorKind, WriteFailure};
use mongodb::{Client, Collection};
use testbed::Cluster;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_reaches_two_keywards_through_a_balancer() {
    const DATABASE: &str = "load_balanced";
    let keywards = tokio::task::spawn_blocking(|| keywards(DATABASE)).await.unwrap();
    let address = balancer(keywards.iter().map(|keyward| keyward.address.clone()).collect());
    let client = Client::with_uri_str(format!("mongodb://{address}/?loadBalanced=true"))
        .await
        .unwrap();
    let users = client.database(DATABASE).collection::<Document>("users");
    // All at once, so that the driver opens connections to both.
    try_join_all((0..100).map(|id| users.insert_one(user(id, &format!("{id}"))).into_future()))
        .await
        .unwrap();
    for id in 100..110 {
        let refused = users.insert_one(user(id, "7")).await.unwrap_err();
        assert!(is_duplicate(&refused), "{refused}");
    }
    try_join_all((0..8).map(|n| in_a_transaction(&client, &users, 1000 + 2 * n)))
        .await
        .unwrap();
    let refused = in_a_transaction(&client, &users, 1000).await.unwrap_err();
    assert!(is_duplicate(&refused), "{refused}");
    // Cursors side by side: each one stays with the Keyward that opened it.
    let read = async || {
        let cursor = users.find(doc! {}).batch_size(7).await?;
        cursor.try_collect::<Vec<_>>().await
    };
    for found in try_join_all((0..6).map(|_| read())).await.unwrap() {
        assert_eq!(found.len(), 116);
    }
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
