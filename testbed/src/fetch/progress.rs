//! Tells whoever waits for a download that it is one: a spinner on a terminal, else a line at its start and its end.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

/// Runs `work`, saying on standard error that `what` is under way.
pub fn announced<T, E>(what: &str, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    if std::io::stderr().is_terminal() {
        let spinner = ProgressBar::new_spinner().with_message(what.to_owned());
        spinner.enable_steady_tick(Duration::from_millis(100));
        let result = work();
        spinner.finish_and_clear();
        return result;
    }
    let start = Instant::now();
    eprintln!("testbed: {what} …");
    let result = work();
    let outcome = if result.is_ok() { "done" } else { "failed" };
    eprintln!(
        "testbed: {what}: {outcome} after {:.1} s",
        start.elapsed().as_secs_f32()
    );
    result
}
