//! What is done to one Keyward and its connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::seq::IndexedRandom;
use rand::{Rng, rngs::StdRng};

use crate::nemesis::checker::COLLECTION;
use crate::nemesis::clocks::Gossip;
use crate::nemesis::faults::{Faults, Pace};
use crate::nemesis::place::Place;
use testkit::relay::insert_into;

/// What is done to one Keyward and its connections; all of it undone when this ends.
pub struct Tormentor {
    pub mode: &'static str,
    pub place: Arc<Place>,
    /// How long it may be stopped, or a message be held back.
    pub pause: Duration,
    /// Whoever makes clocks leap while it is, if anybody does.
    pub gossip: Option<Arc<Gossip>>,
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
                let has_leapt = self.pause(&mut pace.random);
                self.place.wake();
                Some(match has_leapt {
                    true => "Keyward stopped while clocks leapt",
                    false => "Keyward stopped",
                })
            }
            4..6 => {
                let held = back.hold(&some_command(&mut pace.random));
                held.arrives_within(within).then(|| match self.pause(&mut pace.random) {
                    true => "a command held back while clocks leapt",
                    false => "a command held back",
                })
            }
            6 => torn(front.tear_request(), "a client's request cut in the middle"),
            7 => torn(front.tear_reply(), "a reply to a client cut in the middle"),
            8 => torn(back.tear_request(), "a command of Keyward's cut in the middle"),
            _ => torn(back.tear_reply(), "a reply to Keyward cut in the middle"),
        }
    }

    /// Waits for as long as something may be stopped, and has clocks leap at the beginning now and then; whether they did.
    fn pause(&self, random: &mut StdRng) -> bool {
        let began = Instant::now();
        let leaps = self.gossip.as_ref().filter(|_| random.random());
        if let Some(gossip) = leaps {
            gossip.leap_everywhere(random);
        }
        std::thread::sleep(self.pause.saturating_sub(began.elapsed()));
        leaps.is_some()
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
