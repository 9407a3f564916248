//! Leaping clocks: somebody tells a router or a shard of a cluster time in the future, which nobody checks where there are no
//! logins. Whom it is told first is ahead of the others until they hear of it.

use std::sync::Arc;
use std::time::Duration;

use bson::{Binary, Bson, Document, Timestamp, doc, spec::BinarySubtype};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use testbed::Cluster;
use testbed::cluster::Mongos;
use testbed::command::{CommandError, Connection};

use crate::nemesis::faults::{Faults, Pace};

/// So far clocks leap, in seconds: longer than either lease; and an hour.
const LEAPS_S: [u32; 3] = [2, 6, 3_600];
/// A server that was stopped or killed doesn't answer: its clock leaps another time.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Makes clocks leap.
pub struct Gossip {
    pub cluster: Arc<Cluster>,
    pub routers: Vec<Arc<Mongos>>,
    pub faults: Arc<Faults>,
}

impl Gossip {
    pub fn run(&self, mut pace: Pace) {
        while pace.goes_on() {
            let leap_s = *LEAPS_S.choose(&mut pace.random).unwrap();
            let (address, whose) = self.somebody(&mut pace);
            let name = match leap(&address, leap_s) {
                Ok(()) => format!("cluster: clock of a {whose} leapt {leap_s} s"),
                Err(error) => {
                    println!("a clock that doesn't leap: {error}");
                    "cluster: failed leap of a clock".to_owned()
                }
            };
            self.faults.count(name);
        }
    }

    /// Every shard's clock leaps, now.
    pub fn leap_everywhere(&self, random: &mut StdRng) {
        let leap_s = *LEAPS_S[1..].choose(random).unwrap();
        for shard in self.cluster.shards() {
            let Some(primary) = shard.primary() else { continue };
            if let Err(error) = leap(&primary.address(), leap_s) {
                println!("a clock that doesn't leap: {error}");
            }
        }
    }

    fn somebody(&self, pace: &mut Pace) -> (String, &'static str) {
        if pace.random.random_ratio(1, 4) {
            return (self.routers.choose(&mut pace.random).unwrap().address(), "router");
        }
        let shard = self.cluster.shards().choose(&mut pace.random).unwrap();
        match shard.primary() {
            Some(primary) => (primary.address(), "shard"),
            None => (shard.members()[0].address(), "shard"),
        }
    }
}

/// Tells the server at `address` of a cluster time so far beyond the one it knows.
pub fn leap(address: &str, leap_s: u32) -> Result<(), CommandError> {
    let mut connection = Connection::open(address)?;
    connection.reply_timeout(ANSWER_WITHIN)?;
    // A router tells of the time only in answers that it has from a shard.
    let greeted = connection.run("admin", doc! { "find": "nothing", "limit": 1 })?;
    let Some(now) = cluster_time(&greeted) else {
        return Ok(());
    };
    let time = Timestamp {
        time: now.time + leap_s,
        increment: 1,
    };
    let unsigned = Binary {
        subtype: BinarySubtype::Generic,
        bytes: vec![0; 20],
    };
    let gossip = doc! { "clusterTime": time, "signature": { "hash": unsigned, "keyId": 0_i64 } };
    connection.run("admin", doc! { "ping": 1, "$clusterTime": gossip })?;
    Ok(())
}

fn cluster_time(reply: &Document) -> Option<Timestamp> {
    match reply.get_document("$clusterTime").ok()?.get("clusterTime") {
        Some(Bson::Timestamp(time)) => Some(*time),
        _ => None,
    }
}
