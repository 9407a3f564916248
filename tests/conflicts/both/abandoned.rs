//! Reservations that nobody looks after: written by hand as a Keyward leaves them that dies between reserving a key and
//! its document's arrival.

use std::time::{Duration, Instant};

use bson::{Binary, Bson, Document, Timestamp, doc, spec::BinarySubtype};
use keyward::constraint::{Constraint, IndexSpec};
use keyward::namespace::Namespace;
use keyward::raw::Doc;
use keyward::reservation::{Token, WriteId};
use testbed::{Cluster, ReplicaSet};

use crate::strategy::{PHONE, Strategy};
use crate::trial::{assert_agreement, insert, keyward, reservations, write_errors};
use testkit::{comparable, run};

/// Long ago; the server stores it as it is.
const OLD: Timestamp = Timestamp { time: 1, increment: 1 };
/// The server puts its present time here.
pub const NOW: Timestamp = Timestamp { time: 0, increment: 0 };

/// A reservation of an address.
#[derive(Clone)]
pub struct Abandoned {
    email: &'static str,
    owner: Bson,
    route: Option<Document>,
    pub lease: Duration,
    at: Timestamp,
}

impl Abandoned {
    /// For a document that never arrived.
    pub fn of(email: &'static str, at: Timestamp) -> Abandoned {
        Abandoned {
            email,
            owner: Bson::Int32(-1),
            route: Some(doc! { "region": "a" }),
            lease: Duration::from_secs(60),
            at,
        }
    }

    pub async fn write(&self, cluster: &Cluster, database: &str) {
        let spec = IndexSpec {
            key: doc! { "email": 1 },
            ..Default::default()
        };
        let constraint = Constraint::new(Namespace::new(database, "users"), spec).unwrap();
        let document = doc! { "email": self.email }.to_vec().unwrap();
        let key = constraint.keys(Doc::new(&document).unwrap()).unwrap().remove(0);
        let token = Token {
            write: WriteId(rand::random()),
            position: 0,
            retry_id: None,
        };
        let mut reservation = doc! {
            "_id": Document::try_from(key.reservation_id()).unwrap(),
            "owner": self.owner.clone(),
        };
        if let Some(route) = &self.route {
            reservation.insert("route", route.clone());
        }
        let bytes = token.to_bytes();
        reservation.insert(
            "token",
            Binary {
                subtype: BinarySubtype::Generic,
                bytes,
            },
        );
        reservation.insert("lease", i64::try_from(self.lease.as_millis()).unwrap());
        reservation.insert("at", self.at);
        let proxy = cluster
            .client()
            .database(database)
            .collection::<Document>("keyward.users.email_1");
        proxy.insert_one(reservation).await.unwrap();
    }
}

fn user(id: i32, email: &str) -> Document {
    doc! { "_id": id, "region": if id % 2 == 0 { "a" } else { "z" }, "email": email }
}

/// Only what this Keyward knows of counts: one that was started a moment ago waits a lease, whatever the reservation's time says.
/// After that, others that are as old are taken over at once, though it meets them for the first time.
async fn once_it_is_known_to_be_old_it_is_taken_over_at_once(strategy: Strategy) {
    let database = strategy.database("expired");
    let cluster = strategy.users(database);
    // The lease runs from when the Keyward makes the collection of reservations. What comes before the first insert takes a part of it.
    let keyward = keyward(cluster, database, "20s", &[strategy.email()]);
    let lease = Duration::from_secs(20);
    for email in ["a@x", "b@x", "c@x"] {
        let abandoned = Abandoned {
            lease,
            ..Abandoned::of(email, OLD)
        };
        abandoned.write(cluster, database).await;
    }
    let client = keyward.client().await;
    let mut waits = Vec::new();
    for (id, email) in [(1, "a@x"), (2, "b@x"), (3, "c@x")] {
        let began = Instant::now();
        let reply = run(&client, database, insert(vec![user(id, email)], true)).await;
        assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
        waits.push(began.elapsed());
    }
    assert!(waits[0] > lease / 3 && waits[0] < 2 * lease, "{waits:?}");
    assert!(waits[1..].iter().all(|wait| *wait < lease / 2), "{waits:?}");
    assert_agreement(cluster, database, "email").await;
}

async fn within_its_lease_it_is_waited_for(strategy: Strategy) {
    let database = strategy.database("running");
    let cluster = strategy.users(database);
    let keyward = keyward(cluster, database, "5s", &[strategy.email()]);
    let client = keyward.client().await;
    run(&client, database, insert(vec![user(2, "b@x")], true)).await;
    let began = Instant::now();
    // Its own lease counts, whatever that of the Keyward that meets it: the fleet may be changing it.
    let abandoned = Abandoned {
        lease: Duration::from_secs(10),
        ..Abandoned::of("a@x", NOW)
    };
    abandoned.write(cluster, database).await;
    let written = Instant::now();
    let reply = run(&client, database, insert(vec![user(1, "a@x")], true)).await;
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    assert!(began.elapsed() > Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(written.elapsed() < Duration::from_secs(30), "{:?}", written.elapsed());
    assert_agreement(cluster, database, "email").await;
}

async fn a_clients_time_limit_holds_while_it_waits_and_nothing_stays_reserved(strategy: Strategy) {
    let database = strategy.database("time_limit");
    let cluster = strategy.users(database);
    // The phone comes first: it is held while the address is waited for.
    let keyward = keyward(cluster, database, "60s", &[PHONE, strategy.email()]);
    let abandoned = Abandoned::of("a@x", NOW);
    abandoned.write(cluster, database).await;
    let mut command = insert(vec![doc! { "_id": 1, "region": "a", "email": "a@x", "phone": 1 }], true);
    command.insert("maxTimeMS", 3_000);
    let began = Instant::now();
    let reply = run(&keyward.client_without_retries().await, database, command).await;
    assert_eq!(reply.get_i32("code").unwrap(), 50, "{reply}");
    let elapsed = began.elapsed();
    assert!(
        elapsed > Duration::from_millis(2_900) && elapsed < Duration::from_secs(20),
        "{elapsed:?}"
    );
    assert_eq!(reservations(cluster, database, "phone").await, Vec::<Document>::new());
    assert_eq!(reservations(cluster, database, "email").await.len(), 1);
}

/// A statement waits for another's key as an insert does, whatever way it takes; what it has reserved by then it gives back.
async fn a_statements_time_limit_holds_while_it_waits(strategy: Strategy) {
    let database = strategy.database("statement_time_limit");
    let cluster = strategy.users(database);
    let keyward = keyward(cluster, database, "60s", &[PHONE, strategy.email()]);
    let client = keyward.client_without_retries().await;
    run(&client, database, insert(vec![user(2, "b@x")], true)).await;
    Abandoned::of("a@x", NOW).write(cluster, database).await;
    let both = doc! { "$set": { "email": "a@x", "phone": 1 } };
    let query = doc! { "_id": 2, "region": "a" };
    let update = |u: Bson| doc! { "update": "users", "updates": [{ "q": query.clone(), "u": u }] };
    let upsert = doc! { "q": { "_id": 4, "region": "a" }, "u": both.clone(), "upsert": true };
    let commands = [
        update(both.clone().into()),
        update(vec![both.clone()].into()),
        doc! { "update": "users", "updates": [upsert] },
        doc! { "findAndModify": "users", "query": query.clone(), "update": both.clone() },
    ];
    for mut command in commands {
        command.insert("maxTimeMS", 3_000);
        let began = Instant::now();
        let reply = run(&client, database, command.clone()).await;
        assert_eq!(reply.get_i32("code").ok(), Some(50), "{command}: {reply}");
        let elapsed = began.elapsed();
        assert!(
            elapsed > Duration::from_millis(2_900) && elapsed < Duration::from_secs(20),
            "{command}: {elapsed:?}"
        );
        assert_eq!(
            reservations(cluster, database, "phone").await,
            Vec::<Document>::new(),
            "{command}"
        );
        assert_eq!(reservations(cluster, database, "email").await.len(), 2, "{command}");
    }
}

async fn the_owner_decides_wherever_it_is(strategy: Strategy) {
    let database = strategy.database("owners");
    let cluster = strategy.users(database);
    let keyward = keyward(cluster, database, "5s", &[strategy.email()]);
    let direct = cluster.client().database(database).collection::<Document>("users");
    let owned = |email, id: i32, region: Option<&str>, at| Abandoned {
        owner: id.into(),
        lease: Duration::from_secs(5),
        route: region.map(|region| doc! { "region": region }),
        ..Abandoned::of(email, at)
    };
    // The documents are on the shard of region `a`, all even.
    direct
        .insert_many([
            user(100, "holds"),
            user(102, "holds, old"),
            user(104, "elsewhere"),
            user(106, "elsewhere, old"),
            user(108, "no route"),
            user(110, "another key"),
        ])
        .await
        .unwrap();
    let undefined = Abandoned {
        owner: Bson::Undefined,
        ..owned("undefined", 0, Some("a"), OLD)
    };
    let cases = [
        (owned("holds", 100, Some("a"), NOW), false),
        (owned("holds, old", 102, Some("a"), OLD), false),
        (owned("elsewhere", 104, Some("z"), NOW), false),
        (owned("elsewhere, old", 106, Some("z"), OLD), false),
        (owned("no route", 108, None, OLD), false),
        (owned("it holds another key", 110, Some("a"), OLD), true),
        (owned("it isn't there", 112, Some("a"), OLD), true),
        (undefined, true),
    ];
    let client = keyward.client_without_retries().await;
    for (number, (abandoned, free)) in (1..).zip(cases) {
        abandoned.write(cluster, database).await;
        let began = Instant::now();
        let reply = run(&client, database, insert(vec![user(number, abandoned.email)], true)).await;
        let expected = if free { vec![] } else { vec![(0, 11000)] };
        assert_eq!(write_errors(&reply), expected, "{}: {reply}", abandoned.email);
        assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{}: {reply}", abandoned.email);
        assert!(began.elapsed() < Duration::from_secs(30), "{}", abandoned.email);
    }
}

async fn an_owner_that_gave_its_key_up_keeps_it_for_the_lease_only(strategy: Strategy) {
    let database = strategy.database("gave_up");
    let cluster = strategy.users(database);
    let keyward = keyward(cluster, database, "5s", &[strategy.email()]);
    let client = keyward.client_without_retries().await;
    run(&client, database, insert(vec![user(2, "b@x")], true)).await;
    let mut abandoned = Abandoned::of("a@x", NOW);
    abandoned.owner = Bson::Int32(2);
    abandoned.lease = Duration::from_secs(5);
    abandoned.write(cluster, database).await;
    let written = Instant::now();
    let reply = run(&client, database, insert(vec![user(1, "a@x")], true)).await;
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    assert!(written.elapsed() < Duration::from_secs(20), "{:?}", written.elapsed());
    assert_agreement(cluster, database, "email").await;
}

async fn the_very_document_again_is_refused_for_its_id_as_the_server_does(strategy: Strategy) {
    let database = strategy.database("again");
    let cluster = strategy.users(database);
    let keyward = keyward(cluster, database, "10s", &[strategy.email()]);
    let client = keyward.client_without_retries().await;
    let native = ReplicaSet::shared().client();
    native.database(database).drop().await.unwrap();
    let index = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true };
    run(&native, database, doc! { "createIndexes": "users", "indexes": [index] }).await;
    let commands = [
        insert(vec![user(1, "a@x")], true),
        insert(vec![user(1, "a@x")], true),
        insert(
            vec![user(3, "a@x"), user(1, "a@x"), user(5, "b@x"), user(5, "b@x")],
            false,
        ),
    ];
    for command in commands {
        let expected = comparable(run(&native, database, command.clone()).await);
        let got = comparable(run(&client, database, command).await);
        assert_eq!(got, expected);
    }
}

on_both_strategies! {
    once_it_is_known_to_be_old_it_is_taken_over_at_once;
    within_its_lease_it_is_waited_for;
    a_clients_time_limit_holds_while_it_waits_and_nothing_stays_reserved;
    a_statements_time_limit_holds_while_it_waits;
    the_owner_decides_wherever_it_is;
    an_owner_that_gave_its_key_up_keeps_it_for_the_lease_only;
    the_very_document_again_is_refused_for_its_id_as_the_server_does;
}
