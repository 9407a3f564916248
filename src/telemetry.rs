//! The log: `tracing` events as lines on standard error, for people or one JSON object each.
//!
//! What is logged follows `log.level`; the environment variable `KEYWARD_LOG` goes before it, so that one process can
//! be looked into without touching its file. Events carry values as fields; none of them carries a client's documents.

use std::io::IsTerminal;

use tracing_subscriber::filter::ParseError;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

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

/// What is logged; can be changed as long as the process lives.
#[derive(Debug, Clone)]
pub struct Level {
    filter: reload::Handle<EnvFilter, Registry>,
}

impl Level {
    /// Has `log.level` hold from now on, unless the environment variable goes before it.
    pub fn set(&self, log: &Log) {
        // The level was checked with the configuration, and the log lives as long as the process.
        if std::env::var_os(LEVEL_VARIABLE).is_none()
            && let Ok(filter) = EnvFilter::builder().parse(&log.level)
            && let Err(error) = self.filter.reload(filter)
        {
            tracing::warn!(%error, "the log level could not be changed");
        }
    }
}

/// Starts the log of this process.
///
/// # Errors
/// [`TelemetryError`] if the level can't be read or the log has been started before.
pub fn start(log: &Log) -> Result<Level, TelemetryError> {
    let level = std::env::var(LEVEL_VARIABLE).unwrap_or_else(|_| log.level.clone());
    let (filtered, filter) = reload::Layer::new(EnvFilter::builder().parse(level)?);
    let lines = fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filtered);
    match log.format {
        LogFormat::Text => registry.with(lines).try_init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    }
    .map_err(|_| TelemetryError::StartedTwice)?;
    Ok(Level { filter })
}
