//! The shards' clocks, which lag, leap and disagree, and what each Keyward may conclude from them of how long a reservation has
//! been there: as `src/proxy_collection/watch.rs` does.
//!
//! Nothing is gossiped but what a Keyward's look brings along: its requests go through routers of their own.

use std::collections::{BTreeMap, BTreeSet};

use crate::simulation::history::{Fault, Happened};
use crate::simulation::plan::{LEASE, Time};
use crate::simulation::queue::Event;
use crate::simulation::workload::Simulation;
use crate::under_test::rules::Broken;
use crate::under_test::store::Reservation;
use crate::under_test::words::{At, taking_in};

/// How far a clock may leap.
const LEAP_MAX: Time = 20 * LEASE;

/// What a Keyward knows of time, by its own clock.
#[derive(Debug, Default)]
pub struct Watch {
    /// The latest cluster time that any shard has told it.
    heard: Time,
    /// Since when all shards are past which cluster time.
    marks: Vec<(Time, Time)>,
    /// Since when it has seen which reservation.
    seen: BTreeMap<At, Time>,
    look: Look,
}

/// A time on its way to all shards.
#[derive(Debug, Default)]
struct Look {
    number: u32,
    missing: BTreeSet<usize>,
}

/// A shard's part in a look.
#[derive(Debug, Clone, Copy)]
pub struct Brought {
    keyward: u8,
    number: u32,
    shard: usize,
    told: Time,
}

impl Simulation {
    /// A Keyward brings the latest time that it knows to all shards.
    pub fn look_at_the_clocks(&mut self, keyward: u8) {
        self.queue.push(self.now + LEASE / 4, Event::Look { keyward });
        let own = &mut self.keywards[keyward as usize];
        if !own.is_alive || own.paused_until > self.now {
            return;
        }
        let look = &mut own.watch.look;
        let (number, told) = (look.number + 1, own.watch.heard);
        let missing = (0..self.cluster.shards.len()).collect();
        *look = Look { number, missing };
        for shard in 0..self.cluster.shards.len() {
            if self.befalls(self.plan.faults.drop, Fault::RequestLost) {
                continue;
            }
            let way = match self.befalls(self.plan.faults.delay, Fault::Delayed) {
                true => self.random.magnitude(LEASE),
                false => self.random.between(1, 20),
            };
            let brought = Brought {
                keyward,
                number,
                shard,
                told,
            };
            self.queue.push(self.now + way, Event::Bring(brought));
        }
    }

    /// The time arrives at a shard; a majority of it is still to have it.
    pub fn bring(&mut self, brought: Brought) {
        let shard = &mut self.cluster.shards[brought.shard];
        shard.clock = shard.clock.max(brought.told);
        let term = shard.term;
        let at = self.now + 1 + self.random.below(self.plan.faults.lag);
        self.queue.push(at, Event::Brought { brought, term });
    }

    /// A majority has it, unless its primary was deposed.
    pub fn brought(&mut self, brought: Brought, term: u32) {
        let Brought {
            keyward,
            number,
            shard,
            told,
        } = brought;
        let shard_of = &mut self.cluster.shards[shard];
        if shard_of.term != term {
            return;
        }
        shard_of.known = shard_of.known.max(told);
        self.hear(keyward, shard);
        let own = &mut self.keywards[keyward as usize];
        let watch = &mut own.watch;
        if !own.is_alive || watch.look.number != number {
            return;
        }
        watch.look.missing.remove(&shard);
        if watch.look.missing.is_empty() {
            watch.marks.push((told, self.now.max(own.paused_until)));
        }
    }

    /// A shard tells a Keyward its time, with whatever it answers.
    fn hear(&mut self, keyward: u8, shard: usize) {
        let told = self.cluster.shards[shard].clock;
        let watch = &mut self.keywards[keyward as usize].watch;
        watch.heard = watch.heard.max(told);
        if self.plan.rules.lacks(Broken::TimeOfOneShard) {
            watch.marks.push((told, self.now));
        }
    }

    /// Whether the lease of a reservation that a Keyward sees is over, as far as that one knows.
    pub fn is_over_for(&mut self, keyward: u8, there: &Reservation) -> bool {
        let shards = 0..self.cluster.shards.len();
        shards.for_each(|shard| self.hear(keyward, shard));
        if there.token == taking_in(there.owner) {
            return true;
        }
        let now = self.now;
        let at = self.cluster.told[&there.at];
        let is_of = |key: &usize| self.cluster.store.reservations[*key].is_some_and(|own| own.at == there.at);
        if self.plan.rules.lacks(Broken::AgeByClusterTime) {
            let key = (0..self.cluster.store.reservations.len()).find(is_of);
            let shard = key.map_or(0, |key| self.cluster.of_key(key as u8));
            return self.cluster.shards[shard].time(now).saturating_sub(at) > LEASE;
        }
        let watch = &mut self.keywards[keyward as usize].watch;
        let seen = *watch.seen.entry(there.at).or_insert(now);
        let mut marks = watch.marks.iter();
        now - seen > LEASE || marks.any(|(known, since)| at <= *known && now.saturating_sub(*since) > LEASE)
    }

    /// A clock is set, forwards or backwards; or somebody tells a shard a time that is still to come.
    pub fn leap(&mut self) {
        let index = self.random.below(self.plan.shards.into()) as usize;
        let (is_told, far) = (self.random.chance(500), self.random.magnitude(LEAP_MAX));
        let skew = self.random.skew(self.plan.faults.skew);
        let shard = &mut self.cluster.shards[index];
        match is_told {
            true => shard.clock += far,
            false => shard.skew = skew,
        }
        self.note(Happened::Fault(Fault::ClockLeapt));
        self.again(self.plan.faults.leap_every, Event::Leap);
    }
}
