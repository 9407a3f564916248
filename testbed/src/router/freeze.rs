//! Keeps the router's threads from running anything for a while: what SIGSTOP does to a process.
//!
//! The kernel goes on accepting connections and taking bytes for it; nothing is read and nothing answered.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier};

use tokio::runtime::Handle;

/// A router that stands still; dropping this lets it go on.
#[derive(Debug)]
pub struct Frozen {
    _release: Vec<Sender<()>>,
}

/// Occupies every one of the runtime's `threads` with a task that waits, and returns once all do.
pub fn freeze(runtime: &Handle, threads: usize) -> Frozen {
    let all_occupied = Arc::new(Barrier::new(threads + 1));
    let occupy = |_| {
        let (release, released) = channel::<()>();
        let all_occupied = Arc::clone(&all_occupied);
        runtime.spawn(async move {
            all_occupied.wait();
            // Nothing is ever sent: this ends when the other end is dropped.
            let _ = released.recv();
        });
        release
    };
    let release = (0..threads).map(occupy).collect();
    all_occupied.wait();
    Frozen { _release: release }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
