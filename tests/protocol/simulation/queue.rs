//! What is to happen, in the order of virtual time; what happens at the same moment, in the order in which it was said.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::simulation::cluster::Ticket;
use crate::simulation::plan::Time;
use crate::simulation::watch::Brought;
use crate::under_test::network::{Message, Reply};
use crate::under_test::words::TaskId;

#[derive(Debug)]
pub enum Event {
    /// A client calls its next operation.
    Call {
        client: u8,
    },
    /// A try begins, as soon as there is a Keyward.
    Begin {
        client: u8,
        try_number: u8,
    },
    GiveUp {
        task: TaskId,
    },
    Forward {
        task: TaskId,
    },
    WaitOver {
        task: TaskId,
    },
    Arrive {
        ticket: Ticket,
        message: Box<Message>,
        was_slow: bool,
    },
    /// A strict insert's transaction goes on.
    Advance {
        ticket: Ticket,
    },
    Reply {
        ticket: Ticket,
        reply: Reply,
    },
    /// A majority of a shard has what was written.
    Confirm {
        shard: usize,
        term: u32,
        up_to: u32,
    },
    Sweep,
    Backfill,
    Die,
    Restart {
        keyward: u8,
    },
    Pause,
    StepDown,
    /// A Keyward looks at the shards' clocks.
    Look {
        keyward: u8,
    },
    Bring(Brought),
    Brought {
        brought: Brought,
        term: u32,
    },
    Leap,
}

#[derive(Debug)]
struct Entry {
    at: Time,
    number: u64,
    event: Event,
}

#[derive(Debug, Default)]
pub struct Queue {
    entries: BinaryHeap<Reverse<Entry>>,
    count: u64,
}

impl Queue {
    pub fn push(&mut self, at: Time, event: Event) {
        self.count += 1;
        let number = self.count;
        self.entries.push(Reverse(Entry { at, number, event }));
    }

    pub fn pop(&mut self) -> Option<(Time, Event)> {
        self.entries.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
