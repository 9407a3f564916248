//! Measures how long a future works itself, as opposed to the time that it waits.

use std::future::poll_fn;
use std::pin::pin;
use std::time::{Duration, Instant};

/// Runs `future`; what it gives, and the time that passed while it was at work.
pub(super) async fn measured<F: Future>(future: F) -> (F::Output, Duration) {
    let mut future = pin!(future);
    let mut own = Duration::ZERO;
    let output = poll_fn(|context| {
        let began = Instant::now();
        let poll = future.as_mut().poll(context);
        own += began.elapsed();
        poll
    });
    let output = output.await;
    (output, own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spend(time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {}
    }

    #[tokio::test]
    async fn what_it_waits_does_not_count() {
        let (work, wait) = (Duration::from_millis(2), Duration::from_millis(20));
        let mut polls = 0;
        let began = Instant::now();
        let both = futures_util::future::join(
            measured(async {
                spend(work);
                tokio::task::yield_now().await;
                spend(work);
                "done"
            }),
            // Has its turn while the other one waits for its own.
            poll_fn(|_| {
                polls += 1;
                spend(wait);
                std::task::Poll::Ready(())
            }),
        );
        let ((output, own), ()) = both.await;
        assert_eq!((output, polls), ("done", 1));
        assert!(own >= 2 * work, "{own:?}");
        assert!(own + wait <= began.elapsed(), "{own:?}");
    }
}
