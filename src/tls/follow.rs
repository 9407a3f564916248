//! Watches the certificates' files and uses new ones without a restart.
//!
//! It compares the files' contents, not their times, because a renewal may replace a file, write into it, or change a
//! link. The files are few and small, so this is cheap. If a set of files is refused, it is logged once, and not tried
//! again until it changes.

use std::sync::Arc;
use std::time::Duration;

use super::files::Files;
use super::{Acceptor, Prepared};
use crate::metrics::Certificates;

/// The time between two looks at the files.
///
/// Certificate and key are rarely written at the same moment. So a new set is tried only if two looks in a row find the
/// same content.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Watches the files for as long as it runs.
pub async fn follow(acceptor: Arc<Acceptor>, reloads: Certificates) {
    let mut refused = None;
    let mut before = None;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let settings = acceptor.settings();
        let found = Files::read(&settings).map(|files| files.fingerprint()).ok();
        let is_unchanged = before.replace(found) == Some(found);
        if found == Some(acceptor.fingerprint()) {
            if refused.take().is_some() {
                tracing::info!("the files have the certificates in use again");
                reloads.is_refused.set(0);
            }
            continue;
        }
        if !is_unchanged || refused == Some(found) {
            continue;
        }
        match Prepared::load(settings) {
            Ok(prepared) => {
                acceptor.replace(prepared);
                refused = None;
                reloads.done.inc();
                reloads.is_refused.set(0);
                tracing::info!("new certificates are in use");
            }
            Err(error) => {
                reloads.failed.inc();
                reloads.is_refused.set(1);
                tracing::error!(%error, "new certificates can't be used, the old ones stay");
                refused = Some(found);
            }
        }
    }
}
