//! Handles the signals of the process: SIGTERM and SIGINT ask it to end, SIGHUP to load its configuration again.

use std::fmt;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Which signal came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// SIGINT, from a terminal.
    Interrupt,
    /// SIGTERM, from the manager of the process.
    Terminate,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ending::Interrupt => "SIGINT",
            Ending::Terminate => "SIGTERM",
        })
    }
}

/// The signals of this process from now on; without it they end the process at once.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    /// Takes the signals over; needs a tokio runtime.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn take_over() -> std::io::Result<Self> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one that asks for the end, or for a SIGHUP (`None`).
    pub async fn any(&mut self) -> Option<Ending> {
        tokio::select! {
            _ = self.interrupt.recv() => Some(Ending::Interrupt),
            _ = self.terminate.recv() => Some(Ending::Terminate),
            _ = self.hang_up.recv() => None,
        }
    }

    /// Waits for the next one that asks for the end.
    pub async fn next(&mut self) -> Ending {
        tokio::select! {
            _ = self.interrupt.recv() => Ending::Interrupt,
            _ = self.terminate.recv() => Ending::Terminate,
        }
    }
}
