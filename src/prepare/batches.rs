//! Runs several batches at a time and processes their results in order.

use std::future::ready;

use futures_util::stream::{TryStream, TryStreamExt};
use tokio::sync::mpsc;
use tokio::try_join;

/// Runs the futures of `batches`, `at_once` at a time, and calls `note` with their results, in order.
///
/// Both are driven at the same time. Otherwise a batch could be next in line for a lock that the note needs, too, such
/// as a lock of the driver's sessions. Then neither would ever continue.
///
/// # Errors
/// The first error of a batch or a note; other batches under way are dropped.
pub(super) async fn in_order<S, F, T, E>(
    batches: S,
    at_once: usize,
    mut note: impl AsyncFnMut(T) -> Result<(), E>,
) -> Result<(), E>
where
    S: TryStream<Ok = F, Error = E>,
    F: Future<Output = Result<T, E>>,
{
    let (done, mut noted) = mpsc::unbounded_channel();
    let run = async move {
        let outcomes = batches.try_buffered(at_once);
        // Sending fails only if a note has failed.
        outcomes
            .try_for_each(|outcome| {
                let _ = done.send(outcome);
                ready(Ok(()))
            })
            .await
    };
    let note_all = async {
        while let Some(outcome) = noted.recv().await {
            note(outcome).await?;
        }
        Ok(())
    };
    try_join!(run, note_all).map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::stream;
    use tokio::sync::Mutex;
    use tokio::task::yield_now;
    use tokio::time::timeout;

    use super::*;

    /// Like the driver's sessions: one lock, granted in the order of the requests.
    async fn use_a_session(sessions: &Mutex<()>) {
        let _held = sessions.lock().await;
        yield_now().await;
    }

    #[tokio::test]
    async fn batches_and_notes_that_need_one_lock_go_on() {
        let sessions = Mutex::new(());
        let batches = stream::iter((0..20).map(|number| {
            let sessions = &sessions;
            Ok::<_, ()>(async move {
                // The batches end in another order.
                for _ in 0..=(number * 7) % 5 {
                    use_a_session(sessions).await;
                }
                Ok(number)
            })
        }));
        let mut noted = Vec::new();
        let note = async |number| {
            use_a_session(&sessions).await;
            noted.push(number);
            Ok(())
        };
        let ended = timeout(Duration::from_secs(30), in_order(batches, 4, note)).await;
        assert_eq!(ended, Ok(Ok(())), "a batch and a note wait for each other");
        assert_eq!(noted, (0..20).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn the_first_error_ends_it() {
        let batches = |wrong| {
            stream::iter((0..9).map(move |number| Ok(ready(if number == wrong { Err("batch") } else { Ok(number) }))))
        };
        let mut noted = Vec::new();
        let note = async |number| {
            noted.push(number);
            Ok(())
        };
        assert_eq!(in_order(batches(5), 2, note).await, Err("batch"));
        assert!(noted.iter().all(|number| *number < 5), "{noted:?}");
        let note = async |number| if number == 3 { Err("note") } else { Ok(()) };
        assert_eq!(in_order(batches(9), 2, note).await, Err("note"));
    }
}
