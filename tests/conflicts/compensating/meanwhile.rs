//! What others do to a document while a plain statement about it is under way.

use std::thread::JoinHandle;
use std::time::Instant;

use bson::{Binary, Document, doc, spec::BinarySubtype};
use testbed::Cluster;

use crate::compensating::{EMAIL, PHONE, assert_agreement, insert, keyward, users, write_errors};
use testkit::Keyward;
use testkit::relay::Held;
use testkit::relay::Relay;
use testkit::relay::insert_into;
use testkit::wire::send;

fn update(set: Document) -> Document {
    doc! { "update": "users", "updates": [{ "q": { "_id": 2, "region": "a" }, "u": { "$set": set } }] }
}

fn retryable(mut command: Document) -> Document {
    let bytes = rand::random::<[u8; 16]>().to_vec();
    command.insert("lsid", doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } });
    command.insert("txnNumber", 1_i64);
    command
}

/// A first try is done while its retry waits, and of the two keys that it gave a document somebody changes one. The server answers
/// the retry from memory, and the other key stays the document's.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_still_held_is_not_given_up_for_another_that_is_not() {
    let database = "half_held";
    let cluster = users(database);
    let constraints = [EMAIL, PHONE].concat().replace("DB", database);
    let relays = [(); 2].map(|()| Relay::start(cluster.router_address()));
    let behind =
        |relay: &Relay| Keyward::start_with_lease(&format!("mongodb://{}/", relay.address), "60s", &constraints);
    let keywards = [behind(&relays[0]), behind(&relays[1])];
    let other = keyward(cluster, database, "60s", &[EMAIL, PHONE]);
    let there = doc! { "_id": 2, "region": "a", "email": "a@x", "phone": 1 };
    send(&other.address, database, insert(vec![there], true)).unwrap();
    let both = retryable(update(doc! { "email": "b@x", "phone": 2 }));
    let held_back = |number: usize| {
        let held = relays[number].hold(b"$literal");
        let (address, both) = (keywards[number].address.clone(), both.clone());
        let statement = std::thread::spawn(move || send(&address, database, both).unwrap());
        held.wait();
        (held, statement)
    };
    let (first_try, retry) = (held_back(0), held_back(1));
    for (held, statement) in [first_try, retry] {
        drop(held);
        let reply = statement.join().unwrap();
        assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{reply}");
        if !reply.contains_key("retriedStmtIds") {
            let reply = send(&other.address, database, update(doc! { "phone": 3 })).unwrap();
            assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{reply}");
        }
    }
    assert_agreement(cluster, database, "email").await;
    assert_agreement(cluster, database, "phone").await;
    let again = doc! { "_id": 4, "region": "z", "email": "b@x", "phone": 4 };
    let reply = send(&other.address, database, insert(vec![again], true)).unwrap();
    assert_eq!(write_errors(&reply), [(0, 11000)], "{reply}");
}

/// A statement that sets `b@x` where document 2 has `a@x`, held back on its way.
struct Changing {
    second: Keyward,
    held: Held,
    statement: JoinHandle<Document>,
    _first: Keyward,
}

/// Sends it through a Keyward of its own until a request with `bytes` is held back; the other Keyward is free.
fn changing(database: &'static str, bytes: &[u8]) -> Changing {
    changing_under("60s", database, bytes)
}

/// The same with this lease.
fn changing_under(lease: &str, database: &'static str, bytes: &[u8]) -> Changing {
    let cluster = users(database);
    let constraints = EMAIL.replace("DB", database);
    let forwarder = Relay::start(cluster.router_address());
    let first = Keyward::start_with_lease(&format!("mongodb://{}/", forwarder.address), lease, &constraints);
    let second = keyward(cluster, database, lease, &[EMAIL]);
    let there = doc! { "_id": 2, "region": "a", "email": "a@x" };
    send(&second.address, database, insert(vec![there], true)).unwrap();
    let held = forwarder.hold(bytes);
    let address = first.address.clone();
    let statement = std::thread::spawn(move || send(&address, database, update(doc! { "email": "b@x" })).unwrap());
    held.wait();
    Changing {
        second,
        held,
        statement,
        _first: first,
    }
}

impl Changing {
    /// Lets it go on; its reply, and the other Keyward.
    fn go_on(self) -> (Document, Keyward) {
        drop(self.held);
        (self.statement.join().unwrap(), self.second)
    }
}

/// Two clients set the same value in the same document, one by a statement that takes a transaction: the second one finds
/// it set, and is no duplicate of the very document.
#[tokio::test(flavor = "multi_thread")]
async fn the_document_itself_is_no_duplicate_of_what_it_comes_to_hold() {
    let database = "itself";
    let changing = changing(database, b"$literal");
    let second = &changing.second;
    let pipeline = doc! { "q": { "_id": 2, "region": "a" }, "u": [{ "$set": { "email": "b@x" } }] };
    let address = second.address.clone();
    let in_transaction = doc! { "update": "users", "updates": [pipeline] };
    let in_transaction = std::thread::spawn(move || send(&address, database, in_transaction).unwrap());
    let waits = |metrics: String| {
        let mut counts = metrics
            .lines()
            .filter(|line| line.starts_with("keyward_constraint_conflicts_waited_total"));
        counts.any(|line| !line.ends_with(" 0"))
    };
    while !waits(second.metrics()) && !in_transaction.is_finished() {
        tokio::task::yield_now().await;
    }
    let (reply, _second) = changing.go_on();
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    let reply = in_transaction.join().unwrap();
    assert_eq!(write_errors(&reply), [], "{reply}");
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    assert_agreement(Cluster::shared(), database, "email").await;
}

/// Between a statement's look at its document and its write somebody changes the key that it is to replace: it looks again,
/// and gives up the key that is there then.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_changed_since_the_look_is_not_left_reserved() {
    let database = "changed_before_the_write";
    let changing = changing(database, b"updates\0");
    let address = changing.second.address.clone();
    let reply = send(&address, database, update(doc! { "email": "c@x" })).unwrap();
    assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{reply}");
    let (reply, _second) = changing.go_on();
    assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{reply}");
    assert_agreement(Cluster::shared(), database, "email").await;
    let freed = ["a@x", "c@x"].map(|email| doc! { "region": "z", "email": email });
    let reply = send(&address, database, insert(freed.to_vec(), true)).unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 2, "{reply}");
}

/// Between a statement's look at its document and its write the document is deleted and inserted anew, as it was. The statement
/// changes the new one, and knows the old one's reservation only: nobody can tell the new reservation from that of a later write
/// which is on its way. It stays until its lease is over; then whoever wants the key, or the sweeper, settles it.
#[tokio::test(flavor = "multi_thread")]
async fn the_old_key_of_a_document_that_was_put_back_is_free_after_its_lease() {
    let database = "put_back";
    let changing = changing_under("4s", database, b"updates\0");
    let address = changing.second.address.clone();
    let delete = doc! { "delete": "users", "deletes": [{ "q": { "_id": 2, "region": "a" }, "limit": 1 }] };
    let put_back = insert(vec![doc! { "_id": 2, "region": "a", "email": "a@x" }], true);
    for command in [delete, put_back] {
        let reply = send(&address, database, command).unwrap();
        assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    }
    let (reply, second) = changing.go_on();
    assert_eq!(reply.get_i32("nModified").unwrap(), 1, "{reply}");
    // What it holds now is protected all the while.
    let again = insert(vec![doc! { "_id": 3, "region": "z", "email": "b@x" }], true);
    let reply = send(&second.address, database, again).unwrap();
    assert_eq!(write_errors(&reply), [(0, 11000)], "{reply}");
    // Whoever wants the old key waits for the lease at most.
    let freed = insert(vec![doc! { "_id": 4, "region": "z", "email": "a@x" }], true);
    let asked = Instant::now();
    let reply = send(&second.address, database, freed).unwrap();
    println!("the old key was had after {:?}", asked.elapsed());
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    assert_agreement(Cluster::shared(), database, "email").await;
}

/// A delete whose driver has sent it again, to another Keyward, comes to look at the reservation only when the document is
/// being inserted anew: the server remembers the delete, and the reservation is the insert's.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_remembers_gives_up_no_later_writes_reservation() {
    let database = "remembered";
    let cluster = users(database);
    let constraint = EMAIL.replace("DB", database);
    let behind = |forwarder: &Relay| {
        let upstream = format!("mongodb://{}/", forwarder.address);
        Keyward::start_with_lease(&upstream, "60s", &constraint)
    };
    let forwarders = [(); 2].map(|()| Relay::start(cluster.router_address()));
    let keywards = [behind(&forwarders[0]), behind(&forwarders[1])];
    let start = |keyward: usize, command: Document| {
        let address = keywards[keyward].address.clone();
        std::thread::spawn(move || send(&address, database, command).unwrap())
    };
    let user = doc! { "_id": 2, "region": "a", "email": "a@x" };
    send(&keywards[1].address, database, insert(vec![user.clone()], true)).unwrap();
    let delete = doc! { "delete": "users", "deletes": [{ "q": { "_id": 2, "region": "a" }, "limit": 1 }] };
    let delete = retryable(delete);
    // The read of what is to be given up.
    let look = forwarders[0].hold(b"\x04$in\0");
    let first_try = start(0, delete.clone());
    look.wait();
    let reply = send(&keywards[1].address, database, delete).unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    let held = forwarders[1].hold(&insert_into("users"));
    let inserting = start(1, insert(vec![user], true));
    held.wait();
    drop(look);
    let reply = first_try.join().unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    drop(held);
    let reply = inserting.join().unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    assert_agreement(cluster, database, "email").await;
}
