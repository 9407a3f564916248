//! What is done to shards and chunks: members killed and stopped, primaries that step down, chunks that move.

use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, Document, doc};
use rand::seq::IndexedRandom;
use rand::{Rng, rngs::StdRng};
use testbed::process::{Process, ProcessError};
use testbed::{Cluster, ReplicaSet};

use crate::nemesis::checker::COLLECTION;
use crate::nemesis::client::REGIONS;
use crate::nemesis::faults::{Faults, Pace};
use crate::nemesis::keys::FIELDS;

pub struct Saboteur {
    pub cluster: Arc<Cluster>,
    pub databases: Vec<String>,
    /// How long a primary may be stopped: all modes have to do with it, so no longer than the least of them takes.
    pub primary_pause: Duration,
    /// How long another member may be stopped, without which there still is a majority.
    pub secondary_pause: Duration,
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
        match pace.random.random_range(0..10) {
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
            7 => {
                let primary = shard.primary().map_or(0, |primary| index_of(shard, primary.name()));
                match stop(&shard.members()[primary], self.primary_pause) {
                    Ok(()) => "primary stopped",
                    Err(error) => failed("stop of a primary", &error.into()),
                }
            }
            _ => {
                let is_secondary = |member: &&Process| shard.primary().is_none_or(|it| it.name() != member.name());
                let secondaries: Vec<&Process> = shard.members().iter().filter(is_secondary).collect();
                match secondaries.choose(&mut pace.random) {
                    Some(secondary) => match stop(secondary, self.secondary_pause) {
                        Ok(()) => "secondary stopped",
                        Err(error) => failed("stop of a secondary", &error.into()),
                    },
                    None => "no secondary to stop",
                }
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

fn stop(member: &Process, pause: Duration) -> Result<(), ProcessError> {
    member.stop()?;
    std::thread::sleep(pause);
    member.resume()
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
