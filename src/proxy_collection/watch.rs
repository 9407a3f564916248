//! Tracks how long reservations have existed at least, by this process's own monotonic clock alone.
//!
//! Cluster time is only an order. It is the fastest clock of the cluster and leaps, so the difference of two cluster times
//! doesn't say how much time has passed.
//!
//! Keyward can know the following about a cluster time T and a moment of its own clock. At that moment, a majority of each
//! shard with a part of the proxy collection had an oplog entry at T or later. Every later write of such a shard gets a
//! later time, because its primary, or the next one, has that entry. A shard that gets its first part only later learns of
//! that time from the shard that gives the part. So a reservation written `at` T or earlier was written before that moment.
//!
//! One shard's report of a time isn't enough. Another shard's clock may lag behind it, and write `at` an earlier time a
//! moment later. So Keyward brings a reported time to all shards: it reads the whole collection `afterClusterTime`, with
//! `majority`. Keyward makes such a read from time to time, and each answered read is a mark. A new or restarted Keyward has
//! no marks. It waits a lease longer, or until it has itself seen the reservation for long enough
//! ([`super::Reservation::may_be_in_flight`]).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bson::{RawDocumentBuf, Timestamp, cstr, rawdoc};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::find::Finder;

/// How many reads that make marks Keyward sends in a lease.
const READS: u32 = 4;
/// The minimum pause between two of them.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// The maximum number of marks. Keyward keeps fewer of the older ones: for an old reservation one old mark is enough.
const MARKS_MAX: usize = 64;
/// The comment that marks them in the server's logs.
const COMMENT: &str = "keyward: how old reservations are";

/// The marks of one proxy collection. Keyward makes marks as long as this lives.
#[derive(Debug)]
pub struct LeaseWatch {
    marks: Arc<Mutex<Marks>>,
    task: AbortHandle,
}

impl LeaseWatch {
    /// Starts to make marks. Needs a tokio runtime.
    pub(super) fn start(finder: Finder, collection: String, lease: Duration) -> LeaseWatch {
        let marks: Arc<Mutex<Marks>> = Arc::default();
        let pause = (lease / READS).max(PAUSE_MIN);
        let task = tokio::spawn(make(marks.clone(), finder, collection, pause)).abort_handle();
        LeaseWatch { marks, task }
    }

    /// Forgets all marks: the collection was created just now, so earlier reads read nothing.
    pub fn begin_anew(&self) {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        marks.noted.clear();
        marks.starts += 1;
    }

    /// Whether a write `at` this cluster time is known to be older than `span`.
    pub fn is_older(&self, at: Timestamp, span: Duration) -> bool {
        self.known_for(span).is_some_and(|known| at <= known)
    }

    /// The latest cluster time up to which all writes are known to be older than `span`.
    pub fn known_for(&self, span: Duration) -> Option<Timestamp> {
        let marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        marks.known_for(span, Instant::now())
    }
}

impl Drop for LeaseWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Cluster times, each with a moment by which all shards were past it.
#[derive(Debug, Default)]
struct Marks {
    /// Ordered by cluster time and by moment alike.
    noted: Vec<(Timestamp, Instant)>,
    /// How often the marks were forgotten: a read that began before that makes no mark after it.
    starts: u32,
}

impl Marks {
    /// Notes that all shards are past the cluster time `known` by `now`.
    fn note(&mut self, known: Timestamp, now: Instant) {
        if self.noted.last().is_some_and(|(last, _)| known <= *last) {
            return;
        }
        if self.noted.len() >= MARKS_MAX {
            self.forget_one(now);
        }
        self.noted.push((known, now));
    }

    /// Forgets the mark that is least useful: its neighbours are closest together for their age.
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

/// Makes marks again and again. The first read only learns a time.
async fn make(marks: Arc<Mutex<Marks>>, finder: Finder, collection: String, pause: Duration) {
    let marks = || marks.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let (starts, operation_time) = (marks().starts, finder.times().operation);
        match (
            finder.find(marking_read(&collection, operation_time)).await,
            operation_time,
        ) {
            (Ok(_), Some(operation_time)) => {
                let (now, mut marks) = (Instant::now(), marks());
                if marks.starts == starts {
                    marks.note(operation_time, now);
                }
            }
            (Ok(_), None) if finder.times().operation.is_some() => continue,
            (Ok(_), None) => {}
            // Until a read succeeds, reservations count only as old as this process has seen them.
            (Err(error), _) => tracing::debug!(%error, collection, "no shard tells the time"),
        }
        tokio::time::sleep(pause).await;
    }
}

/// Reads almost nothing on every shard with a part of the collection, once a majority of the shard is past `operation_time`.
fn marking_read(collection: &str, operation_time: Option<Timestamp>) -> RawDocumentBuf {
    let mut concern = rawdoc! {};
    if let Some(operation_time) = operation_time {
        concern.append(cstr!("afterClusterTime"), operation_time);
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
        // The cluster's clock has leapt.
        marks.note(at(5_000), begin + second);
        assert_eq!(marks.known_for(lease, begin + lease), None);
        assert_eq!(marks.known_for(lease, begin + 31 * second), Some(at(100)));
        assert_eq!(marks.known_for(lease, begin + 32 * second), Some(at(5_000)));
    }

    #[test]
    fn old_marks_grow_few_and_never_too_recent() {
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
