//! A retryable write whose connections are cut at one of its steps, for each step; the driver sends it again through
//! another Keyward and gets the answer that it would have got; what it does it does once.

use std::sync::mpsc;

use bson::{Binary, Bson, Document, doc, spec::BinarySubtype};

use crate::forwarder::send;
use crate::scissors::{Lost, Scissors};
use crate::support::{Keyward, comparable, natively_unique};
use crate::{ALONE, EMAIL, STRICT, settles, users};

/// Longer than a retry takes that finds what its first try left.
const LEASE: &str = "15s";

/// More steps than any write takes.
const STEPS_MAX: usize = 40;

/// The document that a write is about: number `n` of those that are there.
fn user(n: i32, region: &str) -> Document {
    doc! { "_id": n, "region": region, "email": format!("old{n}@x"), "count": 0 }
}

fn retryable(mut command: Document) -> Document {
    let bytes = rand::random::<[u8; 16]>().to_vec();
    command.insert("lsid", doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } });
    command.insert("txnNumber", 1_i64);
    command
}

/// A write about document `n`, which would count twice if it took effect twice.
type Write = fn(i32) -> Document;

fn update(n: i32, update: impl Into<Bson>) -> Document {
    doc! { "update": "users", "updates": [{ "q": { "_id": n, "region": "a" }, "u": update.into() }] }
}

fn find_and_modify(n: i32, update: impl Into<Bson>) -> Document {
    doc! { "findAndModify": "users", "query": { "_id": n, "region": "a" }, "update": update.into(), "new": true }
}

fn new(n: i32) -> String {
    format!("new{n}@x")
}

const WRITES: [(&str, Write); 11] = [
    ("insert", |n| {
        doc! { "insert": "users", "documents": [{ "_id": -n, "region": "z", "email": new(n) }] }
    }),
    ("set", |n| {
        update(n, doc! { "$set": { "email": new(n) }, "$inc": { "count": 1 } })
    }),
    ("set twice", |n| {
        let both = [
            doc! { "q": { "_id": n, "region": "a" }, "u": { "$set": { "email": n }, "$inc": { "count": 1 } } },
            doc! { "q": { "_id": n, "region": "a" }, "u": { "$set": { "email": new(n) }, "$inc": { "count": 1 } } },
        ];
        doc! { "update": "users", "updates": both.to_vec() }
    }),
    ("replace", |n| {
        update(n, doc! { "region": "a", "email": new(n), "count": 7 })
    }),
    ("pipeline", |n| {
        let stage = doc! { "$set": { "email": { "$concat": ["$email", "y"] }, "count": { "$add": ["$count", 1] } } };
        update(n, vec![stage])
    }),
    ("move", |n| {
        update(n, doc! { "$set": { "region": "z" }, "$inc": { "count": 1 } })
    }),
    ("upsert", |n| {
        let upsert = doc! { "$set": { "email": new(n) }, "$inc": { "count": 1 } };
        doc! { "update": "users", "updates": [{ "q": { "_id": -n, "region": "z" }, "u": upsert, "upsert": true }] }
    }),
    ("delete", |n| {
        doc! { "delete": "users", "deletes": [{ "q": { "_id": n, "region": "a" }, "limit": 1 }] }
    }),
    ("findAndModify", |n| {
        find_and_modify(n, doc! { "$set": { "email": new(n) }, "$inc": { "count": 1 } })
    }),
    ("findAndModify by pipeline", |n| {
        find_and_modify(
            n,
            vec![doc! { "$set": { "email": new(n), "count": { "$add": ["$count", 1] } } }],
        )
    }),
    ("findAndModify that removes", |n| {
        doc! { "findAndModify": "users", "query": { "_id": n, "region": "a" }, "remove": true }
    }),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_write_cut_at_any_step_and_sent_again_takes_effect_once() {
    cut_everywhere("cut", EMAIL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn so_it_does_in_strict_mode() {
    cut_everywhere("cut_strictly", STRICT).await;
}

async fn cut_everywhere(database: &'static str, constraint: &str) {
    let _alone = ALONE.lock().await;
    let cluster = users(database);
    let scissors = Scissors::start(cluster.router_address());
    let constraints = constraint.replace("DB", database);
    let first = Keyward::start_with_lease(
        &format!("mongodb://{}/?heartbeatFrequencyMS=500", scissors.address),
        LEASE,
        &constraints,
    );
    let second = Keyward::start_with_lease(&cluster.uri(), LEASE, &constraints);
    let native = &natively_unique(database).await;
    let mut n = 0;
    for (name, write) in WRITES {
        for lost in [Lost::Request, Lost::Reply] {
            for step in 0..=STEPS_MAX {
                assert!(step < STEPS_MAX, "{name} never ends");
                n += 1;
                let there = doc! { "insert": "users", "documents": [user(n, "a")] };
                for address in [native, &second.address] {
                    let reply = send(address, database, there.clone()).unwrap();
                    assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
                }
                let command = retryable(write(n));
                let expected = as_first(send(native, database, command.clone()).unwrap());
                let (reply, was_cut) = send_until_cut(&first.address, database, command.clone(), &scissors, step, lost);
                // Its Keyward is as good as dead; it wakes up when its work has been done.
                let got = match reply.filter(|reply| !is_retried_by_drivers(reply)) {
                    Some(reply) => reply,
                    None => send(&second.address, database, command.clone()).unwrap(),
                };
                scissors.mend();
                let got = as_first(got);
                assert_eq!(got, expected, "{name}, {lost:?} of step {step}");
                if !was_cut {
                    break;
                }
            }
        }
    }
    println!("{n} writes cut");
    let all = |address: &String| {
        let find = doc! { "find": "users", "sort": { "_id": 1 }, "batchSize": 100_000 };
        let reply = send(address, database, find).unwrap();
        let cursor = reply.get_document("cursor").unwrap();
        assert_eq!(cursor.get_i64("id").unwrap(), 0);
        cursor.get_array("firstBatch").unwrap().clone()
    };
    assert_eq!(all(&second.address), all(native));
    settles(cluster, database, &constraints).await;
}

/// Sends the command through `scissors`, and doesn't wait for a reply once they have cut; whether they have.
fn send_until_cut(
    address: &str,
    database: &'static str,
    command: Document,
    scissors: &Scissors,
    step: usize,
    lost: Lost,
) -> (Option<Document>, bool) {
    let (tell, events) = mpsc::channel();
    let (cut, is_cut) = mpsc::channel();
    scissors.cut_at(step, lost, cut);
    let address = address.to_owned();
    let replied = tell.clone();
    std::thread::spawn(move || replied.send(send(&address, database, command).ok()));
    std::thread::spawn(move || is_cut.recv().map(|()| tell.send(None)));
    let reply = events.recv().unwrap();
    (reply, scissors.has_cut())
}

/// The reply without what only a repetition has.
fn as_first(reply: Document) -> Document {
    let mut reply = comparable(reply);
    reply.remove("retriedStmtIds");
    reply.remove("retriedStmtId");
    reply
}

fn is_retried_by_drivers(reply: &Document) -> bool {
    let labels = reply.get_array("errorLabels");
    labels.is_ok_and(|labels| labels.contains(&Bson::String("RetryableWriteError".to_owned())))
}
