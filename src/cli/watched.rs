//! Watches the configuration file for changes.
//!
//! It reads the file at intervals. That works on every file system, and also where another file replaces it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::{Config, Problems};

/// The file, and what it held when it was last loaded.
pub(super) struct Watched {
    file: PathBuf,
    loaded: Option<Vec<u8>>,
}

impl Watched {
    /// About to be loaded for the first time.
    pub(super) fn new(file: &Path) -> Watched {
        Watched {
            file: file.to_owned(),
            loaded: std::fs::read(file).ok(),
        }
    }

    /// Loads it, whatever it holds.
    pub(super) fn load(&mut self) -> Result<Config, Problems> {
        self.loaded = std::fs::read(&self.file).ok();
        Config::load(&self.file)
    }

    /// Ends when it holds something else than when it was last loaded, and the same twice: it might be half written.
    ///
    /// - Cancel: at any time.
    pub(super) async fn changed(&self, interval: Duration) {
        if interval.is_zero() {
            return std::future::pending().await;
        }
        let mut last = None;
        loop {
            tokio::time::sleep(interval).await;
            // A file that isn't there is about to be replaced.
            let now = std::fs::read(&self.file)
                .ok()
                .filter(|now| self.loaded.as_ref() != Some(now));
            if now.is_some() && now == last {
                return;
            }
            last = now;
        }
    }
}
