//! Group commit: what several clients insert goes in by one transaction, where it would have gone in by one for each.
//!
//! What arrives while transactions are under way waits, for no timer: when one of them ends, the first who waits leads the next one on
//! its own connection, and takes the others along. Only those travel together for whom the server would do just the
//! same: one user's, with the same options. If anything is in the way of a single document, nothing of the group is
//! done, and each goes on alone, as it would have without company.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::record::Note;
use crate::claims::Candidate;
use crate::metrics::GroupCommit;
use crate::reply::Times;
use crate::traces;
use crate::write::transaction::Refused;

/// So many groups with the same terms are under way at once: while one waits for its majority the servers have time for
/// others, and where they have time for all nobody waits.
const AT_ONCE: usize = 4;
/// So many documents and keys, and so many bytes, go into one group; a part of that is what one client may bring.
const MOST: Size = Size {
    items: 400,
    bytes: 1 << 20,
};
const MOST_OF_ONE: Size = Size {
    items: 50,
    bytes: 1 << 16,
};
/// Who has waited for so long, or for twice as long as the last transaction took, without being taken along goes on alone:
/// another's connection may be stuck.
const PATIENCE: Duration = Duration::from_millis(500);
const PATIENCE_MAX: Duration = Duration::from_secs(5);
/// After a group that came to nothing so many go alone, twice as many after the next one, and so on, up to the last.
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

/// The lead of a transaction. When it is dropped, who waits gets its turn.
#[derive(Debug)]
pub struct Lead {
    groups: Arc<Groups>,
    terms: Terms,
    others: Vec<Waiting>,
    since: Instant,
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
        if let Ok(turn) = traces::waiting_for_company(timeout(patience, &mut turn)).await {
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
            let (first, last) = ALONE;
            group.alone_before = match done {
                Done::Committed(_) | Done::InDoubt(_) => 0,
                Done::Nothing => (group.alone_before * 2).clamp(first, last),
            };
            group.alone = group.alone_before;
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

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::task::Poll;

    use futures_util::future::{BoxFuture, FutureExt};
    use futures_util::poll;

    use super::*;
    use crate::metrics::Metrics;
    use crate::proxy_collection::Owner;
    use crate::reservation::{AttemptId, Token};

    const COMMITTED: Done = Done::Committed(Vec::new());

    fn groups() -> Arc<Groups> {
        Arc::new(Groups::new(Metrics::new(&[]).group_commit))
    }

    fn terms(name: &str) -> Terms {
        name.as_bytes().into()
    }

    fn member(bytes: usize) -> Member {
        let token = Token {
            attempt: AttemptId(rand::random()),
            position: 0,
            operation: None,
        };
        let owner = Owner {
            id: bson::RawBson::Int32(1),
            route: None,
        };
        let document = Cow::Owned(vec![0; bytes]);
        Member {
            candidates: vec![Candidate::of_keys(token, document, owner, Vec::new())],
            note: None,
            time: Times::default(),
        }
    }

    /// Enters, and waits as far as there is something to wait for.
    async fn enter(groups: &Arc<Groups>, bytes: usize) -> (BoxFuture<'static, Turn>, Option<Turn>) {
        let groups = groups.clone();
        let mut turn = async move { groups.enter(terms("a"), || member(bytes)).await }.boxed();
        match poll!(turn.as_mut()) {
            Poll::Ready(now) => (turn, Some(now)),
            Poll::Pending => (turn, None),
        }
    }

    /// Has the most groups under way that there may be.
    async fn leads(groups: &Arc<Groups>) -> Vec<Lead> {
        let mut leads = Vec::new();
        for _ in 0..AT_ONCE {
            leads.push(lead(groups).await);
        }
        leads
    }

    async fn lead(groups: &Arc<Groups>) -> Lead {
        match enter(groups, 0).await.1 {
            Some(Turn::Lead(lead)) => lead,
            turn => panic!("{turn:?}"),
        }
    }

    #[tokio::test]
    async fn who_comes_while_others_are_at_it_goes_with_the_next() {
        let groups = groups();
        let mut first = leads(&groups).await;
        assert!(first[0].take_along().0.is_empty());
        let waiting = [
            enter(&groups, 0).await,
            enter(&groups, 0).await,
            enter(&groups, 0).await,
        ];
        let [(leader, None), (gone, None), (taken, None)] = waiting else {
            panic!("somebody didn't wait");
        };
        // Other terms, other groups.
        let other = groups.enter(terms("b"), || panic!("nobody is there")).await;
        assert!(matches!(other, Turn::Lead(_)));
        drop(gone);
        drop(first.pop());
        let Turn::Lead(mut leads) = leader.await else {
            panic!("nobody leads");
        };
        let (members, others) = leads.take_along();
        assert_eq!(members.len(), 1);
        leads.note(&COMMITTED, 2);
        let counts = &groups.counts;
        let counts = [&counts.transactions, &counts.inserts, &counts.failed];
        assert_eq!(counts.map(prometheus::IntCounter::get), [1, 2, 0]);
        others.tell(&Done::Committed(vec![7]));
        assert!(matches!(taken.await, Turn::Done(Done::Committed(reply)) if reply == [7]));
    }

    #[tokio::test]
    async fn a_leader_that_has_gone_is_followed_by_the_next() {
        let groups = groups();
        let mut first = leads(&groups).await;
        let (gone, _) = enter(&groups, 0).await;
        let (next, _) = enter(&groups, 0).await;
        drop(first.pop());
        // It had its turn, and never took it.
        drop(gone);
        assert!(matches!(next.await, Turn::Lead(_)));
        // As many as before may be under way.
        let _last = lead(&groups).await;
        assert!(enter(&groups, 0).await.1.is_none());
    }

    #[tokio::test]
    async fn who_was_taken_along_by_one_that_is_lost_learns_so() {
        let groups = groups();
        let mut first = leads(&groups).await;
        let (leader, _) = enter(&groups, 0).await;
        let (taken, _) = enter(&groups, 0).await;
        drop(first.pop());
        let Turn::Lead(mut leads) = leader.await else {
            panic!("nobody leads");
        };
        drop(leads.take_along());
        assert!(matches!(taken.await, Turn::Lost));
    }

    #[tokio::test]
    async fn a_group_has_an_end() {
        let groups = groups();
        let mut first = leads(&groups).await;
        let large = MOST.bytes / 2 + 1;
        let waiting = [
            enter(&groups, large).await,
            enter(&groups, 0).await,
            enter(&groups, large).await,
        ];
        let [(leader, _), _, (rest, _)] = waiting;
        drop(first.pop());
        let Turn::Lead(mut leads) = leader.await else {
            panic!("nobody leads");
        };
        assert_eq!(leads.take_along().0.len(), 1);
        drop(leads);
        assert!(matches!(rest.await, Turn::Lead(_)));
    }

    #[tokio::test]
    async fn after_groups_that_came_to_nothing_more_and_more_go_alone() {
        let groups = groups();
        let (first, _) = ALONE;
        let _other = lead(&groups).await;
        for alone in [first, 2 * first, 4 * first] {
            lead(&groups).await.note(&Done::Nothing, 2);
            for _ in 0..alone {
                assert!(matches!(enter(&groups, 0).await.1, Some(Turn::Alone)));
            }
        }
        lead(&groups).await.note(&COMMITTED, 2);
        lead(&groups).await.note(&Done::Nothing, 2);
        for _ in 0..first {
            assert!(matches!(enter(&groups, 0).await.1, Some(Turn::Alone)));
        }
        lead(&groups).await;
    }

    #[tokio::test]
    async fn nobody_waits_for_long_without_being_taken_along() {
        let groups = groups();
        let mut first = leads(&groups).await;
        let (patient, _) = enter(&groups, 0).await;
        assert!(matches!(patient.await, Turn::Alone));
        drop(first.pop());
        // It isn't waited for, nor inserted, any more.
        assert!(lead(&groups).await.take_along().0.is_empty());
    }

    #[tokio::test]
    async fn where_transactions_take_long_they_are_waited_for() {
        let groups = groups();
        let _first = lead(&groups).await;
        let patience = |groups: &Groups| groups.lock()[&terms("a")].patience();
        assert_eq!(patience(&groups), PATIENCE);
        for (took, waits) in [(2, 4..5), (60, 5..6), (0, 0..1)] {
            let mut slow = lead(&groups).await;
            slow.since -= Duration::from_secs(took);
            drop(slow);
            assert!(waits.contains(&patience(&groups).as_secs()), "{took}");
        }
    }

    #[tokio::test]
    async fn nothing_is_kept_of_those_who_have_been_there() {
        let groups = groups();
        drop(leads(&groups).await);
        assert!(groups.lock().is_empty());
        for number in 0..=IDLE_MAX {
            match groups.enter(terms(&number.to_string()), || panic!()).await {
                Turn::Lead(lead) => lead.note(&Done::Nothing, 2),
                turn => panic!("{turn:?}"),
            }
        }
        drop(lead(&groups).await);
        assert!(groups.lock().is_empty());
    }
}
