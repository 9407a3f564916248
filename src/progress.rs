//! Shows the progress of a long operation: a bar on a terminal, log lines elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

/// How often progress is logged.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// The progress of one operation; its bar disappears when this is dropped.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    doing: &'static str,
    logged: Instant,
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
        let logged = Instant::now();
        Progress { bar, doing, logged }
    }

    /// Of an operation whose progress nobody sees.
    pub fn none() -> Progress {
        Progress {
            bar: ProgressBar::hidden(),
            doing: "",
            logged: Instant::now(),
        }
    }

    /// Adds this many documents to those that are done.
    pub fn advance(&mut self, documents: u64) {
        self.bar.inc(documents);
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
