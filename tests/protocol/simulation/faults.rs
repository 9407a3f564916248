//! What goes wrong by itself: Keywards die and stop, primaries step down; and who comes by: the sweeper, and
//! the backfill.

use crate::simulation::cluster::Shard;
use crate::simulation::history::{Fault, Happened};
use crate::simulation::plan::LEASE;
use crate::simulation::queue::Event;
use crate::simulation::size::{IDS, KEYS};
use crate::simulation::watch::Watch;
use crate::simulation::workload::{DELAY_MAX, Simulation};
use crate::under_test::network::{Message, Phase, Reply, Request};
use crate::under_test::rules::Broken;
use crate::under_test::words::{Id, Key, Outcome, TaskId};

impl Simulation {
    /// What a Keyward had sent arrives all the same, or not; its clients hear nothing more.
    pub fn die(&mut self) {
        let keyward = self.random.few(0, self.plan.keywards - 1);
        if self.keywards[keyward as usize].is_alive {
            self.note(Happened::Fault(Fault::KeywardDied));
            self.keywards[keyward as usize].is_alive = false;
            self.keywards[keyward as usize].paused_until = 0;
            self.keywards[keyward as usize].watch = Watch::default();
            let of_it = self.tasks.iter().filter(|(_, running)| running.keyward == keyward);
            let lost: Vec<TaskId> = of_it.map(|(id, _)| *id).collect();
            for id in lost {
                self.end_task(id);
                if self.is_awaited(id) {
                    self.answer(id.op.client, Outcome::Unknown);
                }
            }
            let at = self.now + self.random.magnitude(2 * LEASE);
            self.queue.push(at, Event::Restart { keyward });
        }
        self.again(self.plan.faults.crash_every, Event::Die);
    }

    /// It hears nothing, and does nothing, for as long as it takes.
    pub fn pause(&mut self) {
        let keyward = self.random.few(0, self.plan.keywards - 1);
        self.note(Happened::Fault(Fault::KeywardPaused));
        self.keywards[keyward as usize].paused_until = self.now + self.random.magnitude(DELAY_MAX);
        self.again(self.plan.faults.pause_every, Event::Pause);
    }

    /// What no majority has may be undone, and who waited for one hears nothing.
    pub fn step_down(&mut self) {
        let mut index = self.random.below(self.plan.shards.into()) as usize;
        // It is most telling where there is something to undo.
        let is_telling = |shard: &Shard| !shard.is_confirmed();
        if let Some(telling) = self.cluster.shards.iter().position(is_telling) {
            index = telling;
        }
        self.note(Happened::Fault(Fault::PrimarySteppedDown));
        let unconfirmed = self.cluster.shards[index].unconfirmed() as u32;
        let kept = self.random.below(unconfirmed + 1) as usize;
        let former_until = self.now + self.random.magnitude(2 * LEASE);
        let stepped_down = self.cluster.step_down(index, kept, former_until);
        self.cluster.shards[index].skew = self.random.skew(self.plan.faults.skew);
        if !stepped_down.undone.is_empty() {
            self.note(Happened::Fault(Fault::WriteUndone));
        }
        self.note_changes(&stepped_down.undone, |op| Happened::Undone { op });
        for ticket in stepped_down.unanswered {
            self.reply(ticket, Reply::Silence);
        }
        for message in &mut self.transactions {
            if let Request::Write(write) = &mut message.request
                && self.cluster.of_document(write.deed.id()) == index
            {
                self.cluster.store.abort(write);
                write.phase = Phase::Sent;
            }
        }
        self.again(self.plan.faults.step_down_every, Event::StepDown);
    }

    /// The backfill reads a document; the reservations of its keys are on their way.
    pub fn backfill_documents(&mut self) {
        let owner = self.random.few(0, IDS as Id - 1);
        let held = self.cluster.store.documents[owner as usize];
        for key in held.into_iter().flat_map(|keys| keys.iter()) {
            let request = Request::Backfill { key, owner };
            self.transmit(Message { to: None, request }, LEASE / 10);
        }
        self.again(self.plan.faults.backfill_every, Event::Backfill);
    }

    /// Whoever sweeps finds reservations whose lease is over and whose owner isn't there; what follows is on its way.
    pub fn sweep(&mut self) {
        let rules = self.plan.rules;
        self.queue.push(self.now + LEASE / 3, Event::Sweep);
        self.cluster.at(self.now);
        let keyward = self.random.few(0, self.plan.keywards - 1);
        let own = &self.keywards[keyward as usize];
        if !own.is_alive || own.paused_until > self.now {
            return;
        }
        for key in 0..KEYS as Key {
            let Some(seen) = self.cluster.store.reservations[key as usize] else {
                continue;
            };
            if !self.is_over_for(keyward, &seen) {
                continue;
            }
            let shard = &self.cluster.shards[self.cluster.of_document(seen.owner)];
            let is_absent = !self.cluster.store.holds(seen.owner, key) && shard.is_confirmed();
            if !is_absent && !rules.lacks(Broken::LookWithoutOwner) {
                continue;
            }
            let request = Request::sweep(key, seen, &rules);
            let message = Message { to: None, request };
            self.transmit(message, LEASE / 10);
        }
    }
}
