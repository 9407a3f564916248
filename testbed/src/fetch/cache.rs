//! The folder where what the testbed fetches stays from run to run, and the locks that let several processes share it.
//!
//! An entry is built in a staging folder beside its place and renamed there when it is whole: a crash midway leaves
//! nothing that looks finished.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::FetchError;

const NAME: &str = "keyward-testbed";

/// The cache's folder `name`, made if it isn't there: below `$XDG_CACHE_HOME`, else below `~/.cache`.
///
/// # Errors
/// [`FetchError::NoCache`] if neither variable is set, [`FetchError::File`] if it can't be made.
pub fn folder(name: &str) -> Result<PathBuf, FetchError> {
    let set = |variable| {
        std::env::var_os(variable)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let base = set("XDG_CACHE_HOME")
        .or_else(|| Some(set("HOME")?.join(".cache")))
        .ok_or(FetchError::NoCache)?;
    let path = base.join(NAME).join(name);
    fs::create_dir_all(&path).map_err(|source| FetchError::File {
        path: path.clone(),
        source,
    })?;
    Ok(path)
}

/// The entry `name`, made by `build` if it isn't there yet.
///
/// `build` fills the empty folder it is given. One process at a time builds an entry; the others wait and then find it.
///
/// # Errors
/// Those of `build`, and [`FetchError::File`].
pub fn entry(name: &str, build: impl FnOnce(&Path) -> Result<(), FetchError>) -> Result<PathBuf, FetchError> {
    let home = folder("entries")?;
    let place = home.join(name);
    if place.exists() {
        return Ok(place);
    }
    let failed = |source| FetchError::File {
        path: place.clone(),
        source,
    };
    let file = File::create(home.join(format!("{name}.lock"))).map_err(failed)?;
    let lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| failed(errno.into()))?;
    if !place.exists() {
        let staging = home.join(format!("{name}.staging"));
        remove_if_there(&staging).map_err(failed)?;
        fs::create_dir(&staging).map_err(failed)?;
        build(&staging)?;
        fs::rename(&staging, &place).map_err(failed)?;
    }
    drop(lock);
    Ok(place)
}

/// What a builder that was killed has left.
fn remove_if_there(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
