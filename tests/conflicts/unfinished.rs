//! A client's transaction in which a statement was broken off: it has taken effect, and its reservations haven't. Whatever the
//! client does, it isn't committed.

use bson::{Binary, Document, doc, spec::BinarySubtype};

use crate::forwarder::{Forwarder, send, wait_until};
use crate::retries::behind;
use crate::{EMAIL, assert_agreement, insert, keyward, users};

pub fn user(id: i32, email: &str) -> Document {
    doc! { "_id": id, "region": "a", "email": email }
}

/// Inserts the users 1, a@x, and 2, b@x; the fields of a new transaction's commands.
pub fn begin(address: &str, database: &str) -> Document {
    let reply = send(address, database, insert(vec![user(1, "a@x"), user(2, "b@x")], true)).unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 2, "{reply}");
    let bytes = rand::random::<[u8; 16]>().to_vec();
    let lsid = doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } };
    doc! { "lsid": lsid, "txnNumber": 1_i64, "autocommit": false }
}

/// The first command of the transaction: the user 2 takes the address.
fn take(email: &str, transaction: &Document) -> Document {
    let statement = doc! { "q": { "_id": 2, "region": "a" }, "u": { "$set": { "email": email } } };
    let mut command = doc! { "update": "users", "updates": [statement], "startTransaction": true };
    command.extend(transaction.clone());
    command
}

pub fn commit(address: &str, transaction: &Document) -> Document {
    let mut command = doc! { "commitTransaction": 1, "writeConcern": { "w": "majority" } };
    command.extend(transaction.clone());
    send(address, "admin", command).unwrap()
}

fn is_told_to_begin_anew(reply: &Document) {
    assert_eq!(reply.get_i32("code").ok(), Some(251), "{reply}");
    let labels = reply.get_array("errorLabels").unwrap();
    assert_eq!(labels, &["TransientTransactionError".into()], "{reply}");
}

/// The `update` of the client's collection, as a router sees it.
fn statement() -> Vec<u8> {
    b"\x02update\0\x06\0\0\0users\0".to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_breaks_between_a_statement_and_its_reservations() {
    let database = "unfinished";
    let cluster = users(database);
    let forwarder = Forwarder::start(cluster.router_address());
    let keyward = behind(&forwarder, database);
    let transaction = begin(&keyward.address, database);
    let is_lost = forwarder.lose_reply_to(statement());
    assert!(send(&keyward.address, database, take("a@x", &transaction)).is_err());
    wait_until(&is_lost);
    is_told_to_begin_anew(&commit(&keyward.address, &transaction));
    assert_agreement(cluster, database, "email").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keyward_is_killed_between_a_statement_and_its_reservations() {
    let database = "unfinished_killed";
    let cluster = users(database);
    let forwarder = Forwarder::start(cluster.router_address());
    let (first, next) = (
        behind(&forwarder, database),
        keyward(cluster, database, "60s", &[EMAIL]),
    );
    let transaction = begin(&next.address, database);
    let held = forwarder.hold(b"keyward.users.email_1");
    let (address, command) = (first.address.clone(), take("a@x", &transaction));
    let taking = std::thread::spawn(move || send(&address, database, command));
    held.wait();
    drop(first);
    assert!(taking.join().unwrap().is_err());
    is_told_to_begin_anew(&commit(&next.address, &transaction));
    assert_agreement(cluster, database, "email").await;
}

/// A commit whose reply was lost is known wherever it is sent again; a transaction that has been left open isn't taken over.
#[tokio::test(flavor = "multi_thread")]
async fn another_keyward_commits_nothing_that_it_has_not_seen() {
    let database = "unfinished_elsewhere";
    let cluster = users(database);
    let keywards = [(); 2].map(|()| keyward(cluster, database, "60s", &[EMAIL]));
    let [first, other] = keywards.each_ref().map(|keyward| keyward.address.as_str());
    let transaction = begin(first, database);
    let reply = send(first, database, take("c@x", &transaction)).unwrap();
    assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{reply}");
    for address in [first, other, first] {
        let reply = commit(address, &transaction);
        assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
    }
    let mut next = transaction;
    next.insert("txnNumber", 2_i64);
    let reply = send(first, database, take("d@x", &next)).unwrap();
    assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{reply}");
    is_told_to_begin_anew(&commit(other, &next));
    is_told_to_begin_anew(&commit(first, &next));
    assert_agreement(cluster, database, "email").await;
}
