//! Installs pinned packages from PyPI into a folder, with the machine's own Python 3 and pip.

use std::path::Path;
use std::process::Command;

use super::{FetchError, progress, run};

/// Puts `requirement` and, if asked, what it depends on into `folder`; `what` tells a person what is being fetched.
pub fn install(
    requirement: &str,
    dependencies: Dependencies,
    folder: &Path,
    what: &'static str,
) -> Result<(), FetchError> {
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-compile",
        "--target",
    ])
    .arg(folder);
    if dependencies == Dependencies::Without {
        pip.arg("--no-deps");
    }
    pip.arg(requirement);
    progress::announced(what, || run(pip, what)).map(drop)
}

/// Whether a package comes with what it depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dependencies {
    /// All of it.
    With,
    /// The package alone.
    Without,
}
