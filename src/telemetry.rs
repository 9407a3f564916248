//! The log: `tracing` events as lines on standard error, for people or one JSON object each.
//!
//! What is logged follows `log.level`; the environment variable `KEYWARD_LOG` goes before it, so that one process can
//! be looked into without touching its file. Events carry values as fields; none of them carries a client's documents.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::config::{Log, LogFormat};

/// The environment variable that goes before `log.level`.
pub const LEVEL_VARIABLE: &str = "KEYWARD_LOG";

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The level isn't one; the file's was checked before, so this is the environment variable's.
    #[error("the environment variable {LEVEL_VARIABLE} is no log level: {0}")]
    Level(#[from] ParseError),
    /// Something in this process logs already.
    #[error("the log was started twice")]
    StartedTwice,
}

/// Starts the log of this process.
///
/// # Errors
/// [`TelemetryError`] if the level can't be read or the log has been started before.
pub fn start(log: &Log) -> Result<(), TelemetryError> {
    let level = std::env::var(LEVEL_VARIABLE).unwrap_or_else(|_| log.level.clone());
    let lines = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::builder().parse(level)?)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match log.format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    }
    .map_err(|_| TelemetryError::StartedTwice)
}
