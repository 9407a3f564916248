//! Looks after the certificates' files and goes on with new ones, without a restart.
//!
//! The contents are looked at, not their times: whatever renews them may replace a file, write into it, or turn a link.
//! They are few and small. A set that is tried and refused is said once, and not tried again before it changes.

use std::sync::Arc;
use std::time::Duration;

use super::files::Files;
use super::{Acceptor, Prepared};
use crate::metrics::Certificates;

/// How long to leave the files between two looks. Only what two looks have seen alike is tried: certificate and key are
/// rarely written in one moment.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Follows the files for as long as it runs.
pub async fn follow(acceptor: Arc<Acceptor>, reloads: Certificates) {
    let mut refused = None;
    let mut before = None;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let settings = acceptor.settings();
        let found = Files::read(&settings).map(|files| files.fingerprint()).ok();
        let is_settled = before.replace(found) == Some(found);
        if found == Some(acceptor.fingerprint()) {
            refused = None;
            continue;
        }
        if !is_settled || refused == Some(found) {
            continue;
        }
        match Prepared::load(settings) {
            Ok(prepared) => {
                acceptor.replace(prepared);
                reloads.done.inc();
                tracing::info!("new certificates are in use");
            }
            Err(error) => {
                reloads.failed.inc();
                tracing::error!(%error, "new certificates can't be used, the old ones stay");
                refused = Some(found);
            }
        }
    }
}
