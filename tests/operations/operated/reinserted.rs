//! Documents without reservations, while a constraint is built: one is deleted while another client inserts it again.

use std::time::Duration;

use bson::{Document, doc};
use testbed::Cluster;

use crate::operated::rolled::{is_enforced, until_ready, user};
use testkit::keyward::Keyward;
use testkit::relay::Relay;
use testkit::wire::send;

fn settings(upstream: &str, constraints: &str) -> String {
    format!("upstream: {upstream}\nlease: 30s\nreload_interval: 0s\nconstraints: {constraints}\n")
}

/// `write`, which would make the document `{_id: 1, z: "x"}` again, is sent on its way through one Keyward while the document, which
/// has no reservation, is deleted through another.
fn made_again_while_deleted(database: &str, write: Document, bytes: &[u8]) {
    let cluster = Cluster::shared();
    cluster.run(database, doc! { "dropDatabase": 1 }).unwrap();
    let constraint = format!("[{{ collection: {database}.users, key: {{ z: 1 }}, strategy: compensating }}]");
    // The constraint isn't enforced while a Keyward is there that has written without it.
    let without = Keyward::of(&settings(&cluster.uri(), "[]"));
    without.insert(database, user(1, "x")).unwrap();
    let relay = Relay::start(cluster.router_address());
    let maker = Keyward::of(&settings(&relay.uri(), &constraint));
    let deleter = Keyward::of(&settings(&cluster.uri(), &constraint));
    assert!(!is_enforced(&maker, database));

    let held = relay.hold(bytes);
    let address = maker.address.clone();
    let of_maker = database.to_owned();
    let making = std::thread::spawn(move || send(&address, &of_maker, write).unwrap());
    maker.until("a reply, or a write on its way", || {
        making.is_finished() || held.arrives_within(Duration::from_millis(10))
    });
    let delete = doc! { "delete": "users", "deletes": [{ "q": { "_id": 1 }, "limit": 1 }] };
    let deleted = deleter.run(database, delete).unwrap();
    assert_eq!(deleted.get_i32("n").unwrap(), 1, "{deleted}");
    drop(held);
    let reply = making.join().unwrap();
    // Either it met the document, or it made another one. Then that one has its reservation.
    let error = reply.get_array("writeErrors").ok().map(|errors| errors[0].clone());
    let code = error.map(|error| error.as_document().unwrap().get_i32("code").unwrap());
    assert!([None, Some(11000)].contains(&code), "{reply}");
    let is_made = code.is_none();
    let duplicate = deleter.insert(database, user(2, "x"));
    assert_eq!(duplicate, if is_made { Err(11000) } else { Ok(()) }, "{reply}");

    without.stop();
    for keyward in [&maker, &deleter] {
        keyward.until("enforced", || is_enforced(keyward, database));
        until_ready(keyward);
    }
    let (code, findings) = deleter.verify();
    assert_eq!(code, Some(0), "{findings}");
}

#[test]
fn an_inserted_document_has_its_reservation() {
    let insert = doc! { "insert": "users", "documents": [user(1, "x")] };
    made_again_while_deleted("reinserted", insert, &testkit::relay::insert_into("users"));
}

/// The document's `_id` is in the way of the upsert, whose filter doesn't match the document.
#[test]
fn an_upserted_document_has_its_reservation() {
    let upsert = doc! { "q": { "_id": 1, "other": 5 }, "u": { "$set": { "z": "x" } }, "upsert": true };
    let update = doc! { "update": "users", "updates": [upsert] };
    made_again_while_deleted("reupserted", update, b"\x08upsert\0\x01");
}
