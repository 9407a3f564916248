//! One constraint more for a while. Either the Keywards of one mode are started anew with it, one after the other, and some time later
//! without it. Or a client makes it with `createIndexes`, and drops it with `dropIndexes`, through whichever Keyward.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{Document, doc};
use futures_util::TryStreamExt;
use keyward::fleet::{COLLECTION as REGISTER, DATABASE as REGISTER_DATABASE, Register};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use rand::Rng;
use testbed::Cluster;

use crate::nemesis::checker::COLLECTION;
use crate::nemesis::faults::{Faults, Pace};
use crate::nemesis::keys::PHONE;
use crate::nemesis::phones::Phones;
use crate::nemesis::place::Place;

/// So long after the last restart the constraint may take to be enforced.
const ENFORCED_WITHIN: Duration = Duration::from_secs(120);

/// So long after the last restart all that a Keyward had sent that was killed before it is done: a router or a server isn't
/// stopped for longer.
const DONE_WITHIN: Duration = Duration::from_secs(40);

pub struct Rollout {
    pub mode: &'static str,
    pub database: String,
    pub cluster: Arc<Cluster>,
    pub places: Vec<Arc<Place>>,
    /// The constraints without and with the one more.
    pub constraints: [String; 2],
    /// Whether a client can make the constraint, too.
    pub is_for_clients: bool,
    pub phones: Arc<Phones>,
    pub faults: Arc<Faults>,
}

impl Rollout {
    /// Until it is over; the constraint stays if it is there by then.
    pub fn run(&self, mut pace: Pace) {
        while pace.goes_on() {
            let goes_on = match self.is_for_clients && pace.random.random_ratio(2, 3) {
                true => self.create(&mut pace) && pace.goes_on() && self.drop(&mut pace),
                false => self.add(&mut pace) && pace.goes_on() && self.take_away(&mut pace),
            };
            if !goes_on {
                break;
            }
        }
    }

    fn take_away(&self, pace: &mut Pace) -> bool {
        self.phones.relent();
        self.restart_all(&self.constraints[0], pace);
        self.count("constraint taken away by a rolling restart");
        true
    }

    /// False if it is over before a Keyward has said that the constraint holds.
    fn create(&self, pace: &mut Pace) -> bool {
        remove_phones(&self.cluster, &self.database);
        let key = doc! { "key": { PHONE: 1 }, "name": format!("{PHONE}_1"), "unique": true, "sparse": true };
        let command = doc! { "createIndexes": COLLECTION, "indexes": [key] };
        while !pace.is_over() {
            match self.sent(&command, pace) {
                Some(reply) if testkit::wire::is_ok(&reply) => {
                    self.phones.demand();
                    self.count("constraint made by a client");
                    return true;
                }
                // A number came twice while nobody kept it out.
                Some(reply) if reply.get_i32("code").ok() == Some(11_000) => {
                    self.count("constraint that documents violated");
                    remove_phones(&self.cluster, &self.database);
                }
                Some(reply) => println!("{}: no constraint: {reply}", self.mode),
                None => {}
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        false
    }

    /// False if it is over before a Keyward has said that the constraint is gone.
    fn drop(&self, pace: &mut Pace) -> bool {
        self.phones.relent();
        let command = doc! { "dropIndexes": COLLECTION, "index": format!("{PHONE}_1") };
        while !pace.is_over() {
            match self.sent(&command, pace) {
                // By an earlier try, too, whose reply was lost.
                Some(reply) if testkit::wire::is_ok(&reply) || reply.get_i32("code").ok() == Some(27) => {
                    self.count("constraint dropped by a client");
                    return true;
                }
                Some(reply) => println!("{}: not dropped: {reply}", self.mode),
                None => {}
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        false
    }

    /// The reply of one of the Keywards, if one comes.
    fn sent(&self, command: &Document, pace: &mut Pace) -> Option<Document> {
        let place = &self.places[pace.random.random_range(0..self.places.len())];
        testkit::wire::send(place.address(), &self.database, command.clone()).ok()
    }

    /// False if it is over before the constraint is enforced everywhere.
    fn add(&self, pace: &mut Pace) -> bool {
        // What was written again and again while it was enforced may have come twice since.
        remove_phones(&self.cluster, &self.database);
        if !self.restart_all(&self.constraints[1], pace) {
            return false;
        }
        let started = Instant::now();
        while !self.places.iter().all(|place| place.is_enforced(&format!("{PHONE}_1"))) {
            if started.elapsed() > ENFORCED_WITHIN {
                println!("{}: {PHONE} isn't enforced after {ENFORCED_WITHIN:?}", self.mode);
                self.count("constraint that isn't enforced in time");
                return true;
            }
            if pace.is_over() {
                return false;
            }
            if started.elapsed() > DONE_WITHIN {
                forget_the_killed(&self.cluster);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        self.phones.demand();
        self.count("constraint added by a rolling restart");
        true
    }

    /// One after the other, with a rest between them; false if it is over meanwhile.
    fn restart_all(&self, constraints: &str, pace: &mut Pace) -> bool {
        for (number, place) in self.places.iter().enumerate() {
            if number > 0 && !pace.goes_on() {
                return false;
            }
            place.configure(constraints.to_owned());
            place.kill();
            place.restart();
        }
        true
    }

    fn count(&self, name: &str) {
        self.faults.count(format!("{}: {name}", self.mode));
    }
}

/// Does what an operator does about Keywards that were killed, for which a strict constraint waits until somebody says that
/// they are gone.
fn forget_the_killed(cluster: &Cluster) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let forgotten: Result<(), Box<dyn std::error::Error>> = runtime.block_on(async {
        let client = cluster.client();
        let register = client.database(REGISTER_DATABASE).collection::<Document>(REGISTER);
        let entries: Vec<Document> = register.find(doc! { "pinned": true }).await?.try_collect().await?;
        for entry in entries {
            let pid = Pid::from_raw(i32::try_from(entry.get_i64("pid")?)?);
            if kill(pid, None).is_err() {
                Register::of(&client).forget(entry.get_object_id("_id")?).await?;
            }
        }
        client.shutdown().await;
        Ok(())
    });
    if let Err(error) = forgotten {
        println!("not forgotten: {error}");
    }
}

/// Has no document hold a number; where no Keyward enforces the constraint that is an operator's business with the router.
pub fn remove_phones(cluster: &Cluster, database: &str) {
    let all = doc! { "q": {}, "u": { "$unset": { PHONE: 1 } }, "multi": true };
    let removed = cluster.run(database, doc! { "update": COLLECTION, "updates": [all] });
    if let Err(error) = removed {
        // A shard has no primary just now. Whoever finds a number twice begins anew.
        println!("numbers are left where they are: {error}");
    }
}
