//! `createIndex` on live data: documents by the thousand, writers through three Keywards, the builder killed in the middle.
//!
//! `DOCUMENTS` says how many documents: `DOCUMENTS=1000000 cargo test --test operations created::live -- --nocapture` shows the figures of a
//! large collection.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::*;

const WRITERS: u64 = 8;

/// How many documents there are before the constraint.
fn documents() -> u64 {
    testkit::given::number("DOCUMENTS").unwrap_or(4_000)
}

/// The regions of the two shards, in turn.
fn region(number: u64) -> &'static str {
    ["a", "z"][usize::from(!number.is_multiple_of(2))]
}

/// Writes documents past Keyward; those whose numbers `email` maps to the same are duplicates.
fn load(database: &str, count: u64, email: impl Fn(u64) -> u64) {
    for first in (0..count).step_by(5_000) {
        let users = (first..count.min(first + 5_000)).map(|number| {
            doc! { "_id": number as i64, "region": region(number), "email": format!("loaded.{}", email(number)) }
        });
        let insert = doc! { "insert": "users", "documents": users.collect::<Vec<_>>(), "ordered": false };
        QUIET.run(database, insert).unwrap();
    }
}

/// How many reservations there are.
fn reserved(database: &str) -> u64 {
    let count = QUIET.run(database, doc! { "count": "keyward.users.email_1" }).unwrap();
    count.get_i32("n").unwrap().try_into().unwrap()
}

/// All documents of a collection.
fn all(database: &str, collection: &str, projection: &Document) -> Vec<Document> {
    let mut connection = testkit::wire::Connection::open(&QUIET.router_address());
    let find = doc! { "find": collection, "projection": projection, "batchSize": 50_000 };
    let mut reply = connection.must(database, &find);
    let mut found = Vec::new();
    loop {
        let cursor = reply.get_document("cursor").unwrap();
        let batch = cursor
            .get_array("firstBatch")
            .or_else(|_| cursor.get_array("nextBatch"))
            .unwrap();
        found.extend(batch.iter().map(|document| document.as_document().unwrap().clone()));
        let id = cursor.get_i64("id").unwrap();
        if id == 0 {
            return found;
        }
        let more = doc! { "getMore": id, "collection": collection, "batchSize": 50_000 };
        reply = connection.must(database, &more);
    }
}

/// One of several writers, all of whose e-mails are new.
struct Writer<'a> {
    number: u64,
    keywards: &'a [Keyward],
    database: &'a str,
    /// Which Keyward it uses; another one once that is killed.
    at: usize,
    connection: testkit::wire::Connection,
    written: u64,
}

impl<'a> Writer<'a> {
    fn new(number: u64, keywards: &'a [Keyward], database: &'a str) -> Writer<'a> {
        let at = usize::try_from(number).unwrap() % keywards.len();
        Writer {
            number,
            keywards,
            database,
            at,
            connection: testkit::wire::Connection::open(&keywards[at].address),
            written: 0,
        }
    }

    /// Writes a document; nothing may go wrong except that the Keyward is killed.
    fn write(&mut self) {
        self.written += 1;
        let id = (self.number + 1) * 10_000_000 + self.written;
        let user = doc! {
            "_id": id as i64, "region": region(self.written), "email": format!("{}.{}", self.number, self.written),
        };
        let insert = doc! { "insert": "users", "documents": [user] };
        match self.send(&insert) {
            Ok(reply) => assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}"),
            Err(_) => {
                self.at = (self.at + 1) % self.keywards.len();
                self.connection = testkit::wire::Connection::open(&self.keywards[self.at].address);
            }
        }
    }

    /// Writes what is there already, on the other shard.
    fn is_refused_duplicate(&mut self, of: u64) -> bool {
        let user = doc! { "_id": -(of as i64) - 1, "region": region(of + 1), "email": format!("loaded.{of}") };
        let insert = doc! { "insert": "users", "documents": [user] };
        let reply = self.send(&insert).unwrap();
        reply.to_string().contains(r#""code": 11000"#)
    }

    /// The reply once its Keyward may write. In such haste it may for 3 s after it renewed its entry, and a busy machine may renew
    /// it later.
    fn send(&mut self, insert: &Document) -> std::io::Result<Document> {
        let began = Instant::now();
        loop {
            let sent = self.connection.try_run(self.database, insert);
            let may_write = sent.as_ref().is_ok_and(|reply| reply.get_i32("code").ok() != Some(6));
            if may_write || sent.is_err() || began.elapsed() > testkit::keyward::PATIENCE {
                return sent;
            }
        }
    }
}

/// Ends the writers, also if the test fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// How many documents a second were written while `during` ran.
fn rate<T>(written: &AtomicU64, during: impl FnOnce() -> T) -> (f64, Duration, T) {
    let (before, began) = (written.load(Ordering::Relaxed), Instant::now());
    let result = during();
    let took = began.elapsed();
    let writes = written.load(Ordering::Relaxed) - before;
    (writes as f64 / took.as_secs_f64(), took, result)
}

#[test]
fn a_unique_index_is_made_under_load_though_its_builder_is_killed() {
    const DATABASE: &str = "created_under_load";
    shard_users_of(&QUIET, DATABASE);
    let count = documents();
    load(DATABASE, count, |number| number);
    let keywards = [
        builders::start_hastened_at(&QUIET),
        builders::start_hastened_at(&QUIET),
        builders::start_hastened_at(&QUIET),
    ];
    let (written, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let ending = Ending(&is_over);
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                let (written, is_over) = (&written, &is_over);
                let mut writer = Writer::new(number, &keywards, DATABASE);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Acquire) {
                        writer.write();
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                    // Each document from before has its reservation.
                    for of in (writer.number..count).step_by(997) {
                        assert!(writer.is_refused_duplicate(of), "loaded.{of}");
                    }
                })
            })
            .collect();
        let (before, _, ()) = rate(&written, || std::thread::sleep(Duration::from_secs(2)));
        let first = &keywards[0].address;
        let cut_off = scope.spawn(move || testbed::command::run(first, DATABASE, create([unique_email()])));
        let (killed, until_killed, ()) = rate(&written, || {
            keywards[1].until_within(Duration::from_secs(300), "a part of the backfill", || {
                reserved(DATABASE) > count / 10
            });
            keywards[0].send(Signal::SIGKILL);
        });
        assert!(cut_off.join().unwrap().is_err());
        // The client sends it again.
        let (during, took, made) = rate(&written, || reply(&keywards[1], DATABASE, &create([unique_email()])));
        must(&made);
        let (after, _, ()) = rate(&written, || std::thread::sleep(Duration::from_secs(2)));
        println!(
            "{count} documents: killed after {:.1} s, then made in {:.1} s; inserts a second: {before:.0} before, {killed:.0} and {during:.0} \
             during, {after:.0} after",
            until_killed.as_secs_f64(),
            took.as_secs_f64()
        );
        drop(ending);
        for writer in writers {
            writer.join().unwrap();
        }
    });
    // No document without a reservation, and no duplicate. Writes that were cut off may leave reservations behind.
    let (_, said) = keywards[2].verify();
    let findings: Vec<&str> = said.lines().filter(|line| line.starts_with(DATABASE)).collect();
    assert!(
        findings.iter().all(|finding| finding.contains(": abandoned: ")),
        "{said}"
    );
    let documents = all(DATABASE, "users", &doc! { "email": 1 });
    let reservations = all(DATABASE, "keyward.users.email_1", &doc! { "_id": 0, "owner": 1 });
    let owners: HashSet<i64> = reservations
        .iter()
        .map(|reservation| reservation.get_i64("owner").unwrap())
        .collect();
    let unreserved = documents
        .iter()
        .filter(|user| !owners.contains(&user.get_i64("_id").unwrap()));
    assert_eq!(unreserved.collect::<Vec<_>>(), Vec::<&Document>::new(), "{said}");
    println!(
        "{} documents, {} reservations; {said}",
        documents.len(),
        reservations.len()
    );
    let emails: HashSet<&str> = documents.iter().map(|user| user.get_str("email").unwrap()).collect();
    assert_eq!(emails.len(), documents.len());
}

#[test]
fn every_planted_duplicate_is_reported() {
    const DATABASE: &str = "created_on_planted";
    const PLANTED: u64 = 100;
    shard_users_of(&QUIET, DATABASE);
    let count = documents();
    // The last ones have the e-mails of others.
    load(DATABASE, count, |number| match number + PLANTED < count {
        true => number,
        false => (number + PLANTED - count) * 7,
    });
    let keyward = start_at(&QUIET);
    let began = Instant::now();
    let refused = reply(&keyward, DATABASE, &create([unique_email()]));
    println!(
        "{count} documents: refused after {:.1} s",
        began.elapsed().as_secs_f64()
    );
    assert_eq!(refused.get_i32("code").ok(), Some(11_000), "{refused}");
    let log = keyward.log();
    for planted in 0..PLANTED {
        let key = format!("2 documents have {{\"email\":\"loaded.{}\"}}: _id ", planted * 7);
        let escaped = key.replace('"', "\\\"");
        assert!(log.contains(&key) || log.contains(&escaped), "{key} isn't in the log");
    }
    assert_eq!(indexes(&keyward, DATABASE).len(), 2);
    assert_eq!(insert_pair(&keyward, DATABASE, -10, "loaded.1"), [Ok(()), Ok(())]);
}
