//! Lists the reasons why a command fails, and the exit code of each.

use super::Exit;
use crate::config::Problems;
use crate::instance::StartError;
use crate::prepare::PrepareError;
use crate::telemetry::TelemetryError;

/// Why the process ends otherwise than it was asked to.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Config(#[from] Problems),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error("the process can't be set up: {0}")]
    System(#[from] std::io::Error),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("{0} is none of the collections in the configuration")]
    Collection(String),
}

impl Failure {
    pub(super) fn exit(&self) -> Exit {
        match self {
            Failure::Config(_) | Failure::Telemetry(_) => Exit::Config,
            Failure::System(_) | Failure::Start(StartError::Listen { .. }) => Exit::System,
            Failure::Start(StartError::Prepare(
                PrepareError::OtherDefinition { .. }
                | PrepareError::SamePlace { .. }
                | PrepareError::OtherStrategy { .. },
            )) => Exit::Config,
            Failure::Start(StartError::Tls(_)) => Exit::Config,
            Failure::Start(StartError::Prepare(PrepareError::Duplicates(_))) => Exit::Duplicates,
            Failure::Start(StartError::Setup(_) | StartError::Refused(_) | StartError::Prepare(_)) => Exit::Upstream,
            Failure::Collection(_) => Exit::Unsure,
        }
    }

    /// Says it on standard error.
    pub(super) fn print(&self) {
        match self {
            // Each problem begins with file and line, for editors to jump there.
            Failure::Config(problems) => eprintln!("{problems}"),
            other => eprintln!("keyward: {other}"),
        }
    }
}
