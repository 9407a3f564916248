//! The faults: one thread for each Keyward and one for the cluster, each of which does harm, undoes it, rests, and goes on
//! until it is told that it is enough.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::{Bson, Document, doc};
use rand::seq::IndexedRandom;
use rand::{Rng, rngs::StdRng};
use testbed::process::{Process, ProcessError};
use testbed::{Cluster, ReplicaSet};

use crate::checker::COLLECTION;
use crate::client::REGIONS;
use crate::forwarder::insert_into;
use crate::keys::FIELDS;
use crate::place::Place;

/// How often each fault happened.
#[derive(Default)]
pub struct Faults(Mutex<BTreeMap<String, usize>>);

impl Faults {
    fn count(&self, name: String) {
        *self.0.lock().unwrap().entry(name).or_default() += 1;
    }

    pub fn all(&self) -> BTreeMap<String, usize> {
        self.0.lock().unwrap().clone()
    }
}

/// When to go on with the next fault, and when to stop.
pub struct Pace {
    pub is_over: Receiver<()>,
    pub random: StdRng,
    pub rest_ms: std::ops::Range<u64>,
}

impl Pace {
    /// Rests for a while; false if it is over.
    fn goes_on(&mut self) -> bool {
        let rest = Duration::from_millis(self.random.random_range(self.rest_ms.clone()));
        self.is_over.recv_timeout(rest) == Err(RecvTimeoutError::Timeout)
    }
}

/// What is done to one Keyward and its connections; all of it undone when this ends.
pub struct Tormentor {
    pub mode: &'static str,
    pub place: Arc<Place>,
    /// How long it may be stopped, or a message be held back.
    pub pause: Duration,
    pub faults: Arc<Faults>,
}

impl Tormentor {
    pub fn run(&self, mut pace: Pace) {
        while pace.goes_on() {
            if let Some(name) = self.strike(&mut pace) {
                self.faults.count(format!("{}: {name}", self.mode));
            }
        }
    }

    fn strike(&self, pace: &mut Pace) -> Option<&'static str> {
        let within = Duration::from_secs(2);
        let torn = |is_torn: std::sync::mpsc::Receiver<()>, name| is_torn.recv_timeout(within).is_ok().then_some(name);
        let (front, back) = (&self.place.front, &self.place.back);
        match pace.random.random_range(0..10) {
            0..2 => {
                self.place.kill();
                pace.goes_on();
                self.place.restart();
                Some("Keyward killed")
            }
            2..4 => {
                self.place.freeze();
                std::thread::sleep(self.pause);
                self.place.wake();
                Some("Keyward stopped")
            }
            4..6 => {
                let held = back.hold(&some_command(&mut pace.random));
                held.arrives_within(within).then(|| {
                    std::thread::sleep(self.pause);
                    "a command held back"
                })
            }
            6 => torn(front.tear_request(), "a client's request cut in the middle"),
            7 => torn(front.tear_reply(), "a reply to a client cut in the middle"),
            8 => torn(back.tear_request(), "a command of Keyward's cut in the middle"),
            _ => torn(back.tear_reply(), "a reply to Keyward cut in the middle"),
        }
    }
}

/// Bytes that only a certain step of a write has.
fn some_command(random: &mut StdRng) -> Vec<u8> {
    let steps = [
        insert_into(COLLECTION),
        b"\x02update\0".to_vec(),
        b"\x02delete\0".to_vec(),
        b"\x02findAndModify\0".to_vec(),
        b"\x02find\0".to_vec(),
        b"\x02aggregate\0".to_vec(),
        b"keyward.accounts".to_vec(),
        b"keyward.results".to_vec(),
        b"startTransaction\0".to_vec(),
        b"commitTransaction\0".to_vec(),
    ];
    steps.choose(random).unwrap().clone()
}

/// What is done to shards, chunks and the router.
pub struct Saboteur {
    pub cluster: Arc<Cluster>,
    pub databases: Vec<String>,
    pub faults: Arc<Faults>,
}

impl Saboteur {
    pub fn run(&self, mut pace: Pace) {
        while pace.goes_on() {
            let name = self.strike(&mut pace);
            self.faults.count(format!("cluster: {name}"));
            self.cluster.shards().iter().for_each(|shard| self.mend(shard));
        }
    }

    /// Does what supervisor and operator do: starts what has ended by itself (a primary that can't step down aborts), has
    /// a member that its own data keep from starting copy the others', and where a shard's members don't come together again,
    /// starts all of them anew.
    fn mend(&self, shard: &ReplicaSet) {
        let starts = |member: &&Process| match member.restart() {
            Ok(()) => true,
            Err(error) => {
                println!("{} doesn't start: {error}", member.name());
                !matches!(error, ProcessError::Ended { .. })
            }
        };
        let (_, broken): (Vec<_>, Vec<_>) = shard.members().iter().partition(starts);
        for member in broken {
            // Only then: it votes again, and knows no more of what it was there for.
            if shard.wait_for_primary().is_ok() {
                self.faults
                    .count("cluster: member that couldn't start emptied".to_owned());
                member.restart_empty().unwrap();
            }
        }
        let Err(error) = shard.wait_until_whole() else { return };
        println!("{} is started anew: {error}", shard.name());
        self.faults.count("cluster: shard that hung started anew".to_owned());
        for member in shard.members() {
            member.kill().unwrap();
        }
        for member in shard.members() {
            starts(&member);
        }
        if let Err(error) = shard.wait_until_whole() {
            println!("{} isn't whole yet: {error}", shard.name());
        }
    }

    fn strike(&self, pace: &mut Pace) -> &'static str {
        let shard = self.cluster.shards().choose(&mut pace.random).unwrap();
        match pace.random.random_range(0..8) {
            0..2 => match shard.step_down() {
                Ok(_) => "primary stepped down",
                Err(error) => failed("step-down", &error),
            },
            2 => {
                let primary = shard.primary().map_or(0, |primary| index_of(shard, primary.name()));
                Self::kill(shard, primary, pace);
                "primary killed"
            }
            3 => {
                let member = pace.random.random_range(0..shard.members().len());
                Self::kill(shard, member, pace);
                "some member killed"
            }
            4..6 => {
                let database = self.databases.choose(&mut pace.random).unwrap();
                let region = REGIONS.choose(&mut pace.random).unwrap();
                let namespace = format!("{database}.{COLLECTION}");
                match self
                    .cluster
                    .move_chunk(&namespace, doc! { "region": *region }, shard.name())
                {
                    Ok(()) => "chunk of documents moved",
                    Err(error) => failed("move of documents", &error),
                }
            }
            6 => match self.move_reservations(shard, &mut pace.random) {
                Ok(()) => "chunk of reservations moved",
                Err(error) => failed("move of reservations", &error),
            },
            _ => {
                self.cluster.mongos().kill().unwrap();
                pace.goes_on();
                self.cluster.mongos().restart().unwrap();
                "router killed"
            }
        }
    }

    /// Kills a member; it is started again by who mends.
    fn kill(shard: &ReplicaSet, member: usize, pace: &mut Pace) {
        shard.members()[member].kill().unwrap();
        pace.goes_on();
    }

    fn move_reservations(&self, shard: &ReplicaSet, random: &mut StdRng) -> Result<(), testbed::Error> {
        let database = self.databases.choose(random).unwrap();
        let field = FIELDS.choose(random).unwrap();
        let namespace = format!("{database}.keyward.{COLLECTION}.{field}_1");
        let collection = first_of(self.cluster.config_server().run(
            "config",
            doc! { "find": "collections", "filter": { "_id": &namespace } },
        )?);
        let uuid = collection[0].get("uuid").cloned().unwrap();
        let chunks = first_of(
            self.cluster
                .config_server()
                .run("config", doc! { "find": "chunks", "filter": { "uuid": uuid } })?,
        );
        let chunk = chunks.choose(random).unwrap();
        self.cluster
            .move_chunk(&namespace, chunk.get_document("min").unwrap().clone(), shard.name())
    }
}

fn failed(what: &'static str, error: &testbed::Error) -> &'static str {
    println!("{what}: {error}");
    "failed"
}

fn index_of(shard: &ReplicaSet, name: &str) -> usize {
    shard.members().iter().position(|member| member.name() == name).unwrap()
}

fn first_of(reply: Document) -> Vec<Document> {
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch.iter().filter_map(Bson::as_document).cloned().collect()
}
