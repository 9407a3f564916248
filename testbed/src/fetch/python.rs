//! Python environments of their own with one pinned package each, for tests that drive a real driver or another tool.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::pip::{self, Dependencies};
use super::{FetchError, cache, run};

const PYMONGO: &str = "pymongo==4.20.0";

/// The Python program of an environment that holds `pymongo`, made in the cache if it isn't there yet.
///
/// # Errors
/// [`FetchError`] if there is no Python 3 with pip, or PyPI can't be reached.
pub fn python() -> Result<PathBuf, FetchError> {
    python_with(PYMONGO)
}

/// As [`python`], with another package, as `name==version`.
///
/// # Errors
/// As [`python`].
pub fn python_with(package: &str) -> Result<PathBuf, FetchError> {
    let entry = format!("python-{}", package.replace("==", "-"));
    Ok(cache::entry(&entry, |folder| make(folder, package))?.join("bin/python"))
}

/// Without pip of its own: some systems' Python has no `ensurepip`. The machine's pip fills it.
fn make(folder: &Path, package: &str) -> Result<(), FetchError> {
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv", "--without-pip"]).arg(folder);
    run(venv, "making a Python environment")?;
    let mut ask = Command::new(folder.join("bin/python"));
    ask.args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]);
    let packages = run(ask, "finding the environment's packages")?;
    pip::install(
        package,
        Dependencies::With,
        Path::new(packages.trim()),
        "fetching a Python package from PyPI (once)",
    )
}
