//! The folder of one cluster's data and logs: a temporary one that is removed with the cluster, or a given one that stays.
//!
//! A process killed with -9, or one that ends with a cluster in a static, can't remove its temporary folder. So each
//! holds a lock on a file in its own, and whoever makes the next one removes those that nobody holds any more.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use tempfile::TempDir;

use super::ProcessError;

const PREFIX: &str = "keyward-testbed-";
const LOCK_FILE: &str = "in-use";

/// Where a cluster keeps its data and logs.
#[derive(Debug)]
pub struct Workspace {
    path: PathBuf,
    temporary: Option<(Flock<File>, TempDir)>,
}

impl Workspace {
    /// A new temporary folder, removed on drop; folders of processes that are gone are removed now.
    ///
    /// # Errors
    /// [`ProcessError::File`] if it can't be made.
    pub fn temporary() -> Result<Workspace, ProcessError> {
        let parent = std::env::temp_dir();
        remove_abandoned(&parent);
        let failed = |source| ProcessError::File {
            path: parent.clone(),
            source,
        };
        let folder = tempfile::Builder::new()
            .prefix(PREFIX)
            .tempdir_in(&parent)
            .map_err(failed)?;
        let file = File::create(folder.path().join(LOCK_FILE)).map_err(failed)?;
        let lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| failed(errno.into()))?;
        Ok(Workspace {
            path: folder.path().to_owned(),
            temporary: Some((lock, folder)),
        })
    }

    /// The folder `path`, made if it isn't there; it must be empty, and it stays when the cluster ends.
    ///
    /// # Errors
    /// [`ProcessError::File`] if it can't be made or read, [`ProcessError::FolderInUse`] if it isn't empty.
    pub fn kept(path: &Path) -> Result<Workspace, ProcessError> {
        let failed = |source| ProcessError::File {
            path: path.to_owned(),
            source,
        };
        fs::create_dir_all(path).map_err(failed)?;
        if fs::read_dir(path).map_err(failed)?.next().is_some() {
            return Err(ProcessError::FolderInUse(path.to_owned()));
        }
        Ok(Workspace {
            path: path.canonicalize().map_err(failed)?,
            temporary: None,
        })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the folder goes when this value is dropped.
    pub fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }
}

/// Removes the temporary folders below `parent` whose maker is gone. What can't be removed is left: it is a nuisance,
/// not an error.
fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(PREFIX) && is_abandoned(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A folder without the lock file is one that is being made right now (or no workspace at all).
fn is_abandoned(folder: &Path) -> bool {
    let Ok(file) = File::open(folder.join(LOCK_FILE)) else {
        return false;
    };
    Flock::lock(file, FlockArg::LockExclusiveNonblock).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abandoned_folders_go_and_others_stay() {
        let parent = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let path = parent.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (abandoned, held, new, foreign) = (
            folder("keyward-testbed-1"),
            folder("keyward-testbed-2"),
            folder("keyward-testbed-3"),
            folder("something-else"),
        );
        File::create(abandoned.join(LOCK_FILE)).unwrap();
        File::create(foreign.join(LOCK_FILE)).unwrap();
        let lock = Flock::lock(
            File::create(held.join(LOCK_FILE)).unwrap(),
            FlockArg::LockExclusiveNonblock,
        )
        .unwrap();
        remove_abandoned(parent.path());
        assert!(!abandoned.exists());
        assert!(held.exists() && new.exists() && foreign.exists());
        drop(lock);
    }

    #[test]
    fn a_kept_folder_must_be_empty_and_stays() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/b");
        drop(Workspace::kept(&path).unwrap());
        assert!(path.exists());
        File::create(path.join("x")).unwrap();
        assert!(matches!(Workspace::kept(&path), Err(ProcessError::FolderInUse(_))));
    }
}
