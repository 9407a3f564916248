//! A Keyward between two forwarders: clients find it at one address, however often it is killed and started again, and its
//! connections can be cut and held back on both sides.

use std::sync::{Arc, Mutex, MutexGuard};

use testbed::Cluster;

use crate::nemesis::checker::COLLECTION;
use crate::nemesis::rollout::remove_phones;
use testkit::relay::Relay;
use testkit::{Keyward, keyward::page_at};

/// Others wait for a Keyward that was killed for 25 s: longer than what it has left open may live, and short enough for a
/// constraint to be enforced again and again while Keywards are killed. For the same reason one that applies a client's constraint waits
/// for 32 s until older transactions are over.
const HASTE: [(&str, &str); 2] = [("KEYWARD_REGISTER_HASTE", "5"), ("KEYWARD_TRANSACTIONS_HASTE", "3")];
/// Keyward's exit code where the deployment doesn't do as it is asked.
const DEPLOYMENT_REFUSES: i32 = 69;
/// And where two documents hold one key of a constraint that is new to it.
const DUPLICATES: i32 = 65;

pub struct Place {
    /// Between the clients and Keyward.
    pub front: Relay,
    /// Between Keyward and the router.
    pub back: Relay,
    lease: String,
    /// What the next start is to enforce.
    constraints: Mutex<String>,
    /// One start at a time: the last one has the latest constraints.
    starting: Mutex<()>,
    cluster: Arc<Cluster>,
    database: String,
    keyward: Mutex<Option<Keyward>>,
}

impl Place {
    /// Starts a Keyward with these settings in front of `router`, a router of `cluster`.
    pub fn start(router: String, lease: &str, constraints: &str, cluster: &Arc<Cluster>, database: &str) -> Place {
        let back = Relay::start(router);
        let place = Place {
            // Nobody listens on port 1: until Keyward runs, clients are turned away.
            front: Relay::start("127.0.0.1:1".to_owned()),
            back,
            lease: lease.to_owned(),
            constraints: Mutex::new(constraints.to_owned()),
            starting: Mutex::default(),
            cluster: cluster.clone(),
            database: database.to_owned(),
            keyward: Mutex::new(None),
        };
        place.restart();
        place
    }

    /// Where clients connect to.
    pub fn address(&self) -> &str {
        &self.front.address
    }

    /// Has it enforce these constraints from its next start on.
    pub fn configure(&self, constraints: String) {
        *self.constraints.lock().unwrap() = constraints;
    }

    /// Starts a new Keyward in the place of one that was killed.
    pub fn restart(&self) {
        let _starting = self.starting.lock().unwrap();
        let upstream = format!("mongodb://{}/?heartbeatFrequencyMS=500", self.back.address);
        let keyward = loop {
            let constraints = self.constraints.lock().unwrap().clone();
            match Keyward::try_start_with(&upstream, &self.lease, &constraints, &HASTE) {
                Ok(keyward) => break keyward,
                // A shard is away: whoever runs it starts it again.
                Err(refused) if refused.exit == Some(DEPLOYMENT_REFUSES) => {
                    println!("Keyward has ended, started again")
                }
                // Of two writes of one number the later one came when nobody kept it out any more.
                Err(refused) if refused.exit == Some(DUPLICATES) => {
                    println!("Keyward has found a number twice: {}", refused.errors);
                    remove_phones(&self.cluster, &self.database);
                }
                Err(refused) => panic!("Keyward doesn't start: {}", refused.errors),
            }
        };
        self.front.retarget(keyward.address.clone());
        *self.keyward() = Some(keyward);
    }

    /// Whether it says that it enforces the constraint of this name.
    pub fn is_enforced(&self, name: &str) -> bool {
        let admin = self.keyward().as_ref().map(|keyward| keyward.admin.clone());
        let metrics = admin
            .and_then(|admin| page_at(&admin, "/metrics").ok())
            .unwrap_or_default();
        // It follows the constraints that clients make in the other mode's database, too.
        let ready = format!(
            "keyward_constraint_ready{{constraint=\"{}.{COLLECTION}.{name}\"}} 1",
            self.database
        );
        let is_it = |line: &str| line == ready;
        metrics.lines().any(is_it)
    }

    /// Kills it; there is none then, until the next start.
    pub fn kill(&self) {
        if let Some(mut keyward) = self.keyward().take() {
            keyward.kill();
        }
    }

    pub fn freeze(&self) {
        if let Some(keyward) = self.keyward().as_ref() {
            keyward.freeze();
        }
    }

    pub fn wake(&self) {
        if let Some(keyward) = self.keyward().as_ref() {
            keyward.wake();
        }
    }

    fn keyward(&self) -> MutexGuard<'_, Option<Keyward>> {
        self.keyward.lock().unwrap()
    }
}
