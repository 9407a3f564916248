//! A client that leaves, or sends more, while the server carries out its routed read.

use bson::{Document, doc};
use testbed::Cluster;
use testkit::relay::Relay;
use testkit::wire::Connection;
use testkit::{Keyward, shard_on_two};

use super::{find, first_batch, insert, outcomes};

/// Only the reads that are held have it.
const MARK: &str = "held here";

/// A collection on two shards with one document, and a Keyward behind a relay that routes reads by `email`.
fn behind_relay(database: &str) -> (Relay, Keyward, Connection) {
    let cluster = Cluster::shared();
    let namespace = format!("{database}.users");
    shard_on_two(cluster, &namespace, doc! { "region": 1 }, doc! { "region": "m" });
    let relay = Relay::start(cluster.router_address());
    let constraint = format!("  - {{ collection: {namespace}, key: {{ email: 1 }}, route: true }}\n");
    let keyward = Keyward::start(&relay.uri(), &constraint);
    let mut client = Connection::greeted(&keyward.address);
    insert(
        &mut client,
        database,
        vec![doc! { "_id": 1, "region": "z", "email": "a@x" }],
    );
    let found = client.must(database, &find(doc! { "email": "a@x" }));
    assert_eq!(first_batch(&found).len(), 1, "{found}");
    assert_eq!(outcomes(&keyward, &format!("{namespace}.email_1")), [1, 0, 0]);
    (relay, keyward, client)
}

fn marked() -> Document {
    let mut read = find(doc! { "email": "a@x" });
    read.insert("comment", MARK);
    read
}

#[test]
fn a_routed_read_ends_when_its_client_is_gone() {
    let database = "routed_left";
    let (relay, keyward, mut client) = behind_relay(database);
    let closed = || keyward.metric("keyward_client_connections_closed_total");
    let before = closed();
    let held = relay.hold(MARK.as_bytes());
    client.send(database, &marked()).unwrap();
    held.wait();
    drop(client);
    keyward.until("its connection is closed", || closed() > before);
    // It was the read of the owner's shard, and no other has followed.
    assert_eq!(outcomes(&keyward, "routed_left.users.email_1"), [1, 0, 0]);
    drop(held);
}

#[test]
fn requests_that_a_client_sends_during_its_routed_read_are_answered_after_it() {
    let database = "routed_ahead";
    let (relay, keyward, mut client) = behind_relay(database);
    let both = |client: &mut Connection, count: usize| {
        let held = relay.hold(MARK.as_bytes());
        client.send(database, &marked()).unwrap();
        held.wait();
        client.send(database, &doc! { "count": "users" }).unwrap();
        drop(held);
        let found = client.receive().unwrap();
        assert_eq!(first_batch(&found).len(), count, "{found}");
        let counted = client.receive().unwrap();
        assert_eq!(counted.get_i32("n").ok(), i32::try_from(count).ok(), "{counted}");
    };
    both(&mut client, 1);
    assert_eq!(outcomes(&keyward, "routed_ahead.users.email_1"), [2, 0, 0]);
    // Without its document, the client's own read goes on after the routed one.
    let delete = doc! { "delete": "users", "deletes": [{ "q": { "_id": 1, "region": "z" }, "limit": 1 }] };
    Cluster::shared().run(database, delete).unwrap();
    both(&mut client, 0);
    assert_eq!(outcomes(&keyward, "routed_ahead.users.email_1"), [2, 0, 1]);
}
