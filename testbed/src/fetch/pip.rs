//! Installs pinned packages from PyPI into a folder, with the machine's own Python 3 and pip.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{FetchError, progress, run};

/// Puts `requirements` and, if asked, what they depend on into `folder`; `what` tells a person what is being fetched.
pub fn install(
    requirements: &[&str],
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
    pip.args(requirements);
    progress::announced(what, || run(pip, what)).map(drop)
}

/// Unpacks the source distribution of `package` (`name==version`), which must have that SHA-256, into `folder`.
pub fn unpack_source(package: &str, sha256: &str, folder: &Path, what: &'static str) -> Result<(), FetchError> {
    let failed = |source| FetchError::File {
        path: folder.to_owned(),
        source,
    };
    let name = package.split("==").next().unwrap_or(package);
    let requirement = folder.join("requirement.txt");
    fs::write(&requirement, format!("{package} --hash=sha256:{sha256}\n")).map_err(failed)?;
    let archives = folder.join("archives");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check"])
        .args(["--no-deps", "--no-binary", name, "--require-hashes", "--dest"])
        .arg(&archives)
        .arg("--requirement")
        .arg(&requirement);
    progress::announced(what, || run(pip, what))?;
    for archive in fs::read_dir(&archives).map_err(failed)? {
        let mut unpack = Command::new("python3");
        unpack.args(["-m", "tarfile", "--extract"]);
        unpack.arg(archive.map_err(failed)?.path()).arg(folder);
        run(unpack, "unpacking a source distribution")?;
    }
    fs::remove_dir_all(&archives).map_err(failed)
}

/// Whether a package comes with what it depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dependencies {
    /// All of it.
    With,
    /// The package alone.
    Without,
}
