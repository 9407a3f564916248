//! What is done to the router of one mode's Keywards: killed and started again, stopped and continued.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use testbed::cluster::Mongos;

use crate::nemesis::faults::{Faults, Pace};

pub struct Roadblock {
    pub mode: &'static str,
    pub router: Arc<Mongos>,
    /// How long it may be stopped.
    pub pause: Duration,
    pub faults: Arc<Faults>,
}

impl Roadblock {
    pub fn run(&self, mut pace: Pace) {
        while pace.goes_on() {
            let name = match pace.random.random_range(0..3) {
                0 => {
                    self.router.kill().unwrap();
                    pace.goes_on();
                    self.router.restart().unwrap();
                    "router killed"
                }
                _ => {
                    self.router.stop().unwrap();
                    std::thread::sleep(self.pause);
                    self.router.resume().unwrap();
                    "router stopped"
                }
            };
            self.faults.count(format!("{}: {name}", self.mode));
        }
    }
}
