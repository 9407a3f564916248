//! A retryable batch as large as a message may be, of which Keyward carries out one statement itself: it numbers the others.

use std::io::Write;
use std::net::TcpStream;

use bson::{Binary, Document, doc, spec::BinarySubtype};
use keyward::wire::{Draft, MESSAGE_BYTES_MAX, OpMsg};
use testbed::Cluster;
use testkit::Keyward;
use testkit::relay::read_message;

const STATEMENTS: usize = 1_000;

/// A statement that matches no document, and changes no key.
fn filler(bytes: usize) -> Vec<u8> {
    doc! { "q": { "_id": "none" }, "u": { "$set": { "other": "y".repeat(bytes) } } }
        .to_vec()
        .unwrap()
}

/// The message of an `update` with `first` and fillers, as long as a message may be.
fn longest_message(first: &Document, database: &str) -> Vec<u8> {
    let session = Binary {
        subtype: BinarySubtype::Uuid,
        bytes: vec![7; 16],
    };
    let body = doc! { "update": "users", "lsid": { "id": session }, "txnNumber": 1_i64, "$db": database };
    let body = body.to_vec().unwrap();
    let message = |last: usize| {
        let size = MESSAGE_BYTES_MAX / STATEMENTS - 100;
        let mut statements = vec![first.to_vec().unwrap()];
        statements.resize_with(STATEMENTS, || filler(size));
        statements.push(filler(last));
        let draft = Draft::with_documents(&body, "updates", statements.iter().map(Vec::as_slice));
        draft.frame(1, 0).unwrap().to_vec()
    };
    let message = message(MESSAGE_BYTES_MAX - message(0).len());
    assert_eq!(message.len(), MESSAGE_BYTES_MAX);
    message
}

#[tokio::test]
async fn a_batch_that_grows_by_its_numbers_is_sent_in_parts() {
    let database = "large_batch";
    let constraint = format!("  - {{ collection: {database}.users, key: {{ email: 1 }} }}\n");
    let keyward = Keyward::start(&Cluster::shared().uri(), &constraint);
    keyward.insert(database, doc! { "_id": 1, "email": "a" }).unwrap();
    let first = doc! { "q": { "_id": 1 }, "u": { "$set": { "email": "b" } } };
    let mut socket = TcpStream::connect(&keyward.address).unwrap();
    socket.write_all(&longest_message(&first, database)).unwrap();
    let reply = read_message(&mut socket).expect("the connection stays open");
    let reply = Document::from_reader(OpMsg::parse(&reply).unwrap().body.bytes()).unwrap();
    assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    assert!(!reply.contains_key("writeErrors"), "{reply}");
}
