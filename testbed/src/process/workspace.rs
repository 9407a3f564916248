//! The folder of one cluster's data and logs: a temporary one that is removed with the cluster, or a given one that stays.
//!
//! A process killed with -9, or one that ends with a cluster in a static, can't remove its temporary folder. So a small
//! shell does it: it waits for the end of a pipe that only this process holds open.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::statvfs::statvfs;

use super::ProcessError;

/// Servers that are being killed may still make a file while their folder is removed: then it is tried again.
const REMOVE_AT_END_OF_INPUT: &str =
    r#"trap '' HUP INT TERM; cat; for try in 1 2 3 4 5; do rm -rf -- "$0" && exit; sleep 0.2; done"#;

/// A file system in memory. A server that is killed loses nothing there, as on a disk; only each `fsync` takes no time.
const MEMORY: &str = "/dev/shm";
/// With less free than this, temporary folders are on the disk. The clusters of a whole test run take about a quarter of it.
const MEMORY_MIN: u64 = 6 << 30;

static ON_DISK: AtomicBool = AtomicBool::new(false);

/// Puts the temporary folders of this process on the disk from now on. Benchmarks and `testbed up` call it: a
/// write to a real deployment waits for a disk.
pub fn use_disk() {
    ON_DISK.store(true, Ordering::Relaxed);
}

/// Where temporary folders are.
fn temporary_parent() -> PathBuf {
    let is_large = || statvfs(MEMORY).is_ok_and(|free| free.blocks_available() * free.fragment_size() >= MEMORY_MIN);
    match !ON_DISK.load(Ordering::Relaxed) && is_large() {
        true => PathBuf::from(MEMORY),
        false => std::env::temp_dir(),
    }
}

/// Where a cluster keeps its data and logs.
#[derive(Debug)]
pub struct Workspace {
    path: PathBuf,
    remover: Option<Child>,
}

impl Workspace {
    /// A new temporary folder, in memory if there is room (see [`use_disk`]). It is removed on drop and when this process ends, however it ends.
    ///
    /// # Errors
    /// [`ProcessError::File`] if it can't be made.
    pub fn temporary() -> Result<Workspace, ProcessError> {
        let parent = temporary_parent();
        let failed = |source| ProcessError::File {
            path: parent.clone(),
            source,
        };
        let folder = tempfile::Builder::new()
            .prefix("keyward-testbed-")
            .tempdir_in(&parent)
            .map_err(failed)?;
        let mut remover = Command::new("sh");
        remover.args(["-c", REMOVE_AT_END_OF_INPUT]).arg(folder.path());
        remover
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // Out of reach of a terminal's Ctrl-C, which is meant for the testbed.
        let remover = remover.process_group(0).spawn().map_err(failed)?;
        Ok(Workspace {
            path: folder.keep(),
            remover: Some(remover),
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
            remover: None,
        })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if let Some(remover) = &mut self.remover {
            drop(remover.stdin.take());
            let _ = remover.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_folder_goes_with_what_is_in_it() {
        let workspace = Workspace::temporary().unwrap();
        let path = workspace.path().to_owned();
        fs::write(path.join("x"), "x").unwrap();
        drop(workspace);
        assert!(!path.exists());
    }

    #[test]
    fn a_kept_folder_must_be_empty_and_stays() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/b");
        drop(Workspace::kept(&path).unwrap());
        assert!(path.exists());
        fs::write(path.join("x"), "x").unwrap();
        assert!(matches!(Workspace::kept(&path), Err(ProcessError::FolderInUse(_))));
    }
}
