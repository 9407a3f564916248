//! What can go wrong with a throwaway cluster, by the stage at which it went wrong.

use crate::command::CommandError;
use crate::fetch::FetchError;
use crate::process::ProcessError;

/// Why the cluster, or one of its parts, couldn't be started or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program or package could not be had.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// A server process could not be started, stopped or reached.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A server refused a command, or didn't answer it.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The router could not be started.
    #[error("the router could not be started on 127.0.0.1:{port}")]
    Router {
        /// Where it should have listened.
        port: u16,
        /// The cause.
        source: std::io::Error,
    },
    /// The testbed's own process is at fault: its output is closed, or a signal handler can't be set.
    #[error("the testbed's own process failed")]
    Own(#[from] std::io::Error),
    /// A deadline passed.
    #[error("{what} did not happen within {seconds} s")]
    DeadlinePassed {
        /// What was waited for.
        what: String,
        /// For how long.
        seconds: u64,
    },
    /// The request makes no sense for this cluster.
    #[error("{0} is not part of this cluster")]
    UnknownPart(String),
}
