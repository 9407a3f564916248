//! Keeps the router's threads from running anything for a while: what SIGSTOP does to a process.
//!
//! The kernel goes on accepting connections and taking bytes for it; nothing is read and nothing answered.

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use tokio::runtime::Handle;

/// A router that stands still; dropping this lets it go on.
#[derive(Debug)]
pub struct Frozen {
    _release: Vec<Sender<()>>,
}

/// How long a thread may leave what lies in front of another one that is occupied, before it is woken.
const WAKE_AFTER: Duration = Duration::from_millis(20);

/// Occupies every one of the runtime's `threads` with a task that waits, and returns once all do.
pub fn freeze(runtime: &Handle, threads: usize) -> Frozen {
    let (occupied, is_occupied) = channel();
    let occupy = |_| {
        let (release, released) = channel::<()>();
        let occupied = occupied.clone();
        runtime.spawn(async move {
            // Whoever freezes waits for it.
            let _ = occupied.send(());
            // Nothing is ever sent: this ends when the other end is dropped.
            let _ = released.recv();
        });
        release
    };
    let release = (0..threads).map(occupy).collect();
    let mut left = threads;
    while left > 0 {
        match is_occupied.recv_timeout(WAKE_AFTER) {
            Ok(()) => left -= 1,
            // One thread may have taken two of the tasks, and another have gone to sleep before it could take one from it.
            Err(_) => drop(runtime.spawn(async {})),
        }
    }
    Frozen { _release: release }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_runs_until_it_goes_on() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build()
            .unwrap();
        let frozen = freeze(runtime.handle(), 2);
        let (ran, runs) = channel();
        runtime.spawn(async move { ran.send(()) });
        assert!(runs.recv_timeout(Duration::from_millis(50)).is_err());
        drop(frozen);
        runs.recv_timeout(Duration::from_secs(10)).unwrap();
    }
}
