//! Group commit: what several clients insert goes in by one transaction, where it would have gone in by one for each.
//!
//! What arrives while transactions are under way waits until one of them ends: the first who waits leads the next one on its own
//! connection, and takes the others along. Only those travel together for whom the server would do just the
//! same: one user's, with the same options. If anything is in the way of a single document, nothing of the group is
//! done, and each goes on alone, as it would have without company.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::claims::Candidate;
use crate::metrics::GroupCommit;
use crate::reply::Times;
use crate::traces;
use crate::write::retry::inserted::Note;
use crate::write::txn::Refused;

/// So many groups with the same terms are under way at once, and those that hang: while one waits for its majority the servers
/// have time for others, and where they have time for all nobody waits.
const AT_ONCE: usize = 4;
/// So many documents and keys, and so many bytes, go into one group; a part of that is what one client may bring.
const MOST: Size = Size {
    items: 400,
    bytes: 1 << 20,
};
const MOST_OF_ONE: Size = Size {
    items: 50,
    bytes: 1 << 14,
};
/// Who has waited for so long, or for twice as long as the last transaction took, without being taken along goes on alone:
/// another's connection may be stuck.
const PATIENCE: Duration = Duration::from_millis(500);
const PATIENCE_MAX: Duration = Duration::from_secs(5);
/// After a group that came to nothing, or hangs, so many go alone, twice as many after the next one, and so on, up to the last.
const ALONE: (u32, u32) = (16, 1024);
/// Terms that nobody waits for are forgotten when there are more than so many.
const IDLE_MAX: usize = 256;

/// What must be the same for documents to go in by one transaction.
pub type Terms = Arc<[u8]>;

/// The groups of a Keyward.
#[derive(Debug)]
pub struct Groups {
    by_terms: Mutex<HashMap<Terms, Group>>,
    counts: GroupCommit,
}

/// Those with the same terms.
#[derive(Debug, Default)]
struct Group {
    under_way: usize,
    waiting: VecDeque<Waiting>,
    /// How long the last transaction took.
    took: Duration,
    /// So many go alone.
    alone: u32,
    /// How many did after the last group that came to nothing.
    alone_before: u32,
}

/// What one client inserts, for anybody to do it.
#[derive(Debug)]
pub struct Member {
    /// The documents, with what they want.
    pub candidates: Vec<Candidate<'static>>,
    /// What is to be noted of them.
    pub note: Option<Note>,
    /// What the client knows of the deployment's time.
    pub time: Times,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    member: Member,
    turn: oneshot::Sender<Turn>,
}

/// What somebody who has entered does next.
#[derive(Debug)]
pub enum Turn {
    /// It inserts its own documents and those of whom it leads.
    Lead(Lead),
    /// Somebody else did it.
    Done(Done),
    /// It inserts its own documents, nobody else's.
    Alone,
    /// Nobody knows: who did it was lost.
    Lost,
}

/// What became of a group.
#[derive(Debug, Clone)]
pub enum Done {
    /// All is there; the server's reply, which counts all of it.
    Committed(Vec<u8>),
    /// All of it is there, or nothing.
    InDoubt(Refused),
    /// Nothing is, and each is to try alone.
    Nothing,
}

/// The lead of a transaction. When it is dropped who waits gets its turn.
#[derive(Debug)]
pub struct Lead {
    groups: Arc<Groups>,
    terms: Terms,
    others: Vec<Waiting>,
    since: Instant,
    /// It has taken too long, and is counted among those under way no more.
    hangs: bool,
}

/// Those who were taken along, and wait to be told.
#[derive(Debug)]
pub struct Others(Vec<oneshot::Sender<Turn>>);

/// How much of a message something takes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Size {
    items: usize,
    bytes: usize,
}

impl Size {
    /// The most that these documents and their reservations take, each of which repeats a part of its document.
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

    /// Whether it's little enough to be taken along.
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
    /// None yet; what becomes of them is counted in `counts`.
    pub fn new(counts: GroupCommit) -> Groups {
        Groups {
            by_terms: Mutex::default(),
            counts,
        }
    }

    /// Waits for a turn; `member` is only asked for if there is something to wait for.
    ///
    /// - Cancel: what was taken along already is inserted nevertheless.
    pub async fn enter(self: &Arc<Self>, terms: Terms, member: impl FnOnce() -> Member) -> Turn {
        let (number, patience, mut turn) = {
            let mut groups = self.lock();
            if groups.len() > IDLE_MAX {
                groups.retain(|_, group| !group.is_idle());
            }
            let group = groups.entry(terms.clone()).or_default();
            if group.alone > 0 {
                group.alone -= 1;
                return Turn::Alone;
            }
            if group.under_way < AT_ONCE {
                group.under_way += 1;
                return Turn::Lead(Lead::new(self, &terms, Vec::new()));
            }
            // Told apart from those of groups before it, too.
            let number = rand::random();
            let (sender, receiver) = oneshot::channel();
            group.waiting.push_back(Waiting {
                number,
                member: member(),
                turn: sender,
            });
            (number, group.patience(), receiver)
        };
        if let Ok(turn) = traces::waiting_for_group(timeout(patience, &mut turn)).await {
            return turn.unwrap_or(Turn::Lost);
        }
        match self.leave(&terms, number) {
            true => Turn::Alone,
            false => turn.await.unwrap_or(Turn::Lost),
        }
    }

    /// Whether it was still waiting, and isn't any more.
    fn leave(&self, terms: &Terms, number: u64) -> bool {
        let mut groups = self.lock();
        let Some(group) = groups.get_mut(terms) else {
            return false;
        };
        let before = group.waiting.len();
        group.waiting.retain(|waiting| waiting.number != number);
        group.waiting.len() < before
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Terms, Group>> {
        self.by_terms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Group {
    fn is_idle(&self) -> bool {
        self.under_way == 0 && self.waiting.is_empty()
    }

    fn have_the_next_go_alone(&mut self) {
        let (first, last) = ALONE;
        self.alone_before = (self.alone_before * 2).clamp(first, last);
        self.alone = self.alone_before;
    }

    fn patience(&self) -> Duration {
        (2 * self.took).clamp(PATIENCE, PATIENCE_MAX)
    }

    /// The first who still waits, and as many behind it as fit.
    fn next(&mut self) -> Option<(Waiting, Vec<Waiting>)> {
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
    fn new(groups: &Arc<Groups>, terms: &Terms, others: Vec<Waiting>) -> Lead {
        Lead {
            groups: groups.clone(),
            terms: terms.clone(),
            others,
            since: Instant::now(),
            hangs: false,
        }
    }

    /// Those to take along; from now on nobody else will.
    pub fn take_along(&mut self) -> (Vec<Member>, Others) {
        let (members, turns) = self
            .others
            .drain(..)
            .map(|waiting| (waiting.member, waiting.turn))
            .unzip();
        (members, Others(turns))
    }

    /// Waits for the transaction. Who wasn't taken along does so no longer than its patience lasts: a shard may never answer, and
    /// it may be none of theirs.
    pub async fn during<T>(&mut self, transaction: impl Future<Output = T>) -> T {
        let mut transaction = pin!(transaction);
        match timeout(PATIENCE_MAX, transaction.as_mut()).await {
            Ok(done) => done,
            Err(_) => {
                self.stand_aside();
                transaction.await
            }
        }
    }

    /// Whoever waits goes alone, and so do the next ones: what this one hangs on would hold up most groups that they could make.
    fn stand_aside(&mut self) {
        self.hangs = true;
        let mut groups = self.groups.lock();
        let Some(group) = groups.get_mut(&self.terms) else {
            return;
        };
        group.under_way -= 1;
        group.have_the_next_go_alone();
        for waiting in self.others.drain(..).chain(group.waiting.drain(..)) {
            // Whoever has gone meanwhile doesn't want to know.
            let _ = waiting.turn.send(Turn::Alone);
        }
    }

    /// Takes note of what became of the transaction of a group of `inserts`.
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

    /// Takes note that nobody knows what became of the transaction of a group: what it was lost by may be none of their shards.
    pub fn note_lost(&self) {
        self.groups.counts.lost.inc();
        if let Some(group) = self.groups.lock().get_mut(&self.terms) {
            group.have_the_next_go_alone();
        }
    }

    /// Who waits gets its turn.
    fn pass_on(&mut self) {
        let next = {
            let mut groups = self.groups.lock();
            let Some(group) = groups.get_mut(&self.terms) else {
                return;
            };
            group.took = self.since.elapsed();
            // Who was to be taken along by one that has gone.
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
            // If it has gone meanwhile the lead is dropped, and goes to the next one.
            drop(leader.turn.send(Turn::Lead(lead)));
        }
    }
}

impl Others {
    /// Tells them.
    pub fn tell(self, done: &Done) {
        for turn in self.0 {
            // Whoever has gone meanwhile doesn't want to know.
            let _ = turn.send(Turn::Done(done.clone()));
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
