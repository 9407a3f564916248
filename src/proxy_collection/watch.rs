//! For how long reservations have been there, at least: by this process's own monotonic clock, and by no other.
//!
//! Cluster time is an order. It is the fastest clock of the cluster and leaps, so a difference of two such times says nothing
//! about how much time has passed. What Keyward can know is this: at a moment of its own clock, a majority of every shard that
//! holds a part of the proxy collection had an entry of its oplog at the cluster time T, or later. Whatever a shard writes after
//! that moment gets a later time: its primary, or the next one, has that entry; and a shard that only then comes to hold a part
//! hears of that time from the one that gives it. So a reservation written `at` T or earlier was written before that moment.
//!
//! A time that one shard told doesn't do: another shard's clock may lag behind it, and write `at` an earlier time a moment later.
//! So a time that was told is brought to all of them: by a read of the whole collection `afterClusterTime`, with `majority`.
//! Such a read is made from time to time; each one that is answered is a mark. Killed or new, a Keyward has no marks and waits a
//! lease longer, or as long as it has itself seen the reservation there ([`super::Reservation::may_be_in_flight`]).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bson::{RawDocumentBuf, Timestamp, cstr, rawdoc};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::find::Finder;

/// So many looks are made in a lease.
const LOOKS: u32 = 4;
/// But no more often than this.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// So many marks are kept, ever fewer of the older ones: one of long ago is enough for a reservation of long ago.
const MARKS_MAX: usize = 64;
/// What a look says of itself in the server's logs.
const COMMENT: &str = "keyward: how old reservations are";

/// Marks of one proxy collection; they are made as long as this lives.
#[derive(Debug)]
pub struct Watch {
    marks: Arc<Mutex<Marks>>,
    task: AbortHandle,
}

impl Watch {
    /// Begins to make marks. Needs a tokio runtime.
    pub(super) fn start(finder: Finder, collection: String, lease: Duration) -> Watch {
        let marks: Arc<Mutex<Marks>> = Arc::default();
        let pause = (lease / LOOKS).max(PAUSE_MIN);
        let task = tokio::spawn(make(marks.clone(), finder, collection, pause)).abort_handle();
        Watch { marks, task }
    }

    /// Forgets all marks: the collection has only now been made, so what was read before was read nowhere.
    pub fn begin_anew(&self) {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        marks.noted.clear();
        marks.beginning += 1;
    }

    /// Whether what was written `at` this cluster time is known to have been written `span` ago.
    pub fn is_older(&self, at: Timestamp, span: Duration) -> bool {
        self.known_for(span).is_some_and(|known| at <= known)
    }

    /// The latest cluster time up to which everything is known to have been written `span` ago.
    pub fn known_for(&self, span: Duration) -> Option<Timestamp> {
        let marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        marks.known_for(span, Instant::now())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What was known when.
#[derive(Debug, Default)]
struct Marks {
    /// In the order of both.
    noted: Vec<(Timestamp, Instant)>,
    /// How often they were forgotten: a look that began before makes no mark after it.
    beginning: u32,
}

impl Marks {
    /// All shards are past the cluster time `known` by `now`.
    fn note(&mut self, known: Timestamp, now: Instant) {
        if self.noted.last().is_some_and(|(last, _)| known <= *last) {
            return;
        }
        if self.noted.len() >= MARKS_MAX {
            self.forget_one(now);
        }
        self.noted.push((known, now));
    }

    /// Forgets the mark that is missed least: the one whose neighbours are closest together for their age.
    fn forget_one(&mut self, now: Instant) {
        let gap = |index: usize| {
            let ((_, before), (_, after)) = (self.noted[index - 1], self.noted[index + 1]);
            after.duration_since(before).as_secs_f64() / now.saturating_duration_since(before).as_secs_f64()
        };
        let inner = 1..self.noted.len() - 1;
        if let Some(index) = inner.min_by(|one, other| gap(*one).total_cmp(&gap(*other))) {
            self.noted.remove(index);
        }
    }

    fn known_for(&self, span: Duration, now: Instant) -> Option<Timestamp> {
        let old = self.noted.iter().rev();
        let mut old = old.skip_while(|(_, noted)| now.saturating_duration_since(*noted) <= span);
        old.next().map(|(known, _)| *known)
    }
}

/// Makes a mark, again and again. The first look only tells a time.
async fn make(marks: Arc<Mutex<Marks>>, finder: Finder, collection: String, pause: Duration) {
    let marks = || marks.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let (beginning, told) = (marks().beginning, finder.times().operation);
        match (finder.find(look(&collection, told)).await, told) {
            (Ok(_), Some(told)) => {
                let (now, mut marks) = (Instant::now(), marks());
                if marks.beginning == beginning {
                    marks.note(told, now);
                }
            }
            (Ok(_), None) if finder.times().operation.is_some() => continue,
            (Ok(_), None) => {}
            // Reservations grow no older meanwhile than they are seen to be.
            (Err(error), _) => tracing::debug!(%error, collection, "no shard tells the time"),
        }
        tokio::time::sleep(pause).await;
    }
}

/// A read of hardly anything on every shard that holds a part of the collection, once a majority of it is past `told`.
fn look(collection: &str, told: Option<Timestamp>) -> RawDocumentBuf {
    let mut concern = rawdoc! {};
    if let Some(told) = told {
        concern.append(cstr!("afterClusterTime"), told);
    }
    concern.append(cstr!("level"), "majority");
    rawdoc! {
        "find": collection, "projection": { "_id": 1 }, "limit": 1, "singleBatch": true, "readConcern": concern,
        "comment": COMMENT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time: u32) -> Timestamp {
        Timestamp { time, increment: 0 }
    }

    #[test]
    fn nothing_is_older_than_it_was_known_to_be_there() {
        let begin = Instant::now();
        let second = Duration::from_secs(1);
        let lease = 30 * second;
        let mut marks = Marks::default();
        assert_eq!(marks.known_for(lease, begin), None);
        marks.note(at(100), begin);
        // The clock has leapt.
        marks.note(at(5_000), begin + second);
        assert_eq!(marks.known_for(lease, begin + lease), None);
        assert_eq!(marks.known_for(lease, begin + 31 * second), Some(at(100)));
        assert_eq!(marks.known_for(lease, begin + 32 * second), Some(at(5_000)));
    }

    #[test]
    fn old_marks_grow_few_and_never_too_young() {
        let begin = Instant::now();
        let second = Duration::from_secs(1);
        let mut marks = Marks::default();
        for time in 0..100_000 {
            marks.note(at(time), begin + time * second);
            assert!(marks.noted.len() <= MARKS_MAX);
        }
        let now = begin + 99_999 * second;
        for age in [0, 1, 10, 100, 1_000, 10_000, 90_000] {
            let known = marks.known_for(age * second, now).unwrap().time;
            let really = 99_999 - age;
            assert!(known < really, "{age}: {known}");
            assert!(really - known <= 2 + age / 2, "{age}: {known}");
        }
    }
}
