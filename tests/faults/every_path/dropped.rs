//! A Keyward killed with -9 at each step of a `drop`: the keys of what was dropped are free once the lease has run out, those
//! of what wasn't are a document's still, and the drop, sent again, ends.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use bson::{Document, doc};
use testbed::Cluster;

use crate::every_path::gate::{Gate, Last};
use crate::every_path::killed::{LEASE, settings};
use crate::every_path::{EMAIL, FEW};
use testkit::Keyward;
use testkit::agreement::held_and_reserved;
use testkit::wire::send;

#[tokio::test(flavor = "multi_thread")]
async fn a_keyward_killed_at_any_step_of_a_drop_holds_no_key_up() {
    let _few = FEW.acquire().await.unwrap();
    let database = "killed_at_a_drop";
    let cluster = Cluster::shared();
    let constraint = EMAIL.replace("DB", database);
    let other = Keyward::start_with_lease(&cluster.uri(), &settings(), &constraint);
    let trial = Trial {
        database,
        constraint,
        other,
        gate: Gate::start(cluster.router_address()),
    };
    let mut longest = Duration::ZERO;
    let mut id = 0;
    assert_eq!(trial.want(id).get_i32("n").ok(), Some(1));
    let steps = (0..).find(|step| {
        for last in [Last::Unsent, Last::Late] {
            let has_ended = trial.kill(*step, last);
            let asked = Instant::now();
            let reply = trial.want(id + 1);
            match reply.get_i32("n").ok() {
                // Not dropped: the document that was there has it.
                Some(0) => {
                    let error = reply.get_array("writeErrors").unwrap()[0].as_document().unwrap();
                    assert_eq!(error.get_i32("code").ok(), Some(11_000), "{reply}");
                    let dropped = send(&trial.other.address, database, doc! { "drop": "users" }).unwrap();
                    assert_eq!(dropped.get_f64("ok").ok(), Some(1.0), "{dropped}");
                    assert_eq!(trial.want(id + 1).get_i32("n").ok(), Some(1));
                }
                Some(1) => {}
                _ => panic!("{last:?} at {step}: {reply}"),
            }
            longest = longest.max(asked.elapsed());
            id += 1;
            if has_ended {
                return true;
            }
        }
        false
    });
    println!("{steps:?} steps; waited at most {longest:?}");
    assert!(steps > Some(3) && longest < LEASE * 3, "{steps:?}, {longest:?}");
    let [held, reserved] = held_and_reserved(cluster.shards(), database, "email").await;
    assert_eq!(held, reserved);
}

struct Trial {
    database: &'static str,
    constraint: String,
    /// The Keyward that lives.
    other: Keyward,
    gate: Gate,
}

impl Trial {
    /// Has the collection dropped by a Keyward that dies at the step; whether it came to an end before.
    fn kill(&self, step: usize, last: Last) -> bool {
        let (hit, is_hit) = mpsc::channel();
        let round = self.gate.begin(Some((step, last)), hit);
        let upstream = format!("mongodb://{}/?directConnection=true", self.gate.address());
        let mut keyward = Keyward::start_with_lease(&upstream, &settings(), &self.constraint);
        round.arm();
        let (address, database) = (keyward.address.clone(), self.database);
        let dropping = std::thread::spawn(move || send(&address, database, doc! { "drop": "users" }));
        // Nobody tells any more once the round is over.
        while is_hit.recv_timeout(Duration::from_millis(1)) == Err(mpsc::RecvTimeoutError::Timeout)
            && !dropping.is_finished()
        {}
        keyward.kill();
        round.killed();
        dropping.join().unwrap().is_ok()
    }

    /// Wants the one address for another document.
    fn want(&self, id: i32) -> Document {
        let document = doc! { "_id": id, "region": "a", "email": "a@x" };
        let insert = doc! { "insert": "users", "documents": [document] };
        send(&self.other.address, self.database, insert).unwrap()
    }
}
