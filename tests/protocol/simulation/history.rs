//! What happened, in the order in which it did: the checker is told of everything, and a run that is told about keeps it.

use crate::simulation::checker::{Checker, Violation};
use crate::simulation::plan::Time;
use crate::under_test::network::{Reply, Request};
use crate::under_test::words::{Id, Key, Keys, Op, OpId, Outcome, TaskId};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happened {
    Called {
        op: OpId,
        what: Op,
    },
    /// The driver has heard nothing, and sends it again.
    SentAgain {
        op: OpId,
    },
    Answered {
        op: OpId,
        outcome: Outcome,
    },
    Begun {
        task: TaskId,
        keyward: u8,
    },
    Sent {
        task: TaskId,
        request: Request,
    },
    Received {
        task: TaskId,
        request: Request,
        reply: Reply,
    },
    /// What documents are now: those that changed at one moment, together.
    Documents(Vec<(Id, Option<Keys>)>),
    Reservation {
        key: Key,
        owner: Option<Id>,
    },
    /// A deposed primary still shows a document that holds the key, and can't know better.
    ShownByADeposedPrimary {
        key: Key,
    },
    TookEffect {
        op: OpId,
    },
    /// A step-down has undone it.
    Undone {
        op: OpId,
    },
    Fault(Fault),
    /// Nobody is at anything any more, everything has arrived, and what was to be swept is.
    Quiet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    RequestLost,
    ReplyLost,
    Delayed,
    /// A reservation is not waited for any more, as one that stands behind an open transaction, and is written later.
    LetBe,
    /// A release had to wait too long behind an open transaction, and is sent again.
    Ended,
    Duplicated,
    Slow,
    EndedByTheServer,
    ClientGaveUp,
    AskedADeposedPrimary,
    KeywardDied,
    KeywardPaused,
    PrimarySteppedDown,
    WriteUndone,
    ClockLeapt,
}

pub const FAULTS: usize = Fault::ClockLeapt as usize + 1;

#[derive(Debug, Default)]
pub struct History {
    pub checker: Checker,
    /// Everything, if it is kept.
    pub log: Option<Vec<(Time, Happened)>>,
    pub faults: [u64; FAULTS],
    pub operations: u64,
    pub violation: Option<Violation>,
}

impl History {
    pub fn note(&mut self, now: Time, happened: Happened) {
        match &happened {
            Happened::Fault(fault) => self.faults[*fault as usize] += 1,
            Happened::Called { .. } => self.operations += 1,
            _ => {}
        }
        if self.violation.is_none() {
            self.violation = self.checker.take(now, &happened).err();
        }
        if let Some(log) = &mut self.log {
            log.push((now, happened));
        }
    }

    pub fn told(&self) -> String {
        let log = self.log.iter().flatten();
        log.map(|(at, happened)| format!("{at:>7} {happened:?}\n")).collect()
    }
}
