//! Python environments of their own with pinned packages, for tests that drive a real driver or another tool; and the sources
//! of such packages.

use std::fs;
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
    python_with(&[PYMONGO])
}

/// As [`python`], with other packages, each as `name==version`.
///
/// # Errors
/// As [`python`].
pub fn python_with(packages: &[&str]) -> Result<PathBuf, FetchError> {
    let entry = format!("python-{}", packages.join("-").replace("==", "-"));
    Ok(cache::entry(&entry, |folder| make(folder, packages))?.join("bin/python"))
}

/// A folder with the folder `part` of the source distribution of `package` (`name==version`), whose archive has this SHA-256.
///
/// # Errors
/// As [`python`], and if the archive is another one.
pub fn python_source(package: &str, sha256: &str, part: &str) -> Result<PathBuf, FetchError> {
    let name = package.replace("==", "-");
    cache::entry(&format!("source-{name}-{part}"), |folder| {
        let failed = |source| FetchError::File {
            path: folder.to_owned(),
            source,
        };
        let unpacked = folder.join("unpacked");
        fs::create_dir(&unpacked).map_err(failed)?;
        let what = "fetching a Python package's source from PyPI (once)";
        pip::unpack_source(package, sha256, &unpacked, what)?;
        fs::rename(unpacked.join(&name).join(part), folder.join(part)).map_err(failed)?;
        fs::remove_dir_all(&unpacked).map_err(failed)
    })
}

/// Without pip of its own: some systems' Python has no `ensurepip`. The machine's pip fills it.
fn make(folder: &Path, packages: &[&str]) -> Result<(), FetchError> {
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv", "--without-pip"]).arg(folder);
    run(venv, "making a Python environment")?;
    let mut ask = Command::new(folder.join("bin/python"));
    ask.args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]);
    let place = run(ask, "finding the environment's packages")?;
    pip::install(
        packages,
        Dependencies::With,
        Path::new(place.trim()),
        "fetching a Python package from PyPI (once)",
    )
}
