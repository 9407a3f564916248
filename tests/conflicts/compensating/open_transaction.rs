//! A transaction that is open holds a key: the server lets whoever reserves it wait until that transaction ends. Nobody else
//! waits for it, and who does waits no longer than the client's time limit.

use std::pin::pin;
use std::time::{Duration, Instant};

use bson::{Binary, Document, RawBson, doc, spec::BinarySubtype};
use futures_util::future::{Either, join_all, select};
use keyward::proxy_collection::{Owner, ReservationVersion, Reserved, TakenOver};
use keyward::reservation::{Token, WriteId};

use crate::compensating::{EMAIL, assert_agreement, insert, keyward, users, write_errors};
use crate::trial::{key_of_email, store_of_email};
use testkit::wire::send;

fn user(id: i32, email: &str) -> Document {
    doc! { "_id": id, "region": "a", "email": email }
}

/// The fields of the commands of a new transaction.
fn transaction() -> Document {
    let bytes = rand::random::<[u8; 16]>().to_vec();
    let lsid = doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } };
    doc! { "lsid": lsid, "txnNumber": 1_i64, "autocommit": false }
}

/// Opens a transaction that inserts the user 1, a@x; the fields of its next commands.
fn open(address: &str, database: &str) -> Document {
    let transaction = transaction();
    let mut first = insert(vec![user(1, "a@x")], true);
    first.extend(transaction.clone());
    first.insert("startTransaction", true);
    let reply = send(address, database, first).unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    transaction
}

#[tokio::test(flavor = "multi_thread")]
async fn its_key_is_waited_for_and_no_other() {
    let database = "open_transaction";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "10s", &[EMAIL]);
    let (address, began) = (&keyward.address, Instant::now());
    let transaction = open(address, database);
    std::thread::scope(|scope| {
        for client in 0..4 {
            scope.spawn(move || {
                let mut same = insert(vec![user(10 + client, "a@x")], true);
                same.insert("maxTimeMS", 4_000);
                let began = Instant::now();
                let reply = send(address, database, same).unwrap();
                let elapsed = began.elapsed();
                assert_eq!(reply.get_i32("code").ok(), Some(50), "{reply}");
                let limit = Duration::from_secs(4)..Duration::from_secs(30);
                assert!(limit.contains(&elapsed), "{elapsed:?}");
            });
            scope.spawn(move || {
                for number in 0..10 {
                    let id = 100 * (client + 1) + number;
                    let reply = send(address, database, insert(vec![user(id, &format!("{id}@x"))], true)).unwrap();
                    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
                }
            });
        }
    });
    // The transaction could have lived for a minute.
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    let mut commit = doc! { "commitTransaction": 1 };
    commit.extend(transaction);
    let reply = send(address, "admin", commit).unwrap();
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
    let reply = send(address, database, insert(vec![user(20, "a@x")], true)).unwrap();
    assert_eq!(write_errors(&reply), [(0, 11000)], "{reply}");
    assert_agreement(cluster, database, "email").await;
}

/// Whoever locks a collection waits for the transaction, and everybody else for the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_keyward_that_starts_meanwhile_holds_nobody_up() {
    let database = "starts_meanwhile";
    let cluster = users(database);
    let first = keyward(cluster, database, "10s", &[EMAIL]);
    open(&first.address, database);
    let began = Instant::now();
    let _second = keyward(cluster, database, "10s", &[EMAIL]);
    let reply = send(&first.address, database, insert(vec![user(2, "b@x")], true)).unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    // The transaction lives for a minute.
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
}

/// A backfill reserves thousands of keys: clients' keys don't wait behind them.
#[tokio::test(flavor = "multi_thread")]
async fn no_client_waits_for_a_backfill() {
    let database = "backfilled_meanwhile";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    open(&keyward.address, database);
    let (proxy, held) = store_of_email(cluster, database);
    let other = key_of_email("b@x", database);
    let owner = Owner {
        id: RawBson::Int32(2),
        route: None,
    };
    let mark = |byte, in_flight| ReservationVersion {
        token: Token {
            write: WriteId([byte; 16]),
            position: 0,
            retry_id: None,
        },
        generation: 0,
        in_flight,
    };
    let held_up = [1, 2].map(|byte| {
        let (proxy, held, owner) = (&proxy, &held, &owner);
        async move { proxy.reserve(&[(held, owner, mark(byte, false))]).await.unwrap() }
    });
    let held_up = pin!(join_all(held_up));
    let claim = [(&other, &owner, mark(3, true))];
    let client = pin!(proxy.reserve(&claim));
    match select(held_up, client).await {
        Either::Left((held_up, _)) => panic!("the backfill was answered first: {held_up:?}"),
        Either::Right((reserved, _)) => assert_eq!(reserved.unwrap(), [Reserved::Written]),
    }
}

/// What others release together with a reservation that the transaction has changed goes without it.
#[tokio::test(flavor = "multi_thread")]
async fn releases_and_takeovers_of_others_do_not_wait_for_it() {
    let database = "released_meanwhile";
    let cluster = users(database);
    let _keyward = keyward(cluster, database, "60s", &[EMAIL]);
    let (proxy, held) = store_of_email(cluster, database);
    let other = key_of_email("b@x", database);
    let token = |byte| Token {
        write: WriteId([byte; 16]),
        position: 0,
        retry_id: None,
    };
    let owner = Owner {
        id: RawBson::Int32(1),
        route: None,
    };
    proxy
        .reserve(&[(&held, &owner, token(1).into()), (&other, &owner, token(2).into())])
        .await
        .unwrap();
    let seen = proxy.read(&[&held]).await.unwrap().remove(0).unwrap();
    let id = Document::try_from(&held.reservation_id()).unwrap();
    let mut open =
        doc! { "update": "keyward.users.email_1", "updates": [{ "q": { "_id": id }, "u": { "$set": { "x": 1 } } }] };
    let transaction = transaction();
    open.extend(transaction.clone());
    open.insert("startTransaction", true);
    let reply = send(&cluster.router_address(), database, open).unwrap();
    assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
    let began = Instant::now();
    // Asked for at once, they travel in one command.
    let released = proxy.release_by_token(&[(&held, token(1)), (&other, token(2))]).await;
    assert!(released.is_err(), "{released:?}");
    assert_eq!(crate::trial::reservations(cluster, database, "email").await.len(), 1);
    // As an attempt does that begins anew.
    proxy.reserve(&[(&other, &owner, token(2).into())]).await.unwrap();
    let taken = proxy.take_over(&held, &seen, &owner, token(3)).await.unwrap();
    assert_eq!(taken, TakenOver::Busy);
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    // No delete is left behind that would come now.
    let mut abort = doc! { "abortTransaction": 1 };
    abort.extend(transaction);
    send(&cluster.router_address(), "admin", abort).unwrap();
    proxy.release_by_token(&[(&held, token(1))]).await.unwrap();
    assert!(proxy.read(&[&other]).await.unwrap()[0].is_some());
}

/// Keyward's own look at the documents of a statement takes no longer than the client allows, in either way.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_that_takes_long_ends_with_the_clients_time_limit() {
    let database = "long_look";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "60s", &[EMAIL]);
    send(&keyward.address, database, insert(vec![user(2, "a@x")], true)).unwrap();
    let slow = doc! { "_id": 2, "region": "a", "$where": "sleep(20000) || true" };
    let set = doc! { "$set": { "email": "b@x" } };
    let plain = doc! { "q": slow.clone(), "u": set.clone() };
    let pipeline = doc! { "q": slow, "u": [set] };
    for statement in [plain, pipeline] {
        let command = doc! { "update": "users", "updates": [statement], "maxTimeMS": 300 };
        let began = Instant::now();
        let reply = send(&keyward.address, database, command.clone()).unwrap();
        let elapsed = began.elapsed();
        let code = reply
            .get_i32("code")
            .ok()
            .or(write_errors(&reply).first().map(|error| error.1));
        assert_eq!(code, Some(50), "{command}: {reply}");
        assert!(elapsed < Duration::from_secs(15), "{command}: {elapsed:?}");
    }
    assert_agreement(cluster, database, "email").await;
}

/// Each document waits for another transaction, so each is late once, at another time. It counts for itself alone.
#[tokio::test(flavor = "multi_thread")]
async fn an_insert_whose_documents_waited_one_after_the_other_is_in_time() {
    const DOCUMENTS: i32 = 6;
    let database = "waits_one_by_one";
    let cluster = users(database);
    let keyward = keyward(cluster, database, "5s", &[EMAIL]);
    let address = &keyward.address;
    let open = |n: i32| {
        let transaction = transaction();
        let mut first = insert(vec![user(100 + n, &format!("{n}@y"))], true);
        first.extend(transaction.clone());
        first.insert("startTransaction", true);
        let reply = send(address, database, first).unwrap();
        assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
        transaction
    };
    let transactions: Vec<Document> = (0..DOCUMENTS).map(open).collect();
    let with_both = |n: i32| doc! { "_id": n, "region": "a", "email": [format!("{n}@x"), format!("{n}@y")] };
    let command = insert((0..DOCUMENTS).map(with_both).collect(), false);
    let reply = std::thread::scope(|scope| {
        let inserting = scope.spawn(|| send(address, database, command).unwrap());
        // Most of the lease of what they hold while they wait.
        std::thread::sleep(Duration::from_millis(3_300));
        for (n, transaction) in (0..DOCUMENTS).zip(&transactions) {
            let mut abort = doc! { "abortTransaction": 1 };
            abort.extend(transaction.clone());
            send(address, "admin", abort).unwrap();
            let is_there = || {
                let count = doc! { "count": "users", "query": { "_id": n, "region": "a" } };
                cluster.run(database, count).unwrap().get_i32("n").ok() == Some(1)
            };
            keyward.until("the document", || is_there() || inserting.is_finished());
        }
        inserting.join().unwrap()
    });
    assert_eq!(reply.get_i32("n").ok(), Some(DOCUMENTS), "{reply}");
}
