//! A Keyward between two forwarders: clients find it at one address, however often it is killed and started again, and its
//! connections can be cut and held back on both sides.

use std::sync::{Mutex, MutexGuard};

use crate::forwarder::Forwarder;
use crate::support::Keyward;

/// Keyward's exit code where the deployment doesn't do as it is asked.
const DEPLOYMENT_REFUSES: i32 = 69;

pub struct Place {
    /// Between the clients and Keyward.
    pub front: Forwarder,
    /// Between Keyward and the router.
    pub back: Forwarder,
    lease: String,
    constraints: String,
    keyward: Mutex<Option<Keyward>>,
}

impl Place {
    /// Starts a Keyward with these settings in front of `router`.
    pub fn start(router: String, lease: &str, constraints: &str) -> Place {
        let back = Forwarder::start(router);
        let place = Place {
            // Nobody listens on port 1: until Keyward runs, clients are turned away.
            front: Forwarder::start("127.0.0.1:1".to_owned()),
            back,
            lease: lease.to_owned(),
            constraints: constraints.to_owned(),
            keyward: Mutex::new(None),
        };
        place.restart();
        place
    }

    /// Where clients connect to.
    pub fn address(&self) -> &str {
        &self.front.address
    }

    /// Starts a new Keyward in the place of one that was killed.
    pub fn restart(&self) {
        let upstream = format!("mongodb://{}/?heartbeatFrequencyMS=500", self.back.address);
        let keyward = loop {
            match Keyward::try_start(&upstream, &self.lease, &self.constraints) {
                Ok(keyward) => break keyward,
                // A shard is away: whoever runs it starts it again.
                Err(refused) if refused.exit == Some(DEPLOYMENT_REFUSES) => {
                    println!("Keyward has ended, started again")
                }
                Err(refused) => panic!("Keyward doesn't start: {}", refused.errors),
            }
        };
        self.front.retarget(keyward.address.clone());
        *self.keyward() = Some(keyward);
    }

    pub fn kill(&self) {
        if let Some(keyward) = self.keyward().as_mut() {
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
