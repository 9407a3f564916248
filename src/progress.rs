//! Shows the progress of a long operation: a bar on a terminal, log lines elsewhere, and a line of `/status`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

/// How often progress is logged.
const LOG_EVERY: Duration = Duration::from_secs(5);

tokio::task_local! {
    /// Where the task's operations are shown, too.
    static SHOWN_ON: WorkUnderWay;
}

/// One operation, as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkItem {
    /// The verb for it: "verifying".
    pub doing: &'static str,
    /// The object of that verb.
    pub what: String,
    /// How many documents are done.
    pub done: u64,
    /// About how many documents there are.
    pub of: u64,
}

/// The operations under way; clones share them.
#[derive(Debug, Clone, Default)]
pub struct WorkUnderWay {
    items: Arc<Mutex<(u64, BTreeMap<u64, WorkItem>)>>,
}

impl WorkUnderWay {
    /// All of them, in the order of their beginnings.
    pub fn all(&self) -> Vec<WorkItem> {
        self.with(|(_, items)| items.values().cloned().collect())
    }

    /// Does `task`, and shows its operations here.
    pub async fn showing<T>(&self, task: impl Future<Output = T>) -> T {
        SHOWN_ON.scope(self.clone(), task).await
    }

    fn with<T>(&self, change: impl FnOnce(&mut (u64, BTreeMap<u64, WorkItem>)) -> T) -> T {
        change(&mut self.items.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// An operation's place among those that are shown, if they are.
#[derive(Debug)]
struct Shown {
    work: WorkUnderWay,
    number: u64,
}

impl Shown {
    fn begin(item: WorkItem) -> Option<Shown> {
        let work = SHOWN_ON.try_with(WorkUnderWay::clone).ok()?;
        let number = work.with(|(next, items)| {
            *next += 1;
            items.insert(*next, item);
            *next
        });
        Some(Shown { work, number })
    }

    fn advance(&self, documents: u64) {
        self.work.with(|(_, items)| {
            if let Some(item) = items.get_mut(&self.number) {
                item.done += documents;
                item.of = item.of.max(item.done);
            }
        });
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.work.with(|(_, items)| items.remove(&self.number));
    }
}

/// The progress of one operation; its bar disappears when this is dropped.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    doing: &'static str,
    logged: Instant,
    shown: Option<Shown>,
}

impl Progress {
    /// Starts at `done` of about `of` documents of `what`.
    pub fn start(doing: &'static str, what: String, done: u64, of: u64) -> Progress {
        let bar = ProgressBar::new(of.max(done));
        if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {per_sec} {eta}") {
            bar.set_style(style);
        }
        bar.set_message(format!("{doing} {what}"));
        bar.set_position(done);
        bar.reset_eta();
        let shown = Shown::begin(WorkItem {
            doing,
            what,
            done,
            of: of.max(done),
        });
        Progress {
            bar,
            doing,
            logged: Instant::now(),
            shown,
        }
    }

    /// The progress of an operation that isn't shown.
    pub fn none() -> Progress {
        Progress {
            bar: ProgressBar::hidden(),
            doing: "",
            logged: Instant::now(),
            shown: None,
        }
    }

    /// Adds this many documents to those that are done.
    pub fn advance(&mut self, documents: u64) {
        self.bar.inc(documents);
        // The number at the start was an estimate.
        if self.bar.length().is_some_and(|of| of < self.bar.position()) {
            self.bar.set_length(self.bar.position());
        }
        if let Some(shown) = &self.shown {
            shown.advance(documents);
        }
        if self.bar.is_hidden() && self.logged.elapsed() > LOG_EVERY {
            self.logged = Instant::now();
            let (done, of) = (self.bar.position(), self.bar.length());
            tracing::info!(what = self.bar.message(), done, of, "{}", self.doing);
        }
    }

    /// Runs `print`, which writes to the terminal, while the bar is hidden.
    pub fn aside(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_operation_is_shown_for_as_long_as_it_lasts_to_whom_it_concerns() {
        let (mine, others) = (WorkUnderWay::default(), WorkUnderWay::default());
        let shown = mine.clone();
        let during = mine.showing(async {
            let mut progress = Progress::start("backfilling", "shop.users email_1".to_owned(), 3, 10);
            progress.advance(4);
            shown.all()
        });
        let [item] = <[WorkItem; 1]>::try_from(during.await).unwrap();
        assert_eq!((item.doing, item.done, item.of), ("backfilling", 7, 10));
        let during = mine.showing(async {
            let mut progress = Progress::start("verifying", "shop.users email_1".to_owned(), 0, 3);
            progress.advance(5);
            (shown.all()[0].of, progress.bar.length())
        });
        assert_eq!(during.await, (5, Some(5)), "more than there were is no progress");
        assert_eq!((mine.all(), others.all()), (vec![], vec![]));
        drop(Progress::start("backfilling", String::new(), 0, 1));
    }
}
