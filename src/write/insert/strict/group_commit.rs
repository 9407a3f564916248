//! Groups the strict inserts of several clients, so that one transaction carries them.
//!
//! An insert that arrives while transactions are under way waits until one of them ends. The first waiting insert then leads the
//! next transaction on its own connection, which carries the others. Inserts share a group only if user, roles and options are
//! identical, so that the server treats them alike. If one document cannot be inserted, the group has no effect, and each insert
//! runs alone.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::claims::Candidate;
use crate::haste::{self, lengthened};
use crate::metrics::GroupCommit;
use crate::reply::Times;
use crate::traces;
use crate::write::retry::slice_record::SliceRecord;
use crate::write::txn::ErrorReply;

/// The most groups with the same terms that are under way at once, not counting groups that hang. While one group waits for its
/// majority, the servers have time for others. With few clients no insert waits.
const AT_ONCE: usize = 4;
/// The largest group, and the largest insert that may join one.
const MOST: Size = Size {
    items: 400,
    bytes: 1 << 20,
};
const MOST_OF_ONE: Size = Size {
    items: 50,
    bytes: 1 << 14,
};
/// An insert that has waited for twice the duration of the last transaction runs alone: the leader's connection may be stuck.
/// It waits at least for this time, and at most for [`PATIENCE_MAX`].
const PATIENCE: Duration = Duration::from_millis(500);
const PATIENCE_MAX: Duration = Duration::from_secs(5);
/// The number of inserts that run alone after a group without effect, or one that hangs. It doubles each time, from the first
/// value up to the second.
const ALONE: (u32, u32) = (16, 1024);
/// If there are more idle terms than this, Keyward forgets them.
const IDLE_MAX: usize = 256;

/// Inserts share a group only if these bytes are identical.
pub type GroupTerms = Arc<[u8]>;

/// The groups of a Keyward.
#[derive(Debug)]
pub struct Groups {
    by_terms: Mutex<HashMap<GroupTerms, InsertGroup>>,
    counts: GroupCommit,
}

/// The inserts with the same terms.
#[derive(Debug, Default)]
struct InsertGroup {
    under_way: usize,
    waiting: VecDeque<WaitingInsert>,
    /// How long the last transaction took.
    last_duration: Duration,
    /// The number of next inserts that run alone.
    alone: u32,
    /// The number of inserts that ran alone after the last group without effect.
    alone_before: u32,
}

/// The insert of one client, for another client's connection.
#[derive(Debug)]
pub struct Member {
    /// The documents, with their keys.
    pub candidates: Vec<Candidate<'static>>,
    /// The record of a retryable insert.
    pub record: Option<SliceRecord>,
    /// The latest cluster time that the client knows.
    pub time: Times,
}

#[derive(Debug)]
struct WaitingInsert {
    number: u64,
    member: Member,
    turn: oneshot::Sender<GroupTurn>,
}

/// The action of an insert after its wait.
#[derive(Debug)]
pub enum GroupTurn {
    /// It inserts its own documents and those of its group.
    Lead(Lead),
    /// Another insert's transaction carried it.
    Done(Done),
    /// It inserts its own documents only.
    Alone,
    /// Its outcome is unknown: the leader was lost.
    InDoubt,
}

/// The outcome of a group.
#[derive(Debug, Clone)]
pub enum Done {
    /// All documents are inserted; the server's reply, which counts all of them.
    Committed(Vec<u8>),
    /// Either all documents are inserted or none.
    InDoubt(ErrorReply),
    /// No document is inserted; each insert is to run alone.
    Nothing,
}

/// The lead of a transaction. When it is dropped, the next waiting insert leads.
#[derive(Debug)]
pub struct Lead {
    groups: Arc<Groups>,
    terms: GroupTerms,
    others: Vec<WaitingInsert>,
    since: Instant,
    /// The transaction has taken too long, and no longer counts among the groups under way.
    hangs: bool,
}

/// The other members of a group, which wait for its outcome.
#[derive(Debug)]
pub struct Others(Vec<oneshot::Sender<GroupTurn>>);

/// The share of a message that documents take.
#[derive(Debug, Clone, Copy, Default)]
pub struct Size {
    items: usize,
    bytes: usize,
}

impl Size {
    /// The most that these documents and their reservations take: each reservation repeats a part of its document.
    pub fn of(candidates: &[&Candidate<'_>]) -> Size {
        candidates.iter().fold(Size::default(), |size, candidate| {
            let items = 1 + candidate.keys.len();
            Size {
                items: size.items + items,
                bytes: size.bytes + items * candidate.document.len(),
            }
        })
    }

    fn of_member(member: &Member) -> Size {
        Size::of(&member.candidates.iter().collect::<Vec<_>>())
    }

    /// Whether it is small enough to join a group.
    pub fn is_little(self) -> bool {
        self.fits(MOST_OF_ONE)
    }

    fn fits(self, most: Size) -> bool {
        self.items <= most.items && self.bytes <= most.bytes
    }

    fn and(self, other: Size) -> Size {
        Size {
            items: self.items + other.items,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl Groups {
    /// Starts without groups; counts outcomes in `counts`.
    pub fn new(counts: GroupCommit) -> Groups {
        Groups {
            by_terms: Mutex::default(),
            counts,
        }
    }

    /// Waits until the insert may run, or another insert's transaction has carried it. Calls `member` only if it must wait.
    ///
    /// - Cancel: a member of a group under way is inserted nevertheless.
    pub async fn enter(self: &Arc<Self>, terms: GroupTerms, member: impl FnOnce() -> Member) -> GroupTurn {
        let (number, patience, mut turn) = {
            let mut groups = self.lock();
            if groups.len() > IDLE_MAX {
                groups.retain(|_, group| !group.is_idle());
            }
            let group = groups.entry(terms.clone()).or_default();
            if group.alone > 0 {
                group.alone -= 1;
                return GroupTurn::Alone;
            }
            if group.under_way < AT_ONCE {
                group.under_way += 1;
                return GroupTurn::Lead(Lead::new(self, &terms, Vec::new()));
            }
            // The number is unique among earlier groups, too.
            let number = rand::random();
            let (sender, receiver) = oneshot::channel();
            group.waiting.push_back(WaitingInsert {
                number,
                member: member(),
                turn: sender,
            });
            (number, group.patience(), receiver)
        };
        if let Ok(turn) = traces::waiting_for_group(timeout(patience, &mut turn)).await {
            return turn.unwrap_or(GroupTurn::InDoubt);
        }
        match self.leave(&terms, number) {
            true => GroupTurn::Alone,
            false => turn.await.unwrap_or(GroupTurn::InDoubt),
        }
    }

    /// Ends a wait; returns whether the insert was still waiting.
    fn leave(&self, terms: &GroupTerms, number: u64) -> bool {
        let mut groups = self.lock();
        let Some(group) = groups.get_mut(terms) else {
            return false;
        };
        let before = group.waiting.len();
        group.waiting.retain(|waiting| waiting.number != number);
        group.waiting.len() < before
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<GroupTerms, InsertGroup>> {
        self.by_terms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InsertGroup {
    fn is_idle(&self) -> bool {
        self.under_way == 0 && self.waiting.is_empty()
    }

    fn have_the_next_go_alone(&mut self) {
        let (first, last) = ALONE;
        self.alone_before = (self.alone_before * 2).clamp(first, last);
        self.alone = self.alone_before;
    }

    fn patience(&self) -> Duration {
        static LIMITS: LazyLock<[Duration; 2]> =
            LazyLock::new(|| [PATIENCE, PATIENCE_MAX].map(|patience| lengthened(patience, haste::GROUPS)));
        let [least, most] = *LIMITS;
        (2 * self.last_duration).clamp(least, most)
    }

    /// The first waiting insert, and as many later ones as fit.
    fn next(&mut self) -> Option<(WaitingInsert, Vec<WaitingInsert>)> {
        let leader = loop {
            let first = self.waiting.pop_front()?;
            if !first.turn.is_closed() {
                break first;
            }
        };
        let mut size = Size::of_member(&leader.member);
        let mut others = Vec::new();
        while let Some(next) = self.waiting.pop_front() {
            let with_next = size.and(Size::of_member(&next.member));
            if next.turn.is_closed() {
                continue;
            }
            if !with_next.fits(MOST) {
                self.waiting.push_front(next);
                break;
            }
            size = with_next;
            others.push(next);
        }
        Some((leader, others))
    }
}

impl Lead {
    fn new(groups: &Arc<Groups>, terms: &GroupTerms, others: Vec<WaitingInsert>) -> Lead {
        Lead {
            groups: groups.clone(),
            terms: terms.clone(),
            others,
            since: Instant::now(),
            hangs: false,
        }
    }

    /// The other members of the group; only this lead can carry them from now on.
    pub fn take_members(&mut self) -> (Vec<Member>, Others) {
        let (members, turns) = self
            .others
            .drain(..)
            .map(|waiting| (waiting.member, waiting.turn))
            .unzip();
        (members, Others(turns))
    }

    /// Waits for the transaction. After [`PATIENCE_MAX`], inserts outside the group stop waiting: they may not need the shard
    /// that never answers.
    pub async fn during<T>(&mut self, transaction: impl Future<Output = T>) -> T {
        let mut transaction = pin!(transaction);
        match timeout(lengthened(PATIENCE_MAX, haste::GROUPS), transaction.as_mut()).await {
            Ok(done) => done,
            Err(_) => {
                self.release_waiting();
                transaction.await
            }
        }
    }

    /// Makes all waiting inserts and the next ones run alone: the shard that this group waits for would also delay most other
    /// groups.
    fn release_waiting(&mut self) {
        self.hangs = true;
        let mut groups = self.groups.lock();
        let Some(group) = groups.get_mut(&self.terms) else {
            return;
        };
        group.under_way -= 1;
        group.have_the_next_go_alone();
        for waiting in self.others.drain(..).chain(group.waiting.drain(..)) {
            // A client that has gone needs no answer.
            let _ = waiting.turn.send(GroupTurn::Alone);
        }
    }

    /// Notes the outcome of the transaction of a group of `inserts`.
    pub fn note(&self, done: &Done, inserts: usize) {
        let counts = &self.groups.counts;
        match done {
            Done::Committed(_) => {
                counts.transactions.inc();
                counts.inserts.inc_by(inserts as u64);
            }
            Done::InDoubt(_) => {}
            Done::Nothing => counts.failed.inc(),
        }
        if let Some(group) = self.groups.lock().get_mut(&self.terms) {
            match done {
                Done::Committed(_) | Done::InDoubt(_) => (group.alone, group.alone_before) = (0, 0),
                Done::Nothing => group.have_the_next_go_alone(),
            }
        }
    }

    /// Notes a group of unknown outcome: the next groups may not need the shard that failed.
    pub fn note_lost(&self) {
        self.groups.counts.lost.inc();
        if let Some(group) = self.groups.lock().get_mut(&self.terms) {
            group.have_the_next_go_alone();
        }
    }

    /// Lets the next waiting insert lead.
    fn pass_on(&mut self) {
        let next = {
            let mut groups = self.groups.lock();
            let Some(group) = groups.get_mut(&self.terms) else {
                return;
            };
            group.last_duration = self.since.elapsed();
            // The members of a leader whose client has gone.
            for waiting in self.others.drain(..).rev() {
                group.waiting.push_front(waiting);
            }
            let next = group.next();
            if next.is_none() {
                group.under_way -= 1;
                if group.is_idle() && group.alone == 0 {
                    groups.remove(&self.terms);
                }
            }
            next
        };
        if let Some((leader, others)) = next {
            let lead = Lead::new(&self.groups, &self.terms, others);
            // If that insert's client has gone meanwhile, the lead is dropped, and the next insert leads.
            drop(leader.turn.send(GroupTurn::Lead(lead)));
        }
    }
}

impl Others {
    /// Passes the outcome on to the members.
    pub fn resolve(self, done: &Done) {
        for turn in self.0 {
            // A client that has gone needs no answer.
            let _ = turn.send(GroupTurn::Done(done.clone()));
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if !self.hangs {
            self.pass_on();
        }
    }
}

#[cfg(test)]
mod tests;
