//! Lists why a command fails, and with which exit code.

use std::path::{Path, PathBuf};

use super::Exit;
use crate::config::Problems;
use crate::instance::StartError;
use crate::known_constraints::ChangeRefusal;
use crate::prepare::{PrepareError, Reports};
use crate::shard::ShardRefusal;
use crate::telemetry::TelemetryError;

/// Why the process ends otherwise than it was asked to.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliFailure {
    #[error(transparent)]
    Config(#[from] Problems),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error("the process can't be set up: {0}")]
    System(#[from] std::io::Error),
    #[error(transparent)]
    Start(#[from] StartError),
    /// A start finds that existing documents violate constraints of the file.
    #[error("{reports}{way_out}", way_out = whole_report(.file))]
    Duplicates { reports: Reports, file: PathBuf },
    #[error("the report can't be written to {path}: {error}", path = path.display())]
    Report { path: PathBuf, error: std::io::Error },
    #[error(transparent)]
    Change(#[from] ChangeRefusal),
    #[error(transparent)]
    Shard(Box<ShardRefusal>),
    #[error("{0} has no constraint, neither in the configuration nor of a client")]
    Collection(String),
}

impl From<ShardRefusal> for CliFailure {
    fn from(refusal: ShardRefusal) -> CliFailure {
        CliFailure::Shard(Box::new(refusal))
    }
}

/// How to get the whole report of the constraints in this file.
fn whole_report(file: &Path) -> String {
    format!(
        "\n`keyward backfill --config {} --dry-run --report FILE` writes the whole report to a file, with up to 1000 keys of each \
         constraint",
        file.display()
    )
}

impl CliFailure {
    /// The failure of a start with the configuration in `file`.
    pub(super) fn of_start(error: StartError, file: &Path) -> CliFailure {
        match error {
            StartError::Prepare(PrepareError::Duplicates(reports)) => CliFailure::Duplicates {
                reports,
                file: file.to_owned(),
            },
            error => CliFailure::Start(error),
        }
    }

    pub(super) fn exit(&self) -> Exit {
        match self {
            CliFailure::Config(_) | CliFailure::Telemetry(_) => Exit::Config,
            CliFailure::System(_) | CliFailure::Report { .. } | CliFailure::Start(StartError::Listen { .. }) => {
                Exit::System
            }
            CliFailure::Start(StartError::Prepare(
                PrepareError::OtherDefinition { .. }
                | PrepareError::SamePlace { .. }
                | PrepareError::OtherStrategy { .. }
                | PrepareError::BeingRemoved(_),
            )) => Exit::Config,
            CliFailure::Start(StartError::Tls(_)) => Exit::Config,
            CliFailure::Duplicates { .. } | CliFailure::Start(StartError::Prepare(PrepareError::Duplicates(_))) => {
                Exit::Duplicates
            }
            CliFailure::Start(StartError::Setup(_) | StartError::Refused(_) | StartError::Prepare(_)) => Exit::Upstream,
            CliFailure::Change(ChangeRefusal::Store(_)) => Exit::Upstream,
            CliFailure::Change(_) => Exit::Findings,
            CliFailure::Shard(refusal) => match **refusal {
                ShardRefusal::Store(_) | ShardRefusal::Prepare(PrepareError::Store(_)) => Exit::Upstream,
                _ => Exit::Findings,
            },
            CliFailure::Collection(_) => Exit::Unsure,
        }
    }

    /// Prints it on standard error.
    pub(super) fn print(&self) {
        match self {
            // Each problem begins with file and line, for editors to jump there.
            CliFailure::Config(problems) => eprintln!("{problems}"),
            other => eprintln!("keyward: {other}"),
        }
    }
}
