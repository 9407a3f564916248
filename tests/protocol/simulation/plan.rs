//! What a seed stands for: who wants what, and what goes wrong how often.

use crate::simulation::random::Random;
use crate::simulation::size::{IDS, KEYS};
use crate::under_test::rules::Rules;
use crate::under_test::words::{Deed, Key, Keys, NONE, Op};

/// Virtual time.
pub type Time = u32;

/// How long a reservation whose owner isn't there yet is presumed in flight.
pub const LEASE: Time = 10_000;

#[derive(Debug, Clone)]
pub struct Plan {
    pub rules: Rules,
    pub keywards: u8,
    pub shards: u8,
    /// Each client's operations, one after the other.
    pub programs: Vec<Vec<Op>>,
    pub faults: Faults,
}

/// How likely, in parts of a thousand, or how far apart. Each is missing in some plans, so that others come to act alone.
#[derive(Debug, Clone, Copy)]
pub struct Faults {
    /// Nothing goes wrong any more from here on.
    pub until: Time,
    pub drop: u32,
    pub delay: u32,
    pub duplicate: u32,
    /// The server takes its time for a write.
    pub slow: u32,
    /// A client stops listening.
    pub give_up: u32,
    /// A deposed primary is asked.
    pub stale: u32,
    pub crash_every: Time,
    pub pause_every: Time,
    pub step_down_every: Time,
    /// No fault, but a matter of chance as they are: how often a document is backfilled.
    pub backfill_every: Time,
    /// How long a majority may take to have a write.
    pub lag: Time,
    /// How often a shard's clock is set.
    pub leap_every: Time,
    /// How far a shard's clock may be off.
    pub skew: Time,
}

impl Plan {
    pub fn new(rules: Rules, random: &mut Random) -> Plan {
        let keys = random.few(3, KEYS as u8);
        let ids = random.few(keys, IDS as u8);
        let clients = random.few(3, 6);
        let operations = random.few(10, 30);
        let programs = (0..clients)
            .map(|_| (0..operations).map(|_| operation(random, ids, keys)).collect())
            .collect();
        Plan {
            rules,
            keywards: random.few(2, 4),
            shards: random.few(1, 4),
            programs,
            faults: Faults::new(random),
        }
    }
}

impl Faults {
    fn new(random: &mut Random) -> Faults {
        let mut sometimes = |from, to| match random.chance(350) {
            true => 0,
            false => random.between(from, to),
        };
        Faults {
            until: 0,
            drop: sometimes(1, 40),
            delay: sometimes(1, 80),
            duplicate: sometimes(1, 60),
            slow: sometimes(1, 100),
            give_up: sometimes(5, 100),
            stale: sometimes(100, 700),
            crash_every: sometimes(LEASE / 2, 5 * LEASE),
            pause_every: sometimes(LEASE / 2, 5 * LEASE),
            step_down_every: sometimes(LEASE / 4, 5 * LEASE),
            backfill_every: sometimes(LEASE / 20, LEASE),
            lag: sometimes(5, LEASE / 3).max(5),
            leap_every: sometimes(LEASE / 4, 5 * LEASE),
            skew: sometimes(1, 5 * LEASE),
        }
        .until(random.between(5, 25) * LEASE)
    }

    fn until(self, until: Time) -> Faults {
        Faults { until, ..self }
    }
}

fn operation(random: &mut Random, ids: u8, keys: u8) -> Op {
    let id = random.few(0, ids - 1);
    let deed = match random.below(100) {
        0..45 => Deed::Insert {
            id,
            keys: some(random, keys, 1),
        },
        45..65 => Deed::Change {
            id,
            to: some(random, keys, 0),
        },
        65..85 => Deed::Delete { id },
        85..93 => Deed::PlainUpsert {
            id,
            keys: some(random, keys, 0),
        },
        _ => Deed::Upsert {
            id,
            keys: some(random, keys, 0),
        },
    };
    let retryable = random.chance(700);
    let other = random.few(0, ids - 1);
    let recalls = (matches!(deed, Deed::Insert { .. }) && other != id && random.chance(250)).then_some(other);
    Op {
        deed,
        retryable,
        recalls,
    }
}

fn some(random: &mut Random, keys: u8, least: u8) -> Keys {
    let count = random.few(least, 3);
    (0..count).fold(NONE, |all, _| {
        let key: Key = random.few(0, keys - 1);
        all.and(Keys::of(key))
    })
}
